// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// session.c - see session.h. Dispatcher thread, except what stands under "on the job thread".
//
// Stages. MAKING: the job thread makes the segment, and Hello has no answer yet. UNMAPPED: the
// client has --idle-timeout to map it. OPEN. ENDING: closed in core; the arena lives until the GPU
// has ended the session's last run, when core calls session_gone(). Only OPEN sessions run
// commands.
//
// Jobs. A session has two, one after the other: make_memory() and unmake_segment(). While one runs,
// segment and arena belong to the job thread. If a session ends before its making has begun, the
// job is cancelled; if it has begun, made() ends the session. Unmaking goes before making. So a
// client that gives up and tries again does not find /dev/shm filled by its last attempt. But it
// waits for the session's offloaded command, whose `fill` may read the segment (offload.c).
//
// Ends. session_end() is the only way out, whatever the reason. It drops what is parked or
// offloaded and closes the lane before it closes the session in core, so no command of it is tried
// again. Its place counts until its memory has gone.
//
// Ghosts. An attached process may still use blocks when its session has ended. Core keeps the
// session then, and its pidfd stays watched, until the process is proven dead. Ghosts count for
// --max-sessions.

#include "session.h"

#include "base/container_of.h"
#include "base/owner.h"
#include "dispatch.h"
#include "lane.h"
#include "log.h"
#include "offload.h"
#include "park.h"
#include "sigbus.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

// ---- on the job thread ----

static struct session *session_of_job(struct job *job)
{
    return container_of(job, struct session, job);
}

static uint64_t arena_alignment(const struct server *server)
{
    const struct engine_device *device = engine_device(server->engine);
    return device->host_import && device->import_alignment > WIRE_PAGE ? device->import_alignment
                                                                       : WIRE_PAGE;
}

static struct segment_params segment_params_of(const struct session *session)
{
    const struct server *server = session->server;
    return (struct segment_params){
        .prefix = server->segment_prefix,
        .epoch = server->epoch,
        .session = session->id,
        .arena_size = session->segment.arena_size,
        .places_size = server->ring_entries ? WIRE_PLACES_SIZE : 0,
        .ring_entries = server->ring_entries,
        .uid = session->uid,
        .alignment = arena_alignment(server),
    };
}

static void make_segment(struct session *session)
{
    struct server *server = session->server;
    const struct segment_params params = segment_params_of(session);
    enum status status = segment_create(&params, &session->segment, &session->job_error);
    if (status != STATUS_OK || params.arena_size == 0)
        return;
    uint8_t *arena = (uint8_t *)session->segment.base + session->segment.arena_offset;
    status = engine_arena_create(server->engine, arena, params.arena_size, &session->arena,
                                 &session->job_error);
    if (status != STATUS_OK)
        segment_destroy(&session->segment);
}

static void make_memory(struct job *job)
{
    struct session *session = session_of_job(job);
    make_segment(session);
    if (session->job_error.status == STATUS_OK && session->device_arena_size)
        engine_arena_create_exported(session->server->engine, session->device_arena_size,
                                     &session->device_arena, &session->job_error);
}

static void unmake_segment(struct job *job)
{
    struct session *session = session_of_job(job);
    if (engine_arena_destroy(session->arena))
        segment_destroy(&session->segment);
    else // the lost GPU may still write there: mapping and guard stay until the process ends
        segment_unlink(&session->segment);
    session->arena = NULL;
    (void)engine_arena_destroy(session->device_arena); // on a lost device it ends with the engine
    session->device_arena = NULL;
}

// ---- making ----

static void free_session(struct session *session)
{
    free(session->name);
    free(session->tenant);
    free(session);
}

static void forget(struct session *session)
{
    struct server *server = session->server;
    server->device_arena_bytes -= session->device_arena_size;
    server->arena_bytes -= session->arena_bytes;
    HASH_DEL(server->sessions, session);
    free_session(session);
}

static void unmade(struct job *job, void *context)
{
    (void)context;
    struct session *session = session_of_job(job);
    log_debug("%s: its segment is unmapped", session->label);
    forget(session);
}

