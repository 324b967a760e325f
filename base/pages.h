// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pages.h - zeroed memory straight from the kernel, in large pages where it has them. A read that
// misses the CPU's caches then spares the walk of the page table.

#ifndef AULE_PAGES_H
#define AULE_PAGES_H

#include <stdbool.h>
#include <stddef.h>

#define PAGES_LARGE ((size_t)1 << 21)

// `size` bytes, zeroed. From PAGES_LARGE on they begin at a multiple of it; `large` asks for large
// pages, of which the kernel takes a whole one at its first use. NULL: no memory.
void *pages_map(size_t size, bool large);
void pages_unmap(void *memory, size_t size); // takes NULL

#endif
