// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hopper_states.c - see hopper_states.h.

#include "hopper_states.h"

#include "engine/file.h"
#include "engine/vulkan/vk.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

// ---- the file of a kernel that is being tested ----

// The file has the driver's name. It is locked as long as its process lives, so another process
// does not take a test that is under way for one that hung.
struct mark {
    char *path;
    int fd;     // -1 = there is no file
    bool again; // the device was lost in an earlier test, too
};

// Behind the driver's name: the device was lost, but the test was not out of time. So another
// session's work may be the cause, and the kernel gets one more test.
static const char lost_once[] = "\nlost";

static char *path_of(const struct hopper_states *states, uint32_t number)
{
    const char *name = hopper_code_at(number)->name;
    const size_t size = states->path ? strlen(states->path) + strlen(name) + sizeof ".trying-" : 0;
    char *path = size ? malloc(size) : NULL;
    if (path)
        snprintf(path, size, "%s.trying-%s", states->path, name);
    return path;
}

// Whether the file at `path` has the driver's name and `after`.
static bool file_says(const char *path, const char *driver, const char *after)
{
    char wanted[sizeof((struct adapter *)0)->info.driver + sizeof lost_once], *text = NULL;
    struct error error;
    size_t size = 0;
    snprintf(wanted, sizeof wanted, "%s%s", driver, after);
    const bool says = file_read(path, sizeof wanted, &text, &size, &error) == STATUS_OK &&
                      size == strlen(wanted) && memcmp(text, wanted, size) == 0;
    free(text);
    return says;
}

static bool write_driver(int fd, const char *driver)
{
    const size_t size = strlen(driver);
    return ftruncate(fd, 0) == 0 && write(fd, driver, size) == (ssize_t)size && fsync(fd) == 0;
}

// Without a mark the test goes on all the same. Usually another process that tests the kernel holds
// the mark; until it ends, its mark stands for both.
static struct mark mark_set(const struct hopper_states *states, uint32_t number)
{
    struct mark mark = {.path = path_of(states, number), .fd = -1};
    if (!mark.path)
        return mark;
    mark.again = file_says(mark.path, states->device->adapter.info.driver, lost_once);
    mark.fd = open(mark.path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const bool is_held = mark.fd >= 0 && flock(mark.fd, LOCK_EX | LOCK_NB) != 0;
    if (mark.fd >= 0 && !is_held && write_driver(mark.fd, states->device->adapter.info.driver))
        return mark;
    device_log(states->device, is_held ? 2 : 1,
               "%s %s: if native kernel %s hangs, the next start may not know it", mark.path,
               is_held ? "is held by another process" : "cannot be written",
               hopper_code_at(number)->name);
    if (mark.fd >= 0)
        close(mark.fd);
    mark.fd = -1;
    return mark;
}

static void mark_end(struct mark *mark, const struct device *device, enum status status)
{
    if (mark->fd >= 0 && status != STATUS_DEVICE_LOST)
        unlink(mark->path);
    else if (mark->fd >= 0 && !mark->again && !atomic_load(&device->hung) &&
             write(mark->fd, lost_once, sizeof lost_once - 1) != sizeof lost_once - 1)
        device_log(device, 1, "%s cannot be written: the kernel gets no second test", mark->path);
    if (mark->fd >= 0)
        close(mark->fd);
    free(mark->path);
}

// Whether the file at `path` is locked: its test is under way.
static bool is_locked(const char *path)
{
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    const bool locked = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0;
    if (fd >= 0)
        close(fd);
    return locked;
}

// Whether an earlier process with this driver has not ended the kernel's test.
static bool is_marked(const struct hopper_states *states, uint32_t number)
{
    char *path = path_of(states, number);
    const bool marked =
        path && file_says(path, states->device->adapter.info.driver, "") && !is_locked(path);
    free(path);
    return marked;
}

// ---- states ----

static void refuse(struct hopper_states *states, uint32_t number, const char *why)
{
    snprintf(states->refusals[number], NATIVE_REFUSAL, "%.*s", NATIVE_REFUSAL - 1, why);
    atomic_store(&states->states[number], NATIVE_REFUSED);
    device_log(states->device, 1, "GLSL replaces a native kernel: %s", why);
}

void hopper_states_init(struct hopper_states *states, struct device *device,
                        struct transfer *transfer, const char *path)
{
    char why[NATIVE_REFUSAL];
    states->device = device;
    states->transfer = transfer;
    states->path = path;
    for (uint32_t i = 0; i < HOPPER_CODES; i++) {
        if (!is_marked(states, i))
            continue;
        snprintf(why, sizeof why,
                 "%s did not end its self-test in an earlier process (to try it again, remove "
                 "*.trying-* from --cache-folder)",
                 hopper_code_at(i)->name);
        refuse(states, i, why);
    }
}

void hopper_states_finish(struct hopper_states *states)
{
    for (uint32_t i = 0; i < HOPPER_CODES; i++)
        native_unload(states->device, &states->natives[i]);
}

enum status hopper_states_try(struct hopper_states *states, uint32_t number, struct error *error)
{
    struct native native = {0};
    enum status status = native_load(states->device, hopper_code_at(number), &native, error);
    if (status == STATUS_OK) {
        struct mark mark = mark_set(states, number);
        status = hopper_test(states->device, states->transfer, number, &native, error);
        mark_end(&mark, states->device, status);
    }
    if (status == STATUS_DEVICE_LOST) // the GPU may still run it, so it stays loaded
        return status;
    if (status == STATUS_OK) {
        states->natives[number] = native;
        atomic_store(&states->states[number], NATIVE_WORKS);
        return status;
    }
    native_unload(states->device, &native);
    if (status == STATUS_NO_MEMORY) // says nothing of the kernel: the next run tries it again
        return status;
    refuse(states, number, error->text);
    return STATUS_UNSUPPORTED;
}

void hopper_states_refusals(const struct hopper_states *states, char *text, size_t size)
{
    uint32_t count = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < HOPPER_CODES; i++)
        if (states->states[i] == NATIVE_REFUSED && !count++)
            snprintf(text, size, "%s", states->refusals[i]);
    const size_t length = strlen(text);
    if (count > 1)
        snprintf(text + length, size - length, "; and %u more", count - 1);
}
