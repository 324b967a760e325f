// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hopper.c - see hopper.h. Any thread unless it says otherwise; no state.

#include "hopper.h"

#include "shaders/hopper/index.h"

#include <stdio.h>
#include <string.h>

// ---- the kernels of the build; shaders/CMakeLists.txt has the same list ----

struct kernel_kind {
    enum dtype dtype;
    uint32_t dim_k, dim_v;
    bool shaped;
};

#define KINDS_OF(KIND, DTYPE, NAME)                                                                \
    KIND(DTYPE, NAME, 64, 64)                                                                      \
    KIND(DTYPE, NAME, 128, 128) KIND(DTYPE, NAME, 192, 128) KIND(DTYPE, NAME, 256, 256)
#define ALL_KINDS(KIND) KINDS_OF(KIND, DTYPE_F16, f16) KINDS_OF(KIND, DTYPE_BF16, bf16)

#define KIND(DTYPE, NAME, K, V) {DTYPE, K, V, false}, {DTYPE, K, V, true},
static const struct kernel_kind kinds[] = {ALL_KINDS(KIND)};
#undef KIND
_Static_assert(sizeof kinds / sizeof *kinds == HOPPER_CODES, "a code for each kind");

#ifdef AULE_HAVE_HOPPER
#define KIND(DTYPE, NAME, K, V)                                                                    \
    extern const unsigned char attention_hopper_##NAME##_##K##_##V##_ptx[],                        \
        attention_hopper_##NAME##_##K##_##V##_ptx_end[],                                           \
        attention_hopper_##NAME##_##K##_##V##_shaped_ptx[],                                        \
        attention_hopper_##NAME##_##K##_##V##_shaped_ptx_end[];
ALL_KINDS(KIND)
#undef KIND
#define CODE(NAME) #NAME, NAME##_ptx, NAME##_ptx_end
#else
#define CODE(NAME) #NAME, NULL, NULL
#endif

