// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_work.glsl - the work of one attention workgroup: its run, its sequence and its tile of
// rows. Also the keys that a row may see, and a row's place in q, out and lse. All attention
// kernels use it. Knows nothing of how K and V are stored.
//
// A row is one query token and one of the query heads of a KV head. A sequence's
// row r is token r / group, head kv_head * group + r % group.

#ifndef AULE_ATTENTION_WORK_GLSL
#define AULE_ATTENTION_WORK_GLSL

#include "paging.glsl"

layout(constant_id = AULE_SPEC_TILE_ROWS) const uint TILE_ROWS = 8;
layout(push_constant, scalar) uniform Push { gpu_dispatch dispatch; };

const bool SOFT_CAP = (FEATURES & AULE_FEATURE_SOFT_CAP) != 0;
const bool ALIBI = (FEATURES & AULE_FEATURE_ALIBI) != 0;
const bool WINDOW = (FEATURES & AULE_FEATURE_WINDOW) != 0;
const bool CHUNK = (FEATURES & AULE_FEATURE_CHUNK) != 0;
const bool MASK = (FEATURES & AULE_FEATURE_MASK) != 0;
const bool SINKS = (FEATURES & AULE_FEATURE_SINKS) != 0;
const bool LSE = (FEATURES & AULE_FEATURE_LSE) != 0;
const bool SPLIT = (FEATURES & AULE_FEATURE_SPLIT) != 0;

