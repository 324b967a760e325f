// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// log.h - lines on stderr: time, level, text. Knows no objects: the caller begins the text with the
// object's name, as in "session 7 (worker, pid 123): opened". Thread: any, unless noted.
//
// A caller never waits for the reader of standard error: after log_start() a line goes into a queue
// of 1 MiB, and the log's own thread writes it. If the queue is full, or a write fails, lines are
// dropped and counted; a line says how many as soon as writing works again.
//
// Clients cause lines, so there is a limit for each kind of line, which is its format string: 64 at
// once, then one a second. Each such line says how many were left out. Lines of level debug have no
// limit but the queue.

#ifndef AULE_SERVER_LOG_H
#define AULE_SERVER_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level {
    LOG_LEVEL_ERROR,
    LOG_LEVEL_WARN,
    LOG_LEVEL_INFO,
    LOG_LEVEL_DEBUG,
    LOG_LEVEL_COUNT
};
// "error", "warn", "info", "debug", NULL.
extern const char *const log_level_names[LOG_LEVEL_COUNT + 1];

// Starts the thread; until then, and without it, a line is written by its caller. Signals that the
// caller has blocked stay blocked in the thread. False: no thread; errno says why. Main thread.
bool log_start(void);
// Waits up to `timeout_ms` milliseconds until all lines are written, and ends the thread. Lines
// that are not written by then are lost, as are all that come later. Main thread.
void log_stop(int timeout_ms);
uint64_t log_dropped(void); // lines that were dropped so far

void log_set_level(enum log_level level); // without it, info
enum log_level log_highest(void);         // the last level that was set
bool log_writes(enum log_level level);    // true: lines of this level are written

// Control characters become '?', because clients choose their names. A line is cut at 2 KiB.
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
// A text that another room has made by `format`, which is its kind; a string that lives for ever.
void log_write_text(enum log_level level, const char *format, const char *text);

#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...)  log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
