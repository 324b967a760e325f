// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// caller.c - see caller.h.

#include "caller.h"

#include "tools/bench/team.h"
#include "tools/bench/values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_BLOCKS = 64, MOST_SETS = 64, TIMEOUT_MS = 120000, ALIGNMENT = 256 };

static bool failed(const char *what)
{
    fprintf(stderr, "aule-bench: %s: %s\n", what, aule_error());
    return false;
}

static bool no_memory(void)
{
    fprintf(stderr, "aule-bench: no host memory\n");
    return false;
}

// 0 if stored elements are not scaled: then the daemon accepts no scale.
static float scale_of(const struct caller *c)
{
    return values_scaled(c->params.kv_dtype) ? values_scale(c->params.kv_dtype) : 0;
}

// ---- the session ----

static uint32_t sets_for(const struct caller_params *params)
{
    uint64_t all = (uint64_t)workload_bytes(params->workload, params->kv_dtype);
    uint64_t sets = (params->pool_bytes + all - 1) / all;
    return sets < 1 ? 1 : sets > MOST_SETS ? MOST_SETS : (uint32_t)sets;
}

static uint64_t piece_bytes(const struct caller *c)
{
    return c->shape.num_contents * shape_block_elements(&c->shape) * sizeof(float);
}

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static uint64_t tensor_bytes(const struct caller *c)
{
    return c->num_q_sets * 2 * (c->q_bytes + c->new_bytes);
}

static bool open_session(struct caller *c)
{
    const struct workload *w = c->params.workload;
    const struct aule_session_params session = {
        .socket = c->params.socket,
        .name = "aule-bench",
        .arena_size =
            tensor_bytes(c) + 2 * piece_bytes(c) + (UINT64_C(16) << 20), // and metadata on its way
        .timeout_ms = TIMEOUT_MS,
    };
    const struct aule_cache_params cache = {
        .name = w->name,
        .num_layers = c->num_sets,
        .num_kv_heads = w->num_kv_heads,
        .head_dim = w->head_dim,
        .k_dtype = (enum aule_dtype)c->params.kv_dtype,
        .v_dtype = (enum aule_dtype)c->params.kv_dtype,
        .scale_mode = values_scaled(c->params.kv_dtype) ? AULE_SCALE_PER_TENSOR : AULE_SCALE_NONE,
        .block_size = w->block_size,
    };
    setenv("AULE_LANE", c->params.lane, 1); // otherwise the library would choose
    if (aule_session_open(&session, &c->session) != AULE_OK)
        return failed("session");
    if (aule_cache_open(c->session, &cache, &c->cache) != AULE_OK)
        return failed("cache");
    return true;
}

// ---- the blocks: those of a shared prefix come from the client that claims them first ----

// Takes what other clients have written of the prefix or are about to write: its blocks [0,
// num_found). Block i of the shape holds the i-th block_size tokens; a batch may name blocks in
// another order.
static bool find_prefix(struct caller *c, const struct aule_prefix *prefix)
{
    struct aule_claim claim;
    if (aule_prefix_claim(c->cache, prefix, 0, c->blocks, &claim) != AULE_OK)
        return failed("claim");
    while (claim.num_promised)
        if (aule_claim_wait(c->cache, &claim, TIMEOUT_MS, c->blocks) != AULE_OK)
            return failed("wait for the shared prefix");
    c->num_found = claim.num_blocks;
    return true;
}

static bool lease_blocks(struct caller *c)
{
    return aule_blocks_lease(c->cache, c->shape.num_blocks - c->num_found, TIMEOUT_MS,
                             c->blocks + c->num_found) == AULE_OK ||
           failed("lease");
}

// ---- K and V: the first blocks that were leased are imported, the others are copies of them ----

// Blocks of the shape as f32, which the daemon converts: each stored element has an exact f32
// value.
struct piece {
    const struct caller *caller;
    uint64_t stream;
    float *to;
};

static void fill_block(void *context, uint32_t i, uint32_t member)
{
    const struct piece *p = context;
    const struct caller *c = p->caller;
    uint64_t elements = shape_block_elements(&c->shape);
    uint64_t content = (c->num_found + i) % c->shape.num_contents;
    (void)member;
    values_read(c->params.kv_dtype, p->stream, content * elements, elements, p->to + i * elements);
}

static uint32_t num_imported(const struct caller *c)
{
    uint32_t leased = c->shape.num_blocks - c->num_found;
    return leased < c->shape.num_contents ? leased : c->shape.num_contents;
}

