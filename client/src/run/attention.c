// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention.c - attention over contiguous tensors, by one of two ways to the same bits. A batch
// reads K and V where they lie, or the GPU first copies them into blocks of a cache of the
// library's own. A call gives back all that it took from the daemon before it returns: the daemon
// itself keeps what queued work needs. Any thread.

#include "client/src/caller.h"
#include "client/src/error.h"
#include "client/src/own_cache.h"
#include "client/src/session.h"
#include "client/src/tensor.h"
#include "kv.h"
#include "run.h"

#include <inttypes.h>
#include <stdlib.h>

// One call.
struct step {
    struct life *life; // entered
    const struct aule_attention_params *params;
    struct timeout timeout;
    int32_t *cu_queries; // [num_seqs + 1]; owned; the next two lie in the same allocation
    int32_t *lens;       // [num_seqs] keys of each sequence
    int32_t *starts;     // [num_seqs] first row of each in a tensor without an outer stride
    uint32_t longest;    // the largest of lens
};

// ---- parameters ----

static enum aule_status check_rows(const char *what, uint32_t num_seqs, uint32_t len)
{
    if ((uint64_t)num_seqs * len <= INT32_MAX)
        return AULE_OK;
    return fail(AULE_OUT_OF_RANGE, "%u sequences of %s = %u are more than %d rows", num_seqs, what,
                len, INT32_MAX);
}

static enum aule_status check_lens(const struct aule_attention_params *params)
{
    for (uint32_t s = 0; params->kv_lens && s < params->num_seqs; s++)
        if (params->kv_lens[s] < 0 || (uint32_t)params->kv_lens[s] > params->kv_len)
            return fail(AULE_OUT_OF_RANGE, "kv_lens[%u] = %d is not from 0 to kv_len %u", s,
                        params->kv_lens[s], params->kv_len);
    for (uint32_t s = 0; params->q_lens && s < params->num_seqs; s++)
        if (params->q_lens[s] < 0 || (uint32_t)params->q_lens[s] > params->q_len)
            return fail(AULE_OUT_OF_RANGE, "q_lens[%u] = %d is not from 0 to q_len %u", s,
                        params->q_lens[s], params->q_len);
    return AULE_OK;
}

// All four tensors must have one type, so that both ways compute the same. It must be one that a
// run takes, because a cache would also accept other types for K and V.
static enum aule_status check_types(const struct aule_run_params *run)
{
    enum aule_dtype dtype = run->q.dtype;
    if (aule_dtype_size(dtype) == 0)
        return fail(AULE_INVALID, "q has the unknown dtype %d", (int)dtype);
    if (dtype != AULE_F32 && dtype != AULE_F16 && dtype != AULE_BF16)
        return fail(AULE_UNSUPPORTED, "q is %s; it may be f32, f16 or bf16",
                    aule_dtype_name(dtype));
    const struct {
        const struct aule_tensor *tensor;
        const char *name;
    } others[] = {{&run->k, "k"}, {&run->v, "v"}, {&run->out, "out"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].tensor->dtype != dtype)
            return fail(AULE_MISMATCH, "%s is %s, but q is %s", others[i].name,
                        aule_dtype_name(others[i].tensor->dtype), aule_dtype_name(dtype));
    return AULE_OK;
}

static enum aule_status check_params(const struct aule_attention_params *params)
{
    enum aule_status status = AULE_OK;
    if (params->path < AULE_PATH_AUTO || params->path > AULE_PATH_PAGED)
        return fail(AULE_INVALID, "path = %d is unknown", (int)params->path);
    status = check_rows("q_len", params->num_seqs, params->q_len);
    if (status == AULE_OK)
        status = check_rows("kv_len", params->num_seqs, params->kv_len);
    if (status == AULE_OK)
        status = check_lens(params);
    return status == AULE_OK ? check_types(&params->run) : status;
}

static enum aule_status step_begin(struct step *step)
{
    const struct aule_attention_params *params = step->params;
    size_t num_seqs = params->num_seqs;
    step->cu_queries = calloc(3 * num_seqs + 1, sizeof *step->cu_queries);
    if (!step->cu_queries)
        return fail(AULE_NO_MEMORY, "no memory for the metadata of %zu sequences", num_seqs);
    step->lens = step->cu_queries + num_seqs + 1;
    step->starts = step->lens + num_seqs;
    for (uint32_t s = 0; s < num_seqs; s++) {
        step->cu_queries[s + 1] = (int32_t)((s + 1) * params->q_len);
        step->lens[s] = params->kv_lens ? params->kv_lens[s] : (int32_t)params->kv_len;
        step->starts[s] = (int32_t)(s * params->kv_len);
        if ((uint32_t)step->lens[s] > step->longest)
            step->longest = (uint32_t)step->lens[s];
    }
    return AULE_OK;
}

