// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_prefill.cu - attention of many rows on Hopper's warpgroup products: f16, or bf16 with
// AULE_HOPPER_BF16; head dim 128, K and V in the pool. It reads the same work list as the GLSL
// kernels (struct gpu_item).
//
// A thread block stays on its multiprocessor and takes work units (an item for one KV head) by
// tickets. It has three warpgroups:
//
// - One brings: warp 0 hands out units and brings K, warp 1 brings V, warps 2 and 3 bring Q.
// - Two compute, 64 rows each: scores S = Q K^T, weights P = 2^(S c - base), sums O += P V. Q, S, P
//   and O are in registers, K and V in shared memory. While a warpgroup turns S of one tile into
//   weights, the products of the other one run; its own O += P V of the tile before does, too.
//
// `c` is the softmax scale times log2(e), so that weights are powers of two. `base` is a number a
// row, near the largest score times c; O and the sum of weights are relative to it. There are two
// rules for it:
//
// - exact: base = max(base, largest score of the tile * c), and O is scaled by 2^(old - new).
//   Tiles with masked keys go so, and tile 0, whose first keys often have the largest scores.
// - late: the tiles between look for no maxima. A row whose sum of weights in a lane is not below
//   2^15, which f16 still holds, divides weights, sums and O by 2^k and adds k to its base.
//
// What grows by more than 2^127 within one tile is infinite or NaN at the end of the item. Such a
// warpgroup notes the item, and the block computes it again at its end, with all tiles exact and
// with base in units of scores: 2^((S - base) c).
//
// Bits: a row's arithmetic depends on its own item only, never on the block that takes it.

#include "index.h"
#include "ptx.h"
#include "shaders/layout.h"

