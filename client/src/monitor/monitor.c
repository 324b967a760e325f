// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// monitor.c - looks into a daemon without a session: a connection, and the commands with one
// answer. monitor_lists.c has those that answer with a list. Any thread.

#include "monitor.h"

#include "client/src/caller.h"
#include "client/src/error.h"
#include "client/src/socket_path.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- the connection ----

// Operators use the control socket, which serves all commands and keeps places for them. Others
// cannot open it.
static enum aule_status open_connection(const struct aule_monitor *monitor, struct connection **out)
{
    char control[SOCKET_PATH_MAX + 1];
    const struct timeout timeout = timeout_start(monitor->timeout_ms);
    if (strlen(monitor->path) <= SOCKET_DAEMON_MAX) {
        snprintf(control, sizeof control, "%s" SOCKET_CONTROL, monitor->path);
        enum aule_status status = connection_open(control, &timeout, out);
        if (status != AULE_DAEMON_GONE && status != AULE_DENIED)
            return status;
    }
    return connection_open(monitor->path, &timeout, out);
}

static void monitor_end(struct handle *handle)
{
    struct aule_monitor *monitor = (struct aule_monitor *)handle;
    connection_close(monitor->connection);
    if (monitor->handle.pid == getpid()) { // in a child another thread may seem to hold it
        pthread_cond_destroy(&monitor->unused);
        pthread_mutex_destroy(&monitor->mutex);
    }
    free(monitor->path);
    free(monitor);
}

const struct handle_kind monitor_handles = {"the monitor", AULE_INVALID, monitor_end};

enum aule_status aule_monitor_open(const char *socket, int timeout_ms, struct aule_monitor **out)
{
    REQUIRE(out);
    *out = NULL;
    char *path = NULL;
    enum aule_status status = timeout_check(timeout_ms);
    if (status == AULE_OK)
        status = socket_path(socket, &path);
    if (status != AULE_OK)
        return status;
    struct aule_monitor *monitor = calloc(1, sizeof *monitor);
    if (!monitor) {
        free(path);
        return fail(AULE_NO_MEMORY, "no memory for a monitor");
    }
    monitor->handle.pid = getpid();
    monitor->timeout_ms = timeout_ms ? timeout_ms : TIMEOUT_DEFAULT_MS;
    monitor->path = path;
    pthread_mutex_init(&monitor->mutex, NULL);
    pthread_cond_init(&monitor->unused, NULL);
    status = open_connection(monitor, &monitor->connection);
    if (status == AULE_OK)
        status = handle_open(&monitor->handle, &monitor_handles);
    if (status == AULE_OK)
        *out = monitor;
    else
        monitor_end(&monitor->handle);
    return status;
}

void aule_monitor_close(struct aule_monitor *monitor)
{
    if (!monitor || !handle_close(monitor, &monitor_handles))
        return;
    if (monitor->handle.pid == getpid()) { // calls in flight return
        pthread_mutex_lock(&monitor->mutex);
        monitor->closed = true;
        if (monitor->connection)
            connection_interrupt(monitor->connection);
        pthread_cond_broadcast(&monitor->unused);
        pthread_mutex_unlock(&monitor->mutex);
    }
    handle_unref(&monitor->handle);
}

// False: the daemon has closed the connection because it was idle, or for another operator.
static bool is_fit(const struct aule_monitor *monitor)
{
    return monitor->connection && !connection_was_idle(monitor->connection);
}

// Under the mutex, which it gives up meanwhile, so that aule_monitor_close() does not wait.
static enum aule_status open_another(struct aule_monitor *monitor)
{
    struct connection *old = monitor->connection, *opened = NULL;
    monitor->connection = NULL;
    monitor->daemon.known = false; // perhaps another daemon
    monitor->opening = true;
    pthread_mutex_unlock(&monitor->mutex);
    connection_close(old);
    enum aule_status status = open_connection(monitor, &opened);
    pthread_mutex_lock(&monitor->mutex);
    monitor->opening = false;
    monitor->connection = opened;
    pthread_cond_broadcast(&monitor->unused);
    return status;
}

