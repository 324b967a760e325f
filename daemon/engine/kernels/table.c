// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// table.c - the attention kernels and the variants, one row each. A kernel is a shader, and how its
// work is cut. A variant is a list of kernels for devices of one kind. Knows neither runs nor
// batches. Any thread; no state.

#include "hopper.h"
#include "matrix.h"
#include "shaders/layout.h"
#include "variant.h"

#include "attention_cascade_emulated_bf16_spv.h"
#include "attention_cascade_emulated_spv.h"
#include "attention_decode_emulated_bf16_spv.h"
#include "attention_decode_emulated_spv.h"
#include "attention_plain_spv.h"
#include "attention_prefill_emulated_bf16_spv.h"
#include "attention_prefill_emulated_spv.h"
#include "attention_subgroup_spv.h"
#ifdef AULE_HAVE_MATRIX
#include "attention_cascade_matrix_spv.h"
#include "attention_coop_spv.h"
#include "attention_decode_bf16_spv.h"
#include "attention_decode_matrix_spv.h"
#include "attention_prefill_bf16_spv.h"
#include "attention_prefill_matrix_spv.h"
#endif

#include <stdio.h>

// ---- plain and subgroup (attention_tiles.glsl): they serve everything on any device ----

// Bytes that it declares as shared for tiles of `rows` rows, where K has `head_dim` elements: Q,
// weights, each row's partial sums and rescale, and where keys and values of two tiles lie.
#define TILES_BYTES(rows, head_dim)                                                                \
    (8 / 2 * (rows) * (head_dim) + 8 / 2 * TILES_KEYS * (rows) + 4 * TILES_LOCAL_SIZE +            \
     4 * (rows) + 2 * 2 * 8 * (TILES_KEYS / 8))

enum {
    TILES_LOCAL_SIZE = 128,
    TILES_KEYS = 4 * TILES_LOCAL_SIZE,
    TILES_HEAD_DIM = 256, // of K; beyond, a tile has half as many rows
    TILES_HEAD_DIM_WIDE = 576,
    TILES_ROWS = 8,
    TILES_ROWS_SMALL = 4,
    TILES_SHARED_MEMORY = TILES_BYTES(TILES_ROWS, TILES_HEAD_DIM),
    TILES_SHARED_MEMORY_SMALL = TILES_BYTES(TILES_ROWS_SMALL, TILES_HEAD_DIM),
};
_Static_assert(TILES_SHARED_MEMORY <= 32768, "what every GPU of the last decade has");
_Static_assert(TILES_SHARED_MEMORY_SMALL <= 16384, "what every Vulkan device has");
_Static_assert(TILES_BYTES(TILES_ROWS / 2, TILES_HEAD_DIM_WIDE) <= TILES_SHARED_MEMORY,
               "fewer rows of more elements take less");
_Static_assert(TILES_BYTES(TILES_ROWS_SMALL / 2, TILES_HEAD_DIM_WIDE) <= TILES_SHARED_MEMORY_SMALL,
               "here, too");

static uint32_t tiles_rows(const struct engine_kv *kv)
{
    return kv->head_dim_k <= TILES_HEAD_DIM ? TILES_ROWS : TILES_ROWS / 2;
}

static uint32_t tiles_rows_small(const struct engine_kv *kv)
{
    return kv->head_dim_k <= TILES_HEAD_DIM ? TILES_ROWS_SMALL : TILES_ROWS_SMALL / 2;
}

static uint64_t tiles_part_keys(uint64_t rows, uint64_t kv_len)
{
    (void)kv_len;
    return rows <= 64 ? 2048 : 0;
}

// 576 and 512 dims make the most rounds: some 400 for 512 keys.
static uint32_t tiles_loop_keys(const struct engine_kv *kv)
{
    (void)kv;
    return 32768;
}

// Fields that these kernels have in common.
#define TILES_JOB .part_keys = tiles_part_keys, .part_grain = 256, .loop_keys = tiles_loop_keys

static const struct kernel kernel_subgroup = {
    .shader = {"attention_subgroup", attention_subgroup_spv, sizeof attention_subgroup_spv,
               TILES_LOCAL_SIZE, true},
    TILES_JOB,
    .most_rows = UINT32_MAX,
    .tile_rows = tiles_rows,
    .shared_memory = TILES_SHARED_MEMORY,
};

const struct kernel kernel_plain = {
    .shader = {"attention_plain", attention_plain_spv, sizeof attention_plain_spv, TILES_LOCAL_SIZE,
               false},
    TILES_JOB,
    .most_rows = UINT32_MAX,
    .tile_rows = tiles_rows,
    .shared_memory = TILES_SHARED_MEMORY,
};