namespace
{

enum {
    WARP = 32,
    WARPGROUP = 128,
    COMPUTE_WARPS = 8,
    Q_THREADS = 64,
    UNIT_STAGES = 2,
    // Named barriers. 0 is not used.
    BARRIER_ALL = 1,
    BARRIER_TURN = 2,  // and 3: the turn of compute warpgroup 0 and 1 to issue products
    BARRIER_GROUP = 4, // and 5: within a compute warpgroup
    // Barriers in shared memory, 8 bytes each.
    K_FULL = HOPPER_BARRIERS_AT,
    K_EMPTY = K_FULL + 8 * HOPPER_STAGES,
    V_FULL = K_EMPTY + 8 * HOPPER_STAGES,
    V_EMPTY = V_FULL + 8 * HOPPER_STAGES,
    Q_FULL = V_EMPTY + 8 * HOPPER_STAGES,
    Q_EMPTY = Q_FULL + 8,
    UNIT_FULL = Q_EMPTY + 8,
    UNIT_EMPTY = UNIT_FULL + 8 * UNIT_STAGES,
    NOTED = UNIT_EMPTY + 8 * UNIT_STAGES, // u32[2]: the last unit that a compute warpgroup noted,
                                          // plus 1; 0: none
    UNITS = HOPPER_BARRIERS_AT + 256,     // the units handed out; see UNIT_BYTES
    // A unit's frame has its number, KV head and group, then its struct hopper_span, its struct
    // gpu_tile and its struct gpu_run.
    UNIT_SPAN = 12,
    UNIT_TILE = UNIT_SPAN + sizeof(hopper_span),
    UNIT_RUN = UNIT_TILE + sizeof(gpu_tile),
    UNIT_BYTES = 512,
};
_Static_assert((int)NOTED + 8 <= (int)UNITS, "barriers fit");
_Static_assert((int)UNIT_RUN + sizeof(gpu_run) <= (int)UNIT_BYTES && UNIT_RUN % 8 == 0,
               "a unit fits");
_Static_assert((int)UNITS + UNIT_STAGES * UNIT_BYTES <= (int)HOPPER_SHARED_BYTES, "it all fits");

const uint32_t NO_UNIT = 0xffffffff;
const float NO_SCORE = -3.0e38f; // below all scores, and finite

// How the tile's weights are computed.
enum rule { EXACT, MASKED, LATE };

// The kernel's parameters.
struct launch {
    uint64_t runs, items; // items: of one run; of several they are in the runs
    uint64_t work;        // struct gpu_tickets
    uint64_t maps;        // tensor maps, HOPPER_NUM_MAPS
    uint32_t num_runs, num_items, num_kv_heads, block_size, features;
    uint32_t shared; // where shared memory begins
};

// A place in a ring of two stages, and the parity of its round.
struct cursor {
    uint32_t stage, parity;
};

DEVICE void advance(cursor &at)
{
    at.stage ^= 1;
    at.parity ^= at.stage == 0;
}

// ---- work ----
// Warp 0 copies what a unit needs, its struct gpu_tile and struct gpu_run, to shared memory, so
// that the others do not wait for device memory.

struct task {
    uint32_t run; // the copy of struct gpu_run
    uint32_t unit;
    gpu_tile tile;
    uint32_t head, group; // KV head; query heads for one KV head
    hopper_span span;
};

#define RUN(run, FIELD)                                                                            \
    shared_get<decltype(gpu_run::FIELD)>((run) + __builtin_offsetof(gpu_run, FIELD))
#define RUN_AT(run, FIELD)                                                                         \
    load<decltype(gpu_run::FIELD)>((run) + __builtin_offsetof(gpu_run, FIELD))

// Copies unit `unit` to `to`. By all lanes of a warp.
DEVICE void unit_put(const launch &launch, uint32_t unit, uint32_t to, uint32_t lane)
{
    const hopper_unit of = hopper_unit_of(unit, launch.num_items);
    uint64_t run = launch.runs, items = launch.items;
    uint32_t number = of.item;
    if (launch.num_runs > 1) { // the last run whose first item is not beyond it
        uint32_t low = 0, high = launch.num_runs;
        while (high - low > 1) {
            const uint32_t middle = (low + high) / 2;
            if (RUN_AT(launch.runs + middle * sizeof(gpu_run), first_item) <= number)
                low = middle;
            else
                high = middle;
        }
        run += low * sizeof(gpu_run);
        number -= RUN_AT(run, first_item);
        items = RUN_AT(run, items);
    }
    const uint64_t tile = items + (uint64_t)number * sizeof(gpu_item);
    const gpu_tile of_item = {load<uint32_t>(tile),      load<uint32_t>(tile + 4),
                              load<uint32_t>(tile + 8),  load<uint32_t>(tile + 12),
                              load<uint32_t>(tile + 16), load<uint32_t>(tile + 20)};
    const uint32_t group = RUN_AT(run, num_heads) / launch.num_kv_heads;
    const hopper_span span = hopper_span_of(of_item.first_row, of_item.num_tokens, of_item.q_len,
                                            of_item.kv_len, group, RUN_AT(run, causal));
    const uint32_t header[12] = {unit,
                                 of.head,
                                 group,
                                 span.num_rows,
                                 span.tiles,
                                 span.masked,
                                 of_item.seq,
                                 of_item.first_row,
                                 of_item.first_token,
                                 of_item.num_tokens,
                                 of_item.q_len,
                                 of_item.kv_len};
    if (lane == 0) {
#pragma unroll
        for (uint32_t i = 0; i < 12; i++)
            shared_store(to + 4 * i, header[i]);
    }
    for (uint32_t i = lane; i < sizeof(gpu_run) / 4; i += WARP)
        shared_store(to + UNIT_RUN + 4 * i, load<uint32_t>(run + 4 * i));
    warp_sync();
}

DEVICE task task_of(uint32_t at)
{
    const uint32_t span = at + UNIT_SPAN, tile = at + UNIT_TILE;
    task task;
    task.unit = shared_load(at);
    task.head = shared_load(at + 4);
    task.group = shared_load(at + 8);
    task.span = {shared_load(span), shared_load(span + 4), shared_load(span + 8)};
    task.tile = {shared_load(tile),      shared_load(tile + 4),  shared_load(tile + 8),
                 shared_load(tile + 12), shared_load(tile + 16), shared_load(tile + 20)};
    task.run = at + UNIT_RUN;
    return task;
}

// The row of a query of the tile's sequence, in tensors without an outer stride.
DEVICE uint32_t token_row(const task &task, uint32_t query)
{
    const uint32_t token = task.tile.first_token + query;
    if (RUN(task.run, token_row_step) == 0)
        return token;
    return load<uint32_t>(RUN(task.run, token_rows) + (uint64_t)token * 4);
}

// Address of a row of the item in q or out. Inner strides count 16-byte units.
DEVICE uint64_t row_address(const task &task, uint32_t row, uint64_t base, uint64_t outer,
                            uint32_t token_stride, uint32_t head_stride)
{
    const uint32_t at = task.tile.first_row + row, query = at / task.group;
    const uint32_t head = task.head * task.group + at % task.group;
    const uint64_t place = outer ? task.tile.seq * outer + (uint64_t)query * token_stride * 16
                                 : (uint64_t)token_row(task, query) * token_stride * 16;
    return base + place + (uint64_t)head * head_stride * 16;
}

// Waits for the next unit that warp 0 hands out. Returns where it is until unit_release().
DEVICE uint32_t unit_wait(const launch &launch, const cursor &ring)
{
    barrier_wait(launch.shared + UNIT_FULL + 8 * ring.stage, ring.parity);
    return launch.shared + UNITS + ring.stage * UNIT_BYTES;
}

DEVICE void unit_release(const launch &launch, cursor &ring, uint32_t lane)
{
    warp_sync();
    if (lane == 0)
        barrier_arrive(launch.shared + UNIT_EMPTY + 8 * ring.stage);
    advance(ring);
}

DEVICE uint32_t noted_first(const launch &launch, uint32_t group)
{
    return shared_load(launch.shared + NOTED + 4 * group);
}

// Where a compute warpgroup's note about a unit lies: the unit that it noted before, plus 1.
DEVICE uint64_t note_at(const launch &launch, uint32_t unit, uint32_t group)
{
    return launch.work + sizeof(gpu_tickets) + ((uint64_t)unit * 2 + group) * 4;
}

// ---- bringing K, V and Q ----

// Brings all tiles of K (which = 0) or V (1) of a task, by one warp: lane 2 * box + half has one
// box.
DEVICE void bring_tiles(const launch &launch, const task &task, uint32_t which, cursor &at,
                        uint32_t lane)
{
    const uint32_t full = launch.shared + (which ? V_FULL : K_FULL);
    const uint32_t empty = launch.shared + (which ? V_EMPTY : K_EMPTY);
    const uint32_t box_keys = hopper_box_keys(launch.block_size);
    const uint32_t half = lane & 1, box = lane >> 1;
    const bool mine = lane < 2 * HOPPER_KEYS / box_keys;
    const uint32_t to = launch.shared + (which ? HOPPER_V_AT : HOPPER_K_AT) +
                        half * HOPPER_HALF_BYTES + box * box_keys * HOPPER_LINE_BYTES;
    const uint64_t map = launch.maps + hopper_map_number(launch.block_size) * HOPPER_MAP_WORDS * 4;
    const uint64_t table =
        RUN(task.run, block_table) + (uint64_t)task.tile.seq * RUN(task.run, max_blocks) * 4;
    const uint64_t chunks = RUN(task.run, chunks);
    const uint32_t shift = RUN(task.run, chunk_shift), stride = RUN(task.run, chunk_stride);
    const auto address_of = [&](uint32_t tile) {
        const uint32_t part = hopper_box_part(tile, box, launch.block_size, task.tile.kv_len);
        const uint32_t block = load<uint32_t>(table + (uint64_t)part * 4);
        return load<uint64_t>(chunks + (uint64_t)(block >> shift) * stride * 8) +
               hopper_box_offset(block, shift, tile, launch.block_size, launch.num_kv_heads,
                                 task.head, which);
    };
    uint64_t next = mine ? address_of(task.span.tiles - 1) : 0; // loaded one tile ahead
    for (uint32_t tile = task.span.tiles; tile-- > 0;) {
        const hopper_place place = hopper_place_of(next);
        if (mine && tile > 0)
            next = address_of(tile - 1);
        barrier_wait(empty + 8 * at.stage, at.parity ^ 1);
        if (lane == 0)
            barrier_expect(full + 8 * at.stage, HOPPER_TILE_BYTES);
        warp_sync();
        if (mine)
            copy_box(to + at.stage * HOPPER_TILE_BYTES, map, half * HOPPER_HALF, place.row,
                     place.window, full + 8 * at.stage);
        advance(at);
    }
}

// Brings Q by two warps, 64 rows each. Rows that are not there become zeros. Each lane finds the
// addresses of two rows; half a warp copies a row.
DEVICE void bring_queries(const launch &launch, const task &task, uint32_t warp, cursor &at,
                          uint32_t lane)
{
    uint64_t mine[2];
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t row = 64 * warp + 32 * i + lane;
        mine[i] = row < task.span.num_rows
                      ? row_address(task, row, RUN(task.run, q), RUN(task.run, q_outer),
                                    RUN(task.run, q_token_stride), RUN(task.run, q_head_stride))
                      : 0;
    }
    const uint64_t any = RUN(task.run, q); // for rows that are not there
    barrier_wait(launch.shared + Q_EMPTY, at.parity ^ 1);
    for (uint32_t i = 0; i < 32; i++) {
        const uint32_t row = 2 * i + (lane >> 4), chunk = lane & 15;
        const uint64_t from = lane_read(i < 16 ? mine[0] : mine[1], row & 31);
        copy_chunk(launch.shared + HOPPER_Q_AT + hopper_swizzled(64 * warp + row, chunk),
                   from ? from + chunk * 16 : any, from == 0);
    }
    copy_arrive(launch.shared + Q_FULL);
    at.parity ^= 1;
}

