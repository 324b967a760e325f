// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// log.c - see log.h. One lock guards the queue and the limits; nothing waits while it is held. The
// thread takes one line at a time, so that a line is one write() and lines of several processes do
// not mix. Standard error stays as it is: O_NONBLOCK would also change it for the other processes
// that have it open.

#include "log.h"

#include "base/clock.h"
#include "log_limit.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_ROOM = 2048, QUEUE_BYTES = 1 << 20 };

const char *const log_level_names[LOG_LEVEL_COUNT + 1] = {"error", "warn", "info", "debug", NULL};
static atomic_int highest = LOG_LEVEL_INFO; // guards nothing, so its order does not matter

struct line {
    uint32_t size;    // bytes of text, which follows in the queue
    uint64_t dropped; // lines that were dropped just before this one
};

static struct {
    pthread_mutex_t lock; // guards all below
    pthread_cond_t news;  // for the thread: a line, or the end
    pthread_cond_t over;  // `ended` is true
    pthread_t thread;
    bool runs, stopping, ended, closed;
    uint8_t queue[QUEUE_BYTES]; // a ring of lines
    uint64_t head, tail;        // bytes that were ever taken and put
    uint64_t dropped;           // ever
    uint64_t untold;            // dropped since the last line that was put
    struct log_limit limit;
    int64_t due_ns; // when the thread looks for kinds whose lines were left out
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .over = PTHREAD_COND_INITIALIZER};

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

uint64_t log_dropped(void)
{
    pthread_mutex_lock(&state.lock);
    const uint64_t dropped = state.dropped;
    pthread_mutex_unlock(&state.lock);
    return dropped;
}

// ---- one line ----

static size_t put_time(char *line, size_t room)
{
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    size_t size = strftime(line, room, "%Y-%m-%dT%H:%M:%S", &parts);
    return size + (size_t)snprintf(line + size, room - size, ".%03ldZ ", now.tv_nsec / 1000000);
}

// Returns the line's size, with its newline.
static size_t make_line(char line[LINE_ROOM], enum log_level level, const char *text,
                        uint64_t left_out)
{
    char more[96] = "";
    if (left_out)
        snprintf(more, sizeof more,
                 " (the last of %" PRIu64 " such lines; the others were left out)", left_out + 1);
    size_t size = put_time(line, LINE_ROOM);
    const size_t room = LINE_ROOM - size - strlen(more) - 1;
    const int put = snprintf(line + size, room, "%-5s %s", log_level_names[level], text);
    size_t end = size + (put < (int)room ? (size_t)put : room - 1);
    for (size_t i = size; i < end; i++) {
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    }
    end += (size_t)snprintf(line + end, LINE_ROOM - end, "%s\n", more);
    return end;
}

