// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// monitor_lists.c - the inspection commands that answer with a list, each a row of one table. A
// long list comes page by page. Any thread.

#include "client/src/caller.h"
#include "client/src/error.h"
#include "monitor.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

// ---- what each answer has ----

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
    COPY_TEXT(to->name, reply->inspect_sessions.names.data[i]);
    COPY_TEXT(to->tenant, reply->inspect_sessions.tenants.data[i]);
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
    COPY_TEXT(to->name, reply->inspect_caches.names.data[i]);
    COPY_TEXT(to->fingerprint, reply->inspect_caches.fingerprints.data[i]);
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

static enum aule_status measure_metrics(const struct wire_reply *reply, uint32_t *count)
{
    *count = reply->metrics.names.count;
    return AULE_OK;
}

static void convert_metric(const struct wire_reply *reply, uint32_t i, void *element)
{
    const struct wire_metrics_reply *from = &reply->metrics;
    struct aule_metric *to = element;
    *to = (struct aule_metric){
        .kind = (enum aule_metric_kind)from->kinds.data[i],
        .value = (uint64_t)from->values.data[i],
    };
    COPY_TEXT(to->name, from->names.data[i]);
    COPY_TEXT(to->unit, from->units.data[i]);
    COPY_TEXT(to->help, from->helps.data[i]);
}

// The table of shaders comes as three lists of one length.
static enum aule_status measure_variants(const struct wire_reply *reply, uint32_t *count)
{
    const struct wire_inspect_device_reply *from = &reply->inspect_device;
    *count = from->variants.count;
    if (from->variant_needs.count != *count || from->variant_missing.count != *count)
        return fail(AULE_MALFORMED,
                    "the daemon answered %u names of shaders, %u needs and %u lacks", *count,
                    from->variant_needs.count, from->variant_missing.count);
    return AULE_OK;
}

static void convert_variant(const struct wire_reply *reply, uint32_t i, void *element)
{
    const struct wire_inspect_device_reply *from = &reply->inspect_device;
    struct aule_variant_state *to = element;
    *to = (struct aule_variant_state){
        .used = from->variant && strcmp(from->variants.data[i], from->variant) == 0,
    };
    COPY_TEXT(to->name, from->variants.data[i]);
    COPY_TEXT(to->needs, from->variant_needs.data[i]);
    COPY_TEXT(to->missing, from->variant_missing.data[i]);
}

static void convert_tenant(const struct wire_reply *reply, uint32_t i, void *element)
{
    const struct wire_tenant_state *from = &reply->inspect_tenants.tenants.data[i];
    struct aule_tenant_state *to = element;
    *to = (struct aule_tenant_state){
        .tenant = from->tenant,
        .limit_blocks = from->limit_blocks,
        .limit_cached = from->limit_cached,
        .floor = from->floor,
        .sessions = from->sessions,
        .used_blocks = from->used_blocks,
        .pinned_blocks = from->pinned_blocks,
        .cached_blocks = from->cached_blocks,
        .used_bytes = from->used_bytes,
        .cached_bytes = from->cached_bytes,
        .evicted_blocks = from->evicted_blocks,
        .refused_no_blocks = from->refused_no_blocks,
        .refused_quota = from->refused_quota,
    };
    COPY_TEXT(to->name, reply->inspect_tenants.names.data[i]);
}

// ---- the table of lists ----

enum list_name { SESSIONS, CACHES, BLOCKS, METRICS, VARIANTS, TENANTS };