// The work of warp `warp` of the bringing warpgroup for the unit at `unit`.
DEVICE void bring_unit(const launch &launch, uint32_t unit, uint32_t warp, cursor &at,
                       uint32_t lane)
{
    const task task = task_of(unit);
    if (task.span.tiles == 0)
        return;
    if (warp < 2)
        bring_tiles(launch, task, warp, at, lane);
    else
        bring_queries(launch, task, warp - 2, at, lane);
}

// Hands out unit `unit`, and brings its K.
DEVICE void hand_out(const launch &launch, uint32_t unit, cursor &ring, cursor &at, uint32_t lane)
{
    const uint32_t to = launch.shared + UNITS + ring.stage * UNIT_BYTES;
    barrier_wait(launch.shared + UNIT_EMPTY + 8 * ring.stage, ring.parity ^ 1);
    if (unit < launch.num_items * launch.num_kv_heads)
        unit_put(launch, unit, to, lane);
    else if (lane == 0)
        shared_store(to, NO_UNIT);
    if (lane == 0)
        barrier_arrive(launch.shared + UNIT_FULL + 8 * ring.stage);
    advance(ring);
    if (unit < launch.num_items * launch.num_kv_heads)
        bring_unit(launch, to, 0, at, lane);
}

// Warp 0: hands out units by tickets, then those that were noted. Between the two, NO_UNIT.
DEVICE void bring_keys(const launch &launch, uint32_t lane)
{
    const uint32_t total = launch.num_items * launch.num_kv_heads;
    cursor at = {0, 0}, ring = {0, 0};
    uint32_t unit = __nvvm_read_ptx_sreg_ctaid_x(), next = 0;
    while (unit < total) {
        if (lane == 0)
            next = __nvvm_read_ptx_sreg_nctaid_x() + ticket_take(launch.work);
        hand_out(launch, unit, ring, at, lane);
        unit = lane_read(next, 0);
    }
    hand_out(launch, NO_UNIT, ring, at, lane);
    named_sync(BARRIER_ALL, HOPPER_THREADS);
    for (uint32_t group = 0; group < 2; group++) {
        for (uint32_t n = noted_first(launch, group); n;
             n = load<uint32_t>(note_at(launch, n - 1, group)))
            hand_out(launch, n - 1, ring, at, lane);
        hand_out(launch, NO_UNIT, ring, at, lane);
    }
}