// attention_subgroup.comp needs four rows. A small tile of wider heads has two.
static bool subgroup_small_serves(const struct geometry *geometry)
{
    return geometry->spec[AULE_SPEC_HEAD_DIM_K] <= TILES_HEAD_DIM;
}

// The small ones have half as many rows a tile, so that a tile fits the least shared memory that
// Vulkan allows.
static const struct kernel kernel_subgroup_small = {
    .shader = {"attention_subgroup", attention_subgroup_spv, sizeof attention_subgroup_spv,
               TILES_LOCAL_SIZE, true},
    TILES_JOB,
    .most_rows = UINT32_MAX,
    .serves = subgroup_small_serves,
    .tile_rows = tiles_rows_small,
    .shared_memory = TILES_SHARED_MEMORY_SMALL,
};

static const struct kernel kernel_plain_small = {
    .shader = {"attention_plain", attention_plain_spv, sizeof attention_plain_spv, TILES_LOCAL_SIZE,
               false},
    TILES_JOB,
    .most_rows = UINT32_MAX,
    .tile_rows = tiles_rows_small,
    .shared_memory = TILES_SHARED_MEMORY_SMALL,
};

// ---- the matrix shaders ----

enum {
    MATRIX_WARP = 32,
    MATRIX_MOST_HEAD_DIM = 2 * AULE_NARROW_HEAD_DIM, // of K and V
    // Keys of a matrix lie in one block. Block sizes are powers of two.
    MATRIX_LEAST_BLOCK_SIZE = 16,
    MATRIX_WORD_BYTES = 6 * 4, // emulated: shared memory of an invocation
};

static bool dims_within(const uint32_t *spec, uint32_t most)
{
    return spec[AULE_SPEC_HEAD_DIM_K] <= most && spec[AULE_SPEC_HEAD_DIM_V] <= most;
}

// The conditions of all matrix kernels; `element` is the dtype of the matrices, f16 or bf16. They
// serve all features except the custom mask. A masked value may be NaN, and tensor cores multiply
// it by its weight: 0 * NaN is NaN.
static bool matrix_serves(const uint32_t *spec, enum dtype element)
{
    return dims_within(spec, MATRIX_MOST_HEAD_DIM) && spec[AULE_SPEC_IO_DTYPE] == element &&
           spec[AULE_SPEC_BLOCK_SIZE] >= MATRIX_LEAST_BLOCK_SIZE && !spec[AULE_SPEC_V_IN_K] &&
           !(spec[AULE_SPEC_FEATURES] & AULE_FEATURE_MASK);
}

// ---- attention_decode.comp: 2 or 4 warps compute a part, or 8 warps half a part ----
// Each warp's sums lie in shared memory.

enum {
    DECODE_ROWS = 8,
    // More than 8 rows are several tiles, and each tile reads the keys again, mostly from the L2
    // cache, since neighbouring items run together. Prefill reads the keys once, but in one
    // workgroup that cannot be split, with 16 rows for each warp. So decode takes up to 32 rows if
    // the sequence has enough parts. The limits are a guess. To be measured: 16 and 32 rows; 1024,
    // 2048, 4096 and 131072 keys; 1 and 64 sequences.
    DECODE_LONG_ROWS = 32,
    DECODE_LONG_KEYS = 2048,
    DECODE_PART_WARPS = 2,
    DECODE_SHARED_WARPS = 4,
    DECODE_HALF_WARPS = 8,
    DECODE_HALF_WARPS_EMULATED = 4,
    // V of more dims: the warps' sums go to shared memory in rounds.
    DECODE_WARP_BYTES = DECODE_ROWS * (AULE_NARROW_HEAD_DIM + 2) * 4,
    DECODE_Q_BYTES = DECODE_ROWS * MATRIX_MOST_HEAD_DIM * 2, // Q of wide rows
    DECODE_OTHER_BYTES = DECODE_Q_BYTES + 32,
    DECODE_SHARED_MEMORY = DECODE_HALF_WARPS * DECODE_WARP_BYTES + DECODE_OTHER_BYTES,
    DECODE_SHARED_MEMORY_EMULATED =
        DECODE_HALF_WARPS_EMULATED * (DECODE_WARP_BYTES + MATRIX_WARP * MATRIX_WORD_BYTES) +
        DECODE_OTHER_BYTES,
};
_Static_assert(2 * ((int)MATRIX_MOST_HEAD_DIM + 2) <=
                   (int)DECODE_HALF_WARPS_EMULATED * (AULE_NARROW_HEAD_DIM + 2),
               "two halves of whole rows take no more than many warps' rows by and by");
