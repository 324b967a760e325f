// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// weight.c - see weight.h. Results that exceed 64 bits are UINT64_MAX.

#include "weight.h"

#include "core/pool/ledger.h"
#include "core/pool/salt.h"
#include "core/pool/session.h"
#include "core/pool/tenant.h"
#include "window.h"

enum {
    // Bytes that attending one token of a common model reads in one layer: K and V of 8 KV heads
    // with head_dim 128 in 16 bits, 2 * 8 * 128 * 2.
    BYTES_A_TOKEN = 4096,
    // In the time of one workgroup's work the whole device does this many times as much: an
    // estimate for GPUs, and one for software devices, whose limit on work assumes two cores.
    LONE_WORKGROUP = 64,
    LONE_WORKGROUP_SOFTWARE = 2,
    // Multiply-adds that take as long as the rest of a pair of a row and a key: its weight, and its
    // part of sums. Measured with head dims 8 to 256 on lavapipe and on an H200.
    PAIR_WORK = 128,
    // Multiply-adds and tokens attended that take as long as a workgroup with nothing to do.
    GROUP_WORK = 1 << 15,
    GROUP_TOKENS = 4,
    // A part of a sequence's keys has at least about so many.
    PART_KEYS = 512,
    // Rows of all heads that occupy a multiprocessor of a GPU: of two workgroups of prefill.
    PIECE_ROWS = 128,
    // Bytes that one workgroup of a copy of blocks moves.
    COPY_BYTES = 16384,
};

static uint64_t at_most_64_bits(unsigned __int128 value)
{
    return value > UINT64_MAX ? UINT64_MAX : (uint64_t)value;
}

// ---- bytes ----

uint64_t weight_moved_in_queue(unsigned __int128 bytes, unsigned __int128 workgroups)
{
    return at_most_64_bits(bytes / BYTES_A_TOKEN + workgroups * GROUP_TOKENS + 1);
}

// One multiply-add a byte. Decode is bound by memory, too, and does about one multiply-add for each
// two bytes of 16-bit K and V. So moving never counts less than decode of the same bytes.
uint64_t weight_moved_work(unsigned __int128 bytes, unsigned __int128 workgroups)
{
    return at_most_64_bits(bytes + workgroups * GROUP_WORK + 1);
}

uint64_t weight_copy_groups(uint64_t bytes)
{
    return bytes / COPY_BYTES + (bytes % COPY_BYTES > 0);
}

// K and V of one token and one KV head.
static unsigned __int128 row_bytes(const struct engine_kv *kv, enum dtype k_dtype,
                                   enum dtype v_dtype)
{
    uint64_t row = kv->head_dim_k * dtype_size((int)k_dtype);
    if (!kv->v_is_k_prefix)
        row += kv->head_dim_v * dtype_size((int)v_dtype);
    return row;
}

// Rows that the run writes or gathers, a workgroup each.
static uint64_t moved_rows(const struct batch *batch, const struct core_run_params *p)
{
    return p->entry.kind == ENGINE_GATHER ? batch->all_keys : batch->num_tokens;
}

// A row is read on one side and written on the other: k and v of the run, and the cache or the
// arena's keys and values. A gather from an arena may copy whole blocks.
static unsigned __int128 moved_bytes(const struct batch *batch, const struct core_run_params *p)
{
    const struct engine_kv *kv = &batch->kv;
    bool gathers = p->entry.kind == ENGINE_GATHER;
    uint64_t fresh = moved_rows(batch, p), stored = fresh;
    if (gathers && batch->local_keys > stored)
        stored = batch->local_keys;
    return (fresh * row_bytes(kv, (enum dtype)p->entry.k.dtype, (enum dtype)p->entry.k.dtype) +
            stored * row_bytes(kv, kv->k_dtype, kv->v_dtype)) *
           kv->num_kv_heads;
}

// Bytes of K and V in the arena. If the GPU cannot use the arena in place, they are copied before
// each attention, seen by a query or not.
static unsigned __int128 local_bytes(const struct batch *batch)
{
    const struct engine_kv *kv = &batch->kv;
    return batch->local_keys * row_bytes(kv, kv->k_dtype, kv->v_dtype) * kv->num_kv_heads;
}

// ---- attention ----

// Multiply-adds of a pair of a row and a key.
static uint64_t pair_work(const struct engine_kv *kv)
{
    return (uint64_t)kv->head_dim_k + kv->head_dim_v + PAIR_WORK;
}

