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

static void warn_of_others(const char *device_name, const char *prefix)
{
    FILE *names = fopen("/proc/net/unix", "re");
    char *line = NULL;
    size_t room = 0;
    while (names && getline(&line, &room, names) > 0) {
        const char *name = strchr(line, '@');
        uint64_t epoch;
        int pid;
        if (name && strncmp(name + 1, prefix, strlen(prefix)) == 0 &&
            sscanf(name + 1 + strlen(prefix), "%16" SCNx64 "-%d", &epoch, &pid) == 2)
            log_warn("device %s is served by another aule-daemon, too (pid %d); each takes up to "
                     "--memory-fraction of what is free",
                     device_name, pid);
    }
    free(line);
    if (names)
        fclose(names);
}

int device_mark_set(const char *device_name, const uint8_t uuid[16], uint64_t epoch)
{
    char text[UUID_TEXT_SIZE], prefix[64];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(prefix, sizeof prefix, "aule-device-%s-", uuid_text(uuid, text));
    warn_of_others(device_name, prefix);
    const int size = snprintf(address.sun_path + 1, sizeof address.sun_path - 1,
                              "%s%016" PRIx64 "-%d", prefix, epoch, (int)getpid());
    const socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)size);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, length) == 0)
        return fd;
    close(fd);
    return -1;
}
