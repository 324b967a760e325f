// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// handle_inspect.c - the handlers of the inspections: what aule-ctl shows. They read other rooms'
// state and change nothing. Dispatcher thread.

#include "page.h"
#include "server/log.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

static uint64_t milliseconds_since(int64_t then_ns)
{
    return (uint64_t)((clock_now_ns() - then_ns) / NS_PER_MS);
}

// All metrics, with the server's gauges brought up to date, too.
static const uint64_t *measure(const struct server *server)
{
    uint64_t *metrics = core_metrics(server->core);
    metrics[METRIC_UPTIME_SECONDS] = milliseconds_since(server->started_ns) / 1000;
    metrics[METRIC_STOPPING] = server->stopping;
    metrics[METRIC_LOG_DROPPED_LINES] = log_dropped();
    metrics[METRIC_SESSIONS] = server->num_live;
    metrics[METRIC_SESSIONS_LIMIT] = server->params->core.max_sessions;
    metrics[METRIC_ARENA_MEMORY] = server->arena_bytes;
    metrics[METRIC_ARENA_MEMORY_LIMIT] = server->max_arena_memory;
    return metrics;
}

enum status handle_metrics(struct call *call)
{
    const uint64_t *metrics = measure(call->server);
    call->reply.answer = WIRE_ANSWER_METRICS;
    call->reply.metrics = (struct wire_metrics_reply){
        .names = {metric_names, NUM_METRICS},
        .units = {metric_units, NUM_METRICS},
        .helps = {metric_helps, NUM_METRICS},
        .kinds = {metric_kinds, NUM_METRICS},
        .values = {(const int64_t *)metrics, NUM_METRICS},
    };
    return STATUS_OK;
}

// ---- sessions ----

// Shown are open sessions, and ended ones whose segment the GPU still uses. While a segment is made
// or unmade, it belongs to the job thread, so its session is not shown.
static bool is_shown(const struct session *session)
{
    return session->core ||
           (session->stage == SESSION_ENDING && !session->abandoned && !session->unmaking);
}

static uint32_t count_shown(const struct server *server)
{
    uint32_t count = 0;
    for (const struct session *session = server->sessions; session; session = session->hh.next)
        count += is_shown(session);
    return count;
}

// page->context is the session before this one; NULL: the page begins.
static const struct session *next_shown(const struct server *server, const struct page *page)
{
    const struct session *last = page->context, *session = last ? last->hh.next : server->sessions;
    for (uint32_t left = last ? 0 : page->first; session; session = session->hh.next)
        if (is_shown(session) && left-- == 0)
            return session;
    return NULL;
}

static enum status fill_session(struct call *call, struct page *page, uint32_t i)
{
    const struct session *session = next_shown(call->server, page);
    struct core_session_counts counts = {0};
    if (!session)
        return STATUS_NOT_FOUND;
    if (session->core)
        core_session_counts(session->core, &counts);
    ((struct wire_session_state *)page->entries)[i] = (struct wire_session_state){
        .session = session->id,
        .pid = session->pid,
        .uid = session->uid,
        .arena_imported = session->imported,
        .dead = session->stage == SESSION_ENDING,
        .arena_bytes = session->segment.arena_size,
        .blocks_held = counts.blocks_held,
        .quota_blocks = counts.quota_blocks,
        .batches = counts.batches,
        .tickets_unreaped = counts.tickets_unreaped,
        .runs_done = counts.runs_done,
        .tokens_attended = counts.tokens_attended,
        .gpu_ns = counts.gpu_ns,
        .lookup_tokens = counts.lookup_tokens,
        .hit_tokens = counts.hit_tokens,
        .age_ms = milliseconds_since(session->opened_ns),
    };
    page->names[0][i] = session->name;
    page->names[1][i] = session->tenant;
    page->context = session;
    return STATUS_OK;
}