// Workgroups: tiles of rows of all sequences, times KV heads. At most; a tile may have more rows.
static unsigned __int128 attention_groups(const struct batch *batch,
                                          const struct core_run_params *p)
{
    const uint64_t group = p->entry.num_heads / batch->kv.num_kv_heads;
    return (unsigned __int128)(batch->num_seqs + batch->num_tokens * group / BATCH_TILE_ROWS) *
           batch->kv.num_kv_heads;
}

// Keys that one query sees at most; UINT64_MAX: that is not bounded.
static uint64_t keys_in_window(const struct batch *batch, const struct core_run_params *p)
{
    return window_most(p, window_is_causal(p) && !batch->has_mask);
}

// Tokens attended: the batch's sum of q_len * seq_len, or fewer if the window is smaller.
static uint64_t seen_tokens(const struct batch *batch, const struct core_run_params *p)
{
    uint64_t window = keys_in_window(batch, p),
             seen = window == UINT64_MAX ? 0 : batch->num_tokens * window;
    return seen && seen < batch->attended ? seen : batch->attended;
}

// Whether no sequence has more rows than a tile.
static bool few_rows(const struct batch *batch, const struct core_run_params *p)
{
    return (uint64_t)batch->max_rows * (p->entry.num_heads / batch->kv.num_kv_heads) <=
           BATCH_TILE_ROWS;
}

static bool is_split(const struct batch *batch, const struct core_run_params *p)
{
    return p->entry.num_splits != 1 && few_rows(batch, p);
}

// Keys of the longest sequence that one workgroup goes over. The engine splits the keys of a
// sequence of few rows: into num_splits parts, or with num_splits 0 by its rule into parts of some
// thousand keys, which count as 0 here. For many rows some shaders do not split. A window bounds
// the keys, unless a mask or positions let rows of one tile see keys that lie far apart.
static uint64_t keys_in_one_piece(const struct batch *batch, const struct core_run_params *p)
{
    uint64_t keys = batch->max_seq_len;
    uint64_t window =
        batch->has_mask || batch->has_positions ? UINT64_MAX : keys_in_window(batch, p);
    if (is_split(batch, p))
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
    return at_most_64_bits(pairs * pair_work(&batch->kv) *
                           (software ? LONE_WORKGROUP_SOFTWARE : LONE_WORKGROUP));
}

// Multiply-adds of attention over all heads, with the shaders' tiles rounded up:
//   (pairs + rows * BATCH_TILE_KEYS) * query heads a KV head
//   + keys * (BATCH_TILE_ROWS - 1)
//   all times KV heads * (head_dim_k + head_dim_v + PAIR_WORK).
// `pairs` are those of a query and a key that it sees. A row may cost one tile of keys more than it
// sees, and a key one tile of rows more than see it.
// Rows beyond q_lens count as rows. With positions, a tile may see any of its keys, so neither
// causality nor a window reduces the pairs.
static uint64_t attention_work(const struct batch *batch, const struct core_run_params *p)
{
    const struct engine_kv *kv = &batch->kv;
    uint64_t pairs = batch->attended, in_window = seen_tokens(batch, p);
    if (window_is_causal(p) && !batch->has_mask && !batch->has_positions)
        pairs = batch->causal;
    if (in_window < pairs && !batch->has_positions)
        pairs = in_window;
    unsigned __int128 rows =
        (unsigned __int128)pairs + (uint64_t)batch->num_tokens * BATCH_TILE_KEYS;
    rows *= p->entry.num_heads / kv->num_kv_heads;
    rows += (unsigned __int128)batch->keys * (BATCH_TILE_ROWS - 1);
    uint64_t dims = pair_work(kv);
    unsigned __int128 most = UINT64_MAX / dims / kv->num_kv_heads;
    return rows > most ? UINT64_MAX : (uint64_t)rows * kv->num_kv_heads * dims;
}

// ---- all kinds ----

uint64_t weight_attended(const struct batch *batch, const struct core_run_params *p)
{
    return p->entry.kind == ENGINE_ATTEND ? seen_tokens(batch, p) : 0;
}

// An attended token is read once, in place or by the copy from the arena. Of this, the copy and the
// workgroups, the largest count is used.
uint64_t weight_in_queue(const struct batch *batch, const struct core_run_params *p)
{
    if (p->entry.kind != ENGINE_ATTEND)
        return weight_moved_in_queue(moved_bytes(batch, p), moved_rows(batch, p));
    uint64_t seen = seen_tokens(batch, p),
             copied = at_most_64_bits(local_bytes(batch) / BYTES_A_TOKEN),
             groups = at_most_64_bits(attention_groups(batch, p) * GROUP_TOKENS);
    seen = seen > copied ? seen : copied;
    return seen > groups ? seen : groups;
}