static uint32_t head_dim_v(const struct aule_attention_params *params)
{
    return params->head_dim_v ? params->head_dim_v : params->head_dim;
}

// The metadata that both ways share: queries, mask and numbers of keys.
static struct aule_batch_params queries_of(const struct step *step)
{
    return (struct aule_batch_params){.num_seqs = step->params->num_seqs,
                                      .cu_seqlens_q = step->cu_queries,
                                      .seq_lens_kv = step->lens,
                                      .mask = step->params->mask,
                                      .mask_size = step->params->mask_size,
                                      .q_lens = step->params->q_lens};
}

// Each sequence has kv_len rows of K and V, whatever its kv_lens.
static enum aule_status check_key_rows(const struct aule_attention_params *params)
{
    if (params->num_seqs == 0)
        return AULE_OK;
    const struct aule_tensor *const tensors[] = {&params->run.k, &params->run.v};
    enum aule_status status = AULE_OK;
    for (size_t i = 0; i < 2 && status == AULE_OK; i++) {
        bool outer = tensors[i]->outer_stride != 0;
        const struct tensor_use use = {.name = i == 0 ? "k" : "v",
                                       .tensor = tensors[i],
                                       .num_rows = (outer ? UINT64_C(1) : params->num_seqs) *
                                                   params->kv_len,
                                       .num_before = outer ? params->num_seqs - 1 : 0,
                                       .num_heads = params->num_kv_heads};
        status = tensor_check_rows(&use);
    }
    return status;
}

// The rest of the checks, which need the lengths.
static enum aule_status check_step(const struct step *step)
{
    const struct aule_batch_params queries = queries_of(step);
    enum aule_status status = batch_check_mask(&queries);
    return status == AULE_OK ? check_key_rows(step->params) : status;
}

static void end_batch(struct aule_batch *batch)
{
    error_mute(true);
    aule_batch_destroy(batch);
    error_mute(false);
}

// ---- the contiguous way ----

static enum aule_status run_contiguous(struct step *step, uint64_t *id)
{
    const struct aule_attention_params *params = step->params;
    const struct aule_kv_layout layout = {.num_kv_heads = params->num_kv_heads,
                                          .head_dim = params->head_dim,
                                          .head_dim_v = head_dim_v(params),
                                          .k_dtype = params->run.k.dtype,
                                          .v_dtype = params->run.v.dtype};
    struct aule_batch_params metadata = queries_of(step);
    struct aule_run_params run = params->run;
    struct aule_batch *batch = NULL;
    if (run.k.outer_stride == 0 || run.v.outer_stride == 0)
        metadata.kv_starts = step->starts;
    run.layer = 0;
    run.keys = run.k;
    run.values = run.v;
    run.k = run.v = (struct aule_tensor){.memory = 0};
    enum aule_status status =
        batch_create(step->life, &(struct batch_source){.layout = &layout}, &metadata, &batch);
    if (status != AULE_OK)
        return status;
    status = run_submit(batch, WIRE_RUN_ATTEND, &run, timeout_left(&step->timeout), id);
    end_batch(batch);
    return status;
}

// ---- the paged way ----

struct blocks {
    struct aule_cache *cache;
    uint32_t count, max_blocks; // leased; columns of the table
    int32_t *ids;               // [count], one sequence after another; owned
    int32_t *table;             // [num_seqs, max_blocks]; owned
    int64_t *slots;             // [num_seqs * kv_len]; owned
};

static uint32_t blocks_of(int32_t len)
{
    return ((uint32_t)len + OWN_CACHE_BLOCK - 1) / OWN_CACHE_BLOCK;
}

static void list_blocks(const struct step *step, struct blocks *blocks)
{
    uint32_t kv_len = step->params->kv_len, next = 0;
    for (uint32_t s = 0; s < step->params->num_seqs; s++) {
        uint32_t used = blocks_of(step->lens[s]);
        int32_t *row = blocks->table + (size_t)s * blocks->max_blocks;
        int64_t *slots = blocks->slots + (size_t)s * kv_len;
        for (uint32_t i = 0; i < blocks->max_blocks; i++)
            row[i] = i < used ? blocks->ids[next + i] : -1;
        for (uint32_t j = 0; j < kv_len; j++)
            slots[j] =
                j < (uint32_t)step->lens[s]
                    ? (int64_t)row[j / OWN_CACHE_BLOCK] * OWN_CACHE_BLOCK + j % OWN_CACHE_BLOCK
                    : -1;
        next += used;
    }
}

