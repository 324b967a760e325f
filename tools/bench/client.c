// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// client.c - see client.h. Knows aule by its public header alone.

#include "client.h"

#include "check.h"
#include "measure.h"
#include "team.h"
#include "values.h"

#include <aule/aule.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_BLOCKS = 64, MOST_SETS = 64, TIMEOUT_MS = 120000 };

struct client {
    const struct client_params *params;
    struct shape shape;
    struct aule_session *session;
    struct aule_cache *cache;
    struct aule_batch *batch;
    struct aule_tensor q, out;
    struct aule_ticket ticket; // of the step under way
    uint32_t num_sets;
    int32_t *blocks; // [num_blocks] the daemon's number of each block of the shape
    uint64_t steps;
};

static bool failed(const char *what)
{
    fprintf(stderr, "aule-bench: %s: %s\n", what, aule_error());
    return false;
}

// 0 where stored elements stand for themselves: the daemon takes no scale then.
static float scale_of(const struct client_params *params)
{
    return params->kv_dtype == DTYPE_INT8 ? values_scale(params->kv_dtype) : 0;
}

static bool no_memory(void)
{
    fprintf(stderr, "aule-bench: no host memory\n");
    return false;
}

// ---- what is there before the first step ----

static uint32_t sets_for(const struct client_params *params)
{
    uint64_t all = (uint64_t)workload_bytes(params->workload, params->dtype, params->kv_dtype);
    uint64_t sets = (params->pool_bytes + all - 1) / all;
    return sets < 1 ? 1 : sets > MOST_SETS ? MOST_SETS : (uint32_t)sets;
}

static uint64_t piece_bytes(const struct client *c)
{
    return PIECE_BLOCKS * shape_block_elements(&c->shape) * sizeof(float);
}

static bool open_session(struct client *c)
{
    uint64_t queries = shape_query_elements(&c->shape) * dtype_size(c->params->dtype);
    const struct aule_session_params session = {
        .socket = c->params->socket,
        .name = "aule-bench",
        .arena_size = 2 * queries + 2 * piece_bytes(c) + (UINT64_C(16) << 20), // and metadata on its way
        .timeout_ms = TIMEOUT_MS,
    };
    const struct workload *w = c->params->workload;
    const struct aule_cache_params cache = {
        .name = w->name,
        .num_layers = c->num_sets,
        .num_kv_heads = w->num_kv_heads,
        .head_dim = w->head_dim,
        .k_dtype = (enum aule_dtype)c->params->kv_dtype,
        .v_dtype = (enum aule_dtype)c->params->kv_dtype,
        .scale_mode = c->params->kv_dtype == DTYPE_INT8 ? AULE_SCALE_PER_TENSOR : AULE_SCALE_NONE,
        .block_size = w->block_size,
    };
    if (aule_session_open(&session, &c->session) != AULE_OK)
        return failed("session");
    if (aule_cache_open(c->session, &cache, &c->cache) != AULE_OK)
        return failed("cache");
    c->blocks = calloc(c->shape.num_blocks, sizeof *c->blocks);
    if (!c->blocks)
        return no_memory();
    return aule_blocks_lease(c->cache, c->shape.num_blocks, TIMEOUT_MS, c->blocks) == AULE_OK || failed("lease");
}

// Some blocks of the shape, as f32 for the daemon to convert: what a stored element stands for has one that is exact.
struct piece {
    const struct client *client;
    uint64_t stream;
    uint32_t first;
    float *to;
};

static void fill_block(void *context, uint32_t i, uint32_t member)
{
    const struct piece *p = context;
    uint64_t elements = shape_block_elements(&p->client->shape);
    (void)member;
    values_read(p->client->params->kv_dtype, p->stream, (p->first + i) * elements, elements, p->to + i * elements);
}

static void fill(const struct client *c, uint64_t stream, uint32_t first, uint32_t count, float *to)
{
    struct piece piece = {c, stream, first, to};
    team_run(count, fill_block, &piece);
}

