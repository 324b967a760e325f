// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// weight.c - see weight.h. Sums that exceed 64 bits stay at their largest value.

#include "weight.h"

enum {
    // Attending one token of a common model reads so much: K and V of 8 heads of 128 dims in 16 bits.
    BYTES_A_TOKEN = 4096,
};

static uint64_t at_most_64_bits(unsigned __int128 value)
{
    return value > UINT64_MAX ? UINT64_MAX : (uint64_t)value;
}

// ---- bytes ----

uint64_t weight_moved_attended(unsigned __int128 bytes)
{
    return at_most_64_bits(bytes / BYTES_A_TOKEN + 1);
}

// Decoding, which memory bounds as well, does about one multiply-add for each two bytes that it reads: moving counts no less.
uint64_t weight_moved_work(unsigned __int128 bytes)
{
    return at_most_64_bits(bytes + 1);
}

// Each row is read on one side, in k and v or where K and V stay, and written on the other.
static unsigned __int128 moved_bytes(const struct batch *batch, const struct core_run_params *p)
{
    const struct engine_kv *kv = &batch->kv;
    uint64_t rows = p->kind == ENGINE_GATHER ? batch->all_keys : batch->num_tokens, size = dtype_size((int)p->k.dtype);
    uint64_t row = kv->head_dim_k * (size + dtype_size((int)kv->k_dtype));
    if (!kv->v_is_k_prefix)
        row += kv->head_dim_v * (size + dtype_size((int)kv->v_dtype));
    return (unsigned __int128)rows * kv->num_kv_heads * row;
}

// ---- attention ----

// No query sees more keys than its window has.
static uint64_t seen_tokens(const struct batch *batch, const struct core_run_params *p)
{
    int64_t right = p->causal && !batch->has_mask ? 0 : p->window_right;
    if (!p->windowed || p->window_left < 0 || right < 0)
        return batch->attended;
    uint64_t seen = batch->num_tokens * (uint64_t)(p->window_left + right + 1);
    return seen && seen < batch->attended ? seen : batch->attended;
}

// What the run costs the GPU, in multiply-adds: each pair of a query row and a key that it sees, in all dims of both, and
// what the shaders compute beside them, for they take rows and keys by the tile; rows that are no queries count there.
// Positions may spread what a tile sees over all its keys, so with them neither causality nor a window counts.
static uint64_t attention_work(const struct batch *batch, const struct core_run_params *p)
{
    const struct engine_kv *kv = &batch->kv;
    uint64_t pairs = batch->attended, in_window = seen_tokens(batch, p);
    if (p->causal && !batch->has_mask && !batch->has_positions)
        pairs = batch->causal;
    if (in_window < pairs && !batch->has_positions)
        pairs = in_window;
    unsigned __int128 rows = (unsigned __int128)pairs + (uint64_t)batch->num_tokens * BATCH_TILE_KEYS;
    rows *= p->num_heads / kv->num_kv_heads;
    rows += (unsigned __int128)batch->keys * (BATCH_TILE_ROWS - 1);
    uint64_t dims = (uint64_t)kv->head_dim_k + kv->head_dim_v;
    unsigned __int128 most = UINT64_MAX / dims / kv->num_kv_heads;
    return rows > most ? UINT64_MAX : (uint64_t)rows * kv->num_kv_heads * dims;
}

uint64_t weight_attended(const struct batch *batch, const struct core_run_params *p)
{
    return p->kind == ENGINE_ATTEND ? seen_tokens(batch, p) : weight_moved_attended(moved_bytes(batch, p));
}

uint64_t weight_work(const struct batch *batch, const struct core_run_params *p)
{
    return p->kind == ENGINE_ATTEND ? attention_work(batch, p) : weight_moved_work(moved_bytes(batch, p));
}
