// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// log.c - see log.h. Its only state is the level, which is set before other threads start.

#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

const char *const log_level_names[LOG_LEVEL_COUNT + 1] = {"error", "warn", "info", "debug", NULL};
static enum log_level highest = LOG_LEVEL_INFO;

void log_set_level(enum log_level level)
{
    highest = level;
}

bool log_writes(enum log_level level)
{
    return level <= highest;
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