_Static_assert((int)DECODE_SHARED_MEMORY_EMULATED <= (int)TILES_SHARED_MEMORY,
               "any device runs it");

// Rows of K and V are multiples of 16 bytes.
static bool decode_element(uint32_t dtype, uint32_t head_dim, enum dtype element)
{
    return dtype == element || (dtype_size((enum dtype)dtype) == 1 && head_dim % 16 == 0);
}

static bool decode_serves(const struct geometry *geometry, enum dtype element)
{
    const uint32_t *spec = geometry->spec;
    return matrix_serves(spec, element) &&
           decode_element(spec[AULE_SPEC_K_DTYPE], spec[AULE_SPEC_HEAD_DIM_K], element) &&
           decode_element(spec[AULE_SPEC_V_DTYPE], spec[AULE_SPEC_HEAD_DIM_V], element);
}

static bool decode_serves_f16(const struct geometry *geometry)
{
    return decode_serves(geometry, DTYPE_F16);
}

static bool decode_serves_bf16(const struct geometry *geometry)
{
    return decode_serves(geometry, DTYPE_BF16);
}

static uint32_t decode_rows(const struct engine_kv *kv)
{
    (void)kv;
    return DECODE_ROWS;
}

// Keys of a part. Long parts keep a warp streaming, and a merge costs as much as some thousand
// keys; many parts keep the device busy with few sequences. Measured on the H200
// (shaders/NOTEBOOK.md). A row's bits depend on it.
static uint64_t decode_part_keys(uint64_t rows, uint64_t kv_len)
{
    (void)rows;
    if (kv_len <= 32768)
        return 4096;
    uint64_t keys = divide_up(divide_up(kv_len, 8), AULE_SPAN_GRAIN) * AULE_SPAN_GRAIN;
    return keys < 16384 ? keys : 16384;
}

// Emulated products are loops: of 256 dims they make 256 rounds for 16 keys of one of the two
// warps. attention_cascade.comp makes as many of 128 dims, where each warp has all keys of a half.
static uint32_t decode_loop_keys(const struct engine_kv *kv)
{
    (void)kv;
    return 4096;
}

// Warps for a part. About 8 warps a multiprocessor hide its memory latency, and registers leave no
// room for more than 12. So with more than three parts a multiprocessor, a part gets two warps;
// with more than one, four. Fewer parts are cut into halves of eight warps each. Measured on the
// H200 and the H100.
static uint32_t decode_warps(uint64_t num_workgroups, uint64_t num_multiprocessors, uint32_t least)
{
    if (num_workgroups > 3 * num_multiprocessors)
        return least;
    return num_workgroups > num_multiprocessors ? DECODE_SHARED_WARPS : DECODE_HALF_WARPS;
}

// A part with wide rows takes so much shared memory that four warps are better than two. Measured
// on the H200.
static uint32_t decode_local_size(const uint32_t *spec, uint64_t num_workgroups,
                                  uint32_t num_multiprocessors)
{
    uint32_t least =
        dims_within(spec, AULE_NARROW_HEAD_DIM) ? DECODE_PART_WARPS : DECODE_SHARED_WARPS;
    return MATRIX_WARP * decode_warps(num_workgroups, num_multiprocessors, least);
}

static uint32_t decode_local_size_emulated(const uint32_t *spec, uint64_t num_workgroups,
                                           uint32_t num_multiprocessors)
{
    (void)spec;
    return MATRIX_WARP * decode_warps(num_workgroups, num_multiprocessors, DECODE_PART_WARPS);
}

// Fields that decode has in common on tensor cores and emulated.
#define DECODE_JOB                                                                                 \
    .tile_rows = decode_rows, .most_rows = DECODE_ROWS, .long_rows = DECODE_LONG_ROWS,             \
    .long_keys = DECODE_LONG_KEYS, .part_keys = decode_part_keys, .part_grain = AULE_SPAN_GRAIN,   \
    .loop_keys = decode_loop_keys, .merges = true

const struct kernel kernel_decode_emulated = {
    .shader = {"attention_decode_emulated", attention_decode_emulated_spv,
               sizeof attention_decode_emulated_spv, DECODE_HALF_WARPS_EMULATED *MATRIX_WARP,
               false},
    DECODE_JOB,
    .serves = decode_serves_f16,
    .local_size = decode_local_size_emulated,
    .half_local_size = DECODE_HALF_WARPS_EMULATED * MATRIX_WARP,
    .shared_memory = DECODE_SHARED_MEMORY_EMULATED,
};

