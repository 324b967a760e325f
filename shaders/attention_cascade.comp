// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_cascade - what attention_decode does, for parts of keys that several sequences share: keys and values are read once and meet
// the rows of up to SIDES tiles a warp, each of which is one that attention_decode would have had as an item of its own. All that is done for
// a row is done as there, in the same order, so that its bits are the same; columns of a matrix do not know each other.
//
// An item is one half of a part; its units are folded as there, by the warp that has the rows, in the memory of the partial result. A step
// is TILES tiles of 16 keys. All warps bring it into shared memory, as the matrix elements that lanes want: each lane stores what in
// attention_decode would have been its own, already widened and turned; then each warp multiplies all of it with its 16 rows, the
// columns of two matrices. The next step is on its way meanwhile, and has a place of its own.
//
// Every row sees every key here: there is no window, and the keys end before the first query.
//
// Grid: x = KV head, item number = gl_WorkGroupID.y + gl_WorkGroupID.z * items_y, the run is the one whose first_item is the last
// not beyond it; its `items` are struct gpu_crowd. Bindings: none. Push constants: struct gpu_dispatch. Specialisation constants: those of
// attention_decode, but LOCAL_SIZE, which is 32 times 4 or 8, and PLACE, which is not ROWS. No POSITIONS, no WINDOW.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

#define PARTS_COHERENT coherent
#include "attention_columns.glsl"

const uint SIDES = 2; // tiles of rows that a warp has
const uint TILES = WARPS / 4;
const uint STEP_KEYS = TILES * STEP;              // the half's tiles and those between, which are not its own
const uint FRAGMENTS = Q_MATRICES + SUM_MATRICES; // matrices A of a tile of keys
const uint K_SHARE = (K_STEPS + 1) / 2;           // of a tile's K, what each of two warps brings
const uint V_SHARE = (V_STEPS + 1) / 2;           // and the same of its V, by two others
const uint MOVED = 4; // pieces of 16 bytes on their way: of a share of head dims up to 128

shared uvec4 fragments[2 * TILES * FRAGMENTS * WARP];
shared float key_scales[K_SCALES ? 2 * TILES * KEYS : 1];

MatrixB q_matrices[SIDES * Q_MATRICES];
Row selves[SIDES * 2]; // of rows 2t and 2t + 1 of each side

// ---- the next step on its way ----

struct Place {
    uint64_t keys, values; // of the tile's first key
    uint64_t scales;       // of this key and those behind it, if there are any
};

uint tile_block(uint key)
{
    return seq_block(seq, key / BLOCK_SIZE);
}

// `block` is the key's.
Place tile_place(uint block, uint key)
{
    const uint inside = key & BLOCK_SIZE - 1;
    if (PLACE == AULE_PLACE_BLOCKS)
        return Place(key_block(block, kv_head) + key_offset(inside), value_block(block, kv_head) + value_offset(inside), 0);
    const uint64_t base = pool_block(block);
    return Place(base + kv_head * K_HEAD_BYTES + inside * K_ROW_BYTES,
                 base + NUM_KV_HEADS * K_HEAD_BYTES + kv_head * V_HEAD_BYTES + inside * V_ROW_BYTES,
                 base + SCALES_AT + (kv_head * BLOCK_SIZE + inside) * 4);
}

// Four warps bring a tile: two bring halves of K, two bring halves of V.

uint my_tile() { return warp_number() / 4; }
uint my_half() { return warp_number() % 2; }
bool brings_values() { return warp_number() % 4 >= 2; }

