// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// monitor.c - looks into a daemon without a session: a connection and the inspection commands,
// whose lists come page by page. Any thread.

#include "caller.h"
#include "client/src/link/connection.h"
#include "error.h"
#include "fork.h"
#include "socket_path.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct aule_monitor {
    pid_t pid;
    int timeout_ms;
    struct connection *connection;
};

#define REQUIRE_ENTRY                                                                              \
    do {                                                                                           \
        REQUIRE(array);                                                                            \
        if (entry_size == 0)                                                                       \
            return fail(AULE_INVALID, "entry_size is 0");                                          \
    } while (0)

#define COPY_TEXT(to, from) snprintf((to), sizeof(to), "%s", (from) ? (from) : "")

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
    monitor->pid = getpid();
    monitor->timeout_ms = timeout_ms ? timeout_ms : TIMEOUT_DEFAULT_MS;
    const struct timeout timeout = timeout_start(monitor->timeout_ms);
    status = connection_open(path, &timeout, &monitor->connection);
    free(path);
    if (status == AULE_OK)
        *out = monitor;
    else
        free(monitor);
    return status;
}

void aule_monitor_close(struct aule_monitor *monitor)
{
    if (!monitor)
        return;
    connection_close(monitor->connection);
    free(monitor);
}

// An older daemon would call a command that it does not know malformed, so its version is asked
// for first. Commands that each daemon of this major knows cost no such question.
static enum aule_status check_known(struct aule_monitor *monitor, enum wire_command command)
{
    static const uint32_t minors[WIRE_COMMAND_COUNT] = {
#define MINOR(NAME, name, rules, since) [WIRE_COMMAND_##NAME] = (since),
        WIRE_RULES_MAP(MINOR)
#undef MINOR
    };
    struct aule_ping_info peer;
    if (minors[command] == 0)
        return AULE_OK;
    enum aule_status status = aule_monitor_ping(monitor, &peer);
    if (status == AULE_OK && peer.protocol_minor < minors[command])
        status = fail(AULE_UNSUPPORTED, "the daemon is too old (protocol %u.%u; %s needs %u.%u)",
                      peer.protocol_major, peer.protocol_minor, wire_command_name(command),
                      WIRE_PROTOCOL_MAJOR, minors[command]);
    return status;
}

static enum aule_status ask(struct aule_monitor *monitor, const struct wire_request *request,
                            enum wire_answer expected, struct answer *answer)
{
    *answer = (struct answer){.message = NULL};
    enum aule_status status = fork_check(monitor->pid, "the monitor");
    if (status == AULE_OK)
        status = check_known(monitor, request->command);
    if (status != AULE_OK)
        return status;
    const struct timeout timeout = timeout_start(monitor->timeout_ms);
    return connection_call(monitor->connection, request, &timeout, expected, answer);
}

static const char *name_at(const struct wire_names *names, uint32_t i)
{
    return i < names->count ? names->data[i] : "";
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
    enum aule_status status = ask(monitor, &request, WIRE_ANSWER_PING, &answer);
    if (status != AULE_OK)
        return status;
    const struct wire_ping_reply *reply = &answer.reply.ping;
    if (reply->payload != start)
        status = fail(AULE_MALFORMED, "a ping with %" PRIu64 " was answered with %" PRIu64, start,
                      reply->payload);
    struct aule_ping_info whole = {.epoch = reply->epoch,
                                   .round_trip_ns = (uint64_t)clock_now_ns() - start,
                                   .protocol_major = reply->major,
                                   .protocol_minor = reply->minor};
    COPY_TEXT(whole.version, reply->version);
    if (status == AULE_OK)
        GIVE(info, info_size, whole);
    answer_finish(&answer);
    return status;
}

