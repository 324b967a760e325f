// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// session.c - the public session: its present life, and its parameters, which a reconnect
// uses again. Any thread.

#include "session.h"

#include "caller.h"
#include "error.h"
#include "fork.h"
#include "handle.h"
#include "socket_path.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct aule_session {
    struct handle handle;
    struct aule_session_params params; // its strings are owned
    pthread_mutex_t reconnecting;      // one reconnect at a time
    uint16_t generation;               // guarded by `reconnecting`
    int fd;                            // likewise; an eventfd, owned; -1 until aule_session_fd()
    pthread_mutex_t mutex;             // guards the rest
    struct life *life;                 // a reference; NULL after a reconnect that failed
    bool closed;
};

// ---- open and close ----

static enum aule_status copy_string(const char *given, const char **copy)
{
    if (given && !(*copy = strdup(given)))
        return fail(AULE_NO_MEMORY, "no memory for the session's parameters");
    return AULE_OK;
}

static enum aule_status copy_params(const struct aule_session_params *given,
                                    struct aule_session_params *copy)
{
    *copy = (struct aule_session_params){.arena_size = given->arena_size,
                                         .timeout_ms = given->timeout_ms,
                                         .paged_threshold = given->paged_threshold,
                                         .ring_spin_us = given->ring_spin_us,
                                         .device_arena_size = given->device_arena_size};
    enum aule_status status = timeout_check(given->timeout_ms);
    if (status == AULE_OK)
        status = copy_string(given->name, &copy->name);
    if (status == AULE_OK)
        status = copy_string(given->tenant, &copy->tenant);
    char *path = NULL;
    if (status == AULE_OK)
        status = socket_path(given->socket, &path);
    copy->socket = path;
    return status;
}

// For a session that is not open either, after a failure.
static void session_free(struct aule_session *session)
{
    life_unref(session->life);
    if (session->fd >= 0)
        close(session->fd);
    if (session->handle.pid == getpid()) { // in a child another thread may seem to hold them
        pthread_mutex_destroy(&session->mutex);
        pthread_mutex_destroy(&session->reconnecting);
    }
    free((void *)session->params.socket);
    free((void *)session->params.name);
    free((void *)session->params.tenant);
    free(session);
}

static void session_end(struct handle *handle)
{
    session_free((struct aule_session *)handle);
}

const struct handle_kind session_handles = {"the session", AULE_NO_SESSION, session_end};

enum aule_status aule_session_open_sized(const struct aule_session_params *params,
                                         size_t params_size, struct aule_session **session)
{
    struct aule_session_params whole = {.socket = NULL};
    REQUIRE(session);
    *session = NULL;
    enum aule_status status = params ? TAKE(&whole, params, params_size) : AULE_OK;
    if (status != AULE_OK)
        return status;
    struct aule_session *opened = calloc(1, sizeof *opened);
    if (!opened)
        return fail(AULE_NO_MEMORY, "no memory for a session");
    opened->handle.pid = getpid();
    opened->fd = -1;
    pthread_mutex_init(&opened->mutex, NULL);
    pthread_mutex_init(&opened->reconnecting, NULL);
    status = copy_params(&whole, &opened->params);
    if (status == AULE_OK)
        status = life_open(&opened->params, 0, &opened->life);
    if (status == AULE_OK)
        status = handle_open(&opened->handle, &session_handles);
    if (status == AULE_OK)
        *session = opened;
    else
        session_free(opened);
    return status;
}

// Gives the session `next` in place of its life. The reference of `next` moves to the
// session, that of the old one to the caller. A session that is closed takes none: it gives `next`
// back.
static struct life *swap(struct aule_session *session, struct life *next)
{
    pthread_mutex_lock(&session->mutex);
    struct life *old = session->closed ? next : session->life;
    session->life = session->closed ? NULL : next;
    pthread_mutex_unlock(&session->mutex);
    return old;
}

static void mark_closed(struct aule_session *session)
{
    pthread_mutex_lock(&session->mutex);
    struct life *last = session->life;
    session->life = NULL;
    session->closed = true;
    pthread_mutex_unlock(&session->mutex);
    if (last)
        life_end(last, LIFE_CLOSED);
    life_unref(last);
}

void aule_session_close(struct aule_session *session)
{
    if (!session || !handle_close(session, &session_handles))
        return;
    if (session->handle.pid == getpid())
        mark_closed(session);
    handle_unref(&session->handle);
}

// ---- use ----

static enum aule_status was_closed(void)
{
    return fail(AULE_NO_SESSION, "the session was closed meanwhile");
}

static enum aule_status reconnect(struct aule_session *session)
{
    struct life *old = swap(session, NULL), *next = NULL;
    if (old)
        life_end(old, LIFE_REPLACED);
    life_unref(old);
    enum aule_status status =
        life_open(&session->params, (uint16_t)(session->generation + 1), &next);
    if (status == AULE_OK && session->fd >= 0)
        status = life_notify(next, session->fd);
    if (status != AULE_OK) {
        life_unref(next);
        return status;
    }
    session->generation++;
    if (swap(session, next) != next)
        return AULE_OK;
    life_end(next, LIFE_CLOSED);
    life_unref(next);
    return was_closed();
}

enum aule_status aule_session_reconnect(struct aule_session *session)
{
    USE(session);
    enum aule_status status = fork_check(session->handle.pid, "the session");
    if (status != AULE_OK)
        return status;
    pthread_mutex_lock(&session->reconnecting);
    status = reconnect(session);
    pthread_mutex_unlock(&session->reconnecting);
    return status;
}

enum aule_status session_get(struct aule_session *session, struct life **life)
{
    USE(session);
    pthread_mutex_lock(&session->mutex);
    struct life *now = session->life;
    const bool closed = session->closed;
    enum aule_status status = now ? life_enter(now) : AULE_OK;
    pthread_mutex_unlock(&session->mutex);
    if (!now)
        return closed ? was_closed()
                      : fail(AULE_DAEMON_GONE,
                             "the session has no daemon at %s until a reconnect succeeds",
                             session->params.socket);
    *life = now;
    return status;
}

void session_put(struct life *life)
{
    life_leave(life);
}

// ---- the descriptor ----

// One thread at a time. A reconnect must not come between, so this holds the same mutex.
static enum aule_status open_fd(struct aule_session *session)
{
    struct life *life;
    enum aule_status status = session_get(session, &life);
    if (status != AULE_OK)
        return status;
    int fd = session->fd >= 0 ? session->fd : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    status = fd >= 0 ? life_notify(life, fd) : fail_no_descriptor("an eventfd");
    session_put(life);
    if (status == AULE_OK)
        session->fd = fd;
    else if (fd >= 0 && fd != session->fd)
        close(fd);
    return status;
}

enum aule_status aule_session_fd(struct aule_session *session, int *fd)
{
    REQUIRE(fd);
    *fd = -1;
    USE(session);
    pthread_mutex_lock(&session->reconnecting);
    enum aule_status status = open_fd(session);
    if (status == AULE_OK)
        *fd = session->fd;
    pthread_mutex_unlock(&session->reconnecting);
    return status;
}

enum aule_status aule_session_info_sized(struct aule_session *session,
                                         struct aule_session_info *info, size_t info_size)
{
    REQUIRE(session);
    REQUIRE(info);
    struct life *life;
    enum aule_status status = session_get(session, &life);
    if (status != AULE_OK)
        return status;
    GIVE(info, info_size, life->info);
    session_put(life);
    return AULE_OK;
}
