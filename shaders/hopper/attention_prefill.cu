// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_prefill.cu - attention of many rows on Hopper's warpgroup products. It reads the same
// work list as the GLSL kernels (struct gpu_item). It is compiled for each of:
//
// - AULE_HOPPER_BF16: Q, K, V and out are bf16; else f16.
// - AULE_HOPPER_DIM_K, AULE_HOPPER_DIM_V: the head dims; see hopper_shape_of().
// - AULE_HOPPER_SHAPED: scores may have a soft cap and ALiBi's bias.
//
// A thread block stays on its multiprocessor and takes work units (an item for one KV head) by
// tickets. It has three warpgroups:
//
// - One brings: warp 0 K, warp 1 V, warp 2 Q. Warp 3 hands out units, one ahead.
// - Two compute, 64 rows each: scores S = Q K^T, weights P = 2^(S c - base), sums O += P V. Q, S, P
//   and O are in registers, K and V in shared memory. While a warpgroup turns S of one tile into
//   weights, the products of the other one run; its own O += P V of the tile before does, too.
//
// `c` is the softmax scale times log2(e), so that weights are powers of two. `base` is a number a
// row, near the largest score times c; O and the sum of weights are relative to it. There are two
// rules for it:
//
// - exact: base = max(base, largest score of the tile * c), and O is scaled by 2^(old - new).
//   Tiles with masked keys go so, and the very last one, since a sequence's first keys often have
//   the largest scores.
// - late: the tiles between look for no maxima. A row whose sum of weights in a lane is not below
//   2^15, which f16 still holds, divides weights, sums and O by 2^k and adds k to its base.
//
// What grows by more than 2^127 within one tile is infinite or NaN at the end of the item. A large
// base has lost the digits that weights need. Such a warpgroup notes the item, and the block
// computes it again at its end, with all tiles exact, with base in units of scores,
// 2^((S - base) c), and with V's infinite and NaN values kept from the rows that do not see their
// keys.
//
// Bits: a row's arithmetic depends on its own item only, never on the block that takes it.

#include "index.h"
#include "ptx.h"
#include "schema/dtypes.h"
#include "shaders/layout.h"