enum aule_status aule_monitor_daemon_sized(struct aule_monitor *monitor,
                                           struct aule_daemon_state *state, size_t state_size)
{
    REQUIRE(monitor);
    REQUIRE(state);
    struct wire_request request = {.command = WIRE_COMMAND_INSPECT_DAEMON};
    struct answer answer;
    enum aule_status status = ask(monitor, &request, WIRE_ANSWER_INSPECT_DAEMON, &answer);
    if (status != AULE_OK)
        return status;
    const struct wire_inspect_daemon_reply *reply = &answer.reply.inspect_daemon;
    struct aule_daemon_state whole = {
        .epoch = reply->epoch,
        .pid = reply->pid,
        .uptime_ms = reply->uptime_ms,
        .stopping = reply->stopping,
        .num_sessions = reply->num_sessions,
        .max_sessions = reply->max_sessions,
        .num_caches = reply->num_caches,
        .max_caches = reply->max_caches,
        .pool_bytes = reply->pool_bytes,
        .pool_limit_bytes = reply->pool_limit_bytes,
        .pool_blocks = reply->pool_blocks,
        .pool_limit_blocks = reply->pool_limit_blocks,
        .free_blocks = reply->free_blocks,
        .leased_blocks = reply->leased_blocks,
        .held_blocks = reply->held_blocks,
        .cached_blocks = reply->cached_blocks,
        .quarantined_blocks = reply->quarantined_blocks,
        .runs_done = reply->runs_done,
        .runs_failed = reply->runs_failed,
        .dispatches = reply->dispatches,
        .submissions = reply->submissions,
        .tokens_attended = reply->tokens_attended,
        .lookups = reply->lookups,
        .lookup_tokens = reply->lookup_tokens,
        .hit_tokens = reply->hit_tokens,
        .evictions = reply->evictions,
        .session_deaths = reply->session_deaths,
        .max_sessions_per_dispatch = reply->max_sessions_per_dispatch,
        .sessions_served = reply->sessions_served,
        .dispatches_of_1 = reply->dispatches_of_1,
        .dispatches_of_2 = reply->dispatches_of_2,
        .dispatches_of_4 = reply->dispatches_of_4,
        .dispatches_of_8 = reply->dispatches_of_8,
        .dispatches_of_more = reply->dispatches_of_more,
        .ends_awake = reply->ends_awake,
        .ends_asleep = reply->ends_asleep,
    };
    COPY_TEXT(whole.version, reply->version);
    COPY_TEXT(whole.socket, reply->socket);
    GIVE(state, state_size, whole);
    answer_finish(&answer);
    return AULE_OK;
}

