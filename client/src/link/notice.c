// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// notice.c - see notice.h. If the daemon refuses the request or it cannot be sent, no ticket is
// known to have ended. Then the descriptor is readable while any ticket is open, so that the
// program asks itself; its next ticket or wait makes this ask again.

#include "notice.h"

#include "client/src/error.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

// To send a request. A call with timeout 0 may be the one that sends it, and the reader thread must
// not wait for a daemon that does not read.
enum { SEND_MS = 10 };

struct notice {
    pid_t pid; // of the process that created it
    struct notice_params params;
    struct connection_watcher watcher;
    pthread_mutex_t mutex; // guards the rest
    uint64_t *open;        // [num_open] tickets that are not reaped, ascending; owned
    uint32_t num_open, room;
    uint64_t ended; // all tickets up to this one have ended
    uint64_t asked; // the ticket of the request under way; 0: none is
    bool refused;   // the last one was not sent, or its answer does not help
    bool lost;      // there was no memory for a ticket: from now on readable
    bool over;      // the connection has ended
    bool raised;    // the descriptor is readable
};

// With the mutex.
static void settle(struct notice *notice)
{
    uint64_t one = 1;
    bool any = notice->num_open > 0 && (notice->refused || notice->open[0] <= notice->ended);
    bool raised = notice->over || notice->lost || any;
    if (raised == notice->raised)
        return;
    notice->raised = raised;
    // The descriptor does not block, and its counter is 0 or 1, so both calls succeed.
    ssize_t done = raised ? write(notice->params.fd, &one, sizeof one)
                          : read(notice->params.fd, &one, sizeof one);
    (void)done;
}

// With the mutex. The oldest ticket that has not ended, if it must be asked for now; else 0.
static uint64_t choose(struct notice *notice)
{
    uint32_t i = 0;
    while (i < notice->num_open && notice->open[i] <= notice->ended)
        i++;
    if (i == notice->num_open || notice->asked || notice->over)
        return 0;
    return notice->asked = notice->open[i];
}

static void heard(void *context, const struct wire_reply *reply);

// Without the mutex. `ticket` is what choose() returned.
static void ask(struct notice *notice, uint64_t ticket)
{
    if (!ticket)
        return;
    const struct timeout timeout = timeout_start(SEND_MS);
    const struct wire_request request = {.session = notice->params.session,
                                         .epoch = notice->params.epoch,
                                         .command = WIRE_COMMAND_TICKETS_ENDED,
                                         .tickets_ended = {.ticket = ticket, .timeout_ms = -1}};
    error_mute(true);
    enum aule_status status =
        connection_post(notice->params.connection, &request, &timeout, heard, notice);
    error_mute(false);
    if (status == AULE_OK)
        return;
    pthread_mutex_lock(&notice->mutex);
    notice->asked = 0;
    notice->refused = true;
    settle(notice);
    pthread_mutex_unlock(&notice->mutex);
}

// The reader thread. `reply` NULL: the answer cannot be read.
static void heard(void *context, const struct wire_reply *reply)
{
    struct notice *notice = context;
    uint64_t next = 0;
    pthread_mutex_lock(&notice->mutex);
    // After an answer below the ticket that was asked for, the same request would follow at once.
    notice->refused = !reply || reply->status != STATUS_OK ||
                      reply->answer != WIRE_ANSWER_TICKETS_ENDED ||
                      reply->tickets_ended.ticket < notice->asked;
    notice->asked = 0;
    if (!notice->refused) {
        if (notice->ended < reply->tickets_ended.ticket)
            notice->ended = reply->tickets_ended.ticket;
        next = choose(notice); // those up to `ended` may be reaped already
    }
    settle(notice);
    pthread_mutex_unlock(&notice->mutex);
    ask(notice, next);
}

static void on_connection_end(void *context)
{
    struct notice *notice = context;
    pthread_mutex_lock(&notice->mutex);
    notice->over = true;
    settle(notice);
    pthread_mutex_unlock(&notice->mutex);
}

enum aule_status notice_create(const struct notice_params *params, struct notice **out)
{
    uint64_t stale;
    struct notice *notice = calloc(1, sizeof *notice);
    if (!notice)
        return fail(AULE_NO_MEMORY, "no memory for a session's descriptor");
    *notice = (struct notice){.pid = getpid(),
                              .params = *params,
                              .watcher = {.ended = on_connection_end, .context = notice}};
    pthread_mutex_init(&notice->mutex, NULL);
    ssize_t done = read(params->fd, &stale, sizeof stale); // of the connection before
    (void)done;
    connection_watch(params->connection, &notice->watcher);
    *out = notice;
    return AULE_OK;
}

void notice_destroy(struct notice *notice)
{
    if (!notice)
        return;
    if (notice->pid == getpid()) // in a child a thread of the parent may seem to hold it
        pthread_mutex_destroy(&notice->mutex);
    free(notice->open);
    free(notice);
}

// ---- tickets ----

// With the mutex. Without memory the ticket is not in the list, so its end cannot be told.
static void insert(struct notice *notice, uint64_t ticket)
{
    if (notice->num_open == notice->room) {
        uint32_t room = notice->room ? notice->room * 2 : 16;
        uint64_t *more = realloc(notice->open, room * sizeof *more);
        if (!more) {
            notice->lost = true;
            return;
        }
        notice->open = more;
        notice->room = room;
    }
    uint32_t place = notice->num_open++;
    for (; place > 0 && notice->open[place - 1] > ticket; place--)
        notice->open[place] = notice->open[place - 1];
    notice->open[place] = ticket;
}

void notice_add(struct notice *notice, uint64_t ticket)
{
    pthread_mutex_lock(&notice->mutex);
    insert(notice, ticket);
    uint64_t next = choose(notice);
    settle(notice);
    pthread_mutex_unlock(&notice->mutex);
    ask(notice, next);
}

void notice_remove(struct notice *notice, uint64_t ticket)
{
    pthread_mutex_lock(&notice->mutex);
    for (uint32_t i = 0; i < notice->num_open; i++) {
        if (notice->open[i] != ticket)
            continue;
        notice->num_open--;
        memmove(notice->open + i, notice->open + i + 1,
                (notice->num_open - i) * sizeof *notice->open);
        break;
    }
    uint64_t next = choose(notice);
    settle(notice);
    pthread_mutex_unlock(&notice->mutex);
    ask(notice, next);
}