static const struct kernel kernel_decode_emulated_bf16 = {
    .shader = {"attention_decode_emulated_bf16", attention_decode_emulated_bf16_spv,
               sizeof attention_decode_emulated_bf16_spv, DECODE_HALF_WARPS_EMULATED *MATRIX_WARP,
               false},
    DECODE_JOB,
    .serves = decode_serves_bf16,
    .local_size = decode_local_size_emulated,
    // bf16 has 8 units, as on a device, and at most 4 warps here. So no item is half a part, and
    // warps share units.
    .half_local_size = DECODE_HALF_WARPS * MATRIX_WARP,
    .shared_memory = DECODE_SHARED_MEMORY_EMULATED,
};

// ---- attention_cascade.comp: 16 rows a warp, of any sequences ----
// Four warps load 16 keys and values a step.

enum {
    CASCADE_WARP_ROWS = 16,
    CASCADE_WARPS = 8,
    CASCADE_WARPS_EMULATED = 4,
    // K and V of this step and of the next.
    CASCADE_TILE_BYTES = 4 * MATRIX_LEAST_BLOCK_SIZE * AULE_NARROW_HEAD_DIM * 2,
    CASCADE_SCALES_BYTES = 2 * 2 * MATRIX_LEAST_BLOCK_SIZE * 4, // the same, of K and V
    CASCADE_MEMBERS_BYTES = AULE_MOST_MEMBERS * 4,              // is_last of each member
    CASCADE_SHARED_MEMORY =
        CASCADE_WARPS / 4 * (CASCADE_TILE_BYTES + CASCADE_SCALES_BYTES) + CASCADE_MEMBERS_BYTES,
    CASCADE_SHARED_MEMORY_EMULATED =
        CASCADE_WARPS_EMULATED / 4 * (CASCADE_TILE_BYTES + CASCADE_SCALES_BYTES) +
        CASCADE_MEMBERS_BYTES + CASCADE_WARPS_EMULATED * MATRIX_WARP * MATRIX_WORD_BYTES,
    CASCADE_LEAST_MEMBERS = 4, // a guess: with fewer members most warps have no rows
};
_Static_assert((int)CASCADE_WARP_ROWS *CASCADE_WARPS <= (int)AULE_MOST_MEMBERS, "of one row each");
_Static_assert((int)CASCADE_SHARED_MEMORY_EMULATED <= (int)TILES_SHARED_MEMORY,
               "any device runs it");

static bool cascade_serves(const struct geometry *geometry, enum dtype element)
{
    const uint32_t *spec = geometry->spec;
    return decode_serves(geometry, element) && spec[AULE_SPEC_PLACE] != AULE_PLACE_ROWS &&
           !(spec[AULE_SPEC_FEATURES] & (AULE_FEATURE_WINDOW | AULE_FEATURE_POSITIONS));
}

static bool cascade_serves_f16(const struct geometry *geometry)
{
    return cascade_serves(geometry, DTYPE_F16);
}

static bool cascade_serves_bf16(const struct geometry *geometry)
{
    return cascade_serves(geometry, DTYPE_BF16);
}

// If V has many dims, two warps share 16 rows.
static uint32_t cascade_rows_of(const struct engine_kv *kv, uint32_t warps)
{
    return CASCADE_WARP_ROWS * warps / (kv->head_dim_v > AULE_NARROW_HEAD_DIM ? 2 : 1);
}

static uint32_t cascade_rows_emulated(const struct engine_kv *kv)
{
    return cascade_rows_of(kv, CASCADE_WARPS_EMULATED);
}

// With wide rows the two multiplications of a step are 24 pairs of matrices, not 16.
static uint32_t cascade_loop_keys(const struct engine_kv *kv)
{
    bool wide = kv->head_dim_k > AULE_NARROW_HEAD_DIM || kv->head_dim_v > AULE_NARROW_HEAD_DIM;
    return wide ? 2048 : 4096;
}

#define CASCADE_JOB(DECODE, WARPS, UNITS)                                                          \
    .tile_rows = decode_rows, .part_keys = decode_part_keys, .part_grain = AULE_SPAN_GRAIN,        \
    .loop_keys = cascade_loop_keys, .helps = &(DECODE), .least_members = CASCADE_LEAST_MEMBERS,    \
    .crowd_grain = 2 * (UNITS) * (WARPS) / 4 * MATRIX_LEAST_BLOCK_SIZE, .merges = true