static void unwatch_owner(struct session *session)
{
    if (session->pidfd >= 0) {
        // Its close alone does not: a process that is being started has it, too, for a moment.
        epoll_ctl(session->server->epoll_fd, EPOLL_CTL_DEL, session->pidfd, NULL);
        close(session->pidfd);
    }
    session->pidfd = -1;
}

static void start_unmaking(struct session *session)
{
    session->unmaking = true;
    session->job = (struct job){.work = unmake_segment, .done = unmade};
    jobs_start_first(session->server->jobs, &session->job);
}

void session_gone(void *context, void *owner)
{
    struct session *session = owner;
    (void)context;
    session->gone = true;
    if (!session->offload)
        start_unmaking(session);
}

// A process of another pid namespace has no pid here, so that only Linux 6.5 can name it.
static int open_owner(const struct session *session)
{
    const int pidfd = session->peer ? listener_owner(session->peer) : -1;
    if (pidfd >= 0 || session->pid == 0 || session->pid > INT32_MAX)
        return pidfd;
    return (int)syscall(SYS_pidfd_open, (pid_t)session->pid, 0);
}

// Watches the client's process for its end. A child of it may have the connection, too. If the
// process cannot be watched, only the end of the connection tells.
static void watch_owner(struct session *session)
{
    session->pidfd = open_owner(session);
    session->owner = owner_number(session->pidfd);
    if (session->pidfd < 0) {
        log_debug("%s: its process cannot be watched: %s", session->label, strerror(errno));
        return;
    }
    session->watch = (struct watch){WATCH_OWNER, session};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &session->watch};
    if (epoll_ctl(session->server->epoll_fd, EPOLL_CTL_ADD, session->pidfd, &event) == 0)
        return;
    log_warn("%s: its process cannot be watched: %s", session->label, strerror(errno));
    unwatch_owner(session); // it cannot attach
}

static enum status open_in_core(struct session *session, struct error *error)
{
    const struct core_session_params params = {
        .id = session->id,
        .uid = session->uid,
        .group = session->group,
        .tenant = session->tenant,
        .name = session->name,
        .guest = !places_is_operator(session->uid),
        .arena = session->arena,
        .arena_size = session->arena ? session->segment.arena_size : 0,
        .device_arena = session->device_arena,
        .device_arena_size = session->device_arena_size,
        .owner = session,
        .wait = &session->wait,
    };
    return core_session_open(session->server->core, &params, &session->core, error);
}

static void answer_hello(struct session *session)
{
    struct server *server = session->server;
    const struct engine_device *device = engine_device(server->engine);
    struct wire_reply reply = {
        .status = STATUS_OK,
        .message = "",
        .answer = WIRE_ANSWER_HELLO,
        .hello =
            {
                .major = WIRE_PROTOCOL_MAJOR,
                .minor = WIRE_PROTOCOL_MINOR,
                .session = session->id,
                .epoch = server->epoch,
                .segment_name = session->segment.name,
                .segment_size = session->segment.size,
                .arena_offset = session->segment.arena_offset,
                .arena_size = session->segment.arena_size,
                .max_message = WIRE_MAX_MESSAGE,
                .max_tickets = server->params->core.max_tickets,
                .max_batches = server->params->core.max_batches,
                .quota_blocks = server->params->core.quota_blocks,
                .device_name = device->name,
                .arena_imported = session->imported,
                .submission_ring_offset = session->segment.submissions_offset,
                .submission_ring_size = session->segment.ring_size,
                .completion_ring_offset = session->segment.completions_offset,
                .completion_ring_size = session->segment.ring_size,
                .ring_entries = session->segment.ring_entries,
                .ring_entry_size = session->segment.ring_entries ? WIRE_SUBMISSION_SIZE : 0,
                .doorbell = session->segment.ring_entries ? server->bell.name : "",
                .device_arena_size = session->device_arena_size,
                .export_socket = exports_name(server->exports),
                .places_size = session->segment.places_size,
            },
    };
    memcpy(reply.hello.device_uuid, device->uuid, sizeof device->uuid);
    dispatch_reply(server, &session->hello, &reply);
}