// Lends the connection for a call. If it does not fit, opens another one as soon as no call uses
// the old one.
static enum aule_status take_connection(struct aule_monitor *monitor, struct connection **out)
{
    enum aule_status status = AULE_OK;
    pthread_mutex_lock(&monitor->mutex);
    while (!monitor->closed && (monitor->opening || (monitor->num_users > 0 && !is_fit(monitor))))
        pthread_cond_wait(&monitor->unused, &monitor->mutex);
    if (!monitor->closed && !is_fit(monitor))
        status = open_another(monitor);
    if (monitor->closed)
        status = fail(AULE_INVALID, "the monitor was closed meanwhile");
    monitor->num_users += status == AULE_OK;
    *out = monitor->connection;
    pthread_mutex_unlock(&monitor->mutex);
    return status;
}

static void give_back(struct aule_monitor *monitor)
{
    pthread_mutex_lock(&monitor->mutex);
    if (--monitor->num_users == 0)
        pthread_cond_broadcast(&monitor->unused);
    pthread_mutex_unlock(&monitor->mutex);
}

enum aule_status monitor_check_protocol(const struct monitor_protocol *daemon,
                                        enum wire_command command, uint32_t minor)
{
    if (daemon->major != WIRE_PROTOCOL_MAJOR)
        return fail(AULE_VERSION, "the daemon speaks protocol %u.%u, this library %u.%u",
                    daemon->major, daemon->minor, WIRE_PROTOCOL_MAJOR, WIRE_PROTOCOL_MINOR);
    if (daemon->minor < minor)
        return fail(AULE_UNSUPPORTED, "the daemon is too old (protocol %u.%u; %s needs %u.%u)",
                    daemon->major, daemon->minor, wire_command_name(command), WIRE_PROTOCOL_MAJOR,
                    minor);
    return AULE_OK;
}

// Asks once for each connection. The connection is one of take_connection().
static enum aule_status learn_protocol(struct aule_monitor *monitor, struct connection *connection,
                                       const struct timeout *timeout, struct monitor_protocol *out)
{
    const struct wire_request request = {.command = WIRE_COMMAND_PING};
    struct answer answer;
    pthread_mutex_lock(&monitor->mutex);
    *out = monitor->daemon;
    pthread_mutex_unlock(&monitor->mutex);
    if (out->known)
        return AULE_OK;
    enum aule_status status =
        connection_call(connection, &request, timeout, WIRE_ANSWER_PING, &answer);
    if (status != AULE_OK)
        return status;
    *out = (struct monitor_protocol){true, answer.reply.ping.major, answer.reply.ping.minor};
    answer_finish(&answer);
    pthread_mutex_lock(&monitor->mutex);
    monitor->daemon = *out; // the connection is in use, so it is still the monitor's
    pthread_mutex_unlock(&monitor->mutex);
    return AULE_OK;
}

// Another major may give a command's number to another command. All majors have the same ping.
static enum aule_status check_command(struct aule_monitor *monitor, struct connection *connection,
                                      enum wire_command command, const struct timeout *timeout)
{
    static const uint32_t minors[WIRE_COMMAND_COUNT] = {
#define MINOR(NAME, name, rules, since) [WIRE_COMMAND_##NAME] = (since),
        WIRE_RULES_MAP(MINOR)
#undef MINOR
    };
    struct monitor_protocol daemon;
    if (command == WIRE_COMMAND_PING)
        return AULE_OK;
    enum aule_status status = learn_protocol(monitor, connection, timeout, &daemon);
    return status == AULE_OK ? monitor_check_protocol(&daemon, command, minors[command]) : status;
}