static const struct list {
    enum wire_command command;
    enum wire_answer expected;
    size_t size; // bytes of the library's struct
    // Converts entry `i` of this answer.
    void (*convert)(const struct wire_reply *reply, uint32_t i, void *element);
    // Tells the entries of an answer that has the whole list. Fails if it has no such list. NULL:
    // the list comes page by page.
    enum aule_status (*measure)(const struct wire_reply *reply, uint32_t *count);
    // Entries to ask for at once, so few that they fit a message even if each name has
    // WIRE_MAX_NAME bytes. 0: one answer has the whole list.
    uint32_t page;
    size_t first, max;   // where struct wire_request has the range of a page
    size_t count, total; // where struct wire_reply has the entries of a page and of all pages
} lists[] = {
#define PAGES(most, command, list)                                                                 \
    NULL, most, offsetof(struct wire_request, command.first),                                      \
        offsetof(struct wire_request, command.max),                                                \
        offsetof(struct wire_reply, command.list.count),                                           \
        offsetof(struct wire_reply, command.total)
    [SESSIONS] = {WIRE_COMMAND_INSPECT_SESSIONS, WIRE_ANSWER_INSPECT_SESSIONS,
                  sizeof(struct aule_session_state), convert_session,
                  PAGES(1024, inspect_sessions, sessions)},
    [CACHES] = {WIRE_COMMAND_INSPECT_CACHES, WIRE_ANSWER_INSPECT_CACHES,
                sizeof(struct aule_cache_view), convert_cache, PAGES(1024, inspect_caches, caches)},
    [TENANTS] = {WIRE_COMMAND_INSPECT_TENANTS, WIRE_ANSWER_INSPECT_TENANTS,
                 sizeof(struct aule_tenant_state), convert_tenant,
                 PAGES(1024, inspect_tenants, tenants)},
    [BLOCKS] = {WIRE_COMMAND_INSPECT_BLOCKS, WIRE_ANSWER_INSPECT_BLOCKS,
                sizeof(struct aule_block_state), convert_block,
                PAGES(8192, inspect_blocks, blocks)},
    [METRICS] = {WIRE_COMMAND_METRICS, WIRE_ANSWER_METRICS, sizeof(struct aule_metric),
                 convert_metric, .measure = measure_metrics},
    [VARIANTS] = {WIRE_COMMAND_INSPECT_DEVICE, WIRE_ANSWER_INSPECT_DEVICE,
                  sizeof(struct aule_variant_state), convert_variant, .measure = measure_variants},
#undef PAGES
};

// An element of any list.
union element {
    struct aule_session_state session;
    struct aule_cache_view cache;
    struct aule_block_state block;
    struct aule_metric metric;
    struct aule_variant_state variant;
    struct aule_tenant_state tenant;
};

// ---- fetching ----

// The caller's list, as far as it has come.
struct array {
    size_t entry_size;
    char *entries; // [count]; owned
    uint32_t count;
};

static enum aule_status append(const struct list *list, const struct wire_reply *reply,
                               uint32_t count, struct array *array)
{
    if (count > UINT32_MAX - array->count)
        return fail(AULE_OUT_OF_RANGE, "the daemon's list has more than %u entries", UINT32_MAX);
    char *more = reallocarray(array->entries, (size_t)array->count + count, array->entry_size);
    if (!more)
        return fail(AULE_NO_MEMORY, "no memory for a list of %u entries", array->count + count);
    array->entries = more;
    for (uint32_t i = 0; i < count; i++) {
        union element whole;
        list->convert(reply, i, &whole);
        caller_give(more + ((size_t)array->count + i) * array->entry_size, array->entry_size,
                    &whole, list->size);
    }
    array->count += count;
    return AULE_OK;
}

// Tells the entries of this answer and of the whole list.
static enum aule_status measure(const struct list *list, const struct wire_reply *reply,
                                uint32_t *count, uint32_t *total)
{
    if (list->measure) {
        enum aule_status status = list->measure(reply, count);
        *total = *count;
        return status;
    }
    memcpy(count, (const char *)reply + list->count, sizeof *count);
    memcpy(total, (const char *)reply + list->total, sizeof *total);
    return AULE_OK;
}

