// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// failing_daemon.c - see failing_daemon.h. The dynamic linker loads this into a program first
// (LD_PRELOAD). Any thread allocates.

#include "failing_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// glibc's own.
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static struct failing_daemon *control; // NULL: not yet
static uintptr_t first, last;          // the program's own code

static int find_code(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size;
    (void)context;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        if (header->p_type != PT_LOAD || !(header->p_flags & PF_X))
            continue;
        first = info->dlpi_addr + header->p_vaddr;
        last = first + header->p_memsz;
    }
    return 1; // the program comes first
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv(FAILING_DAEMON_VARIABLE);
    const int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *memory = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    dl_iterate_phdr(find_code, NULL);
    if (memory != MAP_FAILED)
        control = memory;
}

static bool fails(const void *caller)
{
    const uintptr_t from = (uintptr_t)caller;
    if (!control || from < first || from >= last)
        return false;
    const uint32_t number = atomic_fetch_add(&control->seen, 1) + 1,
                   fail_at = atomic_load(&control->fail_at);
    if (!fail_at || number < fail_at || number - fail_at >= atomic_load(&control->fails))
        return false;
    atomic_store(&control->failed_at, from - first);
    errno = ENOMEM;
    return true;
}

#define FAILS() fails(__builtin_return_address(0))

void *malloc(size_t size)
{
    return FAILS() ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    return FAILS() ? NULL : __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
    return FAILS() ? NULL : __libc_realloc(memory, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return FAILS() ? NULL : __libc_memalign(alignment, size);
}

void *reallocarray(void *memory, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || FAILS())
        return NULL;
    return __libc_realloc(memory, bytes);
}

char *strdup(const char *text)
{
    const size_t size = strlen(text) + 1;
    char *copy = FAILS() ? NULL : __libc_malloc(size);
    return copy ? memcpy(copy, text, size) : NULL;
}
