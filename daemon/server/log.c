// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// log.c - see log.h. Its only state is the level.

#include "log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

const char *const log_level_names[LOG_LEVEL_COUNT + 1] = {"error", "warn", "info", "debug", NULL};
static atomic_int highest = LOG_LEVEL_INFO; // guards nothing, so its order does not matter

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&highest, (int)level, memory_order_relaxed);
}

enum log_level log_highest(void)
{
    return (enum log_level)atomic_load_explicit(&highest, memory_order_relaxed);
}

bool log_writes(enum log_level level)
{
    return level <= log_highest();
}

static size_t put_time(char *line, size_t room)
{
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    size_t size = strftime(line, room, "%Y-%m-%dT%H:%M:%S", &parts);
    return size + (size_t)snprintf(line + size, room - size, ".%03ldZ ", now.tv_nsec / 1000000);
}

void log_write(enum log_level level, const char *format, ...)
{
    if (!log_writes(level))
        return;
    char line[2048];
    size_t size = put_time(line, sizeof line);
    size += (size_t)snprintf(line + size, sizeof line - size, "%-5s ", log_level_names[level]);
    va_list arguments;
    va_start(arguments, format);
    int text = vsnprintf(line + size, sizeof line - size - 1, format, arguments);
    va_end(arguments);
    size_t end = text < 0 ? size : size + (size_t)text;
    if (end > sizeof line - 2)
        end = sizeof line - 2;
    for (size_t i = size; i < end; i++) {
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    }
    line[end++] = '\n';
    if (write(STDERR_FILENO, line, end) < 0)
        return; // there is no other place to report it
}