void pieces_load(Place place, out uvec4 moved[MOVED], out float scale)
{
    if (brings_values())
        [[unroll]] for (uint i = 0; i < 4; i++) {
            const uint64_t row = place.values + value_offset(2 * t + (i & 1) + (i >> 1) * 8);
            [[unroll]] for (uint n = 0; n < V_SHARE; n++)
                moved[n * 4 + i] = Pieces(row).at[min((my_half() * V_SHARE + n) * 8 + g, V_PIECES - 1)];
        }
    else
        [[unroll]] for (uint n = 0; n < K_SHARE; n++) {
            const uint piece = min((my_half() * K_SHARE + n) * 4 + t, K_PIECES - 1);
            moved[n * 2] = Pieces(place.keys + key_offset(g)).at[piece];
            moved[n * 2 + 1] = Pieces(place.keys + key_offset(g + 8)).at[piece];
        }
    scale = K_SCALES ? Floats(place.scales).at[warp_lane() % KEYS] : 1;
}

void fragment_store(uint stage, uint number, uvec4 words)
{
    fragments[((stage * TILES + my_tile()) * FRAGMENTS + number) * WARP + warp_lane()] = words;
}

void keys_store(uint stage, uvec4 moved[MOVED])
{
    const uint each = K_MATRICES;
    [[unroll]] for (uint i = 0; i < K_SHARE * each; i++) {
        const uint number = my_half() * K_SHARE * each + i, n = i / each;
        if (number < Q_MATRICES)
            fragment_store(stage, number,
                           uvec4(key_words(moved[n * 2], i % each), key_words(moved[n * 2 + 1], i % each)));
    }
}

void values_store(uint stage, uvec4 moved[MOVED])
{
    [[unroll]] for (uint i = 0; i < V_SHARE * V_MATRICES; i++) {
        const uint number = my_half() * V_SHARE * V_MATRICES + i, n = i / V_MATRICES * 4;
        if (number < SUM_MATRICES)
            fragment_store(stage, Q_MATRICES + number,
                           matrix_words_turned(value_words(moved[n], moved[n + 1], moved[n + 2], moved[n + 3], i % V_MATRICES)));
    }
}

void pieces_store(uint stage, uvec4 moved[MOVED], float scale)
{
    if (brings_values())
        values_store(stage, moved);
    else
        keys_store(stage, moved);
    if (K_SCALES && warp_number() % 4 == 0 && warp_lane() < KEYS)
        key_scales[(stage * TILES + my_tile()) * KEYS + warp_lane()] = scale;
}

// ---- one tile of keys ----

MatrixA fragment(uint at, uint number)
{
    return matrix_a(fragments[at + number * WARP]);
}

// Scores of one side to weights.
MatrixB side_weigh(uint side, MatrixC even, MatrixC odd, uint key, vec2 scales, inout State state)
{
    precise vec4 s = scores_scaled(even, odd);
    if (K_SCALES)
        s *= scales.xxyy;
    if (SHAPED)
        [[unroll]] for (uint i = 0; i < 4; i++)
            s[i] = score_shape(selves[side * 2 + (i & 1)], s[i], key + g + (i >> 1) * 8);
    return weight_matrix(weigh(state, s, bvec4(true)));
}

// `at` is the lane's first matrix of the tile; `key` the tile's first. Both sides have names of their own: an array of what has arrays of
// matrices in it goes to memory.
void tile_compute(uint at, uint key, vec2 scales, inout State left, inout State right)
{
    MatrixC even_left = matrix_c(vec4(0)), even_right = even_left, odd_left = even_left, odd_right = even_left;
    [[unroll]] for (uint i = 0; i < Q_MATRICES; i += 2) {
        matrix_multiply_two(fragment(at, i), q_matrices[i], q_matrices[Q_MATRICES + i], even_left, even_right);
        matrix_multiply_two(fragment(at, i + 1), q_matrices[i + 1], q_matrices[Q_MATRICES + i + 1], odd_left, odd_right);
    }
    const MatrixB left_weights = side_weigh(0, even_left, odd_left, key, scales, left);
    const MatrixB right_weights = side_weigh(1, even_right, odd_right, key, scales, right);
    [[unroll]] for (uint i = 0; i < SUM_MATRICES; i++)
        matrix_multiply_two(fragment(at, Q_MATRICES + i), left_weights, right_weights, left.sums[i], right.sums[i]);
}