// *again: the daemon has not served the request, and the next connection may be served.
static enum aule_status ask_once(struct aule_monitor *monitor, const struct wire_request *request,
                                 enum wire_answer expected, struct answer *answer, bool *again)
{
    struct connection *connection;
    enum aule_status status = take_connection(monitor, &connection);
    *again = false;
    if (status != AULE_OK)
        return status;
    const struct timeout timeout = timeout_start(monitor->timeout_ms);
    status = check_command(monitor, connection, request->command, &timeout);
    if (status == AULE_OK)
        status = connection_call(connection, request, &timeout, expected, answer);
    *again = status != AULE_OK && connection_was_idle(connection);
    give_back(monitor);
    return status;
}

enum aule_status monitor_ask(struct aule_monitor *monitor, const struct wire_request *request,
                             enum wire_answer expected, struct answer *answer)
{
    enum aule_status status = AULE_OK;
    *answer = (struct answer){.message = NULL};
    USE(monitor);
    bool again = true; // other operators may take the next connection, too
    for (int i = 0; i < 3 && again; i++)
        status = ask_once(monitor, request, expected, answer, &again);
    return status;
}

// ---- one answer each ----

enum aule_status aule_monitor_ping_sized(struct aule_monitor *monitor, struct aule_ping_info *info,
                                         size_t info_size)
{
    REQUIRE(monitor);
    REQUIRE(info);
    uint64_t start = (uint64_t)clock_now_ns();
    struct wire_request request = {.command = WIRE_COMMAND_PING, .ping = {.payload = start}};
    struct answer answer;
    enum aule_status status = monitor_ask(monitor, &request, WIRE_ANSWER_PING, &answer);
    if (status != AULE_OK)
        return status;
    const struct wire_ping_reply *reply = &answer.reply.ping;
    if (reply->payload != start)
        status = fail(AULE_MALFORMED, "a ping with %" PRIu64 " was answered with %" PRIu64, start,
                      reply->payload);
    struct aule_ping_info whole = {.epoch = reply->epoch,
                                   .round_trip_ns = (uint64_t)clock_now_ns() - start,
                                   .protocol_major = reply->major,
                                   .protocol_minor = reply->minor,
                                   .pid = reply->pid};
    COPY_TEXT(whole.version, reply->version);
    COPY_TEXT(whole.socket, reply->socket);
    if (status == AULE_OK)
        GIVE(info, info_size, whole);
    answer_finish(&answer);
    return status;
}

enum aule_status aule_monitor_device_sized(struct aule_monitor *monitor,
                                           struct aule_device_state *state, size_t state_size)
{
    REQUIRE(monitor);
    REQUIRE(state);
    struct wire_request request = {.command = WIRE_COMMAND_INSPECT_DEVICE};
    struct answer answer;
    enum aule_status status = monitor_ask(monitor, &request, WIRE_ANSWER_INSPECT_DEVICE, &answer);
    if (status != AULE_OK)
        return status;
    const struct wire_inspect_device_reply *reply = &answer.reply.inspect_device;
    struct aule_device_state whole = {
        .index = reply->index,
        .api_version = reply->api_version,
        .software = reply->software,
        .host_import = reply->host_import,
        .heap_bytes = reply->heap_bytes,
        .budget_bytes = reply->budget_bytes,
        .max_allocation_bytes = reply->max_allocation_bytes,
        .import_alignment = reply->import_alignment,
        .subgroup_size = reply->subgroup_size,
        .shared_memory_bytes = reply->shared_memory_bytes,
        .pipelines = reply->pipelines,
    };
    COPY_TEXT(whole.name, reply->name);
    COPY_TEXT(whole.driver, reply->driver);
    COPY_TEXT(whole.type, reply->type);
    COPY_TEXT(whole.variant, reply->variant);
    memcpy(whole.uuid, reply->uuid, sizeof whole.uuid);
    GIVE(state, state_size, whole);
    answer_finish(&answer);
    return AULE_OK;
}

// ---- acting ----

static enum aule_status order(struct aule_monitor *monitor, const struct wire_request *request)
{
    struct answer answer;
    enum aule_status status = monitor_ask(monitor, request, WIRE_ANSWER_EMPTY, &answer);
    answer_finish(&answer);
    return status;
}