namespace
{

constexpr hopper_shape SHAPE = hopper_shape_of(AULE_HOPPER_DIM_K, AULE_HOPPER_DIM_V);
constexpr uint32_t KEYS = SHAPE.keys;
constexpr uint32_t Q_LINE = HOPPER_ROWS * HOPPER_LINE_BYTES; // bytes of all rows' line
constexpr uint32_t K_LINE = KEYS * HOPPER_LINE_BYTES;        // also V's
#ifdef AULE_HOPPER_SHAPED
constexpr bool SHAPED = true;
#else
constexpr bool SHAPED = false;
#endif

enum {
    WARP = 32,
    WARPGROUP = 128,
    COMPUTE_WARPS = 8,
    Q_THREADS = 32,
    // Registers of a thread: as launched, of the warpgroup that brings, and of the two that
    // compute. If these two took more than the first one gives, they would wait for ever.
    LAUNCHED = 65536 / HOPPER_THREADS / 8 * 8,
    KEPT = 40,
    TAKEN = 232,
    UNIT_STAGES = 4, // so that the warps that bring look one unit ahead
    WANTS_AHEAD = 3, // tiles of a unit that are left when K's warp asks for another one
    // Named barriers. 0 is not used.
    BARRIER_ALL = 1,
    BARRIER_TURN = 2,  // and 3: the turn of compute warpgroup 0 and 1 to issue products
    BARRIER_GROUP = 4, // and 5: within a compute warpgroup
    // Barriers in shared memory, 8 bytes each.
    K_FULL = SHAPE.barriers_at,
    K_EMPTY = K_FULL + 8 * HOPPER_STAGES,
    V_FULL = K_EMPTY + 8 * HOPPER_STAGES,
    V_EMPTY = V_FULL + 8 * HOPPER_STAGES,
    Q_FULL = V_EMPTY + 8 * HOPPER_STAGES,
    Q_EMPTY = Q_FULL + 8,
    UNIT_FULL = Q_EMPTY + 8,
    UNIT_EMPTY = UNIT_FULL + 8 * UNIT_STAGES,
    WANTED = UNIT_EMPTY + 8 * UNIT_STAGES, // K's warp will soon need another unit
    NOTED = WANTED + 8,                    // u32[2]: the last unit that a compute warpgroup noted,
                                           // plus 1; 0: none
    RAW_K_FULL = NOTED + 8,                // of raw tiles
    RAW_V_FULL = RAW_K_FULL + 8 * HOPPER_STAGES,
    RAW_K_EMPTY = RAW_V_FULL + 8 * HOPPER_STAGES, // Q's warp has converted its rows
    RAW_V_EMPTY = RAW_K_EMPTY + 8 * HOPPER_STAGES,
    UNITS = SHAPE.barriers_at + 256, // the units handed out; see UNIT_BYTES
    // A unit's frame has its number, KV head and run, then its struct hopper_rows, struct
    // hopper_span, struct gpu_tile and struct gpu_run.
    UNIT_ROWS = 12,
    UNIT_SPAN = UNIT_ROWS + sizeof(hopper_rows),
    UNIT_TILE = UNIT_SPAN + sizeof(hopper_span),
    UNIT_WORDS = (UNIT_TILE + sizeof(gpu_tile)) / 4,
    UNIT_RUN = (UNIT_TILE + sizeof(gpu_tile) + 7) & ~7,
    UNIT_BYTES = 512,
};
_Static_assert((int)RAW_V_EMPTY + 8 * HOPPER_STAGES <= (int)UNITS, "barriers fit");
_Static_assert(KEPT + 2 * TAKEN <= 3 * LAUNCHED, "registers suffice");
_Static_assert((int)UNIT_RUN + sizeof(gpu_run) <= (int)UNIT_BYTES, "a unit fits");
_Static_assert(UNITS + UNIT_STAGES * UNIT_BYTES <= SHAPE.bytes, "it all fits");

const uint32_t NO_UNIT = 0xffffffff;
#ifdef AULE_HOPPER_BF16
const uint32_t INFINITE = 0x7f80; // an element's exponent if it is infinite or NaN
#else
const uint32_t INFINITE = 0x7c00;
#endif
const float NO_SCORE = -3.0e38f; // below all scores, and finite
const float LOG2_E = 1.4426950408889634f;

enum : uint32_t {
#define X(name, value, text, size, largest) DTYPE_##name = value,
    AULE_DTYPE_MAP(X)
#undef X
};

// How the tile's weights are computed.
enum rule { EXACT, LATE };

// The kernel's parameters.
struct launch {
    uint64_t runs, items; // items: of one run; of several they are in the runs
    uint64_t work, notes; // struct gpu_tickets; see note_at()
    uint64_t maps;        // tensor maps
    uint32_t num_runs, num_items, num_kv_heads, block_size, features, where; // AULE_PLACE_*
    uint32_t k_dtype, v_dtype; // as in AULE_SPEC_K_DTYPE: that of Q, or both of 8 bits
    uint32_t first_blocks; // blocks of the first launch: each begins with the unit of its number
    uint32_t is_later;     // a later launch of the same units: all by tickets
    uint32_t shared;       // where shared memory begins
};

// The stages of K, or of V, as one warp goes through them. Tile t has stage t % 2 in every unit, so
// that a loop of two tiles has its stages as constants.
struct stages {
    uint32_t parities; // bit i: the parity of stage i's next round
};

DEVICE uint32_t parity(const stages &stages, uint32_t stage)
{
    return stages.parities >> stage & 1;
}

DEVICE void pass(stages &stages, uint32_t stage)
{
    stages.parities ^= 1u << stage;
}

// A place in the ring of units, and the parity of its round.
struct unit_cursor {
    uint32_t stage, parity;
};

DEVICE void advance(unit_cursor &at)
{
    at.stage = (at.stage + 1) % UNIT_STAGES;
    at.parity ^= at.stage == 0;
}

// ---- work ----
// One warp copies what a unit needs, its struct gpu_tile and struct gpu_run, to shared memory, so
// that the others do not wait for device memory.

struct task {
    uint32_t run; // the copy of struct gpu_run
    // As in the frame.
    uint32_t unit, head, run_number; // KV head; run of the launch
    hopper_rows rows;
    hopper_span span;
    gpu_tile tile;
};

#define RUN(run, FIELD)                                                                            \
    shared_get<decltype(gpu_run::FIELD)>((run) + __builtin_offsetof(gpu_run, FIELD))
#define RUN_AT(run, FIELD)                                                                         \
    load<decltype(gpu_run::FIELD)>((run) + __builtin_offsetof(gpu_run, FIELD))

// Finds the run of an item: the last one whose first item is not beyond it.
DEVICE uint32_t run_of(const launch &launch, uint32_t item)
{
    uint32_t low = 0, high = launch.num_runs;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (RUN_AT(launch.runs + middle * sizeof(gpu_run), first_item) <= item)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// The row of a query of the tile's sequence, in positions and in tensors without an outer stride.
DEVICE uint32_t token_row(uint32_t run, uint32_t first_token, uint32_t query)
{
    const uint32_t token = first_token + query;
    if (RUN(run, token_row_step) == 0)
        return token;
    return load<uint32_t>(RUN(run, token_rows) + (uint64_t)token * 4);
}

// The position of a query among the keys.
DEVICE int position_of(const launch &launch, uint32_t run, const gpu_tile &tile, uint32_t query)
{
    if (launch.features & AULE_FEATURE_POSITIONS)
        return load<int>(RUN(run, positions) +
                         (uint64_t)token_row(run, tile.first_token, query) * 4);
    return (int)tile.kv_len - (int)tile.q_len + (int)query;
}

// The keys that row `row` of the item sees.
DEVICE hopper_keys keys_of_row(const launch &launch, uint32_t run, const gpu_tile &tile,
                               const hopper_rows &rows, uint32_t num_rows, uint32_t row)
{
    const uint32_t query = hopper_query_of(rows, row);
    if (row >= num_rows || query >= tile.q_len)
        return {0, 0};
    return hopper_keys_of(position_of(launch, run, tile, query), tile.kv_len, RUN(run, causal),
                          launch.features & AULE_FEATURE_WINDOW, RUN(run, window_left),
                          RUN(run, window_right));
}

// The span of rows in any order. By all lanes of a warp.
DEVICE hopper_span span_of_rows(const launch &launch, uint32_t run, const gpu_tile &tile,
                                const hopper_rows &rows, uint32_t lane)
{
    const uint32_t num_rows = hopper_num_rows(tile.first_row, tile.num_tokens, rows.group);
    hopper_keys some = {0xffffffff, 0}, every = {0, 0xffffffff};
    for (uint32_t row = lane; row < num_rows; row += WARP) {
        const hopper_keys keys = keys_of_row(launch, run, tile, rows, num_rows, row);
        if (keys.first < keys.end) {
            some.first = least(some.first, keys.first);
            some.end = most(some.end, keys.end);
        }
        if (hopper_query_of(rows, row) < tile.q_len) {
            every.first = most(every.first, keys.first);
            every.end = least(every.end, keys.end);
        }
    }
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        some.first = least(some.first, lane_xor(some.first, step));
        some.end = most(some.end, lane_xor(some.end, step));
        every.first = most(every.first, lane_xor(every.first, step));
        every.end = least(every.end, lane_xor(every.end, step));
    }
    return hopper_span_of(num_rows, some, every, KEYS);
}

// Copies unit `unit` to `to`. By all lanes of a warp.
DEVICE void unit_put(const launch &launch, uint32_t unit, uint32_t to, uint32_t lane)
{
    const hopper_unit of = hopper_unit_of(unit, launch.num_items);
    const uint32_t number = launch.num_runs > 1 ? run_of(launch, of.item) : 0;
    const uint64_t from = launch.runs + number * sizeof(gpu_run);
    uint64_t item = launch.items;
    if (launch.num_runs > 1)
        item = RUN_AT(from, items) - (uint64_t)RUN_AT(from, first_item) * sizeof(gpu_item);
    item += (uint64_t)of.item * sizeof(gpu_item);
    const gpu_tile tile = {load<uint32_t>(item),      load<uint32_t>(item + 4),
                           load<uint32_t>(item + 8),  load<uint32_t>(item + 12),
                           load<uint32_t>(item + 16), load<uint32_t>(item + 20)};
    const uint32_t group = RUN_AT(from, num_heads) / launch.num_kv_heads, run = to + UNIT_RUN;
    const hopper_rows rows = hopper_rows_of(tile.first_row, group);
    for (uint32_t i = lane; i < sizeof(gpu_run) / 4; i += WARP)
        shared_store(run + 4 * i, load<uint32_t>(from + 4 * i));
    warp_sync();
    const hopper_span span = launch.features & (AULE_FEATURE_WINDOW | AULE_FEATURE_POSITIONS)
                                 ? span_of_rows(launch, run, tile, rows, lane)
                                 : hopper_span_by_rows(tile.first_row, tile.num_tokens, tile.q_len,
                                                       tile.kv_len, group, RUN(run, causal), KEYS);
    const uint32_t header[UNIT_WORDS] = {
        unit,           of.head,          number,          rows.group,      rows.query,
        rows.rest,      rows.factor,      span.num_rows,   span.some.first, span.some.end,
        span.first,     span.end,         span.low,        span.high,       tile.seq,
        tile.first_row, tile.first_token, tile.num_tokens, tile.q_len,      tile.kv_len};
    if (lane == 0) {
#pragma unroll
        for (uint32_t i = 0; i < UNIT_WORDS; i++)
            shared_store(to + 4 * i, header[i]);
    }
    warp_sync();
}

DEVICE task task_of(uint32_t at)
{
    uint32_t words[UNIT_WORDS];
#pragma unroll
    for (uint32_t i = 0; i < UNIT_WORDS; i++)
        words[i] = shared_load(at + 4 * i);
    task task;
    __builtin_memcpy(&task.unit, words, sizeof words);
    task.run = at + UNIT_RUN;
    return task;
}

// Address of a row of the item in q or out. Inner strides count 16-byte units.
DEVICE uint64_t row_address(const task &task, uint32_t row, uint64_t base, uint64_t outer,
                            uint32_t token_stride, uint32_t head_stride)
{
    const uint32_t query = hopper_query_of(task.rows, row);
    const uint32_t head = task.head * task.rows.group + hopper_head_of(task.rows, row);
    const uint64_t place =
        outer ? task.tile.seq * outer + (uint64_t)query * token_stride * 16
              : (uint64_t)token_row(task.run, task.tile.first_token, query) * token_stride * 16;
    return base + place + (uint64_t)head * head_stride * 16;
}

// Waits for the next unit that is handed out. Returns where it is until unit_release().
DEVICE uint32_t unit_wait(const launch &launch, const unit_cursor &ring)
{
    barrier_wait(launch.shared + UNIT_FULL + 8 * ring.stage, ring.parity);
    return launch.shared + UNITS + ring.stage * UNIT_BYTES;
}

// Whether unit_wait() would not wait; the same for all lanes.
DEVICE bool unit_is_there(const launch &launch, const unit_cursor &ring)
{
    return lane_read(
        (uint32_t)barrier_is_over(launch.shared + UNIT_FULL + 8 * ring.stage, ring.parity), 0);
}

DEVICE void unit_free(const launch &launch, const unit_cursor &unit, uint32_t lane)
{
    warp_sync();
    if (lane == 0)
        barrier_arrive(launch.shared + UNIT_EMPTY + 8 * unit.stage);
}

DEVICE void unit_release(const launch &launch, unit_cursor &ring, uint32_t lane)
{
    unit_free(launch, ring, lane);
    advance(ring);
}

DEVICE uint32_t noted_first(const launch &launch, uint32_t group)
{
    return shared_load(launch.shared + NOTED + 4 * group);
}

// Where a compute warpgroup's note about a unit lies: the unit that it noted before, plus 1.
DEVICE uint64_t note_at(const launch &launch, uint32_t unit, uint32_t group)
{
    return launch.notes + ((uint64_t)unit * 2 + group) * 4;
}

// ---- bringing K, V and Q ----

DEVICE uint64_t map_of(const launch &launch, uint32_t run_number, uint32_t number)
{
    const uint32_t maps = hopper_maps_of_run(launch.where == AULE_PLACE_ROWS);
    return launch.maps + (uint64_t)(run_number * maps + number) * HOPPER_MAP_WORDS * 4;
}

// The functions for K and V are there twice. RAW: they have 8 bits.

// What brings K (which = 0) or V (1) of a task, by one warp. RAW: raw tiles.
struct bringer {
    uint32_t which, full, empty, to; // barriers and shared memory of stage 0
    uint32_t lines, boxes, bytes, box_keys;
    uint64_t map;
    uint32_t start, outer; // of contiguous tensors: coordinates of key 0 and of the sequence
};

// The stages that a warp has filled.
struct filling {
    stages at;
    uint32_t copied; // RAW: raw tiles, from the kernel's begin on
    uint32_t raw;    // those that are not converted yet
    uint32_t to;     // bit i: the stage that the raw tile of raw stage i is for
};

template <bool RAW> constexpr uint32_t ELEMENT_BYTES = RAW ? 1 : 2;
template <bool RAW> constexpr uint32_t LINE_BYTES = HOPPER_LINE *ELEMENT_BYTES<RAW>;
constexpr uint32_t RAW_STAGES = SHAPE.raw_stages ? SHAPE.raw_stages : 1;

DEVICE bool has_raw_tiles(const launch &launch)
{
    return SHAPE.raw_stages > 0 && launch.k_dtype > DTYPE_BF16;
}

template <bool RAW>
DEVICE bringer bringer_of(const launch &launch, const task &task, uint32_t which)
{
    const bool is_rows = launch.where == AULE_PLACE_ROWS;
    bringer b;
    b.which = which;
    b.empty = launch.shared + (which ? V_EMPTY : K_EMPTY);
    b.lines = (which ? SHAPE.dim_v : SHAPE.dim_k) / HOPPER_LINE;
    b.bytes = (which ? SHAPE.v_bytes : SHAPE.k_bytes) / 2 * ELEMENT_BYTES<RAW>;
    if constexpr (RAW) {
        b.full = launch.shared + (which ? RAW_V_FULL : RAW_K_FULL);
        b.to = launch.shared + (which ? SHAPE.raw_v_at : SHAPE.raw_k_at);
    } else {
        b.full = launch.shared + (which ? V_FULL : K_FULL);
        b.to = launch.shared + (which ? SHAPE.v_at : SHAPE.k_at);
    }
    b.box_keys = is_rows ? KEYS : hopper_box_keys(launch.block_size, KEYS);
    b.boxes = KEYS / b.box_keys;
    b.map = map_of(launch, task.run_number, HOPPER_MAP_K + which);
    b.start = b.outer = 0;
    if (is_rows && (which ? RUN(task.run, values_outer) : RUN(task.run, keys_outer)) != 0)
        b.outer = task.tile.seq;
    else if (is_rows)
        b.start = load<uint32_t>(RUN(task.run, kv_starts) +
                                 (uint64_t)task.tile.seq * RUN(task.run, kv_start_step) * 4);
    return b;
}

// Where box `box` of a tile begins.
template <bool RAW>
DEVICE hopper_place place_of(const launch &launch, const task &task, const bringer &b,
                             uint32_t tile, uint32_t box)
{
    if (launch.where == AULE_PLACE_ROWS)
        return hopper_place_in_tensor(b.start + tile * KEYS, task.head, b.outer);
    const uint32_t part = hopper_box_part(tile, box, launch.block_size, task.span.some, KEYS);
    const uint32_t key = hopper_key_in_block(tile, launch.block_size, KEYS);
    const uint32_t block =
        load<uint32_t>(RUN(task.run, block_table) +
                       ((uint64_t)task.tile.seq * RUN(task.run, max_blocks) + part) * 4);
    if (launch.where == AULE_PLACE_BLOCKS)
        return hopper_place_in_tensor(key, task.head, block);
    const uint32_t shift = RUN(task.run, chunk_shift);
    const uint64_t chunk = load<uint64_t>(
        RUN(task.run, chunks) + (uint64_t)(block >> shift) * RUN(task.run, chunk_stride) * 8);
    const uint32_t row = (b.which ? SHAPE.dim_v : SHAPE.dim_k) * ELEMENT_BYTES<RAW>;
    return hopper_place_in_pool(chunk +
                                hopper_block_offset(block, shift, launch.block_size,
                                                    launch.num_kv_heads, task.head, b.which, SHAPE,
                                                    ELEMENT_BYTES<RAW>) +
                                (uint64_t)key * row);
}

// Brings the last tile of contiguous tensors key by key. Keys behind the last one repeat it, so
// that nothing behind the sequence is read.
DEVICE void bring_tail(const bringer &b, const task &task, uint32_t stage, uint32_t lane)
{
    const uint64_t map = b.map + (HOPPER_MAP_ONE_K - HOPPER_MAP_K) * HOPPER_MAP_WORDS * 4;
    map_acquire(map);
    for (uint32_t key = lane; key < KEYS; key += WARP) {
        const uint32_t of = least((task.span.end - 1) * KEYS + key, task.tile.kv_len - 1);
        hopper_place place = hopper_place_in_tensor(b.start + of, task.head, b.outer);
        for (uint32_t line = 0; line < b.lines; line++) {
            place.at[0] = line * HOPPER_LINE;
            copy_box(b.to + stage * b.bytes + (line * KEYS + key) * HOPPER_LINE_BYTES, map,
                     place.at, b.full + 8 * stage);
        }
    }
}

// The same for raw tiles, whose lines are too short for a box of one: by loads.
DEVICE void bring_raw_tail(const bringer &b, const task &task, uint32_t stage, uint32_t lane)
{
    const uint32_t run = task.run;
    const uint64_t base = b.which ? RUN(run, values) : RUN(run, keys);
    const uint64_t outer = b.which ? RUN(run, values_outer) : RUN(run, keys_outer);
    const uint64_t token = b.which ? RUN(run, values_token_stride) : RUN(run, keys_token_stride);
    const uint64_t head = b.which ? RUN(run, values_head_stride) : RUN(run, keys_head_stride);
    const uint64_t from = base + b.outer * outer + task.head * head * 16;
    for (uint32_t i = lane; i < KEYS * b.lines * 4; i += WARP) {
        const uint32_t row = i / 4 % KEYS, chunk = i / 4 / KEYS * 4 + i % 4;
        const uint64_t of = b.start + least((task.span.end - 1) * KEYS + row, task.tile.kv_len - 1);
        uint32_t words[4];
        load_chunk(words, from + of * token * 16 + chunk * 16);
        shared_store_chunk(b.to + stage * b.bytes + hopper_raw_place(row, chunk, KEYS), words);
    }
    warp_sync();
    if (lane == 0)
        barrier_arrive(b.full + 8 * stage);
}

// ---- converting K and V of 8 bits ----

// Two 8-bit elements of a word as elements of Q's type.
template <uint32_t DTYPE, int HIGH> DEVICE uint32_t widened(uint32_t word)
{
    if constexpr (DTYPE == DTYPE_INT8)
        return elements_of_int8<HIGH>(word);
    else if constexpr (DTYPE == DTYPE_FP8_E4M3)
        return elements_of_halves(halves_of_e4m3<HIGH>(word));
    else
        return elements_of_halves(halves_of_e5m2<HIGH>(word));
}

// A lane's part of 16 rows of 64 elements.
struct raw_rows {
    uint32_t words[4][2];
};

DEVICE void load_rows(raw_rows &rows, uint32_t from)
{
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        shared_load_pair(rows.words[i], from + 4 * i * HOPPER_LINE);
}

template <uint32_t DTYPE>
DEVICE void convert_rows(const raw_rows &rows, uint32_t even, uint32_t odd)
{
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t wide[4];
#pragma unroll
        for (uint32_t j = 0; j < 2; j++) {
            wide[2 * j] = widened<DTYPE, 0>(rows.words[i][j]);
            wide[2 * j + 1] = widened<DTYPE, 1>(rows.words[i][j]);
        }
        shared_store_chunk((i % 2 ? odd : even) + i / 2 * 8 * HOPPER_LINE_BYTES, wide);
    }
}