// The session no longer counts for --max-sessions, and its connection may send Hello again.
static void leave(struct session *session)
{
    if (session->peer) {
        session->peer->session = NULL;
        session->peer->active_ns = clock_now_ns(); // --idle-timeout begins
        server_arm(session->server,
                   session->peer->active_ns + session->server->params->idle_timeout_s * NS_PER_S);
    }
    session->peer = NULL;
    session->stage = SESSION_ENDING;
    session->server->num_live--;
}

static enum status not_made(const struct server *server, const char *why, struct error *error)
{
    return error_set(error, server->stopping ? STATUS_STOPPING : STATUS_NO_SESSION,
                     "the session ended during its handshake: %s", why);
}

static void made(struct job *job, void *context)
{
    struct session *session = session_of_job(job);
    struct server *server = context;
    struct error *error = &session->job_error;
    if (error->status == STATUS_OK && session->abandoned)
        not_made(server, server->stopping ? "the daemon is stopping" : "its client has gone",
                 error);
    if (error->status == STATUS_OK)
        open_in_core(session, error);
    if (error->status != STATUS_OK) {
        log_warn("%s: not opened: %s", session->label, error->text);
        if (!session->abandoned)
            leave(session);
        dispatch_refuse(server, session, &session->hello, error);
        start_unmaking(session);
        return;
    }
    session->stage = SESSION_UNMAPPED;
    session->imported = session->arena && engine_arena_imported(session->arena);
    session->map_deadline_ns = clock_now_ns() + server->params->idle_timeout_s * NS_PER_S;
    server_arm(server, session->map_deadline_ns);
    watch_owner(session);
    log_info("%s: opened, uid %u, tenant \"%s\", arena of %" PRIu64
             " bytes, %s, device arena of %" PRIu64 " bytes",
             session->label, session->uid, session->group ? session->group : session->tenant,
             session->segment.arena_size, session->imported ? "imported" : "staged",
             session->device_arena_size);
    answer_hello(session);
}

static enum status check_device_arena(const struct server *server, uint64_t size,
                                      struct error *error)
{
    const uint64_t most = server->params->device_arenas;
    if (size == 0)
        return STATUS_OK;
    if (most && !engine_device(server->engine)->memory_export)
        return error_set(error, STATUS_UNSUPPORTED,
                         "device %s exports no memory, so no session has a device arena",
                         engine_device(server->engine)->name);
    return STATUS_OK;
}

static bool same_tenant(const struct session *a, const struct session *b)
{
    return a->group || b->group ? a->group == b->group : a->uid == b->uid;
}

// Memory that all sessions share.
struct total {
    const char *what, *option;
    size_t field;       // of struct session: the bytes that it has, a uint64_t
    uint64_t most, has; // bytes of all sessions; most UINT64_MAX = no limit
};

static uint64_t bytes_of(const struct session *session, const struct total *total)
{
    uint64_t bytes;
    memcpy(&bytes, (const char *)session + total->field, sizeof bytes);
    return bytes;
}

// `session` is new and not in the table yet. A session that ends counts until its memory has gone.
static enum status check_total(const struct session *session, const struct total *total,
                               struct error *error)
{
    const struct server *server = session->server;
    const uint64_t size = bytes_of(session, total);
    uint64_t own = 0;
    for (const struct session *other = server->sessions; other; other = other->hh.next)
        own += same_tenant(session, other) ? bytes_of(other, total) : 0;
    const uint64_t part = session->group ? core_tenant_part(server->params->core.tenant_share,
                                                            total->most, total->has - own)
                                         : total->most;
    if (size == 0 || total->most == UINT64_MAX ||
        (size <= part && own <= part - size && total->has <= total->most - size))
        return STATUS_OK;
    if (part == total->most || size > total->most || (size <= part && own <= part - size))
        return error_set(error, STATUS_LIMIT,
                         "%s of %" PRIu64
                         " bytes does not fit beside those of other sessions (%s %" PRIu64 ")",
                         total->what, size, total->option, total->most);
    return error_set(error, STATUS_LIMIT,
                     "%s of %" PRIu64 " bytes would exceed the tenant's part of %s %" PRIu64
                     " (--tenant-share); its sessions have %" PRIu64,
                     total->what, size, total->option, total->most, own);
}

