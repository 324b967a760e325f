// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// failing_memory.h - allocations that fail when a test says so. The linker redirects malloc and its
// kin here: link the sources and options of failing_memory() in tests/CMakeLists.txt. Each thread
// counts for itself.

#ifndef AULE_TESTS_FAILING_MEMORY_H
#define AULE_TESTS_FAILING_MEMORY_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

// The n-th allocation of this thread from now on fails; 0: none does. A test must not assert
// while this is set: Check's assertions allocate.
extern _Thread_local uint64_t failing_countdown;
extern atomic_uint failing_count; // how many have failed; the test resets it

// For a fake whose own allocations must not fail.
void *__real_calloc(size_t count, size_t size);

#endif