// Converts rows [begin, end_row) of a raw tile, by one warp: lines of 64 dims follow one another,
// so rows are counted over all lines. Both are multiples of 32. A lane has one chunk of eight
// elements of every fourth row. 16 rows are loaded while the 16 before are converted.
template <uint32_t DTYPE>
DEVICE void convert_tile(uint32_t from, uint32_t to, uint32_t begin, uint32_t end_row,
                         uint32_t lane)
{
    constexpr uint32_t RAW = 16 * HOPPER_LINE, WIDE = 16 * HOPPER_LINE_BYTES;
    const uint32_t row = lane / 8, chunk = lane % 8, end = from + end_row * HOPPER_LINE + lane * 8;
    uint32_t even = to + begin * HOPPER_LINE_BYTES + hopper_swizzled(row, chunk, KEYS);
    uint32_t odd = to + begin * HOPPER_LINE_BYTES + hopper_swizzled(row + 4, chunk, KEYS);
    raw_rows first, second;
    from += begin * HOPPER_LINE + lane * 8;
    load_rows(first, from);
    do {
        load_rows(second, from + RAW);
        convert_rows<DTYPE>(first, even, odd);
        from += 2 * RAW;
        if (from != end)
            load_rows(first, from);
        convert_rows<DTYPE>(second, even + WIDE, odd + WIDE);
        even += 2 * WIDE;
        odd += 2 * WIDE;
    } while (from != end);
}

// Rows of a raw tile that the warp of K or V converts itself. Q's warp, which has little else to
// do, converts the others, of both.
template <bool VALUES>
constexpr uint32_t ROWS = (VALUES ? SHAPE.dim_v : SHAPE.dim_k) / HOPPER_LINE *KEYS;
template <bool VALUES> constexpr uint32_t OWN_ROWS = (ROWS<VALUES> * 5 / 8 + 16) / 32 * 32;