// [blocks, heads, tokens, dim]
static struct aule_tensor block_tensor(const struct client *c, uint64_t offset)
{
    const struct workload *w = c->params->workload;
    uint64_t row = w->head_dim * sizeof(float);
    return (struct aule_tensor){.dtype = AULE_F32,
                                .offset = offset,
                                .token_stride = row,
                                .head_stride = row * w->block_size,
                                .outer_stride = row * w->block_size * w->num_kv_heads};
}

static bool import_piece(const struct client *c, uint32_t set, uint32_t first, uint32_t count, char *memory,
                         uint64_t offset, int64_t *slots)
{
    const struct workload *w = c->params->workload;
    fill(c, shape_stream(set, SHAPE_K), first, count, (float *)memory);
    fill(c, shape_stream(set, SHAPE_V), first, count, (float *)(memory + piece_bytes(c)));
    for (uint32_t i = 0; i < count * w->block_size; i++)
        slots[i] = (int64_t)c->blocks[first + i / w->block_size] * w->block_size + i % w->block_size;
    const struct aule_kv_import import = {
        .layer = set,
        .num_rows = count * w->block_size,
        .outer_rows = w->block_size,
        .slot_mapping = slots,
        .k = block_tensor(c, offset),
        .v = block_tensor(c, offset + piece_bytes(c)),
        .k_scale = scale_of(c->params),
        .v_scale = scale_of(c->params),
    };
    struct aule_ticket ticket;
    return (aule_kv_import(c->cache, &import, TIMEOUT_MS, &ticket) == AULE_OK &&
            aule_ticket_wait(c->session, ticket, TIMEOUT_MS, NULL) == AULE_OK) ||
           failed("import");
}

static bool fill_blocks(struct client *c)
{
    void *memory = NULL;
    uint64_t offset;
    int64_t *slots = calloc((size_t)PIECE_BLOCKS * c->params->workload->block_size, sizeof *slots);
    bool ok = slots || no_memory();
    ok = ok && (aule_arena_alloc(c->session, 2 * piece_bytes(c), &memory, &offset) == AULE_OK || failed("arena"));
    for (uint32_t set = 0; ok && set < c->num_sets; set++) {
        for (uint32_t first = 0; ok && first < c->shape.num_blocks; first += PIECE_BLOCKS) {
            uint32_t left = c->shape.num_blocks - first;
            ok = import_piece(c, set, first, left < PIECE_BLOCKS ? left : PIECE_BLOCKS, memory, offset, slots);
        }
    }
    aule_arena_free(c->session, memory);
    free(slots);
    return ok;
}

static bool make_batch(struct client *c)
{
    const struct workload *w = c->params->workload;
    const struct shape *shape = &c->shape;
    size_t entries = (size_t)shape->num_seqs * shape->max_blocks;
    int32_t *table = malloc(entries * sizeof *table);
    if (!table)
        return no_memory();
    for (size_t i = 0; i < entries; i++)
        table[i] = shape->block_table[i] < 0 ? -1 : c->blocks[shape->block_table[i]];
    const struct aule_batch_params params = {
        .num_seqs = shape->num_seqs,
        .max_blocks = shape->max_blocks,
        .cu_seqlens_q = shape->cu_seqlens_q,
        .seq_lens_kv = shape->seq_lens_kv,
        .block_table = table,
    };
    enum aule_dtype dtype = (enum aule_dtype)c->params->dtype;
    bool ok =
        (aule_batch_create(c->cache, &params, &c->batch) == AULE_OK || failed("batch")) &&
        ((aule_tensor_create(c->session, dtype, shape->num_tokens, w->num_heads, w->head_dim, &c->q) == AULE_OK &&
          aule_tensor_create(c->session, dtype, shape->num_tokens, w->num_heads, w->head_dim, &c->out) == AULE_OK) ||
         failed("tensors"));
    free(table);
    if (ok)
        values_fill(c->params->dtype, shape_stream(0, SHAPE_Q), 0, shape_query_elements(shape),
                    aule_tensor_data(c->session, &c->q));
    return ok;
}