#define CASCADE_EMULATED(DECODE, UNITS)                                                            \
    CASCADE_JOB(DECODE, CASCADE_WARPS_EMULATED, UNITS),                                            \
        .shared_memory = CASCADE_SHARED_MEMORY_EMULATED, .crowd_rows = cascade_rows_emulated

static const struct kernel kernel_cascade_emulated = {
    .shader = {"attention_cascade_emulated", attention_cascade_emulated_spv,
               sizeof attention_cascade_emulated_spv, CASCADE_WARPS_EMULATED *MATRIX_WARP, false},
    .serves = cascade_serves_f16,
    CASCADE_EMULATED(kernel_decode_emulated, DECODE_HALF_WARPS_EMULATED),
};

static const struct kernel kernel_cascade_emulated_bf16 = {
    .shader = {"attention_cascade_emulated_bf16", attention_cascade_emulated_bf16_spv,
               sizeof attention_cascade_emulated_bf16_spv, CASCADE_WARPS_EMULATED *MATRIX_WARP,
               false},
    .serves = cascade_serves_bf16,
    CASCADE_EMULATED(kernel_decode_emulated_bf16, DECODE_HALF_WARPS),
};

// ---- attention_prefill.comp: 16 rows a warp ----
// Tiles of K and V lie in shared memory; all warps read them.

enum {
    PREFILL_LOCAL_SIZE = 256,
    PREFILL_ROWS = PREFILL_LOCAL_SIZE / MATRIX_WARP * 16,
    PREFILL_ROWS_WIDE = PREFILL_ROWS / 2, // if V has more than AULE_NARROW_HEAD_DIM dims
    // A key and a value. With twice the dims a tile has half as many.
    PREFILL_KEY_BYTES = 2 * AULE_NARROW_HEAD_DIM * 2,
    PREFILL_OTHER_BYTES = AULE_PREFILL_KEYS * 2 * 4 // scales of K and V
                          + AULE_PREFILL_KEYS / 16 * 3 * 8 + 32,
    PREFILL_SHARED_MEMORY = AULE_PREFILL_KEYS * PREFILL_KEY_BYTES + PREFILL_OTHER_BYTES,
    PREFILL_SHARED_MEMORY_EMULATED = AULE_PREFILL_KEYS_EMULATED * PREFILL_KEY_BYTES +
                                     PREFILL_OTHER_BYTES + PREFILL_LOCAL_SIZE * MATRIX_WORD_BYTES,
};
_Static_assert((int)PREFILL_SHARED_MEMORY_EMULATED <= (int)TILES_SHARED_MEMORY,
               "any device runs it");

// 8-bit elements are read eight at a time.
static bool prefill_element(uint32_t dtype, enum dtype element)
{
    return dtype == element || dtype_size((enum dtype)dtype) == 1;
}

static bool prefill_serves(const struct geometry *geometry, enum dtype element)
{
    const uint32_t *spec = geometry->spec;
    return matrix_serves(spec, element) && prefill_element(spec[AULE_SPEC_K_DTYPE], element) &&
           prefill_element(spec[AULE_SPEC_V_DTYPE], element);
}

static bool prefill_serves_f16(const struct geometry *geometry)
{
    return prefill_serves(geometry, DTYPE_F16);
}

static bool prefill_serves_bf16(const struct geometry *geometry)
{
    return prefill_serves(geometry, DTYPE_BF16);
}

static uint32_t prefill_rows(const struct engine_kv *kv)
{
    return kv->head_dim_v <= AULE_NARROW_HEAD_DIM ? PREFILL_ROWS : PREFILL_ROWS_WIDE;
}

// Emulated, 64 dims make some 8 rounds a key, twice the dims twice as many.
static uint32_t prefill_loop_keys(const struct engine_kv *kv)
{
    uint32_t dims = kv->head_dim_k > kv->head_dim_v ? kv->head_dim_k : kv->head_dim_v;
    return 4096 * 64 / (dims < 64 ? 64 : dims);
}

// A second pass is possible if there are tiles between those that follow the maxima. Sequences with
// fewer than 9 rows are decodes; if decode does not serve them, a kernel that splits them is
// better.
#define PREFILL_JOB(KEYS)                                                                          \
    .tile_rows = prefill_rows, .least_rows = DECODE_ROWS + 1, .most_rows = UINT32_MAX,             \
    .loop_keys = prefill_loop_keys, .doubtful_keys = AULE_PREFILL_DOUBTFUL_TILES * (KEYS)