// Converts one part of raw tile `number`, counted from the kernel's begin on, into stage `stage`,
// when it is there and the stage is free. OWN: the part of the warp of K or V.
template <bool VALUES, bool OWN>
DEVICE void convert_part(const launch &launch, uint32_t number, stages &at, uint32_t stage,
                         uint32_t lane)
{
    const uint32_t raw = number % RAW_STAGES, bytes = VALUES ? SHAPE.v_bytes : SHAPE.k_bytes;
    const uint32_t from =
        launch.shared + (VALUES ? SHAPE.raw_v_at : SHAPE.raw_k_at) + raw * (bytes / 2);
    const uint32_t to = launch.shared + (VALUES ? SHAPE.v_at : SHAPE.k_at) + stage * bytes;
    const uint32_t dtype = VALUES ? launch.v_dtype : launch.k_dtype;
    const uint32_t begin = OWN ? 0 : OWN_ROWS<VALUES>, end = OWN ? OWN_ROWS<VALUES> : ROWS<VALUES>;
    barrier_wait(launch.shared + (VALUES ? RAW_V_FULL : RAW_K_FULL) + 8 * raw,
                 number / RAW_STAGES & 1);
    barrier_wait(launch.shared + (VALUES ? V_EMPTY : K_EMPTY) + 8 * stage, parity(at, stage) ^ 1);
    if (dtype == DTYPE_INT8)
        convert_tile<DTYPE_INT8>(from, to, begin, end, lane);
    else if (dtype == DTYPE_FP8_E4M3)
        convert_tile<DTYPE_FP8_E4M3>(from, to, begin, end, lane);
    else
        convert_tile<DTYPE_FP8_E5M2>(from, to, begin, end, lane);
    fence_async();
    warp_sync();
    if (lane == 0)
        barrier_arrive(launch.shared + (VALUES ? V_FULL : K_FULL) + 8 * stage);
    if (!OWN && lane == 0)
        barrier_arrive(launch.shared + (VALUES ? RAW_V_EMPTY : RAW_K_EMPTY) + 8 * raw);
    pass(at, stage);
}

// Converts the warp's part of the raw tile that was copied first.
DEVICE void convert_one(const launch &launch, uint32_t which, filling &fill, uint32_t lane)
{
    const uint32_t number = fill.copied - fill.raw, stage = fill.to >> number % RAW_STAGES & 1;
    if (which)
        convert_part<true, true>(launch, number, fill.at, stage, lane);
    else
        convert_part<false, true>(launch, number, fill.at, stage, lane);
    fill.raw--;
}

DEVICE void convert_all(const launch &launch, uint32_t which, filling &fill, uint32_t lane)
{
    while (fill.raw)
        convert_one(launch, which, fill, lane);
}

// ---- bringing tiles ----

// The places of several tiles' boxes, without lines, each known by one lane. Addresses come from
// memory, and finding one takes as long as a tile's products.
template <bool RAW>
DEVICE hopper_place places_of(const launch &launch, const task &task, const bringer &b,
                              uint32_t top, uint32_t lane)
{
    const hopper_box of = hopper_box_of_lane(lane, b.boxes, top, task.span.first);
    return place_of<RAW>(launch, task, b, of.tile, of.box);
}

DEVICE hopper_place place_read(const hopper_place &places, uint32_t lane)
{
    return {lane_read(places.at[0], lane), lane_read(places.at[1], lane),
            lane_read(places.at[2], lane), lane_read(places.at[3], lane)};
}

// The next unit of a warp that brings K or V.
struct upcoming {
    uint32_t unit;       // where it is; 0: there is none
    hopper_place places; // from its last tile down
};

// Looks at the next unit that is handed out, and finds where its last tiles lie.
template <bool RAW>
DEVICE upcoming look_ahead(const launch &launch, uint32_t which, const unit_cursor &ring,
                           uint32_t lane)
{
    const uint32_t unit = unit_wait(launch, ring);
    if (shared_load(unit) == NO_UNIT)
        return {};
    const task task = task_of(unit);
    if (task.span.first == task.span.end)
        return {unit, {}};
    const bringer b = bringer_of<RAW>(launch, task, which);
    return {unit, places_of<RAW>(launch, task, b, task.span.end - 1, lane)};
}

// Frees a stage for a tile's copy, and returns its number. RAW: a raw stage; what lies there is
// converted.
template <bool RAW>
DEVICE uint32_t stage_for_copy(const launch &launch, const bringer &b, filling &fill, uint32_t tile,
                               uint32_t lane)
{
    uint32_t stage = tile % HOPPER_STAGES;
    if constexpr (RAW) {
        if (fill.raw == RAW_STAGES)
            convert_one(launch, b.which, fill, lane);
        const uint32_t raw = fill.copied % RAW_STAGES, round = fill.copied / RAW_STAGES;
        barrier_wait(launch.shared + (b.which ? RAW_V_EMPTY : RAW_K_EMPTY) + 8 * raw,
                     (round & 1) ^ 1);
        fill.copied++;
        fill.raw++;
        fill.to = (fill.to & ~(1u << raw)) | stage << raw;
        return raw;
    }
    barrier_wait(b.empty + 8 * stage, parity(fill.at, stage) ^ 1);
    pass(fill.at, stage);
    return stage;
}

// Brings K (which = 0) or V (1) of units until there is none. Lane lines * m + n copies line n of
// box m. RAW: raw tiles are converted before it waits for a unit, for that may come only when they
// have been used.
template <bool RAW>
DEVICE void bring_tiles(const launch &launch, uint32_t which, unit_cursor &ring, filling &fill,
                        uint32_t lane)
{
    upcoming next = look_ahead<RAW>(launch, which, ring, lane);
    uint32_t acquired = 0xffffffff; // the run whose map was
    while (next.unit) {
        const task task = task_of(next.unit);
        const bringer b = bringer_of<RAW>(launch, task, which);
        const uint32_t line = lane % b.lines, box = lane / b.lines;
        const uint32_t to = b.to + (line * KEYS + box * b.box_keys) * LINE_BYTES<RAW>;
        const uint32_t wants = least(task.span.end, task.span.first + WANTS_AHEAD);
        const bool has_tail =
            launch.where == AULE_PLACE_ROWS && task.span.end * KEYS > task.tile.kv_len;
        const unit_cursor unit = ring;
        hopper_place places = next.places;
        uint32_t from = box; // the lane that knows the place
        advance(ring);
        if (task.run_number != acquired)
            map_acquire(b.map);
        acquired = task.run_number;
        uint32_t tile = task.span.end;
        do {
            if (which == 0 && lane == 0 && tile == wants)
                barrier_arrive(launch.shared + WANTED);
            if (tile <= task.span.first + 1) {
                if (RAW && !unit_is_there(launch, ring))
                    convert_all(launch, which, fill, lane);
                next = look_ahead<RAW>(launch, which, ring, lane);
            }
            if (tile-- == task.span.first)
                break; // no row sees a key
            if (from >= WARP + box) {
                places = places_of<RAW>(launch, task, b, tile, lane);
                from = box;
            }
            hopper_place here = place_read(places, from % WARP);
            here.at[0] += line * hopper_line_elements(ELEMENT_BYTES<RAW>);
            from += b.boxes;
            const uint32_t stage = stage_for_copy<RAW>(launch, b, fill, tile, lane);
            const bool is_tail = has_tail && tile == task.span.end - 1;
            if (lane == 0 && !(RAW && is_tail))
                barrier_expect(b.full + 8 * stage, b.bytes);
            warp_sync();
            if (RAW && is_tail)
                bring_raw_tail(b, task, stage, lane);
            else if (is_tail)
                bring_tail(b, task, stage, lane);
            else if (box < b.boxes)
                copy_box(to + stage * b.bytes, b.map, here.at, b.full + 8 * stage);
        } while (tile > task.span.first);
        unit_free(launch, unit, lane);
    }
    if constexpr (RAW)
        convert_all(launch, which, fill, lane);
    if (which == 0 && lane == 0)
        barrier_arrive(launch.shared + WANTED); // the next round's first unit
    unit_release(launch, ring, lane);
}

// Brings Q, by one warp: line by line.
DEVICE void bring_query_boxes(const launch &launch, const task &task, uint32_t lane)
{
    const uint64_t map = map_of(launch, task.run_number, HOPPER_MAP_Q);
    const bool outer = RUN(task.run, q_outer) != 0;
    const uint32_t at[4] = {lane * HOPPER_LINE, task.head * task.rows.group,
                            (outer ? 0 : task.tile.first_token) + task.rows.query,
                            outer ? task.tile.seq : 0};
    map_acquire(map);
    if (lane == 0)
        barrier_expect(launch.shared + Q_FULL, SHAPE.k_at);
    warp_sync();
    if (lane < SHAPE.dim_k / HOPPER_LINE)
        copy_box(launch.shared + lane * Q_LINE, map, at, launch.shared + Q_FULL);
    if (lane != 0)
        barrier_arrive(launch.shared + Q_FULL);
}