enum aule_status aule_monitor_device_sized(struct aule_monitor *monitor,
                                           struct aule_device_state *state, size_t state_size)
{
    REQUIRE(monitor);
    REQUIRE(state);
    struct wire_request request = {.command = WIRE_COMMAND_INSPECT_DEVICE};
    struct answer answer;
    enum aule_status status = ask(monitor, &request, WIRE_ANSWER_INSPECT_DEVICE, &answer);
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

// ---- metrics: names and values, in one answer ----

static enum aule_status copy_metrics(const struct wire_inspect_daemon_reply *reply,
                                     size_t entry_size, char **array)
{
    uint32_t count = reply->metric_names.count;
    if (count == 0)
        return fail(AULE_UNSUPPORTED, "the daemon (%s) is too old; it has no metrics",
                    reply->version);
    if (!(*array = calloc(count, entry_size)))
        return fail(AULE_NO_MEMORY, "no memory for a list of %u entries", count);
    for (uint32_t i = 0; i < count; i++) {
        struct aule_metric whole = {.kind = (enum aule_metric_kind)reply->metric_kinds.data[i],
                                    .value = (uint64_t)reply->metric_values.data[i]};
        COPY_TEXT(whole.name, reply->metric_names.data[i]);
        COPY_TEXT(whole.unit, name_at(&reply->metric_units, i));
        COPY_TEXT(whole.help, name_at(&reply->metric_helps, i));
        GIVE(*array + i * entry_size, entry_size, whole);
    }
    return AULE_OK;
}

enum aule_status aule_monitor_metrics_sized(struct aule_monitor *monitor,
                                            struct aule_metric **array, size_t entry_size,
                                            uint32_t *count)
{
    REQUIRE(monitor);
    REQUIRE_ENTRY;
    REQUIRE(count);
    struct wire_request request = {.command = WIRE_COMMAND_INSPECT_DAEMON};
    struct answer answer;
    char *metrics;
    enum aule_status status = ask(monitor, &request, WIRE_ANSWER_INSPECT_DAEMON, &answer);
    if (status != AULE_OK)
        return status;
    status = copy_metrics(&answer.reply.inspect_daemon, entry_size, &metrics);
    if (status == AULE_OK) {
        *array = (struct aule_metric *)metrics;
        *count = answer.reply.inspect_daemon.metric_names.count;
    }
    answer_finish(&answer);
    return status;
}

// ---- lists: one page an answer, until as many entries have come as the daemon counts ----

// What differs from list to list.
struct list {
    struct wire_request request;
    uint32_t *first, *max; // of the range, inside the request
    enum wire_answer expected;
    size_t entry_size; // of the caller's array
    size_t whole_size; // of the library's struct
    // Tells the entries of this page and of the whole list.
    void (*measure)(const struct wire_reply *reply, uint32_t *count, uint32_t *total);
    // Converts entry `i` of this page.
    void (*convert)(const struct wire_reply *reply, uint32_t i, void *element);
};

struct array {
    char *elements; // owned
    uint32_t count;
};

// An element of any list.
union element {
    struct aule_session_state session;
    struct aule_cache_view cache;
    struct aule_block_state block;
    struct aule_tuned_state tuned;
};

static enum aule_status append_page(const struct list *list, const struct wire_reply *reply,
                                    uint32_t count, struct array *array)
{
    if (count > UINT32_MAX - array->count)
        return fail(AULE_OUT_OF_RANGE, "the daemon's list has more than %u entries", UINT32_MAX);
    char *more = reallocarray(array->elements, (size_t)array->count + count, list->entry_size);
    if (!more)
        return fail(AULE_NO_MEMORY, "no memory for a list of %u entries", array->count + count);
    array->elements = more;
    for (uint32_t i = 0; i < count; i++) {
        union element whole;
        list->convert(reply, i, &whole);
        caller_give(more + ((size_t)array->count + i) * list->entry_size, list->entry_size, &whole,
                    list->whole_size);
    }
    array->count += count;
    return AULE_OK;
}

// An empty page ends the list even if the total says more: entries may go between two pages.
static enum aule_status fetch_page(struct aule_monitor *monitor, struct list *list,
                                   struct array *array, bool *more)
{
    struct answer answer;
    *list->first = array->count;
    enum aule_status status = ask(monitor, &list->request, list->expected, &answer);
    if (status != AULE_OK)
        return status;
    uint32_t count, total;
    list->measure(&answer.reply, &count, &total);
    if (count > *list->max)
        status = fail(AULE_MALFORMED, "%s for %u entries was answered with %u",
                      wire_command_name(list->request.command), *list->max, count);
    else if (count > 0)
        status = append_page(list, &answer.reply, count, array);
    *more = count > 0 && array->count < total;
    answer_finish(&answer);
    return status;
}

static enum aule_status fetch(struct aule_monitor *monitor, struct list *list, void **elements,
                              uint32_t *count)
{
    struct array array = {.elements = NULL};
    enum aule_status status = AULE_OK;
    for (bool more = true; more && status == AULE_OK;)
        status = fetch_page(monitor, list, &array, &more);
    if (status != AULE_OK) {
        free(array.elements);
        return status;
    }
    *elements = array.elements;
    *count = array.count;
    return AULE_OK;
}

static void measure_sessions(const struct wire_reply *reply, uint32_t *count, uint32_t *total)
{
    *count = reply->inspect_sessions.sessions.count;
    *total = reply->inspect_sessions.total;
}

static void convert_session(const struct wire_reply *reply, uint32_t i, void *element)
{
    const struct wire_session_state *from = &reply->inspect_sessions.sessions.data[i];
    struct aule_session_state *to = element;
    *to = (struct aule_session_state){
        .session = from->session,
        .pid = from->pid,
        .uid = from->uid,
        .arena_imported = from->arena_imported,
        .dead = from->dead,
        .arena_bytes = from->arena_bytes,
        .blocks_held = from->blocks_held,
        .quota_blocks = from->quota_blocks,
        .batches = from->batches,
        .tickets_unreaped = from->tickets_unreaped,
        .runs_done = from->runs_done,
        .tokens_attended = from->tokens_attended,
        .gpu_ns = from->gpu_ns,
        .lookup_tokens = from->lookup_tokens,
        .hit_tokens = from->hit_tokens,
        .age_ms = from->age_ms,
    };
    COPY_TEXT(to->name, name_at(&reply->inspect_sessions.names, i));
    COPY_TEXT(to->tenant, name_at(&reply->inspect_sessions.tenants, i));
}

static void measure_caches(const struct wire_reply *reply, uint32_t *count, uint32_t *total)
{
    *count = reply->inspect_caches.caches.count;
    *total = reply->inspect_caches.total;
}

static void convert_cache(const struct wire_reply *reply, uint32_t i, void *element)
{
    const struct wire_cache_counts *from = &reply->inspect_caches.caches.data[i];
    struct aule_cache_view *to = element;
    *to = (struct aule_cache_view){
        .cache = from->cache,
        .num_layers = from->num_layers,
        .num_kv_heads = from->num_kv_heads,
        .head_dim = from->head_dim_k,
        .head_dim_v = from->head_dim_v,
        .block_size = from->block_size,
        .k_dtype = (enum aule_dtype)from->k_dtype,
        .v_dtype = (enum aule_dtype)from->v_dtype,
        .scale_mode = (enum aule_scale_mode)from->scale_mode,
        .v_is_k_prefix = from->v_is_k_prefix,
        .chunk_blocks = from->chunk_blocks,
        .num_chunks = from->num_chunks,
        .open_sessions = from->open_sessions,
        .block_bytes = from->block_bytes,
        .total_blocks = from->total_blocks,
        .free_blocks = from->free_blocks,
        .leased_blocks = from->leased_blocks,
        .held_blocks = from->held_blocks,
        .cached_blocks = from->cached_blocks,
        .quarantined_blocks = from->quarantined_blocks,
        .published_blocks = from->published_blocks,
        .pending_blocks = from->pending_blocks,
    };
    COPY_TEXT(to->name, name_at(&reply->inspect_caches.names, i));
    COPY_TEXT(to->fingerprint, name_at(&reply->inspect_caches.fingerprints, i));
}

static void measure_blocks(const struct wire_reply *reply, uint32_t *count, uint32_t *total)
{
    *count = reply->inspect_blocks.blocks.count;
    *total = reply->inspect_blocks.total;
}

static void convert_block(const struct wire_reply *reply, uint32_t i, void *element)
{
    const struct wire_block_state *from = &reply->inspect_blocks.blocks.data[i];
    *(struct aule_block_state *)element = (struct aule_block_state){
        .block = from->block,
        .state = (enum aule_block_kind)from->state,
        .holders = from->holders,
        .batch_refs = from->batch_refs,
        .writer = from->writer,
        .last_use = from->last_use,
        .depth = from->depth,
    };
}

// Entries a page, so that they fit a message even if each name has WIRE_MAX_NAME bytes.
enum { SESSIONS_A_PAGE = 1024, CACHES_A_PAGE = 1024, BLOCKS_A_PAGE = 8192, TUNED_A_PAGE = 1024 };

enum aule_status aule_monitor_sessions_sized(struct aule_monitor *monitor,
                                             struct aule_session_state **array, size_t entry_size,
                                             uint32_t *count)
{
    REQUIRE(monitor);
    REQUIRE_ENTRY;
    REQUIRE(count);
    struct list list = {
        .request = {.command = WIRE_COMMAND_INSPECT_SESSIONS,
                    .inspect_sessions = {.max = SESSIONS_A_PAGE}},
        .expected = WIRE_ANSWER_INSPECT_SESSIONS,
        .entry_size = entry_size,
        .whole_size = sizeof **array,
        .measure = measure_sessions,
        .convert = convert_session,
    };
    list.first = &list.request.inspect_sessions.first;
    list.max = &list.request.inspect_sessions.max;
    return fetch(monitor, &list, (void **)array, count);
}

enum aule_status aule_monitor_caches_sized(struct aule_monitor *monitor,
                                           struct aule_cache_view **array, size_t entry_size,
                                           uint32_t *count)
{
    REQUIRE(monitor);
    REQUIRE_ENTRY;
    REQUIRE(count);
    struct list list = {
        .request = {.command = WIRE_COMMAND_INSPECT_CACHES,
                    .inspect_caches = {.max = CACHES_A_PAGE}},
        .expected = WIRE_ANSWER_INSPECT_CACHES,
        .entry_size = entry_size,
        .whole_size = sizeof **array,
        .measure = measure_caches,
        .convert = convert_cache,
    };
    list.first = &list.request.inspect_caches.first;
    list.max = &list.request.inspect_caches.max;
    return fetch(monitor, &list, (void **)array, count);
}

enum aule_status aule_monitor_blocks_sized(struct aule_monitor *monitor, uint64_t cache,
                                           struct aule_block_state **array, size_t entry_size,
                                           uint32_t *count)
{
    REQUIRE(monitor);
    REQUIRE_ENTRY;
    REQUIRE(count);
    struct list list = {
        .request = {.command = WIRE_COMMAND_INSPECT_BLOCKS,
                    .inspect_blocks = {.cache = cache, .max = BLOCKS_A_PAGE}},
        .expected = WIRE_ANSWER_INSPECT_BLOCKS,
        .entry_size = entry_size,
        .whole_size = sizeof **array,
        .measure = measure_blocks,
        .convert = convert_block,
    };
    list.first = &list.request.inspect_blocks.first;
    list.max = &list.request.inspect_blocks.max;
    return fetch(monitor, &list, (void **)array, count);
}

// ---- the table of shaders: three lists of one length, in one answer ----

static enum aule_status copy_variants(const struct wire_inspect_device_reply *reply,
                                      size_t entry_size, char **array)
{
    uint32_t count = reply->variants.count;
    if (reply->variant_needs.count != count || reply->variant_missing.count != count)
        return fail(AULE_MALFORMED,
                    "the daemon answered %u names of shaders, %u needs and %u lacks", count,
                    reply->variant_needs.count, reply->variant_missing.count);
    *array = NULL;
    if (count > 0 && !(*array = calloc(count, entry_size)))
        return fail(AULE_NO_MEMORY, "no memory for a list of %u entries", count);
    for (uint32_t i = 0; i < count; i++) {
        struct aule_variant_state whole = {
            .used = reply->variant && strcmp(reply->variants.data[i], reply->variant) == 0,
        };
        COPY_TEXT(whole.name, reply->variants.data[i]);
        COPY_TEXT(whole.needs, reply->variant_needs.data[i]);
        COPY_TEXT(whole.missing, reply->variant_missing.data[i]);
        GIVE(*array + i * entry_size, entry_size, whole);
    }
    return AULE_OK;
}

enum aule_status aule_monitor_variants_sized(struct aule_monitor *monitor,
                                             struct aule_variant_state **array, size_t entry_size,
                                             uint32_t *count)
{
    REQUIRE(monitor);
    REQUIRE_ENTRY;
    REQUIRE(count);
    struct wire_request request = {.command = WIRE_COMMAND_INSPECT_DEVICE};
    struct answer answer;
    char *variants;
    enum aule_status status = ask(monitor, &request, WIRE_ANSWER_INSPECT_DEVICE, &answer);
    if (status != AULE_OK)
        return status;
    status = copy_variants(&answer.reply.inspect_device, entry_size, &variants);
    if (status == AULE_OK) {
        *array = (struct aule_variant_state *)variants;
        *count = answer.reply.inspect_device.variants.count;
    }
    answer_finish(&answer);
    return status;
}

// ---- tuning ----

static void measure_tuned(const struct wire_reply *reply, uint32_t *count, uint32_t *total)
{
    *count = reply->tune.entries.count;
    *total = reply->tune.total;
}

static void convert_tuned(const struct wire_reply *reply, uint32_t i, void *element)
{
    const struct wire_tune_entry *from = &reply->tune.entries.data[i];
    struct aule_tuned_state *to = element;
    *to = (struct aule_tuned_state){
        .num_workgroups = from->num_workgroups,
        .num_keys = from->num_keys,
        .local_size = from->local_size,
        .rule_local_size = from->rule_local_size,
        .gpu_ns = from->gpu_ns,
        .rule_gpu_ns = from->rule_gpu_ns,
        .num_ways = from->num_ways,
        .num_samples = from->num_samples,
        .state = (enum aule_tuned)from->state,
    };
    COPY_TEXT(to->kernel, name_at(&reply->tune.kernels, i));
    COPY_TEXT(to->geometry, name_at(&reply->tune.geometries, i));
}

// Ignores the entries of this answer; the list is fetched afterwards, page by page.
static enum aule_status act(struct aule_monitor *monitor, enum aule_tune_action action,
                            struct aule_tuning_state *state)
{
    struct wire_request request = {.command = WIRE_COMMAND_TUNE,
                                   .tune = {.action = (uint32_t)action, .max = 1}};
    struct answer answer;
    enum aule_status status = ask(monitor, &request, WIRE_ANSWER_TUNE, &answer);
    if (status != AULE_OK)
        return status;
    const struct wire_tune_reply *reply = &answer.reply.tune;
    *state = (struct aule_tuning_state){
        .enabled = reply->enabled,
        .software = reply->software,
        .num_waiting = reply->num_waiting,
        .time_ms = reply->time_ms,
        .max_entries = reply->max_entries,
    };
    COPY_TEXT(state->path, reply->path);
    COPY_TEXT(state->note, reply->note);
    answer_finish(&answer);
    return AULE_OK;
}

enum aule_status aule_monitor_tune_sized(struct aule_monitor *monitor, enum aule_tune_action action,
                                         struct aule_tuning_state *state, size_t state_size,
                                         struct aule_tuned_state **array, size_t entry_size,
                                         uint32_t *count)
{
    REQUIRE(monitor);
    REQUIRE(state);
    REQUIRE_ENTRY;
    REQUIRE(count);
    struct aule_tuning_state now;
    struct list list = {
        .request = {.command = WIRE_COMMAND_TUNE,
                    .tune = {.action = WIRE_TUNE_SHOW, .max = TUNED_A_PAGE}},
        .expected = WIRE_ANSWER_TUNE,
        .entry_size = entry_size,
        .whole_size = sizeof **array,
        .measure = measure_tuned,
        .convert = convert_tuned,
    };
    list.first = &list.request.tune.first;
    list.max = &list.request.tune.max;
    enum aule_status status = act(monitor, action, &now);
    if (status == AULE_OK)
        status = fetch(monitor, &list, (void **)array, count);
    if (status == AULE_OK)
        GIVE(state, state_size, now);
    return status;
}

// ---- acting ----

static enum aule_status order(struct aule_monitor *monitor, const struct wire_request *request)
{
    struct answer answer;
    enum aule_status status = ask(monitor, request, WIRE_ANSWER_EMPTY, &answer);
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

enum aule_status aule_monitor_log_level(struct aule_monitor *monitor, enum aule_log_level level,
                                        enum aule_log_level *before)
{
    REQUIRE(monitor);
    REQUIRE(before);
    struct answer answer;
    enum aule_status status = ask(
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