// [blocks, heads, tokens, dim]
static struct aule_tensor block_tensor(const struct caller *c, uint64_t offset)
{
    const struct workload *w = c->params.workload;
    uint64_t row = w->head_dim * sizeof(float);
    return (struct aule_tensor){.dtype = AULE_F32,
                                .offset = offset,
                                .token_stride = row,
                                .head_stride = row * w->block_size,
                                .outer_stride = row * w->block_size * w->num_kv_heads};
}

static bool wait_for(struct caller *c, enum aule_status status, struct aule_ticket ticket,
                     const char *what)
{
    return (status == AULE_OK &&
            aule_ticket_wait(c->session, ticket, TIMEOUT_MS, NULL) == AULE_OK) ||
           failed(what);
}

static bool import_set(struct caller *c, uint32_t set, char *memory, uint64_t offset,
                       const int64_t *slots)
{
    const struct workload *w = c->params.workload;
    struct piece k = {c, shape_stream(set, SHAPE_K), (float *)memory};
    struct piece v = {c, shape_stream(set, SHAPE_V), (float *)(memory + piece_bytes(c))};
    team_run(num_imported(c), fill_block, &k);
    team_run(num_imported(c), fill_block, &v);
    const struct aule_kv_import import = {
        .layer = set,
        .num_rows = num_imported(c) * w->block_size,
        .outer_rows = w->block_size,
        .slot_mapping = slots,
        .k = block_tensor(c, offset),
        .v = block_tensor(c, offset + piece_bytes(c)),
        .k_scale = scale_of(c),
        .v_scale = scale_of(c),
    };
    struct aule_ticket ticket;
    enum aule_status status = aule_kv_import(c->cache, &import, TIMEOUT_MS, &ticket);
    return wait_for(c, status, ticket, "import");
}

static bool copy_blocks(struct caller *c)
{
    const int32_t *imported = c->blocks + c->num_found;
    uint32_t step = num_imported(c);
    for (uint32_t first = c->num_found + step; first < c->shape.num_blocks; first += step) {
        uint32_t left = c->shape.num_blocks - first;
        struct aule_ticket ticket;
        enum aule_status status = aule_blocks_copy(c->cache, left < step ? left : step, imported,
                                                   c->blocks + first, TIMEOUT_MS, &ticket);
        if (!wait_for(c, status, ticket, "copy"))
            return false;
    }
    return true;
}

static bool fill_blocks(struct caller *c)
{
    void *memory = NULL;
    uint64_t offset;
    uint32_t size = c->params.workload->block_size, rows = num_imported(c) * size;
    int64_t *slots = calloc(rows, sizeof *slots);
    bool ok = slots || no_memory();
    for (uint32_t i = 0; ok && i < rows; i++)
        slots[i] = (int64_t)c->blocks[c->num_found + i / size] * size + i % size;
    ok = ok && (aule_arena_alloc(c->session, 2 * piece_bytes(c), &memory, &offset) == AULE_OK ||
                failed("arena"));
    for (uint32_t set = 0; ok && set < c->num_sets; set++)
        ok = import_set(c, set, memory, offset, slots);
    aule_arena_free(c->session, memory);
    free(slots);
    return ok && copy_blocks(c);
}

// The shared prefix is found by its tokens, which are 0, 1, ...
static bool make_blocks(struct caller *c)
{
    struct aule_prefix prefix = {.num_tokens = c->params.workload->shared_prefix};
    int32_t *tokens = malloc((prefix.num_tokens + 1) * sizeof *tokens);
    c->blocks = calloc(c->shape.num_blocks, sizeof *c->blocks);
    bool ok = (tokens && c->blocks) || no_memory();
    for (uint32_t i = 0; ok && i < prefix.num_tokens; i++)
        tokens[i] = (int32_t)i;
    prefix.tokens = tokens;
    ok = ok && (!prefix.num_tokens || find_prefix(c, &prefix)) && lease_blocks(c) && fill_blocks(c);
    if (ok && c->num_found < prefix.num_tokens / c->params.workload->block_size)
        ok =
            aule_prefix_publish(c->cache, &prefix, c->blocks, NULL) == AULE_OK || failed("publish");
    free(tokens);
    return ok;
}

// ---- q, out, new K and V, and the batch ----

static struct aule_tensor rows_tensor(const struct caller *c, uint64_t offset, uint32_t heads)
{
    uint64_t head = c->params.workload->head_dim * dtype_size(c->params.dtype);
    return (struct aule_tensor){.dtype = (enum aule_dtype)c->params.dtype,
                                .offset = offset,
                                .token_stride = head * heads,
                                .head_stride = head};
}