#ifdef MATRIX_EMULATED
#define STEP_LOOP [[dont_unroll]] // a software device takes long enough to compile it
#else
#define STEP_LOOP [[unroll]]
#endif

void step_compute(uint stage, uint key, inout State left, inout State right)
{
    STEP_LOOP for (uint tile = 0; tile < TILES; tile++) {
        const uint number = stage * TILES + tile, first = number * KEYS + g;
        const vec2 scales = K_SCALES ? vec2(key_scales[first], key_scales[first + 8]) : vec2(1);
        tile_compute(number * FRAGMENTS * WARP + warp_lane(), key + tile * STEP, scales, left, right);
    }
}

// ---- units ----

layout(buffer_reference, scalar, buffer_reference_align = 16) coherent buffer HalfSums { vec4 at[]; };

// Of this warp's two tiles of rows.
uint64_t addresses[SIDES]; // of their partial results
uint rows[SIDES];          // 0: there is none

// What the units so far have of rows 2t and 2t + 1 of each side; their sums lie in the partial result, each lane's own.
struct Half {
    vec2 maxima, weights;
};

// Sums of four dims of row 2t + i, from sum matrices `m` and m + 1, and where they lie in a partial result.
vec4 sums_quad(State state, uint m, uint i)
{
    const vec4 low = matrix_elements(state.sums[m]), high = matrix_elements(state.sums[m + 1]);
    return (i == 0 ? vec4(low.xz, high.xz) : vec4(low.yw, high.yw)) * HALVES_FACTOR(V_DTYPE);
}

uint quad_at(uint m, uint i)
{
    return ((2 * t + i) * HEAD_DIM_V + piece_of(m) * V_ELEMENTS + m % V_MATRICES * 2) / 4;
}

// The unit's state of one side becomes the half's or joins it.
void unit_take(inout Half whole, uint side, State state, bool joins)
{
    const vec2 weights = vec2(column_sum(state.weights.x), column_sum(state.weights.y));
    HalfSums sums = HalfSums(addresses[side]);
    [[unroll]] for (uint i = 0; i < 2; i++) {
        const Fold f = fold_begin(whole.maxima[i], state.maxima[i]);
        [[unroll]] for (uint m = 0; m < SUM_MATRICES; m += 2) {
            const uint at = quad_at(m, i);
            vec4 quad = sums_quad(state, m, i);
            if (2 * t + i < rows[side] && (V_WHOLE || piece_of(m) < V_PIECES)) {
                if (joins)
                    quad = fold(f, sums.at[at], quad);
                sums.at[at] = quad;
            }
        }
        whole.weights[i] = joins ? fold(f, whole.weights[i], weights[i]) : weights[i];
        whole.maxima[i] = joins ? f.maximum : state.maxima[i];
    }
}

// Behind the last unit.
void half_leave(Half whole, uint side)
{
    [[unroll]] for (uint i = 0; i < 2; i++)
        if (g == 0 && 2 * t + i < rows[side]) {
            PartFloats(addresses[side]).at[PARTIAL_MAXIMA + 2 * t + i] = whole.maxima[i];
            PartFloats(addresses[side]).at[PARTIAL_WEIGHTS + 2 * t + i] = whole.weights[i];
        }
}

// ---- the item ----

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Crowds { gpu_crowd at[]; };

void side_begin(Crowds crowds, uint item, uint side)
{
    const uint member = warp_number() * SIDES + side;
    num_rows = 0;
    addresses[side] = 0;
    if (member < crowds.at[item].num_members) {
        work_begin(crowds.at[item].members[member].tile);
        addresses[side] = partial_address(crowds.at[item].members[member].partial);
    }
    rows[side] = num_rows;
    [[unroll]] for (uint i = 0; i < 2; i++)
        selves[side * 2 + i] = row_begin(2 * t + i);
    [[unroll]] for (uint i = 0; i < Q_MATRICES / 2; i++) {
        const uvec4 words = q_pair(i);
        q_matrices[side * Q_MATRICES + 2 * i] = matrix_b(words.xy);
        q_matrices[side * Q_MATRICES + 2 * i + 1] = matrix_b(words.zw);
    }
}