// The same row by row, where rows are few or apart. Rows that are not there become zeros. Each lane
// finds the addresses of four rows.
DEVICE void bring_query_rows(const launch &launch, const task &task, const uint64_t mine[4],
                             uint32_t lane)
{
    constexpr uint32_t CHUNKS = SHAPE.dim_k / 8; // of a row, 16 bytes each
    const uint64_t any = RUN(task.run, q);       // for rows that are not there
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
#pragma unroll 4
        for (uint32_t j = 0; j < CHUNKS; j++) {
            const uint32_t row = (WARP * j + lane) / CHUNKS, chunk = (WARP * j + lane) % CHUNKS;
            const uint64_t from = lane_read(mine[i], row);
            copy_chunk(launch.shared + hopper_swizzled(WARP * i + row, chunk, HOPPER_ROWS),
                       from ? from + chunk * 16 : any, from == 0);
        }
    copy_arrive(launch.shared + Q_FULL);
}

DEVICE void bring_queries(const launch &launch, const task &task, uint32_t &parity, uint32_t lane)
{
    const bool boxes = hopper_q_is_a_box(task.span.num_rows, task.rows.group) &&
                       RUN(task.run, token_row_step) == 0;
    uint64_t mine[4] = {0, 0, 0, 0};
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        if (!boxes && WARP * i + lane < task.span.num_rows)
            mine[i] = row_address(task, WARP * i + lane, RUN(task.run, q), RUN(task.run, q_outer),
                                  RUN(task.run, q_token_stride), RUN(task.run, q_head_stride));
    barrier_wait(launch.shared + Q_EMPTY, parity ^ 1);
    if (boxes)
        bring_query_boxes(launch, task, lane);
    else
        bring_query_rows(launch, task, mine, lane);
    parity ^= 1;
}

// What Q's warp has converted of K and V.
struct helping {
    stages k, v;
    uint32_t tiles; // from the kernel's begin on
};

// Converts the other warps' rows of all tiles of a unit.
DEVICE void help_convert(const launch &launch, const hopper_span &span, helping &help,
                         uint32_t lane)
{
#pragma unroll 1
    for (uint32_t tile = span.end; tile-- > span.first; help.tiles++) {
        const uint32_t stage = tile % HOPPER_STAGES;
        convert_part<false, false>(launch, help.tiles, help.k, stage, lane);
        convert_part<true, false>(launch, help.tiles, help.v, stage, lane);
    }
}

template <bool RAW>
DEVICE void bring_all_queries(const launch &launch, unit_cursor &ring, uint32_t &parity,
                              helping &help, uint32_t lane)
{
    bool is_there = true;
    while (is_there) {
        const uint32_t unit = unit_wait(launch, ring);
        is_there = shared_load(unit) != NO_UNIT;
        if (is_there) {
            const task task = task_of(unit);
            if (task.span.first < task.span.end)
                bring_queries(launch, task, parity, lane);
            if constexpr (RAW)
                help_convert(launch, task.span, help, lane);
        }
        unit_release(launch, ring, lane);
    }
}

// ---- handing out ----

DEVICE void hand_out(const launch &launch, uint32_t unit, unit_cursor &ring, uint32_t lane)
{
    const uint32_t to = launch.shared + UNITS + ring.stage * UNIT_BYTES;
    barrier_wait(launch.shared + UNIT_EMPTY + 8 * ring.stage, ring.parity ^ 1);
    if (unit != NO_UNIT)
        unit_put(launch, unit, to, lane);
    else if (lane == 0)
        shared_store(to, NO_UNIT);
    if (lane == 0)
        barrier_arrive(launch.shared + UNIT_FULL + 8 * ring.stage);
    advance(ring);
}

// Waits until another unit is wanted. A block that took its units earlier would hold what others
// could do at the end.
DEVICE void wait_for_want(const launch &launch, uint32_t &wanted)
{
    barrier_wait(launch.shared + WANTED, wanted);
    wanted ^= 1;
}

DEVICE uint32_t unit_of_ticket(const launch &launch, uint32_t lane)
{
    uint32_t unit = 0;
    if (lane == 0)
        unit = launch.first_blocks + ticket_take(launch.work);
    return lane_read(unit, 0);
}

// Hands out units by tickets, and then NO_UNIT.
DEVICE void hand_out_all(const launch &launch, unit_cursor &ring, uint32_t &wanted, uint32_t lane)
{
    const uint32_t total = launch.num_items * launch.num_kv_heads;
    uint32_t unit = launch.is_later ? unit_of_ticket(launch, lane) : __nvvm_read_ptx_sreg_ctaid_x();
    wait_for_want(launch, wanted);
    while (unit < total) {
        hand_out(launch, unit, ring, lane);
        wait_for_want(launch, wanted);
        unit = unit_of_ticket(launch, lane);
    }
    hand_out(launch, NO_UNIT, ring, lane);
}

// Hands out the units that a compute warpgroup has noted, and then NO_UNIT.
DEVICE void hand_out_noted(const launch &launch, uint32_t group, unit_cursor &ring,
                           uint32_t &wanted, uint32_t lane)
{
    uint32_t n = noted_first(launch, group);
    while (n) {
        wait_for_want(launch, wanted);
        hand_out(launch, n - 1, ring, lane);
        n = load<uint32_t>(note_at(launch, n - 1, group));
    }
    wait_for_want(launch, wanted);
    hand_out(launch, NO_UNIT, ring, lane);
}

// The warps that bring: K, V, Q, and the one that hands out. They and the compute warpgroups go
// through all units, then through those that each compute warpgroup has noted.
DEVICE void bring(const launch &launch, uint32_t warp, uint32_t lane)
{
    filling fill = {{0}, 0, 0, 0};
    helping help = {{0}, {0}, 0};
    uint32_t queries = 0; // parity
    const bool is_raw = has_raw_tiles(launch);
    unit_cursor ring = {0, 0};
    uint32_t wanted = 1; // parity of the phase before the first
    for (uint32_t round = 0; round < 3; round++) {
        if (warp < 2 && is_raw)
            bring_tiles<true>(launch, warp, ring, fill, lane);
        else if (warp < 2)
            bring_tiles<false>(launch, warp, ring, fill, lane);
        else if (warp == 2 && is_raw)
            bring_all_queries<true>(launch, ring, queries, help, lane);
        else if (warp == 2)
            bring_all_queries<false>(launch, ring, queries, help, lane);
        else if (round == 0)
            hand_out_all(launch, ring, wanted, lane);
        else
            hand_out_noted(launch, round - 1, ring, wanted, lane);
        if (round == 0)
            named_sync(BARRIER_ALL, HOPPER_THREADS);
    }
}

// ---- computing ----
// Accumulators: element 4i + 2r + e of a lane is row lane / 4 + 8r of the warp's 16, column
// 8i + 2 (lane % 4) + e. The operand A of a product of 16 keys is the same of 16 columns, in pairs.

// What SHAPED needs of the lane's two rows, and the factors of scores and caps.
struct shaping {
    float scale, cap, turn; // scale * log2(e); cap * log2(e), 0 for none; 2 log2(e) / that
    float slope[2];         // times log2(e)
    int position[2];
    int nearest[2]; // least distance from the position to a key in sight
};

struct worker {
    uint32_t shared, group, lane; // compute warpgroup 0 or 1
    stages k;                     // V's parity of a stage is the one before K's next
    bool ready;                   // what the next step waits for is known to be there
    uint32_t q_parity;
    float c;     // scale * log2(e), positive; SHAPED: 1, scores being in units of log2
    bool stores; // of a unit that is computed again: whether this warpgroup stores its rows
    uint32_t q[SHAPE.q_stays ? 1 : SHAPE.dim_k / 4], p[KEYS / 4];
    float s[KEYS / 2], o[SHAPE.dim_v / 2];
    float base[2], sum[2];       // of rows lane / 4 and lane / 4 + 8; `sum` is this lane's part
    uint32_t first[2], count[2]; // the keys that a row sees: count keys from `first` on
    shaping shaping;
};

// Lower half of the descriptor of a tile in shared memory; `halves` are the bytes from one line of
// a row to the next, for V only. `at` is the same for all lanes.
DEVICE uint32_t descriptor(uint32_t at, uint32_t halves)
{
    return (at & 0x3ffff) >> 4 | halves >> 4 << 16;
}

// A stage that is known only when the kernel runs: lane 0's. What follows from it the compiler then
// keeps once for the warp.
DEVICE uint32_t common(uint32_t stage)
{
    return __builtin_constant_p(stage) ? stage : lane_read(stage, 0);
}

DEVICE uint32_t keys_of(const worker &w, uint32_t stage)
{
    return descriptor(w.shared + SHAPE.k_at + stage * SHAPE.k_bytes, 16);
}

DEVICE uint32_t values_of(const worker &w, uint32_t stage)
{
    return descriptor(w.shared + SHAPE.v_at + stage * SHAPE.v_bytes, K_LINE);
}