const struct kernel kernel_prefill_emulated = {
    .shader = {"attention_prefill_emulated", attention_prefill_emulated_spv,
               sizeof attention_prefill_emulated_spv, PREFILL_LOCAL_SIZE, false},
    PREFILL_JOB(AULE_PREFILL_KEYS_EMULATED),
    .serves = prefill_serves_f16,
    .shared_memory = PREFILL_SHARED_MEMORY_EMULATED,
};

static const struct kernel kernel_prefill_emulated_bf16 = {
    .shader = {"attention_prefill_emulated_bf16", attention_prefill_emulated_bf16_spv,
               sizeof attention_prefill_emulated_bf16_spv, PREFILL_LOCAL_SIZE, false},
    PREFILL_JOB(AULE_PREFILL_KEYS_EMULATED),
    .serves = prefill_serves_bf16,
    .shared_memory = PREFILL_SHARED_MEMORY_EMULATED,
};

// ---- decode, cascade and prefill on tensor cores, if compiler and headers know them ----

#ifdef AULE_HAVE_MATRIX

// For f32, which tensor cores do not multiply. A decode of few rows leaves no row of such a tile
// idle, and a multiprocessor has shared memory for more workgroups.
static const struct kernel kernel_subgroup_few = {
    .shader = {"attention_subgroup", attention_subgroup_spv, sizeof attention_subgroup_spv,
               TILES_LOCAL_SIZE, true},
    TILES_JOB,
    .most_rows = TILES_ROWS_SMALL,
    .serves = subgroup_small_serves,
    .tile_rows = tiles_rows_small,
    .shared_memory = TILES_SHARED_MEMORY_SMALL,
};

static const struct kernel kernel_decode = {
    .shader = {"attention_decode_matrix", attention_decode_matrix_spv,
               sizeof attention_decode_matrix_spv, DECODE_HALF_WARPS *MATRIX_WARP, true},
    DECODE_JOB,
    .serves = decode_serves_f16,
    .local_size = decode_local_size,
    .half_local_size = DECODE_HALF_WARPS * MATRIX_WARP,
    .shared_memory = DECODE_SHARED_MEMORY,
};

static const struct kernel kernel_decode_bf16 = {
    .shader = {"attention_decode_bf16", attention_decode_bf16_spv, sizeof attention_decode_bf16_spv,
               DECODE_HALF_WARPS *MATRIX_WARP, true},
    DECODE_JOB,
    .serves = decode_serves_bf16,
    .local_size = decode_local_size,
    .half_local_size = DECODE_HALF_WARPS * MATRIX_WARP,
    .shared_memory = DECODE_SHARED_MEMORY,
};

static uint32_t cascade_rows(const struct engine_kv *kv)
{
    return cascade_rows_of(kv, CASCADE_WARPS);
}

static const struct kernel kernel_cascade = {
    .shader = {"attention_cascade_matrix", attention_cascade_matrix_spv,
               sizeof attention_cascade_matrix_spv, CASCADE_WARPS *MATRIX_WARP, true},
    CASCADE_JOB(kernel_decode, CASCADE_WARPS, DECODE_HALF_WARPS),
    .crowd_rows = cascade_rows,
    .serves = cascade_serves_f16,
    .shared_memory = CASCADE_SHARED_MEMORY,
};

static const struct kernel kernel_prefill = {
    .shader = {"attention_prefill_matrix", attention_prefill_matrix_spv,
               sizeof attention_prefill_matrix_spv, PREFILL_LOCAL_SIZE, true},
    PREFILL_JOB(AULE_PREFILL_KEYS),
    .serves = prefill_serves_f16,
    .shared_memory = PREFILL_SHARED_MEMORY,
};

static const struct kernel kernel_prefill_bf16 = {
    .shader = {"attention_prefill_bf16", attention_prefill_bf16_spv,
               sizeof attention_prefill_bf16_spv, PREFILL_LOCAL_SIZE, true},
    PREFILL_JOB(AULE_PREFILL_KEYS),
    .serves = prefill_serves_bf16,
    .shared_memory = PREFILL_SHARED_MEMORY,
};

// ---- attention_coop.comp: one shader with two tile sizes ----

enum {
    COOP_LOCAL_SIZE = 128,
    COOP_MOST_HEAD_DIM = 256,
    COOP_ROWS_FEW = 16,
    COOP_ROWS_MANY = 64,
    COOP_HEAD_DIM = 128,      // up to this head_dim tiles have COOP_ROWS_MANY rows;
    COOP_ROWS_MANY_WIDE = 32, // beyond it fewer, since sums lie in registers
    COOP_KEYS = 32,           // of a tile up to that head_dim; 16 beyond it, which take less
    COOP_PART_GRAIN = 256,    // a multiple of both
    COOP_SHARED_MEMORY = COOP_KEYS * 2 * (COOP_HEAD_DIM + 8) * 2 // keys and values, rows padded
                         + COOP_ROWS_MANY * (COOP_KEYS + 4) * 4  // scores
                         + COOP_ROWS_MANY * 4                    // row_factors
                         + COOP_KEYS * 4                         // key_scales
                         + COOP_KEYS / 8 * 2 * 8                 // strip_keys, strip_values
                         + 8,
};
_Static_assert((int)COOP_SHARED_MEMORY <= (int)TILES_SHARED_MEMORY, "any device has it");