static enum aule_status count_blocks(const struct step *step, struct blocks *blocks)
{
    uint64_t count = 0;
    for (uint32_t s = 0; s < step->params->num_seqs; s++)
        count += blocks_of(step->lens[s]);
    enum aule_status status = cache_check_count(blocks->cache, "a lease", count);
    if (status != AULE_OK)
        return status;
    blocks->count = (uint32_t)count;
    blocks->max_blocks = blocks_of((int32_t)step->longest);
    return AULE_OK;
}

static enum aule_status make_room(const struct step *step, struct blocks *blocks)
{
    size_t num_seqs = step->params->num_seqs;
    blocks->ids = calloc((size_t)blocks->count + 1, sizeof *blocks->ids);
    blocks->table = calloc(num_seqs * blocks->max_blocks + 1, sizeof *blocks->table);
    blocks->slots = calloc(num_seqs * step->params->kv_len + 1, sizeof *blocks->slots);
    if (blocks->ids && blocks->table && blocks->slots)
        return AULE_OK;
    return fail(AULE_NO_MEMORY, "no memory for the table of %u blocks and the slots of %zu keys",
                blocks->count, num_seqs * step->params->kv_len);
}

static enum aule_status take_blocks(const struct step *step, struct blocks *blocks)
{
    const struct aule_attention_params *params = step->params;
    const struct own_cache_shape shape = {.num_kv_heads = params->num_kv_heads,
                                          .head_dim = params->head_dim,
                                          .head_dim_v = head_dim_v(params),
                                          .dtype = params->run.k.dtype};
    enum aule_status status = own_cache_get(step->life, &shape, &blocks->cache);
    if (status == AULE_OK)
        status = count_blocks(step, blocks);
    if (status == AULE_OK)
        status = make_room(step, blocks);
    if (status == AULE_OK && blocks->count > 0)
        status = blocks_lease(blocks->cache, blocks->count, 0, blocks->ids);
    if (status == AULE_OK)
        list_blocks(step, blocks);
    else
        blocks->count = 0;
    return status;
}

// The daemon keeps the blocks until the queued work is done.
static void give_blocks(struct blocks *blocks)
{
    error_mute(true);
    if (blocks->count > 0)
        blocks_release(blocks->cache, blocks->count, blocks->ids);
    error_mute(false);
    free(blocks->ids);
    free(blocks->table);
    free(blocks->slots);
    *blocks = (struct blocks){.cache = NULL};
}

static enum aule_status import(const struct step *step, const struct blocks *blocks, uint64_t *id)
{
    const struct aule_attention_params *params = step->params;
    const struct aule_kv_import rows = {.num_rows = params->num_seqs * params->kv_len,
                                        .outer_rows = params->kv_len,
                                        .slot_mapping = blocks->slots,
                                        .k = params->run.k,
                                        .v = params->run.v};
    return kv_write(step->life, blocks->cache, &rows, timeout_left(&step->timeout), id);
}

// The import has a ticket, because nothing else would show its failure. One call then needs two
// tickets. If the import has the session's last one, waiting for another could take for ever. So
// the import is waited for here.
static enum aule_status attend(const struct step *step, struct aule_batch *batch,
                               const struct aule_run_params *run, uint64_t *before, uint64_t *id)
{
    int left = timeout_left(&step->timeout);
    enum aule_status status = run_submit(batch, WIRE_RUN_ATTEND, run, *before ? 0 : left, id);
    if (status != AULE_BUSY || *before == 0)
        return status;
    status = ticket_reap(step->life, *before, left, NULL);
    if (status == AULE_OK)
        *before = 0; // after a failure it may still be there, and drop_import() reaps it
    if (status != AULE_TIMEOUT && status != AULE_OK)
        return status;
    return run_submit(batch, WIRE_RUN_ATTEND, run, timeout_left(&step->timeout), id);
}

static enum aule_status run_over(const struct step *step, const struct blocks *blocks,
                                 uint64_t *before, uint64_t *id)
{
    struct aule_batch_params metadata = queries_of(step);
    struct aule_run_params run = step->params->run;
    struct aule_batch *batch = NULL;
    metadata.max_blocks = blocks->max_blocks;
    metadata.block_table = blocks->table;
    run.layer = 0;
    run.k = run.v = run.keys = run.values = (struct aule_tensor){.memory = 0};
    enum aule_status status =
        batch_create(step->life, &(struct batch_source){.cache = blocks->cache}, &metadata, &batch);
    if (status != AULE_OK)
        return status;
    status = attend(step, batch, &run, before, id);
    end_batch(batch);
    return status;
}

// Reaps the import after a failure. If the time is over before it is done, it is abandoned, and the
// next submission reaps it.
static void drop_import(const struct step *step, uint64_t before)
{
    enum aule_status status;
    error_mute(true);
    ticket_reap_own(step->life, before, timeout_left(&step->timeout), NULL, &status);
    error_mute(false);
}

