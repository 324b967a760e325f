// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// sigbus.c - see sigbus.h. The handler runs on the thread that faulted. It uses only atomics, mmap,
// write and signal. It returns to the fault and never jumps away, because the fault may be inside a
// driver. An entry's `size` is written last, so the handler sees only whole entries.

#include "sigbus.h"

#include "waker.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct guarded {
    _Atomic uintptr_t base;
    _Atomic size_t size; // 0 = this entry is free or being filled
    atomic_bool taken;
    atomic_bool dead;
};

static struct {
    struct guarded *entries; // [capacity]; owned
    uint32_t capacity;
    uintptr_t page;           // page size in bytes
    int wake_fd;              // not owned
    _Atomic uint64_t deaths;  // of segments
    struct sigaction earlier; // the handler before this one
} guard;

// This definition replaces libc's in the whole process (CMakeLists.txt exports it), so that no
// thread can block SIGBUS. A software driver blocks all signals in its threads, and a fault whose
// signal is blocked ends the process.
int pthread_sigmask(int how, const sigset_t *set, sigset_t *earlier)
{
    static int (*_Atomic real)(int, const sigset_t *, sigset_t *);
    int (*call)(int, const sigset_t *, sigset_t *) = atomic_load(&real);
    sigset_t changed;
    if (!call) {
        *(void **)&call = dlsym(RTLD_NEXT, "pthread_sigmask");
        atomic_store(&real, call);
    }
    if (set && how != SIG_UNBLOCK) {
        changed = *set;
        sigdelset(&changed, SIGBUS);
        set = &changed;
    }
    return call(how, set, earlier);
}

// Reads a base and size that belong together: the entry may be removed and reused meanwhile.
static bool load_range(struct guarded *entry, uintptr_t *base, size_t *size)
{
    *size = atomic_load(&entry->size);
    *base = atomic_load(&entry->base);
    return *size && atomic_load(&entry->size) == *size;
}

static struct guarded *find(uintptr_t address, uintptr_t *base, size_t *size)
{
    for (uint32_t i = 0; i < guard.capacity; i++) {
        struct guarded *entry = &guard.entries[i];
        if (load_range(entry, base, size) && address >= *base && address - *base < *size)
            return entry;
    }
    return NULL;
}

static void pass_on(int number, siginfo_t *info, void *context)
{
    if (guard.earlier.sa_flags & SA_SIGINFO) {
        guard.earlier.sa_sigaction(number, info, context);
    } else if (guard.earlier.sa_handler == SIG_DFL || guard.earlier.sa_handler == SIG_IGN) {
        signal(number, SIG_DFL); // the access is repeated, and its fault then ends the process
    } else {
        guard.earlier.sa_handler(number);
    }
}

static bool put_zeros(uintptr_t base, size_t size)
{
    return mmap((void *)base, size, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
}

// Maps zero pages over the whole segment at its first fault. Strict overcommit or a limit of the
// process may refuse that. Then it maps only the page of the access, and other lost pages cause
// further faults.
static bool put_memory(struct guarded *entry, uintptr_t base, size_t size, uintptr_t address)
{
    bool first = !atomic_exchange(&entry->dead, true);
    if (first)
        atomic_fetch_add(&guard.deaths, 1); // after `dead`, which its reader looks for next
    return (first && put_zeros(base, size)) || put_zeros(address & ~(guard.page - 1), guard.page);
}

static void on_sigbus(int number, siginfo_t *info, void *context)
{
    int saved_errno = errno;
    uintptr_t base;
    size_t size;
    struct guarded *entry = find((uintptr_t)info->si_addr, &base, &size);
    if (entry && put_memory(entry, base, size, (uintptr_t)info->si_addr))
        waker_ring(guard.wake_fd);
    else
        pass_on(number, info, context);
    errno = saved_errno;
}

enum status sigbus_guard_init(uint32_t capacity, int wake_fd, struct error *error)
{
    guard.entries = calloc(capacity, sizeof *guard.entries);
    if (!guard.entries)
        return error_set(error, STATUS_NO_MEMORY, "no memory to guard %u segments", capacity);
    guard.capacity = capacity;
    guard.page = (uintptr_t)sysconf(_SC_PAGESIZE);
    guard.wake_fd = wake_fd;
    struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, &action, &guard.earlier) != 0) {
        free(guard.entries);
        guard.entries = NULL;
        return error_set(error, STATUS_INTERNAL, "sigaction(SIGBUS): %s", strerror(errno));
    }
    return STATUS_OK;
}

void sigbus_guard_finish(void)
{
    if (!guard.entries)
        return;
    sigaction(SIGBUS, &guard.earlier, NULL);
    free(guard.entries);
    memset(&guard, 0, sizeof guard);
}

int sigbus_guard_add(void *base, size_t size)
{
    for (uint32_t i = 0; i < guard.capacity; i++) {
        struct guarded *entry = &guard.entries[i];
        if (atomic_exchange(&entry->taken, true))
            continue;
        atomic_store(&entry->dead, false);
        atomic_store(&entry->base, (uintptr_t)base);
        atomic_store(&entry->size, size);
        return (int)i;
    }
    return -1;
}

void sigbus_guard_remove(int segment)
{
    if (segment < 0)
        return;
    struct guarded *entry = &guard.entries[segment];
    atomic_store(&entry->size, 0);
    atomic_store(&entry->taken, false);
}

uint64_t sigbus_guard_deaths(void)
{
    return atomic_load(&guard.deaths);
}

bool sigbus_guard_is_dead(int segment)
{
    return segment >= 0 && atomic_load(&guard.entries[segment].dead);
}