// The other warps: they take what warp 0 hands out.
DEVICE void bring_others(const launch &launch, uint32_t warp, uint32_t lane)
{
    cursor at = {0, 0}, ring = {0, 0};
    for (uint32_t round = 0; round < 3; round++) {
        for (;;) {
            const uint32_t unit = unit_wait(launch, ring);
            const bool is_there = shared_load(unit) != NO_UNIT;
            if (is_there)
                bring_unit(launch, unit, warp, at, lane);
            unit_release(launch, ring, lane);
            if (!is_there)
                break;
        }
        if (round == 0)
            named_sync(BARRIER_ALL, HOPPER_THREADS);
    }
}

// ---- computing ----
// Accumulators: element 4i + 2r + e of a lane is row lane / 4 + 8r of the warp's 16, column
// 8i + 2 (lane % 4) + e. The operand A of a product of 16 keys is the same of 16 columns, in pairs.

struct worker {
    uint32_t shared, group, lane; // compute warpgroup 0 or 1
    cursor k, v;
    uint32_t q_parity;
    float c; // scale * log2(e), positive
    uint32_t q[32], p[32];
    float s[64], o[64];
    float base[2], sum[2]; // of rows lane / 4 and lane / 4 + 8; `sum` is this lane's part
    uint32_t end[2];       // the row sees keys [0, end)
};