enum status handle_inspect_sessions(struct call *call)
{
    static const struct page_list list = {
        PAGE_BYTES / (sizeof(struct wire_session_state) + 2 * PAGE_NAME_BYTES), 2,
        sizeof(struct wire_session_state), fill_session};
    const struct wire_inspect_sessions *range = &call->request->inspect_sessions;
    struct page page = {.total = count_shown(call->server)};
    enum status status = page_fill(call, &list, range->first, range->max, &page);
    call->reply.answer = WIRE_ANSWER_INSPECT_SESSIONS;
    call->reply.inspect_sessions =
        (struct wire_inspect_sessions_reply){.total = page.total,
                                             .sessions = {page.entries, page.count},
                                             .names = page_names(&page, 0),
                                             .tenants = page_names(&page, 1)};
    return status;
}

// ---- caches ----

enum { FINGERPRINT_DIGITS = 2 * CORE_MAX_FINGERPRINT };

// NULL: no memory.
static const char *hexadecimal(struct call *call, const struct core_cache_view *view)
{
    static const char digits[] = "0123456789abcdef";
    char *text = call_alloc(call, FINGERPRINT_DIGITS + 1, 1);
    for (uint32_t i = 0; text && i < view->fingerprint_size; i++) {
        text[2 * i] = digits[view->fingerprint[i] >> 4];
        text[2 * i + 1] = digits[view->fingerprint[i] & 15];
    }
    return text;
}

static enum status fill_cache(struct call *call, struct page *page, uint32_t i)
{
    struct core_cache_view view;
    if (!core_cache_at(call->server->core, page->first + i, &view))
        return error_set(&call->error, STATUS_INTERNAL, "cache %u of %u cannot be seen",
                         page->first + i, page->total);
    ((struct wire_cache_counts *)page->entries)[i] = (struct wire_cache_counts){
        .cache = view.cache,
        .num_layers = view.num_layers,
        .num_kv_heads = view.kv.num_kv_heads,
        .head_dim_k = view.kv.head_dim_k,
        .head_dim_v = view.kv.head_dim_v,
        .k_dtype = view.kv.k_dtype,
        .v_dtype = view.kv.v_dtype,
        .block_size = view.kv.block_size,
        .chunk_blocks = view.chunk_blocks,
        .num_chunks = view.num_chunks,
        .open_sessions = view.open_sessions,
        .v_is_k_prefix = view.kv.v_is_k_prefix,
        .scale_mode = view.kv.scale_mode,
        .block_bytes = view.counts.block_bytes,
        .total_blocks = view.counts.total,
        .free_blocks = view.counts.free,
        .leased_blocks = view.counts.leased,
        .held_blocks = view.counts.held,
        .cached_blocks = view.counts.cached,
        .quarantined_blocks = view.counts.quarantined,
        .published_blocks = view.published,
        .pending_blocks = view.pending,
    };
    page->names[0][i] = view.name;
    page->names[1][i] = hexadecimal(call, &view);
    return page->names[1][i] ? STATUS_OK : STATUS_NO_MEMORY;
}

enum status handle_inspect_caches(struct call *call)
{
    static const struct page_list list = {
        PAGE_BYTES / (sizeof(struct wire_cache_counts) + PAGE_NAME_BYTES + FINGERPRINT_DIGITS + 9),
        2, sizeof(struct wire_cache_counts), fill_cache};
    const struct wire_inspect_caches *range = &call->request->inspect_caches;
    struct page page = {.total = core_num_caches(call->server->core)};
    enum status status = page_fill(call, &list, range->first, range->max, &page);
    call->reply.answer = WIRE_ANSWER_INSPECT_CACHES;
    call->reply.inspect_caches =
        (struct wire_inspect_caches_reply){.total = page.total,
                                           .caches = {page.entries, page.count},
                                           .names = page_names(&page, 0),
                                           .fingerprints = page_names(&page, 1)};
    return status;
}

static enum status fill_block(struct call *call, struct page *page, uint32_t i)
{
    struct core_block_view view;
    core_block_at(call->server->core, call->request->inspect_blocks.cache, page->first + i, &view);
    ((struct wire_block_state *)page->entries)[i] = (struct wire_block_state){
        .block = view.block,
        .state = view.state,
        .holders = view.holders,
        .batch_refs = view.batch_refs,
        .writer = view.writer,
        .last_use = view.last_use,
        .depth = view.depth,
    };
    return STATUS_OK;
}