static bool client_open(struct client *c, const struct client_params *params)
{
    uint32_t all = workload_num_seqs(params->workload),
             first = (uint32_t)((uint64_t)all * params->part / params->clients);
    uint32_t end = (uint32_t)((uint64_t)all * (params->part + 1) / params->clients);
    *c = (struct client){.params = params, .num_sets = sets_for(params)};
    return shape_init(&c->shape, params->workload, first, end - first, false) && open_session(c) && fill_blocks(c) &&
           make_batch(c);
}

static void client_close(struct client *c)
{
    aule_batch_destroy(c->batch);
    aule_cache_close(c->cache);
    aule_session_close(c->session);
    shape_finish(&c->shape);
    free(c->blocks);
}

// ---- steps ----

static uint64_t submit(void *context, uint32_t first_set, uint32_t count)
{
    struct client *c = context;
    (void)count; // one
    const struct aule_run_params run = {
        .layer = first_set % c->num_sets,
        .num_heads = c->params->workload->num_heads,
        .q = c->q,
        .out = c->out,
        .causal = true,
        .num_splits = c->params->splits,
        .k_scale = scale_of(c->params),
        .v_scale = scale_of(c->params),
    };
    if (aule_run_submit(c->batch, &run, TIMEOUT_MS, &c->ticket) == AULE_OK)
        return ++c->steps;
    failed("run");
    return 0;
}

static bool wait(void *context, uint64_t number, uint32_t count, uint64_t *gpu_ns)
{
    struct client *c = context;
    struct aule_run_result result;
    (void)number;
    (void)count;
    if (aule_ticket_wait(c->session, c->ticket, TIMEOUT_MS, &result) != AULE_OK)
        return failed("wait");
    *gpu_ns = result.gpu_ns;
    return true;
}

static bool check(struct client *c, uint32_t set, struct verdict *verdict)
{
    uint64_t gpu_ns;
    void *out = aule_tensor_data(c->session, &c->out);
    memset(out, 0xff, shape_query_elements(&c->shape) * dtype_size(c->params->dtype));
    const struct check check = {
        .shape = &c->shape, .dtype = c->params->dtype, .kv_dtype = c->params->kv_dtype, .kv_set = set, .out = out};
    struct verdict now = {0};
    bool ok = submit(c, set, 1) && wait(c, 0, 1, &gpu_ns) && check_rows(&check, &now);
    verdict->num_rows = now.num_rows;
    verdict->worst = fmax(verdict->worst, now.worst);
    return ok;
}

// Everybody begins together.
static bool meet(void)
{
    char line[16];
    puts("ready");
    fflush(stdout);
    return fgets(line, sizeof line, stdin) != NULL;
}

static void say(const struct samples *samples, const struct verdict *verdict)
{
    for (uint32_t i = 0; i < samples->count; i++)
        printf("%.3f %.3f\n", samples->wall_us[i], samples->gpu_us[i]);
    printf("done %.3f %u %.9g\n", samples->elapsed_us, verdict->num_rows, verdict->worst);
    fflush(stdout);
}

bool client_run(const struct client_params *params)
{
    struct client c;
    struct samples samples = {0};
    struct verdict verdict = {0};
    bool ok = client_open(&c, params) && check(&c, 0, &verdict) && meet();
    const struct lane lane = {
        .context = &c, .num_sets = c.num_sets, .most = 1, .in_flight = 1, .submit = submit, .wait = wait};
    if (ok && !params->check)
        ok = measure(&lane, params->seconds, 3, NULL, &samples) && check(&c, c.num_sets - 1, &verdict);
    if (ok)
        say(&samples, &verdict);
    samples_finish(&samples);
    client_close(&c);
    return ok;
}