// Descriptor of a tile in shared memory, swizzled by 128 bytes: groups of eight lines are 1024
// bytes apart; `halves` are the bytes from one half to the other, for V only.
DEVICE uint64_t descriptor(uint32_t at, uint32_t halves)
{
    // Lane 0's value: what follows from it the compiler then keeps once for the warp.
    return (uint64_t)lane_read((at & 0x3ffff) >> 4, 0) | (uint64_t)(halves >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

DEVICE uint64_t keys_of(const worker &w)
{
    return descriptor(w.shared + HOPPER_K_AT + w.k.stage * HOPPER_TILE_BYTES, 16);
}

DEVICE uint64_t values_of(const worker &w)
{
    return descriptor(w.shared + HOPPER_V_AT + w.v.stage * HOPPER_TILE_BYTES, HOPPER_HALF_BYTES);
}

DEVICE void issue_scores(worker &w, uint64_t keys)
{
    product_first<0>(w.s, w.q, keys);
#pragma unroll
    for (uint32_t i = 1; i < 8; i++)
        product<0>(w.s, w.q + 4 * i, keys + ((i / 4 * HOPPER_HALF_BYTES + i % 4 * 32) >> 4));
    product_commit();
}

DEVICE void issue_sums(worker &w, uint64_t values)
{
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        product<1>(w.o, w.p + 4 * i, values + (i * 16 * HOPPER_LINE_BYTES >> 4));
    product_commit();
}

DEVICE void release(uint32_t barrier, cursor &at, uint32_t lane)
{
    if (lane == 0)
        barrier_arrive(barrier + 8 * at.stage);
    advance(at);
}

DEVICE void scale_sums(worker &w, const float factor[2])
{
#pragma unroll
    for (uint32_t i = 0; i < 64; i++)
        w.o[i] *= factor[i >> 1 & 1];
}

DEVICE void pack_weights(worker &w)
{
#pragma unroll
    for (uint32_t i = 0; i < 32; i++)
        w.p[i] = packed(w.s[2 * i], w.s[2 * i + 1]);
}

// The largest score of the lane's two rows, over the four lanes that share them.
DEVICE void largest_scores(const worker &w, float most[2])
{
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        float pair[2] = {NO_SCORE, NO_SCORE};
#pragma unroll
        for (uint32_t i = 0; i < 32; i++)
            pair[i & 1] = larger(pair[i & 1], w.s[4 * (i >> 1) + 2 * r + (i & 1)]);
        most[r] = larger(pair[0], pair[1]);
        most[r] = larger(most[r], lane_xor(most[r], 1));
        most[r] = larger(most[r], lane_xor(most[r], 2));
    }
}

DEVICE void mask_scores(worker &w, uint32_t tile)
{
    const int first = (int)(tile * HOPPER_KEYS + 2 * (w.lane & 3));
#pragma unroll
    for (uint32_t i = 0; i < 64; i++) {
        const int key = 8 * (int)(i >> 2) + (int)(i & 1); // from `first`
        if (key >= (int)w.end[i >> 1 & 1] - first)
            w.s[i] = -__builtin_inff();
    }
}

// Turns the scores of a tile into weights. `part` is the sum of the lane's weights, for each row.
// `factor` is what the rule does to O and the sum.
template <rule RULE, bool AGAIN>
DEVICE void weigh(worker &w, uint32_t tile, float factor[2], float part[2])
{
    if (RULE == MASKED)
        mask_scores(w, tile);
    if (RULE != LATE) {
        float most[2];
        largest_scores(w, most);
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            const float base = larger(w.base[r], AGAIN ? most[r] : most[r] * w.c);
            factor[r] = power_of_2(AGAIN ? (w.base[r] - base) * w.c : w.base[r] - base);
            w.base[r] = base;
        }
    }
    float parts[2][2] = {{0, 0}, {0, 0}};
#pragma unroll
    for (uint32_t i = 0; i < 64; i++) {
        const uint32_t r = i >> 1 & 1;
        w.s[i] = power_of_2(AGAIN ? (w.s[i] - w.base[r]) * w.c : fused(w.s[i], w.c, -w.base[r]));
        parts[r][i & 1] += w.s[i];
    }
    part[0] = parts[0][0] + parts[0][1];
    part[1] = parts[1][0] + parts[1][1];
}

// The late rule, where a row's sum in some lane is not below 2^15: the row is divided by 2^k, with
// k the exponent of its largest sum. Infinite and NaN values stay as they are.
DEVICE void shrink(worker &w, float part[2])
{
    float factor[2];
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        float most = part[r] < 3.0e38f ? part[r] : 3.0e38f;
        most = larger(most, lane_xor(most, 1));
        most = larger(most, lane_xor(most, 2));
        uint32_t k = (__builtin_bit_cast(uint32_t, most) >> 23) - 127;
        k = most < 32768.0f ? 0 : k < 126 ? k : 126;
        factor[r] = __builtin_bit_cast(float, (127 - k) << 23);
        w.base[r] += (float)k;
        w.sum[r] *= factor[r];
        part[r] *= factor[r];
    }
