// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// log.h - leveled lines on stderr: time, level, text. Knows no object: a caller begins its text
// with the object's name, as in "session 7 (worker, pid 123): opened". Any thread; a line is one
// write, so that lines never mix.

#ifndef AULE_SERVER_LOG_H
#define AULE_SERVER_LOG_H

#include <stdbool.h>

enum log_level {
    LOG_LEVEL_ERROR,
    LOG_LEVEL_WARN,
    LOG_LEVEL_INFO,
    LOG_LEVEL_DEBUG,
    LOG_LEVEL_COUNT
};
extern const char
    *const log_level_names[LOG_LEVEL_COUNT + 1]; // "error", "warn", "info", "debug", NULL

void log_set_level(enum log_level level); // at start, before other threads; default info
bool log_writes(enum log_level level);    // or is more than is wanted

// Control characters (a client chose its name) become '?'. Text beyond 2 KiB is cut.
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...)  log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