// Queues the copying of K and V into the pool; on failure nothing is queued. *before is its ticket;
// `before` NULL: no call will wait for it.
static enum aule_status fill_blocks(const struct step *step, struct blocks *blocks,
                                    uint64_t *before)
{
    enum aule_status status = take_blocks(step, blocks);
    if (status == AULE_OK && blocks->count > 0)
        status = import(step, blocks, before);
    return status;
}

static enum aule_status run_paged(const struct step *step, const struct blocks *blocks,
                                  uint64_t *before, uint64_t *id)
{
    enum aule_status status = run_over(step, blocks, before, id);
    if (status != AULE_OK && *before)
        drop_import(step, *before);
    return status;
}

// ---- choosing one of the two ----

static bool wants_pool(const struct step *step)
{
    if (step->params->path == AULE_PATH_AUTO)
        return step->longest > step->life->paged_threshold;
    return step->params->path == AULE_PATH_PAGED;
}

// True: the pool has no room, or there is no room for the slots, one for each key. AULE_PATH_AUTO
// then takes the contiguous way. All other failures are its failures, too.
static bool wants_room(enum aule_status status)
{
    return status == AULE_NO_BLOCKS || status == AULE_QUOTA || status == AULE_LIMIT ||
           status == AULE_NO_MEMORY;
}

static enum aule_status run_step(struct step *step, bool detached, struct aule_ticket *ticket)
{
    struct blocks blocks = {.cache = NULL};
    enum aule_status status = AULE_OK, fallback = AULE_OK;
    uint64_t before = 0, id = 0, *wanted = detached ? NULL : &id;
    bool paged = wants_pool(step);
    if (paged)
        status = fill_blocks(step, &blocks, detached ? NULL : &before);
    if (step->params->path == AULE_PATH_AUTO && wants_room(status)) {
        give_blocks(&blocks);
        fallback = status;
        status = AULE_OK;
        paged = false;
    }
    if (status == AULE_OK)
        status = paged ? run_paged(step, &blocks, &before, wanted) : run_contiguous(step, wanted);
    give_blocks(&blocks);
    if (status != AULE_OK)
        return status;
    *ticket = ticket_make(step->life, id, paged ? AULE_PATH_PAGED : AULE_PATH_CONTIGUOUS);
    ticket->fallback = fallback;
    ticket->before = before;
    return AULE_OK;
}

static enum aule_status submit(struct life *life, const struct aule_attention_params *params,
                               int timeout_ms, bool detached, struct aule_ticket *ticket)
{
    struct step step = {.life = life, .params = params, .timeout = timeout_start(timeout_ms)};
    enum aule_status status = check_params(params);
    if (status == AULE_OK)
        status = step_begin(&step);
    if (status == AULE_OK)
        status = check_step(&step);
    if (status == AULE_OK)
        status = run_step(&step, detached, ticket);
    free(step.cu_queries);
    return status;
}

// AULE_OK: the caller owes a session_put(*life).
static enum aule_status submit_to(struct aule_session *session,
                                  const struct aule_attention_params *params, size_t params_size,
                                  int timeout_ms, bool detached, struct life **life,
                                  struct aule_ticket *ticket)
{
    struct aule_attention_params whole;
    enum aule_status status = TAKE(&whole, params, params_size);
    if (status == AULE_OK)
        status = timeout_check(timeout_ms);
    if (status == AULE_OK)
        status = session_get(session, life);
    if (status != AULE_OK)
        return status;
    status = submit(*life, &whole, timeout_ms, detached, ticket);
    if (status != AULE_OK)
        session_put(*life);
    return status;
}

enum aule_status aule_attention_submit_sized(struct aule_session *session,
                                             const struct aule_attention_params *params,
                                             size_t params_size, int timeout_ms,
                                             struct aule_ticket *ticket)
{
    REQUIRE(session);
    REQUIRE(params);
    struct aule_ticket given;
    struct life *life;
    enum aule_status status =
        submit_to(session, params, params_size, timeout_ms, !ticket, &life, &given);
    if (status != AULE_OK)
        return status;
    if (ticket)
        *ticket = given;
    session_put(life);
    return AULE_OK;
}

enum aule_status aule_attention_sized(struct aule_session *session,
                                      const struct aule_attention_params *params,
                                      size_t params_size, int timeout_ms,
                                      struct aule_run_result *result, size_t result_size,
                                      struct aule_ticket *ticket)
{
    REQUIRE(session);
    REQUIRE(params);
    struct aule_ticket given;
    struct life *life;
    enum aule_status status =
        submit_to(session, params, params_size, timeout_ms, false, &life, &given);
    if (status != AULE_OK)
        return status;
    if (ticket)
        *ticket = given;
    status = ticket_settle(life, &given, timeout_ms, true, CALLER_RESULT(result, result_size));
    session_put(life);
    return status;
}