#pragma unroll
    for (uint32_t i = 0; i < 64; i++)
        w.s[i] *= factor[i >> 1 & 1];
    scale_sums(w, factor);
    pack_weights(w);
}

// Scores of `tile`, and beside them O += P V of the tile before.
template <rule RULE, bool AGAIN> DEVICE void step(worker &w, uint32_t tile)
{
    float factor[2], part[2];
    const uint64_t keys = keys_of(w), values = values_of(w);
    barrier_wait(w.shared + K_FULL + 8 * w.k.stage, w.k.parity);
    barrier_wait(w.shared + V_FULL + 8 * w.v.stage, w.v.parity);
    named_sync(BARRIER_TURN + w.group, 2 * WARPGROUP);
    product_fence();
    issue_scores(w, keys);
    issue_sums(w, values);
    named_arrive(BARRIER_TURN + 1 - w.group, 2 * WARPGROUP);
    product_wait<1>(w.s);
    release(w.shared + K_EMPTY, w.k, w.lane);
    weigh<RULE, AGAIN>(w, tile, factor, part);
    product_wait<0>(w.o);
    release(w.shared + V_EMPTY, w.v, w.lane);
    if (RULE != LATE) {
        scale_sums(w, factor);
        w.sum[0] *= factor[0];
        w.sum[1] *= factor[1];
    }
    pack_weights(w);
    if (RULE == LATE && warp_any(!(part[0] < 32768.0f && part[1] < 32768.0f)))
        shrink(w, part);
    w.sum[0] += part[0];
    w.sum[1] += part[1];
}

// Zeroes V behind the sequence's last key, where the pool may hold NaN: a weight of 0 does not
// remove it. Both warpgroups do so, with the same zeros.
DEVICE void zero_tail(const worker &w, uint32_t first, uint32_t thread)
{
    const uint32_t tile = w.shared + HOPPER_V_AT + w.v.stage * HOPPER_TILE_BYTES;
    for (uint32_t i = thread; i < (HOPPER_KEYS - first) * 16; i += WARPGROUP)
        shared_zero(tile + hopper_swizzled(first + i / 16, i % 16));
    fence_async();
    named_sync(BARRIER_GROUP + w.group, WARPGROUP);
}

DEVICE void take_queries(worker &w, uint32_t warp, bool negative)
{
    const uint32_t row = 64 * w.group + 16 * warp + (w.lane & 15);
    barrier_wait(w.shared + Q_FULL, w.q_parity);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        load_matrices(w.q + 4 * i,
                      w.shared + HOPPER_Q_AT + hopper_swizzled(row, 2 * i + (w.lane >> 4)));
    warp_sync();
    if (w.lane == 0)
        barrier_arrive(w.shared + Q_EMPTY);
    w.q_parity ^= 1;
#pragma unroll
    for (uint32_t i = 0; i < 32; i++)
        w.q[i] ^= negative ? 0x80008000u : 0;
}

// The first tile: scores alone.
template <bool AGAIN> DEVICE void first_step(worker &w, const task &task, uint32_t thread)
{
    const uint32_t tile = task.span.tiles - 1;
    float factor[2];
    w.base[0] = w.base[1] = NO_SCORE;
#pragma unroll
    for (uint32_t i = 0; i < 64; i++)
        w.o[i] = 0;
    barrier_wait(w.shared + K_FULL + 8 * w.k.stage, w.k.parity);
    named_sync(BARRIER_TURN + w.group, 2 * WARPGROUP);
    product_fence();
    issue_scores(w, keys_of(w));
    named_arrive(BARRIER_TURN + 1 - w.group, 2 * WARPGROUP);
    product_wait<0>(w.s);
    release(w.shared + K_EMPTY, w.k, w.lane);
    barrier_wait(w.shared + V_FULL + 8 * w.v.stage, w.v.parity);
    if ((tile + 1) * HOPPER_KEYS > task.tile.kv_len)
        zero_tail(w, task.tile.kv_len - tile * HOPPER_KEYS, thread);
    weigh<MASKED, AGAIN>(w, tile, factor, w.sum);
    pack_weights(w);
}