const float NO_MAXIMUM = -3.0e38; // finite, so that the difference of two maxima is never NaN
const float LOG2_E = 1.4426950408889634;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Floats { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Result {
    float value;
};

// This workgroup's work, the same in every thread.
uint seq;
uint kv_head, group;      // group: query heads for one KV head
uint first_token;         // of the sequence, counted in the run
uint q_len, kv_len;       // queries and keys; tokens from q_len on see nothing
uint first_row, num_rows; // of the tile; rows beyond the sequence's end are idle

#ifdef FEW_ROWS
bool one_token; // the sequence has one token only
#endif
uint run_number; // of `run`, in the dispatch

// Finds item `number`, and sets `run` to its run. false: there is no such item.
bool item_find_at(uint number, out gpu_item item)
{
    if (number >= dispatch.num_items)
        return false;
    Runs runs = Runs(dispatch.runs);
    if (dispatch.items != 0) { // the two loads do not wait for each other
        run = runs.at[0];
        run_number = 0;
        item = Items(dispatch.items).at[number];
        return true;
    }
    uint index;
    RUN_FIND(runs, dispatch.num_runs, dispatch.each, first_item, number, index)
    run = runs.at[index];
    run_number = index;
    item = Items(run.items).at[number - run.first_item];
    return true;
}

// Finds this workgroup's item.
bool item_find(out gpu_item item)
{
    return item_find_at(gl_WorkGroupID.y + gl_WorkGroupID.z * dispatch.items_y, item);
}

// Reads the run again after a long loop that does not need it, so it takes no registers meanwhile.
void run_again()
{
    run = Runs(dispatch.runs).at[run_number];
}

void work_begin(gpu_tile tile)
{
    seq = tile.seq;
    kv_head = gl_WorkGroupID.x;
    group = run.num_heads / NUM_KV_HEADS;
    first_token = tile.first_token;
    q_len = tile.q_len;
    kv_len = tile.kv_len;
    first_row = tile.first_row;
#ifdef FEW_ROWS
    one_token = tile.num_tokens == 1;
#endif
    num_rows = min(TILE_ROWS, tile.num_tokens * group - first_row);
}

uint row_query(uint row)
{
    const uint at = first_row + row;
#ifdef FEW_ROWS // usually one token's rows, and a division takes about 30 instructions
    uint query = 0;
    if (!one_token)
        query = at / group;
    return query;
#else
    return at / group;
#endif
}

// ---- which keys ----

// The position of row `row` among the keys.
int row_position(uint row)
{
    const uint query = row_query(row);
    if (POSITIONS)
        return Ints(run.positions).at[token_row(first_token + query)];
    return int(kv_len) - int(q_len) + int(query);
}

// The row sees no key outside [x, y), and all keys inside unless there is a mask. (0, 0): it sees
// none. The arithmetic is 64-bit, because a position and a window side may both be as large as an
// int. The narrow position is compared with 0, because Mesa 22.3 compares a widened one wrongly.
uvec2 row_range(uint row)
{
    if (row >= num_rows || row_query(row) >= q_len)
        return uvec2(0);
    if (!WINDOW) {
        const int last =
            run.causal != 0 ? min(row_position(row), int(kv_len) - 1) : int(kv_len) - 1;
        return uvec2(0, uint(max(last + 1, 0)));
    }
    const int narrow = row_position(row);
    const int64_t position = narrow;
    int64_t first = 0, last = int64_t(kv_len) - 1;
    if (run.causal != 0)
        last = min(last, position);
    if (WINDOW) {
        first = max(first, position - int64_t(run.window_left));
        last = min(last, position + int64_t(run.window_right));
    }
    if (CHUNK) {
        if (narrow < 0)
            return uvec2(0);
        const uint start = uint(narrow) / run.attention_chunk * run.attention_chunk;
        first = max(first, int64_t(start));
        last = min(last, int64_t(start) + int64_t(run.attention_chunk) - 1);
    }
    return first > last ? uvec2(0) : uvec2(first, last + 1);
}

// The hull of all rows' ranges; neither keys nor block table are read outside. Without window and
// positions the last query sees the most.
uvec2 tile_range()
{
    if (!WINDOW && !POSITIONS)
        return first_row / group >= q_len ? uvec2(0)
                                          : row_range(min(num_rows, q_len * group - first_row) - 1);
    uvec2 hull = uvec2(0xffffffffu, 0);
    uint row = 0;
    do {
        const uvec2 range = row_range(row);
        if (range.x < range.y)
            hull = uvec2(min(hull.x, range.x), max(hull.y, range.y));
    } while (++row < num_rows);
    return hull;
}

// ---- which rows ----

uint row_head(uint row)
{
#ifdef FEW_ROWS
    return kv_head * group + first_row + row - row_query(row) * group;
#else
    return kv_head * group + (first_row + row) % group;
#endif
}

// Address of row `row` in q or out. `outer` is in bytes; the strides count 16-byte units.
uint64_t row_address(uint64_t base, uint64_t outer, uint token_stride, uint head_stride, uint row)
{
    const uint query = row_query(row);
    const uint64_t place = outer != 0
                               ? seq * outer + uint64_t(query) * token_stride * 16
                               : uint64_t(token_row(first_token + query)) * token_stride * 16;
    return base + place + uint64_t(row_head(row)) * head_stride * 16;
}

uint64_t out_address(uint row)
{
    return row_address(run.result, run.out_outer, run.out_token_stride, run.out_head_stride, row);
}

void lse_store(uint row, float lse)
{
    const uint token = token_row(first_token + row_query(row));
    Result(run.lse + (uint64_t(token) * run.lse_token_stride + row_head(row)) * 4).value = lse;
}

// Address of the tile's partial result number `partial`: sums f32[TILE_ROWS, HEAD_DIM_V], maxima
// f32[TILE_ROWS], weights f32[TILE_ROWS].
uint64_t partial_address(uint partial)
{
    return run.partials + (uint64_t(partial) * NUM_KV_HEADS + kv_head) *
                              (AULE_PARTIAL_FLOATS(TILE_ROWS, HEAD_DIM_V) * 4);
}

const uint PARTIAL_MAXIMA = TILE_ROWS * HEAD_DIM_V; // in floats from that address
const uint PARTIAL_WEIGHTS = PARTIAL_MAXIMA + TILE_ROWS;

#endif