enum aule_status aule_monitor_close_session(struct aule_monitor *monitor, uint64_t session)
{
    REQUIRE(monitor);
    return order(monitor, &(struct wire_request){.command = WIRE_COMMAND_KILL_SESSION,
                                                 .kill_session.session = session});
}

enum aule_status aule_monitor_drop_cache(struct aule_monitor *monitor, uint64_t cache)
{
    REQUIRE(monitor);
    return order(monitor, &(struct wire_request){.command = WIRE_COMMAND_DROP_CACHE,
                                                 .drop_cache.cache = cache});
}

enum aule_status aule_monitor_unpin(struct aule_monitor *monitor, uint64_t cache, int32_t block,
                                    uint32_t *num_prefixes, uint64_t *num_blocks)
{
    REQUIRE(monitor);
    REQUIRE(num_prefixes);
    REQUIRE(num_blocks);
    *num_prefixes = 0;
    *num_blocks = 0;
    struct answer answer;
    enum aule_status status =
        monitor_ask(monitor,
                    &(struct wire_request){.command = WIRE_COMMAND_PREFIX_UNPIN,
                                           .prefix_unpin = {.cache = cache, .block = block}},
                    WIRE_ANSWER_PREFIX_UNPIN, &answer);
    if (status != AULE_OK)
        return status;
    *num_prefixes = answer.reply.prefix_unpin.num_prefixes;
    *num_blocks = answer.reply.prefix_unpin.num_blocks;
    answer_finish(&answer);
    return AULE_OK;
}

enum aule_status aule_monitor_limit_tenant(struct aule_monitor *monitor, uint64_t tenant,
                                           uint64_t blocks, uint64_t cached, uint64_t floor)
{
    REQUIRE(monitor);
    return order(monitor, &(struct wire_request){.command = WIRE_COMMAND_LIMIT_TENANT,
                                                 .limit_tenant = {.tenant = tenant,
                                                                  .blocks = blocks,
                                                                  .cached = cached,
                                                                  .floor = floor}});
}

enum aule_status aule_monitor_limit_session(struct aule_monitor *monitor, uint64_t session,
                                            uint64_t blocks)
{
    REQUIRE(monitor);
    return order(monitor,
                 &(struct wire_request){.command = WIRE_COMMAND_LIMIT_SESSION,
                                        .limit_session = {.session = session, .blocks = blocks}});
}

enum aule_status aule_monitor_log_level(struct aule_monitor *monitor, enum aule_log_level level,
                                        enum aule_log_level *before)
{
    REQUIRE(monitor);
    REQUIRE(before);
    struct answer answer;
    enum aule_status status = monitor_ask(
        monitor, &(struct wire_request){.command = WIRE_COMMAND_LOG, .log.level = (uint32_t)level},
        WIRE_ANSWER_LOG, &answer);
    if (status != AULE_OK)
        return status;
    const uint32_t was = answer.reply.log.before;
    if (was < WIRE_LOG_ERROR || was > WIRE_LOG_DEBUG)
        status = fail(AULE_MALFORMED, "the daemon answered the unknown log level %u", was);
    else
        *before = (enum aule_log_level)was;
    answer_finish(&answer);
    return status;
}

enum aule_status aule_monitor_options(struct aule_monitor *monitor, char **lines)
{
    REQUIRE(monitor);
    REQUIRE(lines);
    struct answer answer;
    const struct wire_request request = {.command = WIRE_COMMAND_OPTIONS};
    enum aule_status status = monitor_ask(monitor, &request, WIRE_ANSWER_OPTIONS, &answer);
    if (status != AULE_OK)
        return status;
    const size_t size = answer.reply.options.lines.count;
    char *text = size ? strndup((const char *)answer.reply.options.lines.data, size) : strdup("");
    answer_finish(&answer);
    if (!text)
        return fail(AULE_NO_MEMORY, "no memory for %zu bytes of options", size);
    *lines = text;
    return AULE_OK;
}