// Scores of the tile's first 2 * COUNT keys.
template <uint32_t COUNT>
DEVICE void issue_scores(const worker &w, float (&scores)[COUNT], uint32_t keys)
{
    const uint32_t queries = descriptor(w.shared + w.group * 64 * HOPPER_LINE_BYTES, 16);
#pragma unroll
    for (uint32_t i = 0; i < SHAPE.dim_k / 16; i++) {
        const uint32_t by = (i / 4 * K_LINE + i % 4 * 32) >> 4;
        const uint32_t q_by = (i / 4 * Q_LINE + i % 4 * 32) >> 4;
        if constexpr (SHAPE.q_stays) {
            if (i == 0)
                product_shared_first(scores, queries, q_by, keys, by);
            else
                product_shared(scores, queries, q_by, keys, by);
        } else if (i == 0) {
            product_first(scores, w.q, keys, by);
        } else {
            product<0>(scores, w.q + 4 * i, keys, by);
        }
    }
    product_commit();
}

DEVICE void issue_sums(worker &w, uint32_t values)
{
#pragma unroll
    for (uint32_t i = 0; i < KEYS / 16; i++)
        product<1>(w.o, w.p + 4 * i, values, i * 16 * HOPPER_LINE_BYTES >> 4);
    product_commit();
}

DEVICE void wait_for_keys(const worker &w, uint32_t stage)
{
    barrier_wait(w.shared + K_FULL + 8 * stage, parity(w.k, stage));
}

DEVICE void release_keys(worker &w, uint32_t stage)
{
    if (w.lane == 0)
        barrier_arrive(w.shared + K_EMPTY + 8 * stage);
    pass(w.k, stage);
}

// Waits for the values of a tile whose keys were released already.
DEVICE void wait_for_values(const worker &w, uint32_t stage)
{
    barrier_wait(w.shared + V_FULL + 8 * stage, parity(w.k, stage) ^ 1);
}

// Whether keys and values are there that a step will wait for, asked early: the answer takes as
// long as some dozen instructions.
DEVICE bool are_ready(const worker &w, uint32_t keys, uint32_t values)
{
    const bool k = barrier_is_over(w.shared + K_FULL + 8 * keys, parity(w.k, keys));
    const bool v = barrier_is_over(w.shared + V_FULL + 8 * values, parity(w.k, values) ^ 1);
    return k && v;
}

// The compute warpgroups take turns to issue products.
DEVICE void take_turn(const worker &w)
{
    pair_sync<BARRIER_TURN, 2 * WARPGROUP>(w.group);
}

DEVICE void give_turn(const worker &w)
{
    pair_arrive<BARRIER_TURN, 2 * WARPGROUP>(1 - w.group);
}

DEVICE void release_values(const worker &w, uint32_t stage)
{
    if (w.lane == 0)
        barrier_arrive(w.shared + V_EMPTY + 8 * stage);
}

DEVICE void scale_sums(worker &w, const float factor[2])
{
#pragma unroll
    for (uint32_t i = 0; i < SHAPE.dim_v / 2; i++)
        w.o[i] *= factor[i >> 1 & 1];
}

DEVICE void pack_weights(worker &w)
{
#pragma unroll
    for (uint32_t i = 0; i < KEYS / 4; i++)
        w.p[i] = packed(w.s[2 * i], w.s[2 * i + 1]);
}

// The same for a tile of which only the lane's first COUNT weights were computed.
template <uint32_t COUNT> DEVICE void pack_some_weights(worker &w)
{
#pragma unroll
    for (uint32_t i = 0; i < KEYS / 4; i++)
        w.p[i] = 2 * i < COUNT ? packed(w.s[2 * i], w.s[2 * i + 1]) : 0;
}

// The functions below work on the lane's first COUNT scores: those of the tile's first 2 * COUNT
// keys.

// The largest score of the lane's two rows, over the four lanes that share them.
template <uint32_t COUNT> DEVICE void largest_scores(const worker &w, float most[2])
{
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        float pair[2] = {NO_SCORE, NO_SCORE};
#pragma unroll
        for (uint32_t i = 0; i < COUNT / 2; i++)
            pair[i & 1] = larger(pair[i & 1], w.s[4 * (i >> 1) + 2 * r + (i & 1)]);
        most[r] = larger(pair[0], pair[1]);
        most[r] = larger(most[r], lane_xor(most[r], 1));
        most[r] = larger(most[r], lane_xor(most[r], 2));
    }
}

// The first of the lane's keys in a tile. Score i is of key 8 (i / 4) + i % 2 from there.
DEVICE uint32_t first_key(const worker &w, uint32_t tile)
{
    return tile * KEYS + 2 * (w.lane & 3);
}

template <uint32_t COUNT> DEVICE void mask_scores(worker &w, uint32_t tile)
{
    const uint32_t from[2] = {first_key(w, tile) - w.first[0], first_key(w, tile) - w.first[1]};
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++)
        if (from[i >> 1 & 1] + 8 * (i >> 2) + (i & 1) >= w.count[i >> 1 & 1])
            w.s[i] = -__builtin_inff();
}

// Soft cap and ALiBi; afterwards scores are in units of log2. cap tanh(x / cap) is
// cap (1 - 2 / (1 + 2^(turn x))), wrong by some 2^-22 of the cap at most.
template <uint32_t COUNT> DEVICE void shape_scores(worker &w, uint32_t tile)
{
    const int first = (int)first_key(w, tile);
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++)
        w.s[i] *= w.shaping.scale;
    if (w.shaping.cap != 0) {
#pragma unroll
        for (uint32_t i = 0; i < COUNT; i++)
            w.s[i] = fused(-2 * w.shaping.cap, inverse(1 + power_of_2(w.s[i] * w.shaping.turn)),
                           w.shaping.cap);
    }
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint32_t r = i >> 1 & 1;
        const int away = w.shaping.position[r] - (first + 8 * (int)(i >> 2) + (int)(i & 1));
        w.s[i] = fused(-w.shaping.slope[r],
                       (float)((away < 0 ? -away : away) - w.shaping.nearest[r]), w.s[i]);
    }
}

// Turns the scores of a tile into weights. `masked`: some row does not see all keys. `part` is the
// sum of the lane's weights, for each row. `factor` is what the rule does to O and the sum.
template <rule RULE, bool AGAIN, uint32_t COUNT = KEYS / 2>
DEVICE void weigh(worker &w, uint32_t tile, bool masked, float factor[2], float part[2])
{
    if (SHAPED)
        shape_scores<COUNT>(w, tile);
    if (RULE != LATE && masked)
        mask_scores<COUNT>(w, tile);
    if (RULE != LATE) {
        float most[2];
        largest_scores<COUNT>(w, most);
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            const float base = larger(w.base[r], AGAIN ? most[r] : most[r] * w.c);
            factor[r] = power_of_2(AGAIN ? (w.base[r] - base) * w.c : w.base[r] - base);
            w.base[r] = base;
        }
    }
    float parts[2][2];
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint32_t r = i >> 1 & 1;
        w.s[i] = power_of_2(AGAIN ? (w.s[i] - w.base[r]) * w.c : fused(w.s[i], w.c, -w.base[r]));
        parts[r][i & 1] = i < 4 ? w.s[i] : parts[r][i & 1] + w.s[i];
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
    for (uint32_t i = 0; i < KEYS / 2; i++)
        w.s[i] *= factor[i >> 1 & 1];
    scale_sums(w, factor);
    pack_weights(w);
}

DEVICE bool is_odd_element(uint32_t element) // infinite or NaN
{
    return (element & INFINITE) == INFINITE;
}

DEVICE float number_of_odd(uint32_t element)
{
    const uint32_t fraction = element & (INFINITE ^ 0x7fff);
    return __builtin_bit_cast(float, (element & 0x8000) << 16 | 0x7f800000 | fraction << 12);
}

// Infinite and NaN values of V go to the rows that see their key, and to no others: weights of 0
// would not keep them from the other rows. Leaves zeros in their places. By the one warpgroup that
// stores the unit when it is computed again; the other one's results are dropped.
DEVICE void part_values(worker &w, uint32_t tile, uint32_t thread)
{
    const uint32_t at = w.shared + SHAPE.v_at + tile % HOPPER_STAGES * SHAPE.v_bytes;
    const uint32_t number = BARRIER_GROUP + w.group, word = 4 * (w.lane & 3);
    bool any = false;
    for (uint32_t i = thread; i < SHAPE.v_bytes / 4; i += WARPGROUP) {
        const uint32_t pair = shared_load(at + 4 * i);
        any |= is_odd_element(pair) || is_odd_element(pair >> 16);
    }
    if (!named_any(number, WARPGROUP, any))
        return;
#pragma unroll 1
    for (uint32_t key = 0; key < KEYS; key++) {
#pragma unroll
        for (uint32_t i = 0; i < SHAPE.dim_v / 2; i++) {
            const uint32_t pair = shared_load(at + hopper_swizzled(key, i >> 2, KEYS) + word);
            const uint32_t element = i & 1 ? pair >> 16 : pair & 0xffff, r = i >> 1 & 1;
            const bool adds =
                is_odd_element(element) & (tile * KEYS + key - w.first[r] < w.count[r]);
            w.o[i] += adds ? number_of_odd(element) : 0.0f;
        }
    }
    named_sync(number, WARPGROUP);
    for (uint32_t i = thread; i < SHAPE.v_bytes / 4; i += WARPGROUP) {
        const uint32_t pair = shared_load(at + 4 * i);
        shared_store(at + 4 * i, (is_odd_element(pair) ? 0 : pair & 0xffff) |
                                     (is_odd_element(pair >> 16) ? 0 : pair & 0xffff0000));
    }
    fence_async();
    named_sync(number, WARPGROUP);
}