// Sets follow each other; each has q, out, K, V.
static bool make_tensors(struct caller *c)
{
    const struct workload *w = c->params.workload;
    uint64_t at, each = 2 * (c->q_bytes + c->new_bytes);
    void *memory;
    if (aule_arena_alloc(c->session, tensor_bytes(c), &memory, &at) != AULE_OK)
        return failed("tensors");
    c->memory = memory;
    c->q = rows_tensor(c, at, w->num_heads);
    c->out = rows_tensor(c, at + c->q_bytes, w->num_heads);
    c->new_k = rows_tensor(c, at + 2 * c->q_bytes, w->num_kv_heads);
    c->new_v = rows_tensor(c, at + 2 * c->q_bytes + c->new_bytes, w->num_kv_heads);
    for (uint32_t set = 0; set < c->num_q_sets; set++) {
        char *q = c->memory + set * each;
        values_fill(c->params.dtype, shape_stream(set, SHAPE_Q), 0, shape_query_elements(&c->shape),
                    q);
        if (!c->params.append)
            continue;
        shape_newest(&c->shape, c->params.dtype, set, SHAPE_K, q + 2 * c->q_bytes);
        shape_newest(&c->shape, c->params.dtype, set, SHAPE_V, q + 2 * c->q_bytes + c->new_bytes);
    }
    return true;
}

static bool make_batch(struct caller *c)
{
    const struct shape *shape = &c->shape;
    size_t entries = (size_t)shape->num_seqs * shape->max_blocks;
    int32_t *table = malloc(entries * sizeof *table);
    int64_t *slots = malloc(shape->num_seqs * sizeof *slots);
    bool ok = (table && slots) || no_memory();
    for (size_t i = 0; ok && i < entries; i++)
        table[i] = shape->block_table[i] < 0 ? -1 : c->blocks[shape->block_table[i]];
    for (uint32_t s = 0; ok && s < shape->num_seqs; s++)
        slots[s] = shape_last_slot(shape, s, c->blocks);
    const struct aule_batch_params params = {
        .num_seqs = shape->num_seqs,
        .max_blocks = shape->max_blocks,
        .cu_seqlens_q = shape->cu_seqlens_q,
        .seq_lens_kv = shape->seq_lens_kv,
        .block_table = table,
        .slot_mapping = c->params.append ? slots : NULL,
    };
    ok = ok && (aule_batch_create(c->cache, &params, &c->batch) == AULE_OK || failed("batch"));
    free(table);
    free(slots);
    return ok;
}

bool caller_open(struct caller *c, const struct caller_params *params)
{
    *c = (struct caller){.params = *params, .num_sets = sets_for(params), .num_q_sets = 1};
    if (params->in_flight > CALLER_MOST_IN_FLIGHT) {
        fprintf(stderr, "aule-bench: %u steps in flight are more than %d\n", params->in_flight,
                CALLER_MOST_IN_FLIGHT);
        return false;
    }
    if (params->in_flight > 1 || params->append)
        c->num_q_sets = c->num_sets;
    if (!shape_init(&c->shape, params->workload, params->first, params->count))
        return false;
    if (c->shape.num_blocks > PIECE_BLOCKS)
        c->shape.num_contents = PIECE_BLOCKS;
    c->q_bytes = rounded(shape_query_elements(&c->shape) * dtype_size(params->dtype));
    c->new_bytes =
        params->append ? rounded(shape_newest_elements(&c->shape) * dtype_size(params->dtype)) : 0;
    return open_session(c) && make_blocks(c) && make_tensors(c) && make_batch(c);
}

void caller_close(struct caller *c)
{
    aule_batch_destroy(c->batch);
    aule_cache_close(c->cache);
    aule_session_close(c->session);
    shape_finish(&c->shape);
    free(c->blocks);
    *c = (struct caller){0};
}

// ---- steps ----

static struct aule_run_params run_of(const struct caller *c, uint32_t set)
{
    uint64_t at = set % c->num_q_sets * 2 * (c->q_bytes + c->new_bytes);
    struct aule_run_params run = {
        .layer = set,
        .num_heads = c->params.workload->num_heads,
        .q = c->q,
        .k = c->params.append ? c->new_k : (struct aule_tensor){0},
        .v = c->params.append ? c->new_v : (struct aule_tensor){0},
        .out = c->out,
        .causal = true,
        .num_splits = c->params.splits,
        .k_scale = scale_of(c),
        .v_scale = scale_of(c),
    };
    run.q.offset += at;
    run.out.offset += at;
    run.k.offset += c->params.append ? at : 0;
    run.v.offset += c->params.append ? at : 0;
    return run;
}