// f16 cannot hold bf16 and f32. A value that a custom mask hides may be NaN.
static bool coop_serves(const struct geometry *geometry)
{
    const uint32_t *spec = geometry->spec;
    bool scaled_values = spec[AULE_SPEC_SCALE_MODE] == AULE_SCALE_TOKEN_HEAD_MODE &&
                         spec[AULE_SPEC_V_DTYPE] != DTYPE_F16;
    return dims_within(spec, COOP_MOST_HEAD_DIM) && spec[AULE_SPEC_IO_DTYPE] == DTYPE_F16 &&
           !(spec[AULE_SPEC_FEATURES] & AULE_FEATURE_MASK) && !scaled_values &&
           decode_element(spec[AULE_SPEC_K_DTYPE], spec[AULE_SPEC_HEAD_DIM_K], DTYPE_F16) &&
           decode_element(spec[AULE_SPEC_V_DTYPE], spec[AULE_SPEC_HEAD_DIM_V], DTYPE_F16);
}

static uint32_t coop_rows_few(const struct engine_kv *kv)
{
    (void)kv;
    return COOP_ROWS_FEW;
}

static uint32_t coop_rows_many(const struct engine_kv *kv)
{
    return kv->head_dim_k <= COOP_HEAD_DIM && kv->head_dim_v <= COOP_HEAD_DIM ? COOP_ROWS_MANY
                                                                              : COOP_ROWS_MANY_WIDE;
}

// Keys of a part. Few rows make few workgroups. Not measured. A row's bits depend on it.
static uint64_t coop_part_keys(uint64_t rows, uint64_t kv_len)
{
    if (rows > COOP_ROWS_MANY)
        return 0;
    return kv_len <= 32768 ? 4096 : 8192;
}

// Software makes a loop of each TIMES(): at most 240 rounds for 16 keys of 256 dims, if none of
// them is unrolled. On Mesa 26, 65,536 keys of few rows were still right.
static uint32_t coop_loop_keys(const struct engine_kv *kv)
{
    (void)kv;
    return 4096;
}

#define COOP_SHADER                                                                                \
    .shader = {"attention_coop", attention_coop_spv, sizeof attention_coop_spv, COOP_LOCAL_SIZE,   \
               true},                                                                              \
    .serves = coop_serves, .part_keys = coop_part_keys, .part_grain = COOP_PART_GRAIN,             \
    .loop_keys = coop_loop_keys, .shared_memory = COOP_SHARED_MEMORY

static const struct kernel kernel_coop_few = {
    COOP_SHADER,
    .tile_rows = coop_rows_few,
    .most_rows = COOP_ROWS_FEW,
};

static const struct kernel kernel_coop_many = {
    COOP_SHADER,
    .tile_rows = coop_rows_many,
    .most_rows = UINT32_MAX,
};

#endif

// ---- native kernels: shaders/hopper ----

#if defined AULE_HAVE_HOPPER && defined AULE_HAVE_MATRIX

// It takes the sequences that prefill takes. No software device runs it, so loop_keys is the same,
// for the table's sake.
static const struct kernel kernel_hopper = {
    .shader = {.name = "attention_hopper", .local_size = 384},
    .is_native = true,
    .serves = hopper_serves,
    .tile_rows = hopper_rows,
    .least_rows = DECODE_ROWS + 1,
    .most_rows = UINT32_MAX,
    .loop_keys = prefill_loop_keys,
};

#endif

// ---- the variants, best first ----

static void hopper_variant_missing(const struct adapter *adapter, char *text, size_t size)
{
    matrix_bfloat_missing(adapter, text, size);
    if (!text[0])
        hopper_missing(adapter, text, size);
}

