// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// device_mark.c - see device_mark.h.

#include "device_mark.h"

#include "base/uuid.h"
#include "server/log.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

// With the device's UUID, the daemon's epoch and its pid.
#define MARK_FORMAT "aule-device-%s-%016" PRIx64 "-%d"

static void warn_of_others(const char *device_name, const char *own)
{
    const size_t prefix_size = (size_t)(strrchr(own, '-') - own) - 16; // before the epoch
    FILE *names = fopen("/proc/net/unix", "re");
    char *line = NULL;
    size_t room = 0;
    while (names && getline(&line, &room, names) > 0) {
        char *name = strchr(line, '@');
        uint64_t epoch;
        int pid;
        if (!name)
            continue;
        name[strcspn(name, "\n")] = 0;
        if (strncmp(name + 1, own, prefix_size) == 0 && strcmp(name + 1, own) != 0 &&
            sscanf(name + 1 + prefix_size, "%16" SCNx64 "-%d", &epoch, &pid) == 2)
            log_warn("device %s is served by another aule-daemon, too (pid %d); each takes up to "
                     "--memory-fraction of what is free",
                     device_name, pid);
    }
    free(line);
    if (names)
        fclose(names);
}

// It binds before it looks. So if two daemons start together, the later one sees the other.
int device_mark_set(const char *device_name, const uint8_t uuid[16], uint64_t epoch)
{
    char text[UUID_TEXT_SIZE];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int size = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, MARK_FORMAT,
                              uuid_text(uuid, text), epoch, (int)getpid());
    const socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)size);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (const struct sockaddr *)&address, length) != 0) {
        close(fd);
        fd = -1;
    }
    warn_of_others(device_name, address.sun_path + 1);
    return fd;
}