enum status handle_inspect_blocks(struct call *call)
{
    static const struct page_list list = {PAGE_BYTES / sizeof(struct wire_block_state), 0,
                                          sizeof(struct wire_block_state), fill_block};
    const struct wire_inspect_blocks *range = &call->request->inspect_blocks;
    struct page page = {0};
    enum status status =
        core_cache_find(call->server->core, range->cache, &page.total, &call->error);
    if (status == STATUS_OK)
        status = page_fill(call, &list, range->first, range->max, &page);
    call->reply.answer = WIRE_ANSWER_INSPECT_BLOCKS;
    call->reply.inspect_blocks = (struct wire_inspect_blocks_reply){
        .total = page.total, .blocks = {page.entries, page.count}};
    return status;
}

// ---- the prefix index ----

enum {
    PREFIX_TOKENS = 4, // ids of each block
    PREFIX_PAGE = PAGE_BYTES / (sizeof(struct wire_prefix_state) + PAGE_NAME_BYTES +
                                PREFIX_TOKENS * sizeof(int32_t)),
    PREFIX_SCAN = 4096, // ids that one answer looks at
};

static void fill_prefix(struct wire_prefix_state *out, const struct core_prefix_view *view)
{
    *out = (struct wire_prefix_state){
        .tree = view->tree,
        .hits = view->hits,
        .age_ms = view->age_ns / (uint64_t)NS_PER_MS,
        .block = view->block,
        .parent = view->parent,
        .depth = view->depth,
        .state = view->state,
        .holders = view->holders,
        .keep = view->keep,
        .extra_key_size = view->extra_key_size,
        .visible = view->visible,
    };
}

enum status handle_inspect_prefix(struct call *call)
{
    const struct wire_inspect_prefix *range = &call->request->inspect_prefix;
    uint32_t total, count = 0, next = range->first;
    enum status status = core_cache_find(call->server->core, range->cache, &total, &call->error);
    if (status != STATUS_OK)
        return status;
    struct wire_prefix_state *nodes = call_alloc(call, PREFIX_PAGE, sizeof *nodes);
    const char **tenants = call_alloc(call, PREFIX_PAGE, sizeof *tenants);
    int32_t(*tokens)[PREFIX_TOKENS] = call_alloc(call, PREFIX_PAGE, sizeof *tokens);
    if (!nodes || !tenants || !tokens)
        return STATUS_NO_MEMORY;
    for (; next < total && count < PREFIX_PAGE && next - range->first < PREFIX_SCAN; next++) {
        struct core_prefix_view view;
        if (!core_prefix_at(call->server->core, range->cache, next, &view))
            continue;
        fill_prefix(&nodes[count], &view);
        memcpy(tokens[count], view.tokens, sizeof tokens[count]); // a block has 8 or more
        tenants[count++] = view.tenant;
    }
    call->reply.answer = WIRE_ANSWER_INSPECT_PREFIX;
    call->reply.inspect_prefix = (struct wire_inspect_prefix_reply){
        .next = next,
        .total = total,
        .nodes = {nodes, count},
        .tenants = {tenants, count},
        .num_tokens = PREFIX_TOKENS,
        .tokens = {&tokens[0][0], count * PREFIX_TOKENS},
    };
    return STATUS_OK;
}

enum status handle_prefix_tokens(struct call *call)
{
    const struct wire_prefix_tokens *wanted = &call->request->prefix_tokens;
    struct core_prefix_view view;
    if (wanted->block < 0 ||
        !core_prefix_at(call->server->core, wanted->cache, (uint32_t)wanted->block, &view))
        return error_set(&call->error, STATUS_NOT_FOUND,
                         "cache %" PRIu64 " has no published block %" PRId32, wanted->cache,
                         wanted->block);
    call->reply.answer = WIRE_ANSWER_PREFIX_TOKENS;
    call->reply.prefix_tokens = (struct wire_prefix_tokens_reply){
        .tokens = {view.tokens, view.num_tokens},
        .extra_key = {view.extra_key, view.extra_key_size},
    };
    return STATUS_OK;
}

// ---- tenants ----

