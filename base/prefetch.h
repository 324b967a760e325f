// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// prefetch.h - asks the CPU for a cache line that will be read or written soon.

#ifndef AULE_PREFETCH_H
#define AULE_PREFETCH_H

// `at` may be any address. GCC 12 takes a function that does nothing but prefetch for one without
// effect, and removes all calls of it; it keeps a function with the empty assembler line.
static inline void prefetch(const void *at)
{
    __builtin_prefetch(at, 1);
    __asm__ volatile("" : : "r"(at));
}

#endif
