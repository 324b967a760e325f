// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// log.h - lines on stderr: time, level, text. Knows no objects: the caller begins the text with the
// object's name, as in "session 7 (worker, pid 123): opened". Any thread: a line is one write(), so
// lines of several threads do not mix.

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
// "error", "warn", "info", "debug", NULL.
extern const char *const log_level_names[LOG_LEVEL_COUNT + 1];

void log_set_level(enum log_level level); // without it, info
enum log_level log_highest(void);         // the last level that was set
bool log_writes(enum log_level level);    // true: lines of this level are written

// Control characters become '?', because clients choose their names. A line is cut at 2 KiB.
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...)  log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