uint64_t weight_work(const struct batch *batch, const struct core_run_params *p)
{
    if (p->entry.kind != ENGINE_ATTEND)
        return weight_moved_work(moved_bytes(batch, p), moved_rows(batch, p));
    const uint64_t spread = weight_spread(batch, p), alone = weight_alone(batch, p),
                   attention = attention_work(batch, p);
    return alone > attention ? at_most_64_bits((unsigned __int128)spread + (alone - attention))
                             : spread;
}

uint64_t weight_spread(const struct batch *batch, const struct core_run_params *p)
{
    if (p->entry.kind != ENGINE_ATTEND)
        return weight_work(batch, p);
    return at_most_64_bits((unsigned __int128)attention_work(batch, p) + local_bytes(batch) +
                           weight_writes(batch, p));
}

// Few rows of many keys are bound by reading the keys; more rows by their products.
uint64_t weight_saved(const struct batch *batch, const struct core_run_params *p)
{
    if (p->entry.kind != ENGINE_ATTEND || !batch->table || batch->again_tokens <= 0 ||
        !few_rows(batch, p) || window_hides_first(p))
        return 0;
    const uint64_t work = weight_spread(batch, p) - weight_writes(batch, p);
    return (uint64_t)((unsigned __int128)work * (uint64_t)batch->again_tokens / batch->all_keys);
}

// Tiles of rows, and parts of their keys. All KV heads of a tile stay together. A workgroup reads
// all keys of its tile, so a slice with fewer workgroups than occupy the device takes as long as
// one with more. Slices are at least that large.
static uint64_t attention_units(const struct batch *batch, const struct core_run_params *p)
{
    const uint64_t rows =
                       (uint64_t)batch->num_tokens * (p->entry.num_heads / batch->kv.num_kv_heads),
                   units = batch->num_seqs + rows / BATCH_TILE_ROWS;
    if (is_split(batch, p))
        return units + batch->keys / PART_KEYS;
    const uint64_t fill = (uint64_t)PIECE_ROWS *
                          engine_device(batch->session->ledger->engine)->num_multiprocessors,
                   most = fill ? rows * batch->kv.num_kv_heads / fill + 1 : units;
    return most < units ? most : units;
}

uint64_t weight_units(const struct batch *batch, const struct core_run_params *p)
{
    return p->entry.kind == ENGINE_ATTEND ? attention_units(batch, p) : moved_rows(batch, p);
}

uint64_t weight_writes(const struct batch *batch, const struct core_run_params *p)
{
    return batch->has_slots && p->entry.kind == ENGINE_ATTEND
               ? weight_moved_work(moved_bytes(batch, p), moved_rows(batch, p))
               : 0;
}

// ---- what is shared ----

// Only the first sequence says what a batch shares: a worker's sequences mostly have one prompt. A
// window may hide the prefix.
void weight_reading(const struct batch *batch, const struct core_run_params *p,
                    struct reading *reading)
{
    *reading = (struct reading){0};
    if (p->entry.kind != ENGINE_ATTEND || !batch->table || !batch->num_seqs || !batch->has_keys ||
        window_hides_first(p))
        return;
    const struct cache *cache = batch->table->cache;
    const int32_t *row = batch->kept_table;
    const uint64_t keys = (uint64_t)batch->kept.seq_lens_kv[0],
                   count = (keys + batch->kv.block_size - 1) / batch->kv.block_size;
    const struct block *first = count ? block_find(cache, row[0]) : NULL;
    if (!first || first->users < 2)
        return;
    const int64_t tokens = (int64_t)batch->all_keys - batch->again_tokens;
    *reading = (struct reading){
        .cache = cache->id,
        .tenant = batch->session->salt->tenant->id,
        .layer = p->entry.layer,
        .num_read = core_run_layers(p),
        .num_layers = cache->identity.num_layers,
        .block_size = batch->kv.block_size,
        .tokens = tokens > 0 ? (uint64_t)tokens : 1,
    };
    for (uint32_t i = 0; i < READING_MARKS; i++)
        reading->marks[i] = UINT64_C(1) << i <= count ? row[(UINT64_C(1) << i) - 1] : -1;
}