// All tiles of the task. Leaves O, and sums over all keys in `w.sum`.
template <bool AGAIN> DEVICE void attend(worker &w, const task &task, uint32_t thread)
{
    first_step<AGAIN>(w, task, thread);
    uint32_t tile = task.span.tiles - 1;
    while (tile > task.span.masked)
        step<MASKED, AGAIN>(w, --tile);
    if (AGAIN) {
        while (tile > 0)
            step<EXACT, true>(w, --tile);
    } else if (tile > 0) {
        // A row without keys, whose Q may be zeros: any base does.
        w.base[0] = w.base[0] > -1.0e38f ? w.base[0] : 0;
        w.base[1] = w.base[1] > -1.0e38f ? w.base[1] : 0;
        while (tile > 1)
            step<LATE, false>(w, --tile);
        step<EXACT, false>(w, --tile);
    }
    barrier_wait(w.shared + V_FULL + 8 * w.v.stage, w.v.parity);
    product_fence();
    issue_sums(w, values_of(w));
    product_wait<0>(w.o);
    release(w.shared + V_EMPTY, w.v, w.lane);
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        w.sum[r] += lane_xor(w.sum[r], 1);
        w.sum[r] += lane_xor(w.sum[r], 2);
    }
}

// Whether the late rule may have gone wrong in one of the lane's rows.
DEVICE bool doubtful(const worker &w)
{
    float zero[2] = {0, 0}; // or NaN
    bool doubt = false;
#pragma unroll
    for (uint32_t i = 0; i < 64; i++)
        zero[i >> 1 & 1] = fused(w.o[i], 0.0f, zero[i >> 1 & 1]);
#pragma unroll
    for (uint32_t r = 0; r < 2; r++)
        doubt |= w.end[r] > 0 && !(zero[r] == 0 && w.sum[r] > 1.0e-6f && w.sum[r] < 3.0e38f);
    return doubt;
}

// Two lanes exchange words: the lower one gives `high` for the other one's `low`.
DEVICE void exchange_pair(uint32_t &low, uint32_t &high, uint32_t lane, uint32_t step)
{
    const bool upper = lane & step;
    const uint32_t got = lane_xor(upper ? low : high, (int)step);
    low = upper ? got : low;
    high = upper ? high : got;
}

// Gives lane t of four neighbours word j of chunk t, from word t of chunk j of all of them.
DEVICE void exchange(uint32_t (&chunk)[4], uint32_t lane)
{
    exchange_pair(chunk[0], chunk[1], lane, 1);
    exchange_pair(chunk[2], chunk[3], lane, 1);
    exchange_pair(chunk[0], chunk[2], lane, 2);
    exchange_pair(chunk[1], chunk[3], lane, 2);
}

// Stores one of the lane's two rows: four lanes store 16 bytes each.
template <bool AGAIN>
DEVICE void store_row(const worker &w, const launch &launch, const task &task, uint32_t row,
                      uint32_t r)
{
    const bool seen = w.end[r] > 0 && task.span.tiles > 0;
    const bool there = row < task.span.num_rows;
    const float share = w.sum[r] == 0 ? 0 : 1.0f / w.sum[r];
    const uint64_t out =
        there ? row_address(task, row, RUN(task.run, out), RUN(task.run, out_outer),
                            RUN(task.run, out_token_stride), RUN(task.run, out_head_stride))
              : 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t chunk[4];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t at = 4 * (4 * i + j) + 2 * r;
            chunk[j] = seen ? packed(w.o[at] * share, w.o[at + 1] * share) : 0;
        }
        exchange(chunk, w.lane);
        if (there)
            store_chunk(out + (4 * i + (w.lane & 3)) * 16, chunk);
    }
    if (!(launch.features & AULE_FEATURE_LSE) || !there || (w.lane & 3) != 0)
        return;
    const uint32_t at = task.tile.first_row + row, query = at / task.group;
    const float base = AGAIN ? w.base[r] * w.c : w.base[r];
    const float lse = seen && w.sum[r] != 0 ? (base + logarithm_2(w.sum[r])) * 0.6931471805599453f
                                            : -__builtin_inff();
    store<float>(RUN(task.run, lse) +
                     ((uint64_t)token_row(task, query) * RUN(task.run, lse_token_stride) +
                      task.head * task.group + at % task.group) *
                         4,
                 lse);
}