static enum status check_totals(const struct session *session, struct error *error)
{
    const struct server *server = session->server;
    const struct total totals[] = {
        {"a segment", "--max-arena-memory", offsetof(struct session, arena_bytes),
         server->max_arena_memory ? server->max_arena_memory : UINT64_MAX, server->arena_bytes},
        {"a device arena", "--device-arenas", offsetof(struct session, device_arena_size),
         server->params->device_arenas, server->device_arena_bytes},
    };
    enum status status = STATUS_OK;
    for (size_t i = 0; i < sizeof totals / sizeof *totals && status == STATUS_OK; i++)
        status = check_total(session, &totals[i], error);
    return status;
}

// Sessions that have ended count while their attached processes run.
static bool has_place(const struct session *session)
{
    return session->stage != SESSION_ENDING || session->ghost;
}

static enum status check_number(const struct server *server, const struct peer *peer,
                                struct error *error)
{
    const struct places places = {.what = "sessions",
                                  .option = "--max-sessions",
                                  .most = server->params->core.max_sessions,
                                  .share = server->params->core.tenant_share,
                                  .group_word = "sessions:N of its --tenant; ",
                                  .group_field = offsetof(struct group_places, sessions)};
    struct places_taken taken = {0};
    struct session *session, *next;
    HASH_ITER(hh, server->sessions, session, next) {
        if (has_place(session))
            places_count(&taken, &peer->user, &session->user);
    }
    if (server->num_ghosts == 0 || taken.all < places.most || !listener_is_operator(peer))
        return places_check(&places, &taken, &peer->user, error);
    return error_set(error, STATUS_LIMIT,
                     "%u sessions are open, and the attached processes of %u more still run; "
                     "--max-sessions is %u",
                     server->num_live, server->num_ghosts, server->params->core.max_sessions);
}

static enum status check_hello(const struct server *server, const struct peer *peer,
                               const struct wire_hello *hello, struct error *error)
{
    if (hello->major != WIRE_PROTOCOL_MAJOR)
        return error_set(error, STATUS_VERSION,
                         "the client speaks protocol %u.%u, the daemon %u.%u", hello->major,
                         hello->minor, WIRE_PROTOCOL_MAJOR, WIRE_PROTOCOL_MINOR);
    const struct session *own = peer->session;
    if (own)
        return error_set(error, STATUS_INVALID, "this connection has session %" PRIu64 " already",
                         own->id);
    const size_t name = strlen(hello->client_name), tenant = strlen(hello->tenant);
    if (name > WIRE_MAX_NAME || tenant > WIRE_MAX_TENANT)
        return error_set(
            error, STATUS_INVALID,
            "a client's name of %zu bytes and a tenant's of %zu; at most %u and %u fit", name,
            tenant, WIRE_MAX_NAME, WIRE_MAX_TENANT);
    if (hello->arena_size > server->params->max_arena)
        return error_set(error, STATUS_LIMIT,
                         "an arena of %" PRIu64 " bytes exceeds --max-arena %" PRIu64,
                         hello->arena_size, server->params->max_arena);
    enum status status = check_device_arena(server, hello->device_arena_size, error);
    if (status != STATUS_OK)
        return status;
    status = check_number(server, peer, error);
    if (status != STATUS_OK)
        log_warn("connection of pid %" PRIu64 ", uid %u: no session: %s", peer->pid, peer->user.uid,
                 error->text);
    return status;
}