static enum status fill_tenant(struct call *call, struct page *page, uint32_t i)
{
    struct core_tenant_view view;
    if (!core_tenant_at(call->server->core, page->first + i, &view))
        return error_set(&call->error, STATUS_INTERNAL, "tenant %u of %u cannot be seen",
                         page->first + i, page->total);
    page->names[0][i] = view.label;
    ((struct wire_tenant_state *)page->entries)[i] = (struct wire_tenant_state){
        .tenant = view.tenant,
        .limit_blocks = view.limits.blocks,
        .limit_cached = view.limits.cached,
        .floor = view.limits.floor,
        .sessions = view.sessions,
        .used_blocks = view.used,
        .pinned_blocks = view.pinned,
        .cached_blocks = view.cached,
        .used_bytes = view.used_bytes,
        .cached_bytes = view.cached_bytes,
        .evicted_blocks = view.evicted,
        .refused_no_blocks = view.refused_no_blocks,
        .refused_quota = view.refused_quota,
    };
    return STATUS_OK;
}

enum status handle_inspect_tenants(struct call *call)
{
    static const struct page_list list = {
        PAGE_BYTES / (sizeof(struct wire_tenant_state) + PAGE_NAME_BYTES + 16), 1,
        sizeof(struct wire_tenant_state), fill_tenant};
    const struct wire_inspect_tenants *range = &call->request->inspect_tenants;
    struct page page = {.total = core_num_tenants(call->server->core)};
    enum status status = page_fill(call, &list, range->first, range->max, &page);
    call->reply.answer = WIRE_ANSWER_INSPECT_TENANTS;
    call->reply.inspect_tenants = (struct wire_inspect_tenants_reply){
        .total = page.total, .tenants = {page.entries, page.count}, .names = page_names(&page, 0)};
    return status;
}

// ---- the device ----

// The attention shaders, best first, as three lists: names, needs, and what this device lacks.
static enum status fill_variants(struct call *call, struct wire_inspect_device_reply *out)
{
    const struct engine *engine = call->server->engine;
    struct engine_variant_info info;
    uint32_t count = 0;
    while (engine_variant_at(engine, count, &info))
        count++;
    struct engine_variant_info *infos = call_alloc(call, count + 1, sizeof *infos);
    const char **names = call_alloc(call, 3 * ((size_t)count + 1), sizeof *names);
    if (!infos || !names)
        return STATUS_NO_MEMORY;
    const char **needs = names + count, **missing = needs + count;
    for (uint32_t i = 0; i < count && engine_variant_at(engine, i, &infos[i]); i++) {
        names[i] = infos[i].name;
        needs[i] = infos[i].needs;
        missing[i] = infos[i].missing;
    }
    out->variants = (struct wire_names){names, count};
    out->variant_needs = (struct wire_names){needs, count};
    out->variant_missing = (struct wire_names){missing, count};
    return STATUS_OK;
}

enum status handle_inspect_device(struct call *call)
{
    struct engine *engine = call->server->engine;
    const struct engine_device *device = engine_device(engine);
    struct wire_inspect_device_reply *out = &call->reply.inspect_device;
    call->reply.answer = WIRE_ANSWER_INSPECT_DEVICE;
    *out = (struct wire_inspect_device_reply){
        .name = device->name,
        .driver = device->driver,
        .api_version = device->api_version,
        .index = device->index,
        .type = device->type,
        .software = device->software,
        .heap_bytes = device->heap_bytes,
        .budget_bytes = engine_budget_bytes(engine),
        .subgroup_size = device->subgroup_size,
        .shared_memory_bytes = device->shared_memory_bytes,
        .max_allocation_bytes = device->max_allocation_bytes,
        .host_import = device->host_import,
        .import_alignment = device->import_alignment,
        .pipelines = engine_num_pipelines(engine),
        .variant = engine_variant(engine),
    };
    memcpy(out->uuid, device->uuid, sizeof out->uuid);
    return fill_variants(call, out);
}

// ---- options ----

enum status handle_options(struct call *call)
{
    const char *lines = call->server->params->lines;
    call->reply.answer = WIRE_ANSWER_OPTIONS;
    call->reply.options.lines.data = (const uint8_t *)lines;
    call->reply.options.lines.count = lines ? (uint32_t)strlen(lines) : 0;
    return STATUS_OK;
}