// Computes the warpgroup's rows of a unit. AGAIN: a unit that warpgroup `noted` has noted; only
// that one stores its rows.
template <bool AGAIN>
DEVICE void compute_unit(worker &w, const launch &launch, uint32_t at, uint32_t noted,
                         uint32_t thread)
{
    const task task = task_of(at);
    const uint32_t warp = thread / WARP, row = 64 * w.group + 16 * warp + (w.lane >> 2);
    const uint32_t causal = RUN(task.run, causal);
#pragma unroll
    for (uint32_t r = 0; r < 2; r++)
        w.end[r] = row + 8 * r < task.span.num_rows
                       ? hopper_seen((task.tile.first_row + row + 8 * r) / task.group,
                                     task.tile.q_len, task.tile.kv_len, causal)
                       : 0;
    if (task.span.tiles > 0) {
        const float scale = RUN(task.run, scale_log2e);
        w.c = larger(scale < 0 ? -scale : scale, 1.0e-30f);
        take_queries(w, warp, scale < 0);
        attend<AGAIN>(w, task, thread);
        if (!AGAIN && named_any(BARRIER_GROUP + w.group, WARPGROUP, doubtful(w))) {
            if (thread == 0) {
                store<uint32_t>(note_at(launch, task.unit, w.group), noted_first(launch, w.group));
                shared_store(launch.shared + NOTED + 4 * w.group, task.unit + 1);
            }
            return;
        }
    }
    if (AGAIN && noted != w.group)
        return;
    store_row<AGAIN>(w, launch, task, row, 0);
    store_row<AGAIN>(w, launch, task, row + 8, 1);
}

template <bool AGAIN>
DEVICE void compute_units(worker &w, const launch &launch, cursor &ring, uint32_t noted,
                          uint32_t thread)
{
    for (;;) {
        const uint32_t unit = unit_wait(launch, ring);
        const bool is_there = shared_load(unit) != NO_UNIT;
        if (is_there)
            compute_unit<AGAIN>(w, launch, unit, noted, thread);
        unit_release(launch, ring, w.lane);
        if (!is_there)
            break;
    }
}

DEVICE void compute(const launch &launch, uint32_t group, uint32_t thread)
{
    cursor ring = {0, 0};
    worker w;
    w.shared = launch.shared;
    w.group = group;
    w.lane = thread % WARP;
    w.k = w.v = ring;
    w.q_parity = 0;
    if (group == 1) // the first turn is warpgroup 0's
        named_arrive(BARRIER_TURN, 2 * WARPGROUP);
    compute_units<false>(w, launch, ring, 0, thread);
    named_sync(BARRIER_ALL, HOPPER_THREADS);
    for (uint32_t noted = 0; noted < 2; noted++)
        compute_units<true>(w, launch, ring, noted, thread);
}

DEVICE void make_barriers(uint32_t shared)
{
    for (uint32_t i = 0; i < HOPPER_STAGES; i++) {
        barrier_make(shared + K_FULL + 8 * i, 1);
        barrier_make(shared + V_FULL + 8 * i, 1);
        barrier_make(shared + K_EMPTY + 8 * i, COMPUTE_WARPS);
        barrier_make(shared + V_EMPTY + 8 * i, COMPUTE_WARPS);
        barrier_make(shared + UNIT_FULL + 8 * i, 1);
        barrier_make(shared + UNIT_EMPTY + 8 * i, COMPUTE_WARPS + 3);
        shared_store(shared + NOTED + 4 * i, 0);
    }
    barrier_make(shared + Q_FULL, Q_THREADS);
    barrier_make(shared + Q_EMPTY, COMPUTE_WARPS);
    fence_async();
}

extern __attribute__((shared)) __attribute__((aligned(1024))) unsigned char shared_memory[];

} // namespace

extern "C" __attribute__((global)) __attribute__((launch_bounds(HOPPER_THREADS, 1))) void
attention_hopper(uint64_t runs, uint64_t items, uint64_t work, uint64_t maps, uint32_t num_runs,
                 uint32_t num_items, uint32_t num_kv_heads, uint32_t block_size, uint32_t features)
{
    const launch launch = {
        runs,      items,        work,       maps,     num_runs,
        num_items, num_kv_heads, block_size, features, shared_address(shared_memory)};
    const uint32_t thread = thread_number();
    if (thread == 0)
        make_barriers(launch.shared);
    if (thread < HOPPER_NUM_MAPS)
        map_acquire(maps + thread * HOPPER_MAP_WORDS * 4);
    named_sync(BARRIER_ALL, HOPPER_THREADS);
    if (thread < WARPGROUP) {
        registers_give<40>();
        if (thread < WARP)
            bring_keys(launch, thread);
        else
            bring_others(launch, thread / WARP, thread % WARP);
    } else {
        registers_take<232>();
        compute(launch, thread / WARPGROUP - 1, thread % WARPGROUP);
    }
}