// Scores of `tile`, which has stage `stage`, and beside them O += P V of the tile before.
template <rule RULE, bool AGAIN>
DEVICE void step(worker &w, uint32_t tile, uint32_t stage, bool masked, uint32_t thread)
{
    float factor[2], part[2];
    const uint32_t other = stage ^ 1;
    const uint32_t keys = keys_of(w, stage), values = values_of(w, other);
    if (!w.ready) {
        wait_for_keys(w, stage);
        wait_for_values(w, other);
    }
    if (AGAIN && w.stores)
        part_values(w, tile + 1, thread);
    take_turn(w);
    product_fence();
    issue_scores(w, w.s, keys);
    issue_sums(w, values);
    give_turn(w);
    product_wait<1>(w.s);
    release_keys(w, stage);
    w.ready = are_ready(w, other, stage);
    weigh<RULE, AGAIN>(w, tile, masked, factor, part);
    product_wait<0>(w.o);
    release_values(w, other);
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
DEVICE void zero_tail(const worker &w, uint32_t stage, uint32_t first, uint32_t thread)
{
    constexpr uint32_t CHUNKS = SHAPE.dim_v / 8;
    const uint32_t tile = w.shared + SHAPE.v_at + stage * SHAPE.v_bytes;
    for (uint32_t i = thread; i < (KEYS - first) * CHUNKS; i += WARPGROUP)
        shared_zero(tile + hopper_swizzled(first + i / CHUNKS, i % CHUNKS, KEYS));
    fence_async();
    named_sync(BARRIER_GROUP + w.group, WARPGROUP);
}

// Changes the signs of the warpgroup's Q in shared memory.
DEVICE void negate_queries(const worker &w, uint32_t thread)
{
    constexpr uint32_t WORDS = 64 * HOPPER_LINE_BYTES / 4; // of a line
    for (uint32_t i = thread; i < WORDS * (SHAPE.dim_k / HOPPER_LINE); i += WARPGROUP) {
        const uint32_t at = w.shared + i / WORDS * Q_LINE + w.group * WORDS * 4 + i % WORDS * 4;
        shared_store(at, shared_load(at) ^ 0x80008000u);
    }
}

DEVICE void release_queries(const worker &w)
{
    warp_sync();
    if (w.lane == 0)
        barrier_arrive(w.shared + Q_EMPTY);
}

DEVICE void take_queries(worker &w, uint32_t thread, bool negative)
{
    barrier_wait(w.shared + Q_FULL, w.q_parity);
    w.q_parity ^= 1;
    if constexpr (SHAPE.q_stays) {
        if (negative)
            negate_queries(w, thread);
        fence_async(); // what arrived was copied chunk by chunk, not by a box
        named_sync(BARRIER_GROUP + w.group, WARPGROUP);
    } else {
        const uint32_t row = 64 * w.group + 16 * (thread / WARP) + (w.lane & 15);
#pragma unroll
        for (uint32_t i = 0; i < SHAPE.dim_k / 16; i++)
            load_matrices(w.q + 4 * i,
                          w.shared + hopper_swizzled(row, 2 * i + (w.lane >> 4), HOPPER_ROWS));
        release_queries(w);
#pragma unroll
        for (uint32_t i = 0; i < SHAPE.dim_k / 4; i++)
            w.q[i] ^= negative ? 0x80008000u : 0;
    }
}

// The first tile: scores alone, of its first 2 * COUNT keys. No row sees a key behind them, so the
// others' weights are 0 and change no bit.
template <bool AGAIN, uint32_t COUNT>
DEVICE void first_scores(worker &w, const task &task, uint32_t tile, uint32_t stage,
                         uint32_t thread)
{
    float factor[2], scores[COUNT];
    take_turn(w);
    product_fence();
    issue_scores(w, scores, keys_of(w, stage));
    give_turn(w);
    product_wait<0>(scores);
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++)
        w.s[i] = scores[i];
    release_keys(w, stage);
    wait_for_values(w, stage);
    if ((tile + 1) * KEYS > task.tile.kv_len)
        zero_tail(w, stage, task.tile.kv_len - tile * KEYS, thread);
    w.ready = false;
    weigh<EXACT, AGAIN, COUNT>(w, tile, true, factor, w.sum);
    pack_some_weights<COUNT>(w);
}

// Half of a prompt's items see no more than half of their first tile.
template <bool AGAIN> DEVICE void first_step(worker &w, const task &task, uint32_t thread)
{
    const uint32_t tile = task.span.end - 1, stage = common(tile % HOPPER_STAGES);
    w.base[0] = w.base[1] = NO_SCORE;
#pragma unroll
    for (uint32_t i = 0; i < SHAPE.dim_v / 2; i++)
        w.o[i] = 0;
    wait_for_keys(w, stage);
    if constexpr (!AGAIN && KEYS == 128) {
        if (task.span.some.end <= tile * KEYS + KEYS / 2) {
            first_scores<AGAIN, KEYS / 4>(w, task, tile, stage, thread);
            return;
        }
    }
    first_scores<AGAIN, KEYS / 2>(w, task, tile, stage, thread);
}

// All tiles of the task. Leaves O, and sums over all keys in `w.sum`.
template <bool AGAIN> DEVICE void attend(worker &w, const task &task, uint32_t thread)
{
    first_step<AGAIN>(w, task, thread);
    const hopper_span &span = task.span;
    uint32_t tile = span.end - 1;
    if (!AGAIN) {
#pragma unroll 1
        while (tile > span.high) {
            tile--;
            step<EXACT, false>(w, tile, common(tile % HOPPER_STAGES), true, thread);
        }
        // A row without keys has no base. With 0 it needs no shrink(), if its Q is zeros.
#pragma unroll
        for (uint32_t r = 0; r < 2; r++)
            w.base[r] = w.count[r] > 0 && w.base[r] > -1.0e37f ? w.base[r] : 0;
        const uint32_t last = most(span.low, span.first + 1);
        if (tile > last && tile % HOPPER_STAGES == 1)
            step<LATE, false>(w, --tile, 0, false, thread);
#pragma unroll 1
        while (tile > last) {
            step<LATE, false>(w, --tile, 1, false, thread);
            if (tile == last)
                break;
            step<LATE, false>(w, --tile, 0, false, thread);
        }
    }
#pragma unroll 1
    while (tile > span.first) {
        tile--;
        step<EXACT, AGAIN>(w, tile, common(tile % HOPPER_STAGES),
                           tile < span.low || tile >= span.high, thread);
    }
    const uint32_t stage = common(tile % HOPPER_STAGES);
    wait_for_values(w, stage);
    if (AGAIN && w.stores)
        part_values(w, tile, thread);
    product_fence();
    issue_sums(w, values_of(w, stage));
    product_wait<0>(w.o);
    release_values(w, stage);
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        w.sum[r] += lane_xor(w.sum[r], 1);
        w.sum[r] += lane_xor(w.sum[r], 2);
    }
}

// From this magnitude of S c on, f32's rounding of a base changes weights visibly. A base of 2^31
// does not even change if shrink() adds k to it. Source: FAR of attention_prefill.comp.
const float FAR = 4096;