static uint64_t submit(void *context, uint32_t first_set, uint32_t count)
{
    struct caller *c = context;
    struct aule_ticket *ticket = &c->tickets[c->submitted % CALLER_MOST_IN_FLIGHT];
    const struct aule_run_params run = run_of(c, first_set % c->num_sets);
    (void)count; // 1
    if (aule_run_submit(c->batch, &run, TIMEOUT_MS, ticket) != AULE_OK) {
        failed("run");
        return 0;
    }
    c->last_set = first_set % c->num_sets;
    return ++c->submitted;
}

static bool wait(void *context, uint64_t number, uint32_t count, uint64_t *gpu_ns)
{
    struct caller *c = context;
    (void)count; // 1
    struct aule_run_result result;
    if (aule_ticket_wait(c->session, c->tickets[(number - 1) % CALLER_MOST_IN_FLIGHT], TIMEOUT_MS,
                         &result) != AULE_OK)
        return failed("wait");
    *gpu_ns = result.gpu_ns;
    return true;
}

static bool run(void *context, uint32_t first_set, uint32_t count, uint64_t *gpu_ns)
{
    struct caller *c = context;
    const struct aule_run_params params = run_of(c, first_set % c->num_sets);
    struct aule_run_result result;
    (void)count; // 1
    if (aule_run(c->batch, &params, TIMEOUT_MS, &result) != AULE_OK)
        return failed("run");
    c->last_set = first_set % c->num_sets;
    *gpu_ns = result.gpu_ns;
    return true;
}

struct lane caller_lane(struct caller *caller)
{
    uint32_t in_flight = caller->params.in_flight ? caller->params.in_flight : 1;
    return (struct lane){.context = caller,
                         .num_sets = caller->num_sets,
                         .most = 1,
                         .in_flight = in_flight,
                         .submit = submit,
                         .wait = wait,
                         .run = run};
}

// Sets K and V of the last tokens, which runs write, to NaN, so that a missing write shows.
static bool poison_slots(struct caller *c, uint32_t set, uint64_t offset, const int64_t *slots)
{
    const struct aule_tensor rows = rows_tensor(c, offset, c->params.workload->num_kv_heads);
    const struct aule_kv_import import = {
        .layer = set,
        .num_rows = c->shape.num_seqs,
        .slot_mapping = slots,
        .k = rows,
        .v = rows,
        .k_scale = scale_of(c),
        .v_scale = scale_of(c),
    };
    struct aule_ticket ticket;
    enum aule_status status = aule_kv_import(c->cache, &import, TIMEOUT_MS, &ticket);
    return wait_for(c, status, ticket, "poison");
}

static bool poison_all_slots(struct caller *c)
{
    void *memory = NULL;
    uint64_t offset;
    int64_t *slots = malloc(c->shape.num_seqs * sizeof *slots);
    bool ok = slots || no_memory();
    ok = ok && (aule_arena_alloc(c->session, c->new_bytes, &memory, &offset) == AULE_OK ||
                failed("poison"));
    if (ok)
        memset(memory, 0xff, c->new_bytes);
    for (uint32_t s = 0; ok && s < c->shape.num_seqs; s++)
        slots[s] = shape_last_slot(&c->shape, s, c->blocks);
    for (uint32_t set = 0; ok && set < c->num_sets; set++)
        ok = poison_slots(c, set, offset, slots);
    aule_arena_free(c->session, memory);
    free(slots);
    return ok;
}

bool caller_poison(struct caller *c)
{
    uint64_t each = 2 * (c->q_bytes + c->new_bytes);
    for (uint32_t set = 0; set < c->num_q_sets; set++)
        memset(c->memory + set * each + c->q_bytes, 0xff, c->q_bytes);
    return !c->params.append || poison_all_slots(c);
}

bool caller_look(struct caller *c, uint32_t set, struct verdict *verdict)
{
    uint32_t q_set = set % c->num_q_sets;
    const struct check check = {
        .shape = &c->shape,
        .dtype = c->params.dtype,
        .kv_dtype = c->params.kv_dtype,
        .q_set = q_set,
        .kv_set = set,
        .out = c->memory + q_set * 2 * (c->q_bytes + c->new_bytes) + c->q_bytes,
    };
    return check_rows(&check, verdict);
}

bool caller_check(struct caller *c, uint32_t set, struct verdict *verdict)
{
    uint64_t gpu_ns;
    return caller_poison(c) && run(c, set, 1, &gpu_ns) && caller_look(c, set, verdict);
}