static void set_label(struct session *session)
{
    snprintf(session->label, sizeof session->label, "session %" PRIu64 " (%s, pid %" PRIu64 ")",
             session->id, session->name, session->pid);
}

enum status session_start(struct server *server, struct peer *peer, const struct wire_hello *hello,
                          const struct asker *asker, struct error *error)
{
    const char *group = NULL;
    enum status status = check_hello(server, peer, hello, error);
    if (status == STATUS_OK)
        status = groups_find(server->groups, peer->user.uid, peer->user.gid, hello->tenant, &group,
                             error);
    if (status != STATUS_OK)
        return status;
    struct session *session = calloc(1, sizeof *session);
    char *name = strdup(hello->client_name), *tenant = strdup(hello->tenant);
    if (!session || !name || !tenant) {
        free(session);
        free(name);
        free(tenant);
        return error_set(error, STATUS_NO_MEMORY, "no memory for another session");
    }
    uint64_t page = arena_alignment(server);
    *session = (struct session){
        .id = server->next_session++,
        .server = server,
        .peer = peer,
        .name = name,
        .tenant = tenant,
        .pid = peer->pid,
        .uid = peer->user.uid,
        .user = peer->user,
        .group = group,
        .pidfd = -1,
        .segment = {.guard = -1,
                    .lock = -1,
                    .arena_size = (hello->arena_size + page - 1) / page * page},
        .opened_ns = clock_now_ns(),
        .hello = *asker,
        .job = {.work = make_memory, .done = made},
        .device_arena_size = hello->device_arena_size,
    };
    set_label(session);
    const struct segment_params segment = segment_params_of(session);
    session->arena_bytes = segment_size(&segment);
    status = check_totals(session, error);
    if (status != STATUS_OK) {
        free_session(session);
        return status;
    }
    HASH_ADD(hh, server->sessions, id, sizeof session->id, session);
    if (!HASH_ADDED(session)) {
        free_session(session);
        return error_set(error, STATUS_NO_MEMORY, "no memory for another session");
    }
    peer->session = session;
    server->num_live++;
    server->device_arena_bytes += session->device_arena_size;
    server->arena_bytes += session->arena_bytes;
    jobs_start(server->jobs, &session->job);
    return STATUS_OK;
}

void session_mapped(struct session *session)
{
    segment_unlink(&session->segment);
    session->stage = SESSION_OPEN;
    lane_open(session);
}

// ---- descriptors of the device arena and of attached caches ----

// The next descriptor is made when the token comes.
static enum status draw_token(struct session *session, uint64_t cache, uint32_t part,
                              uint8_t token[WIRE_TOKEN_SIZE], struct error *error)
{
    if (getrandom(session->token, sizeof session->token, 0) != sizeof session->token)
        return error_set(error, STATUS_INTERNAL, "getrandom: %s", strerror(errno));
    session->has_token = true;
    session->token_cache = cache;
    session->token_part = part;
    memcpy(token, session->token, sizeof session->token);
    return STATUS_OK;
}

enum status session_export(struct session *session, struct wire_device_arena_reply *reply,
                           struct error *error)
{
    struct engine_export export;
    if (!session->device_arena)
        return error_set(error, STATUS_NOT_FOUND, "session %" PRIu64 " has no device arena",
                         session->id);
    enum status status = engine_arena_export(session->device_arena, &export, error);
    if (status != STATUS_OK)
        return status;
    close(export.fd);
    *reply = (struct wire_device_arena_reply){.size = session->device_arena_size,
                                              .allocated = export.allocated,
                                              .dedicated = export.dedicated};
    return draw_token(session, 0, 0, reply->token, error);
}

// Blocks of an attached process that dies wait for the proof of its death. So it must be watched.
static enum status check_attacher(const struct session *session, struct error *error)
{
    if (session->uid != geteuid())
        return error_set(error, STATUS_DENIED,
                         "only processes of uid %u, the daemon's, may attach to a cache; the "
                         "caller has uid %u",
                         geteuid(), session->uid);
    if (session->pidfd < 0)
        return error_set(error, STATUS_UNSUPPORTED,
                         "the daemon cannot watch the process of session %" PRIu64
                         ", so it cannot attach. Across pid namespaces this needs Linux 6.5 and a "
                         "daemon built with nng before 1.6.",
                         session->id);
    return STATUS_OK;
}

