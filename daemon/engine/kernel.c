// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// kernel.c - the attention shaders, a table row each. A new one is a row here, a file in shaders/ and a place in some variant's list
// (variant.c). Knows neither runs nor batches. Any thread; no state.

#include "kernel.h"

#include "layout.h"

#include "attention_plain_spv.h"
#include "attention_subgroup_spv.h"
#ifdef AULE_HAVE_DECODE
#include "attention_decode_emulated_spv.h"
#endif
#ifdef AULE_HAVE_MATRIX
#include "attention_decode_matrix_spv.h"
#endif

static uint64_t divide_up(uint64_t value, uint64_t by)
{
    return (value + by - 1) / by;
}

// ---- attention_tiles.glsl: everything, on any device ----

// What it declares as shared, at its largest; a device with less has no variant.
enum {
    TILES_LOCAL_SIZE = 128,
    TILES_ROWS = 8,      // up to TILES_HEAD_DIM of K
    TILES_ROWS_WIDE = 4, // beyond
    TILES_HEAD_DIM = 256,
    TILES_HEAD_DIM_WIDE = 576,
    TILES_KEYS = 4 * TILES_LOCAL_SIZE,
    TILES_PARTS = TILES_KEYS / 8,
    TILES_SHARED_MEMORY = TILES_ROWS * TILES_HEAD_DIM / 2 * 8 // q_pairs
                          + TILES_ROWS * TILES_KEYS / 2 * 8   // weight_pairs
                          + TILES_LOCAL_SIZE * 4              // row_partials
                          + TILES_ROWS * 4                    // row_rescale
                          + 2 * 2 * TILES_PARTS * 8,          // key_parts, value_parts
};
_Static_assert(TILES_SHARED_MEMORY <= 32768, "what every GPU of the last decade has");
_Static_assert(TILES_ROWS_WIDE *TILES_HEAD_DIM_WIDE + TILES_ROWS_WIDE * TILES_KEYS <=
                   TILES_ROWS * TILES_HEAD_DIM + TILES_ROWS * TILES_KEYS,
               "fewer rows of more elements take less");

static uint32_t tiles_rows(const struct engine_kv *kv)
{
    return kv->head_dim_k <= TILES_HEAD_DIM ? TILES_ROWS : TILES_ROWS_WIDE;
}

static uint64_t tiles_part_keys(uint64_t rows, uint64_t kv_len)
{
    (void)kv_len;
    return rows <= 64 ? 2048 : 0;
}

const struct kernel kernel_subgroup = {
    .shader = {"attention_subgroup", attention_subgroup_spv, sizeof attention_subgroup_spv, TILES_LOCAL_SIZE, true},
    .tile_rows = tiles_rows,
    .most_rows = UINT32_MAX,
    .part_keys = tiles_part_keys,
    .part_grain = 256,
    .shared_memory = TILES_SHARED_MEMORY,
};

const struct kernel kernel_plain = {
    .shader = {"attention_plain", attention_plain_spv, sizeof attention_plain_spv, TILES_LOCAL_SIZE, false},
    .tile_rows = tiles_rows,
    .most_rows = UINT32_MAX,
    .part_keys = tiles_part_keys,
    .part_grain = 256,
    .shared_memory = TILES_SHARED_MEMORY,
};

// ---- the matrix shaders ----

#if defined AULE_HAVE_DECODE || defined AULE_HAVE_MATRIX

enum {
    MATRIX_MOST_HEAD_DIM = 128,  // of K and V; multiples of 8
    MATRIX_LEAST_BLOCK_SIZE = 16 // keys of a matrix lie in one block; block sizes are powers of two
};

static bool matrix_dim(uint32_t dim)
{
    return dim % 8 == 0 && dim <= MATRIX_MOST_HEAD_DIM;
}

// What attention_decode.comp asks for; neither place nor features matter.
static bool matrix_serves(const struct geometry *geometry)
{
    const uint32_t *spec = geometry->spec;
    return matrix_dim(spec[AULE_SPEC_HEAD_DIM_K]) && matrix_dim(spec[AULE_SPEC_HEAD_DIM_V]) &&
           spec[AULE_SPEC_K_DTYPE] == DTYPE_F16 && spec[AULE_SPEC_V_DTYPE] == DTYPE_F16 &&
           spec[AULE_SPEC_IO_DTYPE] == DTYPE_F16 && spec[AULE_SPEC_BLOCK_SIZE] >= MATRIX_LEAST_BLOCK_SIZE &&
           !spec[AULE_SPEC_V_IN_K] && spec[AULE_SPEC_SCALE_MODE] == AULE_SCALE_NONE_MODE;
}

