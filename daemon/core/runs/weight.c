// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// weight.c - see weight.h. Sums that exceed 64 bits stay at their largest value.

#include "weight.h"

#include "core/pool/ledger.h"
#include "core/pool/session.h"
#include "run_check.h"

enum {
    // Attending one token of a common model reads so much: K and V of 8 heads of 128 dims in 16
    // bits.
    BYTES_A_TOKEN = 4096,
    // What one workgroup does takes as long as so many times as much takes the whole device: a GPU,
    // or a CPU, whose limit is
    // what two of its cores do.
    LONE_WORKGROUP = 64,
    LONE_WORKGROUP_SOFTWARE = 2,
};

static uint64_t at_most_64_bits(unsigned __int128 value)
{
    return value > UINT64_MAX ? UINT64_MAX : (uint64_t)value;
}

// ---- bytes ----

uint64_t weight_moved_in_queue(unsigned __int128 bytes)
{
    return at_most_64_bits(bytes / BYTES_A_TOKEN + 1);
}

// Decoding, which memory bounds as well, does about one multiply-add for each two bytes that it
// reads: moving counts no less.
uint64_t weight_moved_work(unsigned __int128 bytes)
{
    return at_most_64_bits(bytes + 1);
}

static unsigned __int128 row_bytes(const struct engine_kv *kv, enum dtype k_dtype,
                                   enum dtype v_dtype)
{
    uint64_t row = kv->head_dim_k * dtype_size((int)k_dtype);
    if (!kv->v_is_k_prefix)
        row += kv->head_dim_v * dtype_size((int)v_dtype);
    return row;
}

// Each row is on one side in k and v, on the other where K and V stay.
static unsigned __int128 moved_bytes(const struct batch *batch, const struct core_run_params *p)
{
    const struct engine_kv *kv = &batch->kv;
    bool gathers = p->entry.kind == ENGINE_GATHER;
    uint64_t fresh = gathers ? batch->all_keys : batch->num_tokens, stored = fresh;
    if (gathers && batch->local_keys > stored)
        stored = batch->local_keys;
    return (fresh * row_bytes(kv, (enum dtype)p->entry.k.dtype, (enum dtype)p->entry.k.dtype) +
            stored * row_bytes(kv, kv->k_dtype, kv->v_dtype)) *
           kv->num_kv_heads;
}

// K and V in an arena that the GPU does not use in place are copied before each attention, also
// what no query sees.
static unsigned __int128 local_bytes(const struct batch *batch)
{
    const struct engine_kv *kv = &batch->kv;
    return batch->local_keys * row_bytes(kv, kv->k_dtype, kv->v_dtype) * kv->num_kv_heads;
}

// ---- attention ----

// UINT64_MAX: it has no bound on both sides.
static uint64_t keys_in_window(const struct batch *batch, const struct core_run_params *p)
{
    int64_t left = p->entry.window_left;
    int64_t right = run_is_causal(p) && !batch->has_mask ? 0 : p->entry.window_right;
    return left >= 0 && right >= 0 ? (uint64_t)(left + right + 1) : UINT64_MAX;
}

// No query sees more keys than its window has.
static uint64_t seen_tokens(const struct batch *batch, const struct core_run_params *p)
{
    uint64_t window = keys_in_window(batch, p),
             seen = window == UINT64_MAX ? 0 : batch->num_tokens * window;
    return seen && seen < batch->attended ? seen : batch->attended;
}

// Keys that a workgroup goes over one after the other. The engine cuts those of a sequence with few
// rows as num_splits says, by its rule into parts of some thousand; many rows are some shaders'
// that cut none.
static uint64_t keys_in_one_piece(const struct batch *batch, const struct core_run_params *p)
{
    uint64_t keys = batch->max_seq_len,
             rows = (uint64_t)batch->max_rows * (p->entry.num_heads / batch->kv.num_kv_heads);
    uint64_t window =
        batch->has_mask || batch->has_positions ? UINT64_MAX : keys_in_window(batch, p);
    bool is_cut = p->entry.num_splits != 1 && rows <= BATCH_TILE_ROWS;
    if (is_cut)
        keys = p->entry.num_splits ? (keys + p->entry.num_splits - 1) / p->entry.num_splits : 0;
    return keys > BATCH_TILE_KEYS && window < keys - BATCH_TILE_KEYS ? window + BATCH_TILE_KEYS
                                                                     : keys;
}

uint64_t weight_alone(const struct batch *batch, const struct core_run_params *p)
{
    if (p->entry.kind != ENGINE_ATTEND)
        return 0;
    bool software = engine_device(batch->session->ledger->engine)->software;
    unsigned __int128 pairs = (unsigned __int128)keys_in_one_piece(batch, p) * BATCH_TILE_ROWS;
    uint64_t dims = (uint64_t)batch->kv.head_dim_k + batch->kv.head_dim_v;
    return at_most_64_bits(pairs * dims * (software ? LONE_WORKGROUP_SOFTWARE : LONE_WORKGROUP));
}

// What the run costs the GPU, in multiply-adds: each pair of a query row and a key that it sees, in
// all dims of both, and what the shaders compute beside them, for they take rows and keys by the
// tile; rows that are no queries count there. Positions may spread what a tile sees over all its
// keys, so with them neither causality nor a window counts.
static uint64_t attention_work(const struct batch *batch, const struct core_run_params *p)
{
    const struct engine_kv *kv = &batch->kv;
    uint64_t pairs = batch->attended, in_window = seen_tokens(batch, p);
    if (run_is_causal(p) && !batch->has_mask && !batch->has_positions)
        pairs = batch->causal;
    if (in_window < pairs && !batch->has_positions)
        pairs = in_window;
    unsigned __int128 rows =
        (unsigned __int128)pairs + (uint64_t)batch->num_tokens * BATCH_TILE_KEYS;
    rows *= p->entry.num_heads / kv->num_kv_heads;
    rows += (unsigned __int128)batch->keys * (BATCH_TILE_ROWS - 1);
    uint64_t dims = (uint64_t)kv->head_dim_k + kv->head_dim_v;
    unsigned __int128 most = UINT64_MAX / dims / kv->num_kv_heads;
    return rows > most ? UINT64_MAX : (uint64_t)rows * kv->num_kv_heads * dims;
}

// ---- all kinds ----

uint64_t weight_attended(const struct batch *batch, const struct core_run_params *p)
{
    return p->entry.kind == ENGINE_ATTEND ? seen_tokens(batch, p) : 0;
}

// A token that is attended is read once, wherever it lies: of attending and copying the larger
// counts.
uint64_t weight_in_queue(const struct batch *batch, const struct core_run_params *p)
{
    if (p->entry.kind != ENGINE_ATTEND)
        return weight_moved_in_queue(moved_bytes(batch, p));
    uint64_t seen = seen_tokens(batch, p),
             copied = at_most_64_bits(local_bytes(batch) / BYTES_A_TOKEN);
    return seen > copied ? seen : copied;
}

uint64_t weight_work(const struct batch *batch, const struct core_run_params *p)
{
    if (p->entry.kind != ENGINE_ATTEND)
        return weight_moved_work(moved_bytes(batch, p));
    uint64_t spread = attention_work(batch, p), alone = weight_alone(batch, p);
    return at_most_64_bits((spread > alone ? spread : alone) + local_bytes(batch));
}