// Whether one of the lane's rows may be wrong: something is not a finite number, no weight is near
// 1, or the base is FAR.
DEVICE bool doubtful(const worker &w)
{
    float zero[2] = {0, 0}; // or NaN
    bool doubt = false;
#pragma unroll
    for (uint32_t i = 0; i < SHAPE.dim_v / 2; i++)
        zero[i >> 1 & 1] = fused(w.o[i], 0.0f, zero[i >> 1 & 1]);
#pragma unroll
    for (uint32_t r = 0; r < 2; r++)
        doubt |= w.count[r] > 0 && !(zero[r] == 0 && w.sum[r] > 0.25f && w.sum[r] < 3.0e38f &&
                                     __builtin_fabsf(w.base[r]) < FAR);
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

// A row's end.
struct row_end {
    float share, lse; // the factor of O; in the unit that the run wants
};

// A sink joins the sum of weights like a key without a value. A row that sees nothing and has no
// sink gives zeros and -infinity, and so does a row that is no query. A row that sees keys but has
// no weight has scores of -infinity only; it is NaN. Source: row_end() of attention_rows.glsl.
template <bool AGAIN>
DEVICE row_end end_row(const worker &w, const launch &launch, const task &task, uint32_t row,
                       uint32_t r)
{
    const bool seen = w.count[r] > 0;
    float most = seen ? AGAIN ? w.base[r] * w.c : w.base[r] : NO_SCORE;
    float sum = seen ? w.sum[r] : 0, keep = 1;
    if (SHAPED && seen)
        most = fused(-w.shaping.slope[r], (float)w.shaping.nearest[r], most);
    if ((launch.features & AULE_FEATURE_SINKS) &&
        hopper_query_of(task.rows, row) < task.tile.q_len) {
        const uint32_t head = task.head * task.rows.group + hopper_head_of(task.rows, row);
        const float sink = load<float>(RUN(task.run, sinks) + head * 4) * LOG2_E;
        const float top = larger(most, sink);
        keep = power_of_2(most - top);
        sum = fused(sum, keep, sink > NO_SCORE ? power_of_2(sink - top) : 0.0f);
        most = top;
    }
    if (sum == 0 && seen)
        return {__builtin_nanf(""), __builtin_nanf("")};
    if (sum == 0)
        return {0, -__builtin_inff()};
    return {keep / sum * RUN(task.run, v_scale),
            (most + logarithm_2(sum)) * RUN(task.run, lse_unit)};
}

// Stores one of the lane's two rows: four lanes store 16 bytes each.
template <bool AGAIN>
DEVICE void store_row(const worker &w, const launch &launch, const task &task, uint32_t row,
                      uint32_t r)
{
    const bool seen = w.count[r] > 0, there = row < task.span.num_rows;
    const row_end end = end_row<AGAIN>(w, launch, task, row, r);
    const uint64_t out =
        there ? row_address(task, row, RUN(task.run, out), RUN(task.run, out_outer),
                            RUN(task.run, out_token_stride), RUN(task.run, out_head_stride))
              : 0;
#pragma unroll
    for (uint32_t i = 0; i < SHAPE.dim_v / 32; i++) {
        uint32_t chunk[4];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t at = 4 * (4 * i + j) + 2 * r;
            chunk[j] = seen ? packed(w.o[at] * end.share, w.o[at + 1] * end.share) : 0;
        }
        exchange(chunk, w.lane);
        if (there)
            store_chunk(out + (4 * i + (w.lane & 3)) * 16, chunk);
    }
    if (!(launch.features & AULE_FEATURE_LSE) || !there || (w.lane & 3) != 0)
        return;
    const uint64_t token =
        token_row(task.run, task.tile.first_token, hopper_query_of(task.rows, row));
    const uint32_t head = task.head * task.rows.group + hopper_head_of(task.rows, row);
    store<float>(RUN(task.run, lse) + (token * RUN(task.run, lse_token_stride) + head) * 4,
                 end.lse);
}

// Sets what the lane's two rows see, and what shapes their scores.
DEVICE void begin_rows(worker &w, const launch &launch, const task &task, uint32_t row)
{
    const float cap = launch.features & AULE_FEATURE_SOFT_CAP ? RUN(task.run, soft_cap) : 0;
    w.shaping.scale = RUN(task.run, scale_log2e);
    w.shaping.cap = cap * LOG2_E;
    w.shaping.turn = 2 / cap;
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t at = row + 8 * r;
        const hopper_keys keys =
            keys_of_row(launch, task.run, task.tile, task.rows, task.span.num_rows, at);
        w.first[r] = keys.first;
        w.count[r] = keys.end - keys.first;
        w.shaping.slope[r] = 0;
        w.shaping.position[r] = w.shaping.nearest[r] = 0;
        if (!SHAPED || !(launch.features & AULE_FEATURE_ALIBI) || w.count[r] == 0)
            continue;
        const uint32_t head = task.head * task.rows.group + hopper_head_of(task.rows, at);
        const int position =
            position_of(launch, task.run, task.tile, hopper_query_of(task.rows, at));
        const int below = (int)keys.first - position, above = position - (int)(keys.end - 1);
        w.shaping.slope[r] = load<float>(RUN(task.run, slopes) + head * 4) * LOG2_E;
        w.shaping.position[r] = position;
        w.shaping.nearest[r] = below > 0 ? below : above > 0 ? above : 0;
    }
}

// Computes the warpgroup's rows of a unit. AGAIN: a unit that warpgroup `noted` has noted; only
// that one stores its rows.
template <bool AGAIN>
DEVICE void compute_unit(worker &w, const launch &launch, uint32_t at, uint32_t noted,
                         uint32_t thread)
{
    const task task = task_of(at);
    const uint32_t row = 64 * w.group + 16 * (thread / WARP) + (w.lane >> 2);
    w.stores = !AGAIN || noted == w.group;
    begin_rows(w, launch, task, row);
    if (task.span.first < task.span.end) {
        const float scale = RUN(task.run, scale_log2e);
        w.c = SHAPED ? 1 : larger(scale < 0 ? -scale : scale, 1.0e-30f);
        take_queries(w, thread, !SHAPED && scale < 0);
        attend<AGAIN>(w, task, thread);
        if (SHAPE.q_stays)
            release_queries(w);
        if (!AGAIN && named_any(BARRIER_GROUP + w.group, WARPGROUP, doubtful(w))) {
            if (thread == 0) {
                store<uint32_t>(note_at(launch, task.unit, w.group), noted_first(launch, w.group));
                shared_store(launch.shared + NOTED + 4 * w.group, task.unit + 1);
            }
            return;
        }
    }
    if (!w.stores)
        return;
    store_row<AGAIN>(w, launch, task, row, 0);
    store_row<AGAIN>(w, launch, task, row + 8, 1);
}

template <bool AGAIN>
DEVICE void compute_units(worker &w, const launch &launch, unit_cursor &ring, uint32_t noted,
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
    unit_cursor ring = {0, 0};
    worker w;
    w.shared = launch.shared;
    w.group = group;
    w.lane = thread % WARP;
    w.k = {0};
    w.q_parity = 0;
    if (group == 1) // the first turn is warpgroup 0's
        named_arrive(BARRIER_TURN, 2 * WARPGROUP);
    compute_units<false>(w, launch, ring, 0, thread);
    named_sync(BARRIER_ALL, HOPPER_THREADS);
    for (uint32_t noted = 0; noted < 2; noted++)
        compute_units<true>(w, launch, ring, noted, thread);
}

DEVICE void make_barriers(const launch &launch)
{
    const uint32_t shared = launch.shared, writers = has_raw_tiles(launch) ? 2 : 1; // of a tile
    for (uint32_t i = 0; i < HOPPER_STAGES; i++) {
        barrier_make(shared + K_FULL + 8 * i, writers);
        barrier_make(shared + V_FULL + 8 * i, writers);
        barrier_make(shared + K_EMPTY + 8 * i, COMPUTE_WARPS);
        barrier_make(shared + V_EMPTY + 8 * i, COMPUTE_WARPS);
        shared_store(shared + NOTED + 4 * i, 0);
        if (i < RAW_STAGES) {
            barrier_make(shared + RAW_K_FULL + 8 * i, 1);
            barrier_make(shared + RAW_V_FULL + 8 * i, 1);
            barrier_make(shared + RAW_K_EMPTY + 8 * i, 1);
            barrier_make(shared + RAW_V_EMPTY + 8 * i, 1);
        }
    }
    for (uint32_t i = 0; i < UNIT_STAGES; i++) {
        barrier_make(shared + UNIT_FULL + 8 * i, 1);
        barrier_make(shared + UNIT_EMPTY + 8 * i, COMPUTE_WARPS + 3);
    }
    barrier_make(shared + WANTED, 1);
    barrier_make(shared + Q_FULL, Q_THREADS);
    barrier_make(shared + Q_EMPTY, COMPUTE_WARPS);
    fence_async();
}

extern __attribute__((shared)) __attribute__((aligned(1024))) unsigned char shared_memory[];

} // namespace

extern "C" __attribute__((global)) __attribute__((launch_bounds(HOPPER_THREADS, 1))) void
attention_hopper(uint64_t runs, uint64_t items, uint64_t work, uint64_t notes, uint64_t maps,
                 uint32_t num_runs, uint32_t num_items, uint32_t num_kv_heads, uint32_t block_size,
                 uint32_t features, uint32_t where, uint32_t k_dtype, uint32_t v_dtype,
                 uint32_t first_blocks, uint32_t is_later)
{
    const launch launch = {runs,       items,        work,      notes,
                           maps,       num_runs,     num_items, num_kv_heads,
                           block_size, features,     where,     k_dtype,
                           v_dtype,    first_blocks, is_later,  shared_address(shared_memory)};
    const uint32_t thread = thread_number();
    if (thread == 0)
        make_barriers(launch);
    named_sync(BARRIER_ALL, HOPPER_THREADS);
    if (thread < WARPGROUP) {
        registers_give<KEPT>();
        bring(launch, thread / WARP, thread % WARP);
    } else {
        registers_take<TAKEN>();
        compute(launch, lane_read(thread / WARPGROUP - 1, 0), thread % WARPGROUP);
    }
}