// attention_decode.comp: a part has so many units, which its warps share; a unit's sums lie in shared memory.
enum {
    DECODE_ROWS = 8,
    DECODE_WARP = 32,
    DECODE_UNITS = 8,
    DECODE_UNITS_EMULATED = 4,
    DECODE_UNIT_BYTES = DECODE_ROWS * (MATRIX_MOST_HEAD_DIM + 2) * 4,
    DECODE_SHARED_MEMORY = DECODE_UNITS * DECODE_UNIT_BYTES,
    DECODE_SHARED_MEMORY_EMULATED = DECODE_UNITS_EMULATED * (DECODE_UNIT_BYTES + DECODE_WARP * 6 * 4), // matrix_words
};
_Static_assert((int)DECODE_SHARED_MEMORY_EMULATED <= (int)TILES_SHARED_MEMORY, "any device runs it");

static uint32_t decode_rows(const struct engine_kv *kv)
{
    (void)kv;
    return DECODE_ROWS;
}

// Long parts keep a warp streaming, many parts keep the device busy with few sequences, and more than 16 or so take longer to merge
// than they save. To be tuned on the H200; a row's bits depend on it.
static uint64_t decode_part_keys(uint64_t rows, uint64_t kv_len)
{
    (void)rows;
    if (kv_len <= 1024)
        return 512;
    if (kv_len <= 32768)
        return 4096;
    uint64_t keys = divide_up(divide_up(kv_len, 16), AULE_SPAN_GRAIN) * AULE_SPAN_GRAIN;
    return keys < 8192 ? keys : 8192;
}

// As many warps to a multiprocessor as hide its memory's latency: from 8 to 12 on it makes no difference.
static uint32_t decode_local_size(uint64_t num_workgroups, uint32_t num_multiprocessors)
{
    uint32_t warps = num_workgroups >= UINT64_C(4) * num_multiprocessors   ? 2
                     : num_workgroups >= UINT64_C(2) * num_multiprocessors ? 4
                                                                           : 8;
    return warps * DECODE_WARP;
}

#define DECODE(SPV, UNITS, FULL_SUBGROUPS, SHARED_MEMORY)                                                              \
    {                                                                                                                  \
        .shader = {#SPV, SPV##_spv, sizeof SPV##_spv, (UNITS)*DECODE_WARP, FULL_SUBGROUPS}, .tile_rows = decode_rows,  \
        .serves = matrix_serves, .most_rows = DECODE_ROWS, .part_keys = decode_part_keys,                              \
        .part_grain = AULE_SPAN_GRAIN, .local_size = decode_local_size, .shared_memory = SHARED_MEMORY,                \
    }

#ifdef AULE_HAVE_DECODE
const struct kernel kernel_decode_emulated =
    DECODE(attention_decode_emulated, DECODE_UNITS_EMULATED, false, DECODE_SHARED_MEMORY_EMULATED);
#endif
#ifdef AULE_HAVE_MATRIX
const struct kernel kernel_decode = DECODE(attention_decode_matrix, DECODE_UNITS, true, DECODE_SHARED_MEMORY);
#endif

#endif

// ---- asking a kernel ----

enum { LEAST_PART = 256 }; // keys; where a caller says how many splits he wants

uint64_t kernel_part_keys(const struct kernel *kernel, uint64_t rows, uint64_t kv_len, uint32_t num_splits)
{
    if (!kernel->part_keys)
        return 0;
    if (num_splits == 0)
        return kernel->part_keys(rows, kv_len);
    if (num_splits == 1 || kv_len == 0)
        return 0;
    uint64_t keys = divide_up(divide_up(kv_len, num_splits), kernel->part_grain) * kernel->part_grain;
    return keys > LEAST_PART ? keys : LEAST_PART;
}

uint32_t kernel_local_size(const struct kernel *kernel, uint64_t num_workgroups, uint32_t num_multiprocessors)
{
    uint32_t most = kernel->shader.local_size;
    uint32_t wanted = kernel->local_size ? kernel->local_size(num_workgroups, num_multiprocessors) : most;
    return wanted < most ? wanted : most;
}