// False with errno. Another process may have made the open file non-blocking.
static bool write_line(const char *line, size_t size)
{
    while (size) {
        const ssize_t done = write(STDERR_FILENO, line, size);
        if (done >= 0) {
            line += done;
            size -= (size_t)done;
        } else if (errno == EAGAIN) {
            poll(&(struct pollfd){.fd = STDERR_FILENO, .events = POLLOUT}, 1, -1);
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}

// ---- the queue; under the lock ----

static void copy_in(const void *data, size_t size)
{
    const size_t at = state.tail % QUEUE_BYTES;
    const size_t first = size < QUEUE_BYTES - at ? size : QUEUE_BYTES - at;
    memcpy(state.queue + at, data, first);
    memcpy(state.queue, (const uint8_t *)data + first, size - first);
    state.tail += size;
}

static void copy_out(void *data, size_t size)
{
    const size_t at = state.head % QUEUE_BYTES;
    const size_t first = size < QUEUE_BYTES - at ? size : QUEUE_BYTES - at;
    memcpy(data, state.queue + at, first);
    memcpy((uint8_t *)data + first, state.queue, size - first);
    state.head += size;
}

static void drop(uint64_t *untold)
{
    state.dropped++;
    (*untold)++;
}

static void put(const char *text, size_t size)
{
    const struct line line = {(uint32_t)size, state.untold};
    if (sizeof line + size > QUEUE_BYTES - (state.tail - state.head)) {
        drop(&state.untold);
        return;
    }
    state.untold = 0;
    copy_in(&line, sizeof line);
    copy_in(text, size);
    pthread_cond_signal(&state.news);
}

// Puts a line for each kind whose lines were left out, if the kind may be written again.
static void put_left_out(bool all)
{
    char line[LINE_ROOM];
    uint64_t left_out;
    const int64_t now_ns = clock_now_ns();
    for (const struct log_kind *kind;
         (kind = log_limit_next(&state.limit, all, now_ns, &left_out));) {
        // The kept text is one of those that were left out.
        put(line, make_line(line, kind->level, kind->last, left_out - 1));
    }
}

// ---- the thread ----

// What the thread knows between two lines.
struct writer {
    uint64_t untold; // dropped before the line in hand
    int reason;      // errno of the last failure; 0 = the queue was full
};

static bool tell_dropped(struct writer *writer)
{
    char line[LINE_ROOM], text[160];
    if (!writer->untold)
        return true;
    snprintf(text, sizeof text, "log: %" PRIu64 " lines dropped: standard error %s%s",
             writer->untold, writer->reason ? "could not be written: " : "was not read in time",
             writer->reason ? strerror(writer->reason) : "");
    if (!write_line(line, make_line(line, LOG_LEVEL_WARN, text, 0)))
        return false;
    *writer = (struct writer){.untold = 0};
    return true;
}

// Takes a line, and writes it without the lock.
static void write_next(struct writer *writer)
{
    struct line line;
    char text[LINE_ROOM];
    copy_out(&line, sizeof line);
    copy_out(text, line.size);
    writer->untold += line.dropped;
    pthread_mutex_unlock(&state.lock);
    const bool written = tell_dropped(writer) && write_line(text, line.size);
    const int reason = errno;
    pthread_mutex_lock(&state.lock);
    if (written)
        return;
    drop(&writer->untold);
    writer->reason = reason;
}

// Lines were dropped, and none came after them.
static void tell_rest(struct writer *writer)
{
    writer->untold += state.untold;
    state.untold = 0;
    pthread_mutex_unlock(&state.lock);
    tell_dropped(writer);
    pthread_mutex_lock(&state.lock);
}

static void wait_for_lines(void)
{
    const struct timespec until = {.tv_sec = state.due_ns / NS_PER_S,
                                   .tv_nsec = state.due_ns % NS_PER_S};
    if (state.limit.num_waiting)
        pthread_cond_timedwait(&state.news, &state.lock, &until);
    else
        pthread_cond_wait(&state.news, &state.lock);
}

// Once a second, also while other kinds keep the thread busy.
static void put_due(void)
{
    const int64_t now_ns = clock_now_ns();
    if (!state.stopping && (!state.limit.num_waiting || now_ns < state.due_ns))
        return;
    put_left_out(state.stopping);
    state.due_ns = now_ns + NS_PER_S;
}

static void *run(void *unused)
{
    struct writer writer = {.untold = 0};
    pthread_mutex_lock(&state.lock);
    for (;;) {
        put_due();
        if (state.head != state.tail)
            write_next(&writer);
        else if (state.untold)
            tell_rest(&writer);
        else if (state.stopping)
            break;
        else
            wait_for_lines();
    }
    state.ended = true;
    pthread_cond_signal(&state.over);
    pthread_mutex_unlock(&state.lock);
    return unused;
}

bool log_start(void)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&state.news, &monotonic);
    pthread_cond_init(&state.over, &monotonic);
    pthread_condattr_destroy(&monotonic);
    errno = pthread_create(&state.thread, NULL, run, NULL);
    state.runs = errno == 0;
    return state.runs;
}

void log_stop(int timeout_ms)
{
    struct timespec until;
    if (!state.runs)
        return;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += timeout_ms % 1000 * NS_PER_MS;
    if (until.tv_nsec >= NS_PER_S)
        until.tv_sec++, until.tv_nsec -= NS_PER_S;
    pthread_mutex_lock(&state.lock);
    state.stopping = state.closed = true;
    pthread_cond_signal(&state.news);
    int reason = 0;
    while (!state.ended && reason == 0)
        reason = pthread_cond_timedwait(&state.over, &state.lock, &until);
    const bool ended = state.ended;
    state.runs = false;
    pthread_mutex_unlock(&state.lock);
    if (ended)
        pthread_join(state.thread, NULL);
    else
        pthread_detach(state.thread); // it is in write(); the process's end stops it
}

// ---- from all threads ----

static void write_text(enum log_level level, const char *format, const char *text)
{
    char line[LINE_ROOM];
    uint64_t left_out = 0;
    pthread_mutex_lock(&state.lock);
    const uint32_t num_waiting = state.limit.num_waiting;
    const bool allowed =
        level == LOG_LEVEL_DEBUG ||
        log_limit_allows(&state.limit, level, format, text, clock_now_ns(), &left_out);
    if (state.runs && state.limit.num_waiting > num_waiting)
        pthread_cond_signal(&state.news); // it may sleep without an end
    pthread_mutex_unlock(&state.lock);
    if (!allowed)
        return;
    const size_t size = make_line(line, level, text, left_out);
    pthread_mutex_lock(&state.lock);
    const bool direct = !state.runs && !state.closed;
    if (state.closed)
        drop(&state.untold);
    else if (!direct)
        put(line, size);
    pthread_mutex_unlock(&state.lock);
    if (direct && !write_line(line, size)) {
        pthread_mutex_lock(&state.lock);
        drop(&state.untold);
        pthread_mutex_unlock(&state.lock);
    }
}

void log_write(enum log_level level, const char *format, ...)
{
    char text[LINE_ROOM];
    va_list arguments;
    if (!log_writes(level))
        return;
    va_start(arguments, format);
    const int size = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (size >= 0)
        write_text(level, format, text);
}

void log_write_text(enum log_level level, const char *format, const char *text)
{
    if (log_writes(level))
        write_text(level, format, text);
}
