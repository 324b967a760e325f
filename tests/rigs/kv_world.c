// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// kv_world.c - see kv_world.h.

#include "kv_world.h"

#include <math.h>
#include <string.h>

uint32_t float_word(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

float word_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static const uint32_t odd_floats[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x807fffff, 0x00800000, 0x7f7fffff,
    0xff7fffff, 0x7f800000, 0xff800000, 0x7f800001, 0xff800001, 0x7fc00000, 0xffc00000, 0x7fffffff,
    0xffffffff, 0x7fa12345, 0xffd54321, 0x3f000000, 0xbf000000, 0x33800000, 0x33000000, 0x33000001,
};

// Number `index` of a series of borders around the finite number with pattern `bits`.
static float border(enum dtype dtype, uint32_t bits, uint32_t index)
{
    float here = (float)numbers_value(dtype, bits), next = (float)numbers_value(dtype, bits + 1);
    float middle = isfinite(next) ? here + (next - here) / 2 : here;
    float side = index % 3 == 1 ? INFINITY : -INFINITY, value = index < 3 ? here : middle;
    return index % 3 == 0 ? value : nextafterf(value, side);
}

void border_floats(enum dtype dtype, float *out, uint32_t count)
{
    struct dice dice = {dtype};
    uint32_t patterns = dtype_size(dtype) == 1 ? 256 : 65536, used = 0;
    for (size_t i = 0; i < sizeof odd_floats / sizeof *odd_floats && used < count; i++)
        out[used++] = word_float(odd_floats[i]);
    for (uint32_t i = 0; dtype_size(dtype) == 1 && i < patterns * 6 && used < count; i++)
        if (isfinite(numbers_value(dtype, i / 6)))
            out[used++] = border(dtype, i / 6, i % 6);
    while (used < count) {
        uint32_t bits = (uint32_t)dice_next(&dice), pattern = bits % patterns;
        bool wide =
            dtype == DTYPE_F32 || (used & 3) == 0 || !isfinite(numbers_value(dtype, pattern));
        out[used++] = wide ? word_float((uint32_t)dice_next(&dice))
                           : border(dtype, pattern, (bits >> 16) % 6);
    }
}

struct engine_cache *kv_cache(struct engine_kv kv, uint32_t num_blocks)
{
    struct engine_cache *cache = open_cache((struct engine_cache_params){
        .name = "kv", .num_layers = 1, .chunk_blocks = num_blocks, .kv = kv});
    grow_chunk(cache, 0);
    return cache;
}

uint8_t *kv_blocks(struct engine_cache *cache, uint32_t num_blocks)
{
    uint64_t size = engine_layer_block_bytes(&cache->params);
    uint8_t *bytes = malloc(num_blocks * size);
    ck_assert_ptr_nonnull(bytes);
    for (uint32_t i = 0; i < num_blocks; i++)
        ck_assert_int_eq(engine_block_read(cache, 0, (int32_t)i, bytes + i * size), STATUS_OK);
    return bytes;
}

// Offsets of a block's parts.
struct parts {
    uint64_t v, scales, v_scales, end;
};

static struct parts parts_of(const struct engine_kv *kv)
{
    uint64_t slots = (uint64_t)kv->num_kv_heads * kv->block_size;
    uint64_t scales = kv->scale_mode == SCALE_PER_TOKEN_HEAD ? slots * sizeof(float) : 0;
    struct parts parts = {.v = slots * kv->head_dim_k * dtype_size(kv->k_dtype)};
    parts.scales =
        parts.v + (kv->v_is_k_prefix ? 0 : slots * kv->head_dim_v * dtype_size(kv->v_dtype));
    parts.v_scales = parts.scales + scales;
    parts.end = parts.v_scales + (kv->v_is_k_prefix ? 0 : scales);
    return parts;
}

uint32_t kv_element(const uint8_t *blocks, const struct engine_kv *kv, int64_t slot, uint32_t head,
                    uint32_t dim, bool v)
{
    struct parts parts = parts_of(kv);
    uint64_t block = (uint64_t)slot / kv->block_size, row = (uint64_t)slot % kv->block_size;
    uint64_t index = (head * kv->block_size + row) * (v ? kv->head_dim_v : kv->head_dim_k) + dim;
    return numbers_bits(blocks + block * parts.end + (v ? parts.v : 0),
                        v ? kv->v_dtype : kv->k_dtype, index);
}

float kv_scale(const uint8_t *blocks, const struct engine_kv *kv, int64_t slot, uint32_t head,
               bool v)
{
    struct parts parts = parts_of(kv);
    uint64_t block = (uint64_t)slot / kv->block_size, row = (uint64_t)slot % kv->block_size;
    const uint8_t *scales = blocks + block * parts.end + (v ? parts.v_scales : parts.scales);
    return word_float(numbers_bits(scales, DTYPE_F32, head * kv->block_size + row));
}

static bool sliced;

void setup_slices(void)
{
    setup_import();
    sliced = engine_arena_imported(arena);
}

bool kv_slices(void)
{
    return sliced;
}

void kv_run(const struct engine_run *run)
{
    enum { SLICES = 5 };
    struct engine_run slices[SLICES];
    uint32_t ends[SLICES];
    for (uint32_t i = 0; i < SLICES; i++) {
        slices[i] = *run;
        slices[i].slice = i;
        slices[i].num_slices = SLICES;
        ends[i] = i + 1;
    }
    if (!sliced)
        expect_done(submit_runs(run, 1));
    else
        expect_done(submit(&(struct engine_submission){
            .runs = slices, .num_runs = SLICES, .wave_ends = ends, .num_waves = SLICES}));
}

uint32_t tensor_bits(const struct wire_tensor *tensor, uint32_t token, uint32_t head, uint32_t dim)
{
    const char *row =
        memory + tensor->offset + token * tensor->token_stride + head * tensor->head_stride;
    return numbers_bits(row, tensor->dtype, dim);
}