// `steps` steps a unit, from key `first` on. The keys of the next step are on their way, their block is known for the one behind.
void units_compute(uint first, uint steps)
{
    const uint total = UNITS * steps, mine = first + my_tile() * STEP, last = mine + (total - 1) * STEP_KEYS;
    uvec4 moved[MOVED];
    float scale;
    uint step = 0;
    Half left_half, right_half;
    Place place = tile_place(tile_block(mine), mine);
    pieces_load(place, moved, scale);
    place = tile_place(tile_block(min(mine + STEP_KEYS, last)), min(mine + STEP_KEYS, last));
    uint block = tile_block(min(mine + 2 * STEP_KEYS, last));
    [[dont_unroll]] for (uint end = steps; end <= total; end += steps) {
        State left, right;
        state_clear(left);
        state_clear(right);
        [[dont_unroll]] do {
            pieces_store(step & 1, moved, scale);
            barrier(); // the step is there, and all are done with the one before last, whose place the next one takes
            pieces_load(place, moved, scale);
            place = tile_place(block, min(mine + (step + 2) * STEP_KEYS, last));
            block = tile_block(min(mine + (step + 3) * STEP_KEYS, last));
            step_compute(step & 1, first + step * STEP_KEYS, left, right);
        } while (++step < end);
        unit_take(left_half, 0, left, end > steps);
        unit_take(right_half, 1, right, end > steps);
    }
    half_leave(left_half, 0);
    half_leave(right_half, 1);
}

layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Counter { uint done; };
shared bool is_last[AULE_MOST_MEMBERS];

// A member's tile that has no other workgroup to wait for becomes its rows here.
void members_end(Crowds crowds, uint item)
{
    const uint num_members = crowds.at[item].num_members;
    groupMemoryBarrier(); // what each has left is thread 0's to release
    barrier();
    if (gl_LocalInvocationID.x == 0) {
        memoryBarrierBuffer();
        for (uint i = 0; i < num_members; i++) {
            const uint merge = crowds.at[item].members[i].merge;
            Counter counter = Counter(run.counters + (uint64_t(merge) * NUM_KV_HEADS + kv_head) * 4);
            is_last[i] = atomicAdd(counter.done, 1) == crowds.at[item].members[i].num_partials - 1;
            if (is_last[i])
                counter.done = 0; // for the next dispatch
        }
        memoryBarrierBuffer();
    }
    barrier();
    groupMemoryBarrier(); // and what it has acquired is everybody's
    [[dont_unroll]] for (uint i = 0; i < num_members; i++) {
        if (!is_last[i])
            continue;
        work_begin(crowds.at[item].members[i].tile);
        parts_end(crowds.at[item].members[i].first_partial, crowds.at[item].members[i].num_partials,
                  crowds.at[item].members[i].num_halved);
    }
}

void main()
{
    const uint number = gl_WorkGroupID.y + gl_WorkGroupID.z * dispatch.items_y;
    if (number >= dispatch.num_items)
        return;
    Runs runs = Runs(dispatch.runs);
    uint index;
    RUN_FIND(runs, dispatch.num_runs, first_item, number, index)
    run = runs.at[index];
    Crowds crowds = Crowds(run.items);
    const uint item = number - run.first_item;
    g = warp_lane() / 4;
    t = warp_lane() % 4;
    kv_head = gl_WorkGroupID.x;
    [[unroll]] for (uint side = 0; side < SIDES; side++)
        side_begin(crowds, item, side);
    seq = crowds.at[item].members[0].tile.seq; // whose table is read
    units_compute(crowds.at[item].members[0].first_key + crowds.at[item].members[0].which_half * KEYS,
                  crowds.at[item].members[0].span / (UNITS * STEP_KEYS));
    members_end(crowds, item);
}