#define KIND(DTYPE, NAME, K, V)                                                                    \
    {CODE(attention_hopper_##NAME##_##K##_##V), .function = "attention_hopper",                    \
     .threads = HOPPER_THREADS},                                                                   \
        {CODE(attention_hopper_##NAME##_##K##_##V##_shaped), .function = "attention_hopper",       \
         .threads = HOPPER_THREADS},
static const struct native_code codes[HOPPER_CODES] = {ALL_KINDS(KIND)};
#undef KIND

const struct native_code *hopper_code_at(uint32_t number)
{
    return &codes[number];
}

// Bytes of an element of K and V.
static uint32_t element_bytes(const struct geometry *geometry)
{
    return (uint32_t)dtype_size((enum dtype)geometry->spec[AULE_SPEC_K_DTYPE]);
}

static struct hopper_shape shape_of(const struct geometry *geometry)
{
    return hopper_shape_of(geometry->spec[AULE_SPEC_HEAD_DIM_K],
                           geometry->spec[AULE_SPEC_HEAD_DIM_V]);
}

// ---- what it serves ----

uint32_t hopper_rows(const struct engine_kv *kv)
{
    (void)kv;
    return HOPPER_ROWS;
}

static const uint32_t shaping = AULE_FEATURE_SOFT_CAP | AULE_FEATURE_ALIBI;

uint32_t hopper_code(const struct geometry *geometry)
{
    const uint32_t *spec = geometry->spec;
    bool shaped = spec[AULE_SPEC_FEATURES] & shaping;
    uint32_t number = 0;
    while (number < HOPPER_CODES &&
           (kinds[number].dtype != (enum dtype)spec[AULE_SPEC_IO_DTYPE] ||
            kinds[number].dim_k != spec[AULE_SPEC_HEAD_DIM_K] ||
            kinds[number].dim_v != spec[AULE_SPEC_HEAD_DIM_V] || kinds[number].shaped != shaped))
        number++;
    return number;
}

struct geometry hopper_geometry(uint32_t number)
{
    const struct kernel_kind *kind = &kinds[number];
    return (struct geometry){.spec = {
                                 [AULE_SPEC_HEAD_DIM_K] = kind->dim_k,
                                 [AULE_SPEC_HEAD_DIM_V] = kind->dim_v,
                                 [AULE_SPEC_K_DTYPE] = kind->dtype,
                                 [AULE_SPEC_V_DTYPE] = kind->dtype,
                                 [AULE_SPEC_IO_DTYPE] = kind->dtype,
                                 [AULE_SPEC_PLACE] = AULE_PLACE_POOL,
                                 [AULE_SPEC_FEATURES] = kind->shaped ? AULE_FEATURE_SOFT_CAP : 0,
                             }};
}

// K and V as Q; or each of any type of 8 bits, where shared memory has room for raw tiles.
static bool serves_dtypes(const struct geometry *geometry)
{
    const uint32_t *spec = geometry->spec;
    enum dtype k = (enum dtype)spec[AULE_SPEC_K_DTYPE], v = (enum dtype)spec[AULE_SPEC_V_DTYPE];
    if (dtype_size(k) == 1)
        return dtype_size(v) == 1 && shape_of(geometry).raw_stages > 0 &&
               spec[AULE_SPEC_SCALE_MODE] != AULE_SCALE_TOKEN_HEAD_MODE;
    return k == (enum dtype)spec[AULE_SPEC_IO_DTYPE] && v == k &&
           spec[AULE_SPEC_SCALE_MODE] == AULE_SCALE_NONE_MODE;
}

bool hopper_serves(const struct geometry *geometry)
{
    const uint32_t *spec = geometry->spec;
    const uint32_t features = shaping | AULE_FEATURE_LSE | AULE_FEATURE_WINDOW |
                              AULE_FEATURE_SINKS | AULE_FEATURE_POSITIONS;
    return hopper_code(geometry) < HOPPER_CODES && !spec[AULE_SPEC_V_IN_K] &&
           serves_dtypes(geometry) && spec[AULE_SPEC_BLOCK_SIZE] >= HOPPER_LEAST_BLOCK &&
           spec[AULE_SPEC_BLOCK_SIZE] <= HOPPER_MOST_BLOCK &&
           !(spec[AULE_SPEC_FEATURES] & ~features);
}

// A map has strides of 16 bytes to 64 GiB. A dimension that is never walked may have any.
static bool takes_tensor(const struct wire_tensor *tensor, uint32_t num_heads)
{
    const uint64_t most = UINT64_C(1) << 36;
    return tensor->token_stride > 0 && tensor->token_stride < most &&
           (num_heads <= 1 || (tensor->head_stride > 0 && tensor->head_stride < most)) &&
           tensor->outer_stride < most;
}

bool hopper_takes(const struct engine_run *run, enum engine_place place, uint32_t num_kv_heads)
{
    return takes_tensor(&run->q, run->num_heads) &&
           (place == ENGINE_POOL ||
            (takes_tensor(&run->keys, num_kv_heads) && takes_tensor(&run->values, num_kv_heads)));
}

// ---- what it needs ----

bool hopper_wanted(const char *variant)
{
#if defined AULE_HAVE_HOPPER && defined AULE_HAVE_MATRIX
    return !variant || !variant[0] || strcmp(variant, "hopper") == 0;
#else
    (void)variant;
    return false;
#endif
}

void hopper_missing(const struct adapter *adapter, char *text, size_t size)
{
#ifdef AULE_HAVE_HOPPER
    native_missing(adapter, text, size);
#else
    (void)adapter;
    snprintf(text, size, "support in this build: aule was built without clang 19");
#endif
}

// ---- launching ----

// Extras: struct gpu_tickets, tensor maps, notes.
enum {
    EXTRAS_ALIGNMENT = 128,
    MAP_BYTES = HOPPER_MAP_WORDS * 4,
    MAPS_AT = EXTRAS_ALIGNMENT,
};
_Static_assert(sizeof(struct gpu_tickets) <= MAPS_AT, "tickets fit");

static size_t bytes_of_run(const struct geometry *geometry) // of its maps
{
    return hopper_maps_of_run(geometry->spec[AULE_SPEC_PLACE] == AULE_PLACE_ROWS) *
           (size_t)MAP_BYTES;
}

static uint64_t notes_at(const struct geometry *geometry, uint32_t num_runs)
{
    return MAPS_AT + (uint64_t)num_runs * bytes_of_run(geometry);
}

uint64_t hopper_measure(uint64_t at, const struct geometry *geometry, uint32_t num_runs,
                        uint32_t num_items, uint64_t *extras_at)
{
    const uint64_t mask = EXTRAS_ALIGNMENT - 1;
    const uint64_t units = (uint64_t)num_items * geometry->spec[AULE_SPEC_NUM_KV_HEADS];
    *extras_at = (at + mask) & ~mask;
    return *extras_at + notes_at(geometry, num_runs) +
           ((units * AULE_TICKET_NOTES + 15) & ~UINT64_C(15));
}

// One write of each word, since `to` may be write-combined.
static void put_map(char *to, uint32_t number, const uint32_t map[HOPPER_MAP_WORDS])
{
    memcpy(to + number * (size_t)MAP_BYTES, map, MAP_BYTES);
}

static void put_queries(char *to, const struct gpu_run *run, uint32_t num_kv_heads)
{
    const uint64_t strides[3] = {(uint64_t)run->q_head_stride * 16,
                                 (uint64_t)run->q_token_stride * 16, run->q_outer};
    const uint32_t group = run->num_heads / num_kv_heads;
    const uint32_t heads = hopper_q_is_a_box(HOPPER_ROWS, group) ? group : 1; // 1: not used
    uint32_t map[HOPPER_MAP_WORDS];
    hopper_map(map, run->q, strides, 2, heads, HOPPER_ROWS / heads);
    put_map(to, HOPPER_MAP_Q, map);
}

static void put_pool(char *to, struct hopper_shape shape, uint32_t size, uint32_t box)
{
    uint32_t map[HOPPER_MAP_WORDS];
    hopper_map_of_pool(map, shape.dim_k, size, box);
    put_map(to, HOPPER_MAP_K, map);
    hopper_map_of_pool(map, shape.dim_v, size, box);
    put_map(to, HOPPER_MAP_V, map);
}

static void put_tensors(char *to, const struct gpu_run *run, uint32_t size, uint32_t box,
                        bool is_rows)
{
    const uint64_t k[3] = {(uint64_t)run->keys_token_stride * 16,
                           (uint64_t)run->keys_head_stride * 16, run->keys_outer};
    const uint64_t v[3] = {(uint64_t)run->values_token_stride * 16,
                           (uint64_t)run->values_head_stride * 16, run->values_outer};
    uint32_t map[HOPPER_MAP_WORDS];
    hopper_map(map, run->keys, k, size, box, 1);
    put_map(to, HOPPER_MAP_K, map);
    hopper_map(map, run->values, v, size, box, 1);
    put_map(to, HOPPER_MAP_V, map);
    if (!is_rows || size == 1) // then that tile is loaded, not copied
        return;
    hopper_map(map, run->keys, k, size, 1, 1);
    put_map(to, HOPPER_MAP_ONE_K, map);
    hopper_map(map, run->values, v, size, 1, 1);
    put_map(to, HOPPER_MAP_ONE_V, map);
}

void hopper_put(void *extras, const struct geometry *geometry, const struct gpu_run *runs,
                uint32_t num_runs)
{
    const uint32_t *spec = geometry->spec;
    const struct hopper_shape shape = shape_of(geometry);
    const uint32_t size = element_bytes(geometry);
    const bool is_rows = spec[AULE_SPEC_PLACE] == AULE_PLACE_ROWS;
    const uint32_t box =
        is_rows ? shape.keys : hopper_box_keys(spec[AULE_SPEC_BLOCK_SIZE], shape.keys);
    memset(extras, 0, sizeof(struct gpu_tickets));
    for (uint32_t i = 0; i < num_runs; i++) {
        char *to = (char *)extras + MAPS_AT + i * bytes_of_run(geometry);
        put_queries(to, &runs[i], spec[AULE_SPEC_NUM_KV_HEADS]);
        if (spec[AULE_SPEC_PLACE] == AULE_PLACE_POOL)
            put_pool(to, shape, size, box);
        else
            put_tensors(to, &runs[i], size, box, is_rows);
    }
}

uint32_t hopper_blocks(const struct geometry *geometry, uint32_t num_items, uint32_t most)
{
    uint64_t units = (uint64_t)num_items * geometry->spec[AULE_SPEC_NUM_KV_HEADS];
    return units < most ? (uint32_t)units : most;
}

void hopper_record(const struct device *device, VkCommandBuffer commands,
                   const struct native *native, const struct hopper_launch *launch)
{
    const struct gpu_dispatch *constants = launch->constants;
    const uint32_t *spec = launch->geometry->spec;
    uint64_t work = launch->extras, maps = launch->extras + MAPS_AT;
    uint64_t notes = launch->extras + notes_at(launch->geometry, constants->num_runs);
    const uint32_t is_later = launch->is_later;
    // The parameters of attention_hopper(), in their order.
    const void *params[] = {
        &constants->runs,
        &constants->items,
        &work,
        &notes,
        &maps,
        &constants->num_runs,
        &constants->num_items,
        &spec[AULE_SPEC_NUM_KV_HEADS],
        &spec[AULE_SPEC_BLOCK_SIZE],
        &spec[AULE_SPEC_FEATURES],
        &spec[AULE_SPEC_PLACE],
        &spec[AULE_SPEC_K_DTYPE],
        &spec[AULE_SPEC_V_DTYPE],
        &launch->first_blocks,
        &is_later,
    };
    const struct hopper_shape shape = shape_of(launch->geometry);
    native_launch(device, commands, native,
                  launch->is_later ? launch->later_blocks : launch->first_blocks,
                  element_bytes(launch->geometry) == 1 ? shape.raw_bytes : shape.bytes, params,
                  sizeof params / sizeof *params);
}
