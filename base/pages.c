// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pages.c - see pages.h. Any thread.

#include "pages.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

static char *map(size_t size)
{
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

// Maps PAGES_LARGE more than is wanted, and gives back what lies around the aligned part.
static char *map_aligned(size_t size)
{
    char *memory = map(size + PAGES_LARGE);
    if (!memory)
        return NULL;
    const size_t before = -(uintptr_t)memory & (PAGES_LARGE - 1);
    if (before)
        munmap(memory, before);
    munmap(memory + before + size, PAGES_LARGE - before);
    return memory + before;
}

static size_t whole_pages(size_t size)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (size + page - 1) & -page;
}

void *pages_map(size_t size, bool large)
{
    const size_t whole = whole_pages(size);
    if (!whole || whole < size || whole + PAGES_LARGE < whole)
        return NULL;
    if (whole < PAGES_LARGE)
        return map(whole);
    char *memory = map_aligned(whole);
    if (memory && large)
        madvise(memory, whole, MADV_HUGEPAGE); // works without, too
    return memory;
}

void pages_unmap(void *memory, size_t size)
{
    if (memory)
        munmap(memory, whole_pages(size));
}