// attention_subgroup.comp needs eight neighbouring lanes that exchange values, and it computes a
// lane from its place in the workgroup.
static void subgroup_missing(const struct adapter *adapter, char *text, size_t size)
{
    const VkSubgroupFeatureFlags wanted =
        VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_SHUFFLE_BIT;
    if (adapter->info.subgroup_size < 8)
        snprintf(text, size, "subgroups of 8 invocations (it has %u)", adapter->info.subgroup_size);
    else if ((adapter->subgroups.operations & wanted) != wanted)
        snprintf(text, size, "shuffles in compute shaders");
    else if (!adapter->subgroups.full)
        snprintf(text, size, "full subgroups (computeFullSubgroups)");
}

// The coop kernels serve f16 where decode and prefill do not: blocks of 8. They need no more of a
// device than those: one of their matrix sizes, full subgroups, shuffles. A build without matrix
// support keeps the rows, to say why they are not used.
const struct variant variants[] = {
    {
        .name = "hopper",
        .needs = "a GPU of compute capability 9.0 with VK_NVX_binary_import, a queue family for "
                 "compute only, and what matrix needs",
#if defined AULE_HAVE_HOPPER && defined AULE_HAVE_MATRIX
        .kernels = {&kernel_decode, &kernel_decode_bf16, &kernel_hopper, &kernel_prefill,
                    &kernel_prefill_bf16, &kernel_cascade, &kernel_coop_few, &kernel_coop_many,
                    &kernel_subgroup_few, &kernel_subgroup},
        .num_kernels = 10,
#else
        .kernels = {&kernel_subgroup},
        .num_kernels = 1,
#endif
        .missing = hopper_variant_missing,
    },
    {
        .name = "matrix",
        .needs = "cooperative matrices of 16x8x16 (f16) and 16x16x16 (bf16), sums in f32, "
                 "subgroups of 32 invocations",
#ifdef AULE_HAVE_MATRIX
        .kernels = {&kernel_decode, &kernel_prefill, &kernel_decode_bf16, &kernel_prefill_bf16,
                    &kernel_cascade, &kernel_coop_few, &kernel_coop_many, &kernel_subgroup_few,
                    &kernel_subgroup},
        .num_kernels = 9,
#else
        .kernels = {&kernel_subgroup},
        .num_kernels = 1,
#endif
        .missing = matrix_bfloat_missing,
    },
    {
        .name = "matrix_f16",
        .needs = "cooperative matrices of 16x8x16 (f16, sums in f32), subgroups of 32 invocations",
#ifdef AULE_HAVE_MATRIX
        .kernels = {&kernel_decode, &kernel_prefill, &kernel_cascade, &kernel_coop_few,
                    &kernel_coop_many, &kernel_subgroup_few, &kernel_subgroup},
        .num_kernels = 7,
#else
        .kernels = {&kernel_subgroup},
        .num_kernels = 1,
#endif
        .missing = matrix_missing,
    },
    {
        .name = "matrix_shared",
        .needs = "cooperative matrices of 8 or 16 rows, columns and depth (f16, sums in f32), full "
                 "subgroups of 8 to 64 invocations",
#ifdef AULE_HAVE_MATRIX
        .kernels = {&kernel_coop_few, &kernel_coop_many, &kernel_subgroup},
        .num_kernels = 3,
#else
        .kernels = {&kernel_subgroup},
        .num_kernels = 1,
#endif
        .missing = matrix_shared_missing,
    },
    {
        .name = "subgroup",
        .needs = "full subgroups of 8 invocations or more, with shuffles",
        .kernels = {&kernel_subgroup},
        .num_kernels = 1,
        .missing = subgroup_missing,
    },
    {
        .name = "subgroup_small",
        .needs = "full subgroups of 8 invocations or more, with shuffles; little shared memory",
        .kernels = {&kernel_subgroup_small, &kernel_plain_small},
        .num_kernels = 2,
        .missing = subgroup_missing,
    },
    {
        .name = "plain",
        .needs = "any Vulkan 1.2 device that the engine can use",
        .kernels = {&kernel_plain},
        .num_kernels = 1,
    },
    {
        .name = "plain_small",
        .needs = "any Vulkan 1.2 device that the engine can use, with little shared memory",
        .kernels = {&kernel_plain_small},
        .num_kernels = 1,
    },
    {
        .name = "matrix_emulated",
        .needs = "to be chosen by name, for tests: the kernels of matrix with products in shared "
                 "memory, on any Vulkan 1.2 device",
        .kernels = {&kernel_decode_emulated, &kernel_prefill_emulated, &kernel_decode_emulated_bf16,
                    &kernel_prefill_emulated_bf16, &kernel_cascade_emulated,
                    &kernel_cascade_emulated_bf16, &kernel_plain},
        .num_kernels = 7,
        .only_by_name = true,
    },
};
const uint32_t num_variants = sizeof variants / sizeof *variants;