static enum status describe_part(const struct core_attachment *attachment, uint32_t part,
                                 struct wire_cache_attach_reply *reply, struct error *error)
{
    struct engine_cache_part lies;
    enum status status = engine_cache_export(attachment->cache, part, &lies, error);
    if (status != STATUS_OK)
        return status;
    close(lies.memory.fd);
    *reply = (struct wire_cache_attach_reply){.num_parts = lies.num_parts,
                                              .first_layer = lies.first_layer,
                                              .num_layers = lies.num_layers,
                                              .num_blocks = attachment->num_blocks,
                                              .layer_bytes = lies.layer_bytes,
                                              .block_bytes = lies.block_bytes,
                                              .allocated = lies.memory.allocated,
                                              .dedicated = lies.memory.dedicated};
    return STATUS_OK;
}

enum status session_attach(struct session *session, uint64_t cache, uint32_t part,
                           struct wire_cache_attach_reply *reply, struct error *error)
{
    struct core_attachment attachment;
    enum status status = STATUS_OK;
    if (session->server->params->core.export_pool) // else core says that it is missing
        status = check_attacher(session, error);
    if (status == STATUS_OK)
        status = core_cache_attach(session->core, cache, &attachment, error);
    if (status == STATUS_OK)
        status = describe_part(&attachment, part, reply, error);
    if (status == STATUS_OK)
        status = draw_token(session, cache, part, reply->token, error);
    return status;
}

static enum status open_descriptor(const struct session *session, int *fd, struct error *error)
{
    struct core_attachment attachment;
    struct engine_cache_part lies = {.memory.fd = -1};
    if (!session->token_cache) {
        enum status status = engine_arena_export(session->device_arena, &lies.memory, error);
        *fd = lies.memory.fd;
        return status;
    }
    if (!core_cache_attached(session->core, session->token_cache, &attachment))
        return error_set(error, STATUS_NOT_FOUND,
                         "session %" PRIu64 " is not attached to cache %" PRIu64 " any more",
                         session->id, session->token_cache);
    enum status status = engine_cache_export(attachment.cache, session->token_part, &lies, error);
    *fd = lies.memory.fd;
    return status;
}

static struct session *find_token(struct server *server, const uint8_t token[WIRE_TOKEN_SIZE])
{
    struct session *session, *next;
    HASH_ITER(hh, server->sessions, session, next) {
        if (session->stage == SESSION_OPEN && session->has_token &&
            memcmp(session->token, token, sizeof session->token) == 0)
            return session;
    }
    return NULL;
}

enum status session_redeem(void *context, const uint8_t token[WIRE_TOKEN_SIZE],
                           const struct exports_peer *peer, int *fd, struct error *error)
{
    struct session *session = find_token(context, token);
    if (!session)
        return error_set(error, STATUS_NOT_FOUND, "no open session has this token, or it was used");
    if (session->uid != peer->user.uid)
        return error_set(error, STATUS_DENIED, "the token is not of a session of uid %u",
                         peer->user.uid);
    // Blocks of a dead process are free again, so no process that is not watched may have them.
    if (session->pid != peer->pid)
        return error_set(error, STATUS_DENIED, "process %" PRIu64 " did not ask for this token",
                         peer->pid);
    if (session->pid == 0 && (session->owner == 0 || session->owner != peer->owner))
        return error_set(
            error, STATUS_DENIED, "a process of another pid namespace %s",
            session->owner
                ? "did not ask for this token"
                : "gets no descriptor before Linux 6.9, which tells such processes apart");
    session->has_token = false;
    enum status status = open_descriptor(session, fd, error);
    log_debug("%s: a descriptor of its %s %s", session->label,
              session->token_cache ? "cache" : "device arena",
              status == STATUS_OK ? "goes out" : error->text);
    return status;
}