// Takes over one answer. An empty page ends the list even if the total says more: entries may go
// between two pages.
static enum aule_status take_answer(const struct list *list, const struct wire_reply *reply,
                                    struct array *array, bool *more)
{
    uint32_t count, total;
    enum aule_status status = measure(list, reply, &count, &total);
    if (status != AULE_OK)
        return status;
    if (list->page && count > list->page)
        return fail(AULE_MALFORMED, "%s for %u entries was answered with %u",
                    wire_command_name(list->command), list->page, count);
    if (count > 0)
        status = append(list, reply, count, array);
    *more = list->page && count > 0 && array->count < total;
    return status;
}

static void set_range(struct wire_request *request, const struct list *list, uint32_t first)
{
    if (!list->page)
        return;
    memcpy((char *)request + list->first, &first, sizeof first);
    memcpy((char *)request + list->max, &list->page, sizeof list->page);
}

// Asks until as many entries have come as the daemon counts. `request` has what the command needs
// besides the range.
static enum aule_status fetch(struct aule_monitor *monitor, enum list_name name,
                              struct wire_request request, size_t entry_size, void **entries,
                              uint32_t *count)
{
    const struct list *list = &lists[name];
    struct array array = {.entry_size = entry_size};
    enum aule_status status = AULE_OK;
    request.command = list->command;
    for (bool more = true; more && status == AULE_OK;) {
        struct answer answer;
        set_range(&request, list, array.count);
        status = monitor_ask(monitor, &request, list->expected, &answer);
        if (status == AULE_OK)
            status = take_answer(list, &answer.reply, &array, &more);
        answer_finish(&answer);
    }
    if (status != AULE_OK) {
        free(array.entries);
        return status;
    }
    *entries = array.entries;
    *count = array.count;
    return AULE_OK;
}

// ---- the public functions ----

enum aule_status aule_monitor_sessions_sized(struct aule_monitor *monitor,
                                             struct aule_session_state **array, size_t entry_size,
                                             uint32_t *count)
{
    REQUIRE(monitor);
    REQUIRE_ENTRY;
    REQUIRE(count);
    return fetch(monitor, SESSIONS, (struct wire_request){0}, entry_size, (void **)array, count);
}

enum aule_status aule_monitor_tenants_sized(struct aule_monitor *monitor,
                                            struct aule_tenant_state **array, size_t entry_size,
                                            uint32_t *count)
{
    REQUIRE(monitor);
    REQUIRE_ENTRY;
    REQUIRE(count);
    return fetch(monitor, TENANTS, (struct wire_request){0}, entry_size, (void **)array, count);
}

enum aule_status aule_monitor_caches_sized(struct aule_monitor *monitor,
                                           struct aule_cache_view **array, size_t entry_size,
                                           uint32_t *count)
{
    REQUIRE(monitor);
    REQUIRE_ENTRY;
    REQUIRE(count);
    return fetch(monitor, CACHES, (struct wire_request){0}, entry_size, (void **)array, count);
}

enum aule_status aule_monitor_blocks_sized(struct aule_monitor *monitor, uint64_t cache,
                                           struct aule_block_state **array, size_t entry_size,
                                           uint32_t *count)
{
    REQUIRE(monitor);
    REQUIRE_ENTRY;
    REQUIRE(count);
    return fetch(monitor, BLOCKS, (struct wire_request){.inspect_blocks.cache = cache}, entry_size,
                 (void **)array, count);
}

enum aule_status aule_monitor_metrics_sized(struct aule_monitor *monitor,
                                            struct aule_metric **array, size_t entry_size,
                                            uint32_t *count)
{
    REQUIRE(monitor);
    REQUIRE_ENTRY;
    REQUIRE(count);
    return fetch(monitor, METRICS, (struct wire_request){0}, entry_size, (void **)array, count);
}

enum aule_status aule_monitor_variants_sized(struct aule_monitor *monitor,
                                             struct aule_variant_state **array, size_t entry_size,
                                             uint32_t *count)
{
    REQUIRE(monitor);
    REQUIRE_ENTRY;
    REQUIRE(count);
    return fetch(monitor, VARIANTS, (struct wire_request){0}, entry_size, (void **)array, count);
}
