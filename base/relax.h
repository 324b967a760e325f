// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// relax.h - what a thread does between two polls of a word that another thread writes.

#ifndef AULE_RELAX_H
#define AULE_RELAX_H

// Leaves the core to its other hardware thread for a moment.
static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