// ---- ending ----

static void abandon(struct session *session, const char *why)
{
    struct server *server = session->server;
    struct error error;
    if (!jobs_cancel(server->jobs, &session->job)) {
        session->abandoned = true; // made() ends it when the job is done
        return;
    }
    not_made(server, why, &error);
    dispatch_refuse(server, session, &session->hello, &error);
    forget(session);
}

static void prove_dead(struct session *session)
{
    struct core_session *ghost = session->ghost;
    session->ghost = NULL;
    session->server->num_ghosts--;
    unwatch_owner(session);
    core_session_proven_dead(ghost);
}

static bool process_is_gone(const struct session *session)
{
    struct pollfd watched = {.fd = session->pidfd, .events = POLLIN};
    return poll(&watched, 1, 0) == 1;
}

// The session is closed in core. Its attached process may live on, and its kernels run.
static void haunt(struct session *session, struct core_session *core)
{
    session->ghost = core;
    session->server->num_ghosts++;
    log_info("%s: its blocks are quarantined until its process is gone", session->label);
    if (process_is_gone(session))
        prove_dead(session);
}

void session_process_gone(struct session *session)
{
    if (session->ghost)
        prove_dead(session);
    else
        session_end(session, true, "its process is gone");
}

void session_end(struct session *session, bool died, const char *why)
{
    if (session->stage == SESSION_ENDING)
        return;
    log_info("%s: ends: %s", session->label, why);
    bool making = session->stage == SESSION_MAKING;
    park_drop_session(session, why);
    offload_drop_session(session, why);
    lane_close(session, why);
    leave(session);
    if (making) {
        abandon(session, why);
        return;
    }
    segment_unlink(&session->segment);
    struct core_session *core = session->core;
    session->core = NULL;
    // Calls session_gone(), now or when the last run has ended.
    if (core_session_close(core, died))
        haunt(session, core);
    else
        unwatch_owner(session);
}

struct session *session_find(struct server *server, uint64_t id)
{
    struct session *session;
    HASH_FIND(hh, server->sessions, &id, sizeof id, session);
    return session && session->stage != SESSION_ENDING && session->stage != SESSION_MAKING ? session
                                                                                           : NULL;
}

void session_end_all(struct server *server, const char *why)
{
    struct session *session, *next;
    HASH_ITER(hh, server->sessions, session, next) {
        if (session->ghost)
            prove_dead(session); // no block is leased any more
        else
            session_end(session, false, why);
    }
}

void session_check_segments(struct server *server)
{
    struct session *session, *next;
    const uint64_t deaths = sigbus_guard_deaths();
    if (deaths == server->segment_deaths)
        return;
    server->segment_deaths = deaths;
    HASH_ITER(hh, server->sessions, session, next) {
        if (session->core && segment_is_dead(&session->segment))
            session_end(session, true, "its segment was shrunk");
    }
}

enum status session_check_copy(struct session *session, const char *what, struct error *error)
{
    if (!segment_is_dead(&session->segment))
        return STATUS_OK;
    session_end(session, true, "its segment was shrunk");
    return error_set(error, STATUS_NO_SESSION,
                     "%s: the segment of session %" PRIu64 " was shrunk; the session has ended",
                     what, session->id);
}

// The client reads why in the answer to a Mapped that comes too late.
static void end_unmapped(struct session *session)
{
    char why[96];
    snprintf(why, sizeof why, "its client did not map the segment within %u s (--idle-timeout)",
             session->server->params->idle_timeout_s);
    session->peer->unmapped_session = session->id;
    session_end(session, true, why);
}

void session_expire(struct server *server, int64_t now_ns)
{
    struct session *session, *next;
    HASH_ITER(hh, server->sessions, session, next) {
        if (session->stage != SESSION_UNMAPPED)
            continue;
        if (session->map_deadline_ns <= now_ns)
            end_unmapped(session);
        else
            server_arm(server, session->map_deadline_ns);
    }
}
