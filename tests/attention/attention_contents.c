// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_contents.c - see attention_contents.h. Values are drawn so that the hard ones come
// often: rows with one key that outweighs all, rows whose keys all weigh the same, sums of one
// sign. The stored bytes follow the definitions in numbers.h.

#include "attention_contents.h"

#include "oracle/numbers.h"
#include "oracle/oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

// ---- blocks ----

static uint64_t rows_of(const struct attention_shape *shape)
{
    return (uint64_t)shape->kv.num_kv_heads * shape->kv.block_size;
}

static uint64_t v_begin(const struct attention_shape *shape)
{
    return rows_of(shape) * shape_k_bytes(shape);
}

static uint64_t scales_begin(const struct attention_shape *shape)
{
    return v_begin(shape) + (shape->kv.v_is_k_prefix ? 0 : rows_of(shape) * shape_v_bytes(shape));
}

uint64_t block_row_at(const struct attention_shape *shape, uint32_t head, uint32_t token,
                      bool value)
{
    uint64_t row = (uint64_t)head * shape->kv.block_size + token;
    if (!value || shape->kv.v_is_k_prefix)
        return row * shape_k_bytes(shape);
    return v_begin(shape) + row * shape_v_bytes(shape);
}

uint64_t block_scale_at(const struct attention_shape *shape, uint32_t head, uint32_t token,
                        bool value)
{
    uint64_t row = (uint64_t)head * shape->kv.block_size + token;
    return scales_begin(shape) +
           (row + (value && !shape->kv.v_is_k_prefix ? rows_of(shape) : 0)) * sizeof(float);
}

uint64_t block_bytes_of(const struct attention_shape *shape)
{
    if (shape->kv.scale_mode != SCALE_PER_TOKEN_HEAD)
        return scales_begin(shape);
    return scales_begin(shape) + (shape->kv.v_is_k_prefix ? 1 : 2) * rows_of(shape) * sizeof(float);
}

bool shape_scaled(const struct attention_shape *shape, bool value)
{
    enum dtype dtype = value ? shape->kv.v_dtype : shape->kv.k_dtype;
    return shape->kv.scale_mode != SCALE_NONE && dtype_size((int)dtype) == 1;
}

static int poison_of(enum dtype dtype)
{
    return dtype == DTYPE_INT8 ? 0x80 : 0xff;
}

void block_poison(const struct attention_shape *shape, uint8_t *block)
{
    uint64_t v = v_begin(shape), scales = scales_begin(shape);
    memset(block, poison_of(shape->kv.k_dtype), v);
    memset(block + v, poison_of(shape->kv.v_dtype), scales - v);
    memset(block + scales, 0xff, block_bytes_of(shape) - scales);
}

// ---- rows ----

// How a row is turned into what is stored.
struct packing {
    enum dtype dtype;
    float scale, inverse; // a value times `inverse` is rounded; stored beside it is `scale`
    bool scaled;
};

static struct packing packing_of(const struct attention_case *problem, bool value, const float *row)
{
    const struct attention_shape *shape = &problem->shape;
    const struct attention_parameters *parameters = &problem->parameters[0];
    struct packing packing = {
        .dtype = value ? shape->kv.v_dtype : shape->kv.k_dtype, .scale = 1, .inverse = 1};
    packing.scaled = shape_scaled(shape, value);
    if (!packing.scaled)
        return packing;
    if (shape->kv.scale_mode == SCALE_PER_TENSOR) {
        packing.scale = value ? parameters->v_scale : parameters->k_scale;
        packing.inverse = 1.0f / packing.scale;
    } else {
        uint32_t dims = value ? shape->kv.head_dim_v : shape->kv.head_dim_k;
        numbers_scale(packing.dtype, row, dims, &packing.scale, &packing.inverse);
    }
    return packing;
}

static void row_pack(const struct attention_case *problem, uint8_t *block, uint32_t head,
                     uint32_t token, bool value, const float *row)
{
    const struct attention_shape *shape = &problem->shape;
    struct packing packing = packing_of(problem, value, row);
    uint32_t dims = value ? shape->kv.head_dim_v : shape->kv.head_dim_k;
    uint8_t *to = block + block_row_at(shape, head, token, value);
    for (uint32_t d = 0; d < dims; d++)
        oracle_store(to, packing.dtype, d, packing.scaled ? row[d] * packing.inverse : row[d]);
    if (shape->kv.scale_mode == SCALE_PER_TOKEN_HEAD)
        memcpy(block + block_scale_at(shape, head, token, value), &packing.scale,
               sizeof packing.scale);
}

void attention_row_put(struct attention_case *problem, const struct attention_seq *seq,
                       uint32_t head, uint32_t key, bool value, const float *row)
{
    uint32_t block_size = problem->shape.kv.block_size;
    int32_t id = seq->blocks[key / block_size];
    row_pack(problem, problem->before[id], head, key % block_size, value, row);
    row_pack(problem, problem->after[id], head, key % block_size, value, row);
}

// ---- keys and values ----

enum value_style { VALUES_RANDOM, VALUES_OFFSET, VALUES_CONSTANT };

// K's elements spread around 0; V's by style: all of one sign shows a sum that drifts. An int8 that
// stands for itself has something to say only beyond 1.
static float element_draw(struct attention_case *problem, bool value, enum value_style style)
{
    float normal = dice_normal(&problem->dice);
    bool whole =
        problem->shape.kv.v_dtype == DTYPE_INT8 && problem->shape.kv.scale_mode == SCALE_NONE;
    if (!value)
        return normal;
    float element = style == VALUES_RANDOM   ? normal
                    : style == VALUES_OFFSET ? 0.7f + 0.1f * normal
                                             : 0.7f;
    return whole ? 30 * element : element;
}

static int64_t seq_position(const struct attention_case *problem, const struct attention_seq *seq,
                            uint32_t query)
{
    if (problem->parameters[0].features & FEATURE_POSITIONS)
        return seq->positions[query];
    return (int64_t)seq->kv_len - seq->q_len + query;
}

static struct oracle_rope rope_of(const struct attention_parameters *parameters)
{
    return (struct oracle_rope){
        .dim = parameters->features & FEATURE_ROPE ? parameters->rope_dim : 0,
        .interleaved = parameters->features & FEATURE_PAIRS,
        .theta = (double)parameters->theta,
        .frequencies = parameters->by_frequencies ? parameters->frequencies : NULL,
    };
}

// K of a fresh token as it is to be stored, but for the rounding; packed in `row`.
static void key_turn(const struct attention_case *problem, const struct attention_seq *seq,
                     uint32_t query, double *row)
{
    struct oracle_rope rope = rope_of(&problem->parameters[0]);
    oracle_turn(&rope, seq_position(problem, seq, query), row);
}

static void fresh_turn(const struct attention_case *problem, const struct attention_seq *seq,
                       uint32_t query, float *row)
{
    double turned[MAX_HEAD_DIM];
    for (uint32_t d = 0; d < problem->shape.kv.head_dim_k; d++)
        turned[d] = (double)row[d];
    key_turn(problem, seq, query, turned);
    for (uint32_t d = 0; d < problem->shape.kv.head_dim_k; d++)
        row[d] = (float)turned[d];
}

// One token's K or V, [num_kv_heads, head_dim]: into the block, or, for a token that this run
// writes, into the tensor `fresh` and, rounded twice as the run does it, into the block as it is
// afterwards.
static void token_fill(struct attention_case *problem, const struct attention_seq *seq,
                       uint32_t key, bool value, enum value_style style, uint8_t *fresh,
                       uint32_t query)
{
    const struct attention_shape *shape = &problem->shape;
    uint32_t dims = value ? shape->kv.head_dim_v : shape->kv.head_dim_k,
             at = key % shape->kv.block_size;
    int32_t block = seq->blocks[key / shape->kv.block_size];
    float row[MAX_HEAD_DIM];
    for (uint32_t head = 0; head < shape->kv.num_kv_heads; head++) {
        for (uint32_t d = 0; d < dims; d++) {
            row[d] = element_draw(problem, value, style);
            if (fresh) {
                oracle_store(fresh, shape->io_dtype, (uint64_t)head * dims + d, row[d]);
                row[d] = (float)oracle_load(fresh, shape->io_dtype, (uint64_t)head * dims + d);
            }
        }
        if (fresh && !value)
            fresh_turn(problem, seq, query, row);
        if (!fresh)
            row_pack(problem, problem->before[block], head, at, value, row);
        row_pack(problem, problem->after[block], head, at, value, row);
    }
}

static void seq_fill_kv(struct attention_case *problem, struct attention_seq *seq,
                        uint32_t shared_keys)
{
    const struct attention_shape *shape = &problem->shape;
    uint64_t token_elements = (uint64_t)shape->kv.num_kv_heads * dtype_size((int)shape->io_dtype);
    enum value_style style = dice_below(&problem->dice, 3);
    for (uint32_t key = shared_keys; key < seq->kv_len; key++) {
        uint32_t i =
            key + seq->q_len - seq->kv_len; // query token; only meant where the sequence writes
        bool fresh = seq->slots && key + seq->q_len >= seq->kv_len && seq->slots[i] >= 0;
        token_fill(problem, seq, key, false, style,
                   fresh ? seq->k + i * token_elements * shape->kv.head_dim_k : NULL, i);
        if (!shape->kv.v_is_k_prefix)
            token_fill(problem, seq, key, true, style,
                       fresh ? seq->v + i * token_elements * shape->kv.head_dim_v : NULL, i);
    }
}

// ---- K that was turned ----

static double stored_value(const uint8_t *row, enum dtype dtype, uint32_t d)
{
    return oracle_load(row, dtype, d);
}

// Whether `got` can be what `exact` +- `tolerance` was rounded to.
static bool rounding_of(enum dtype dtype, double got, double exact, double tolerance)
{
    double low = numbers_value(dtype, numbers_round(dtype, (float)(exact - tolerance)));
    double high = numbers_value(dtype, numbers_round(dtype, (float)(exact + tolerance)));
    double ulp = dtype == DTYPE_F32 ? 1e-7 * fabs(exact) : 0; // the bounds themselves are rounded
    return got >= low - ulp && got <= high + ulp;
}

static double pair_norm(const struct attention_parameters *parameters, const double *row,
                        uint32_t d)
{
    uint32_t dim = parameters->rope_dim,
             other = parameters->features & FEATURE_PAIRS ? d ^ 1 : (d + dim / 2) % dim;
    return d < dim ? hypot(row[d], row[other]) : 0;
}

bool attention_row_adopt(struct attention_case *problem, const struct attention_seq *seq,
                         uint32_t query, uint32_t head, const uint8_t *block, char *text,
                         size_t size)
{
    const struct attention_shape *shape = &problem->shape;
    uint32_t dims = shape->kv.head_dim_k,
             token = (uint32_t)(seq->slots[query] % shape->kv.block_size);
    double exact[MAX_HEAD_DIM];
    float rounded[MAX_HEAD_DIM], scale = 1;
    for (uint32_t d = 0; d < dims; d++)
        exact[d] = oracle_load(seq->k, shape->io_dtype,
                               ((uint64_t)query * shape->kv.num_kv_heads + head) * dims + d);
    key_turn(problem, seq, query, exact);
    for (uint32_t d = 0; d < dims; d++)
        rounded[d] = (float)exact[d];
    struct packing packing = packing_of(problem, false, rounded);
    double inverse = (double)packing.inverse;
    const uint8_t *row = block + block_row_at(shape, head, token, false);
    if (shape->kv.scale_mode == SCALE_PER_TOKEN_HEAD) {
        memcpy(&scale, block + block_scale_at(shape, head, token, false), sizeof scale);
        if (!(fabs((double)scale - (double)packing.scale) <= 1e-6 * (double)packing.scale)) {
            (void)snprintf(text, size, "scale %.9g, expected about %.9g", (double)scale,
                           (double)packing.scale);
            return false;
        }
    }
    for (uint32_t d = 0; d < dims; d++) {
        double tolerance = 5e-7 * pair_norm(&problem->parameters[0], exact, d) +
                           (packing.scaled ? 1e-6 * fabs(exact[d]) : 0);
        if (!rounding_of(packing.dtype, stored_value(row, packing.dtype, d), exact[d] * inverse,
                         tolerance * inverse)) {
            (void)snprintf(text, size, "dim %u: %.9g, which %.9g +- %.2g does not round to", d,
                           stored_value(row, packing.dtype, d), exact[d] * inverse,
                           tolerance * inverse);
            return false;
        }
    }
    uint8_t *after = problem->after[seq->slots[query] / shape->kv.block_size];
    memcpy(after + block_row_at(shape, head, token, false), row, shape_k_bytes(shape));
    if (shape->kv.scale_mode == SCALE_PER_TOKEN_HEAD)
        memcpy(after + block_scale_at(shape, head, token, false), &scale, sizeof scale);
    return true;
}

// ---- positions ----

enum position_style {
    POSITIONS_SHIFTED,
    POSITIONS_ANY,
    POSITIONS_REPEATED,
    POSITIONS_FAR,
    POSITIONS_STYLES
};

static int32_t position_draw(struct dice *dice, enum position_style style, uint32_t query,
                             uint32_t kv_len)
{
    switch (style) {
    case POSITIONS_SHIFTED: return (int32_t)(query + kv_len / 3);
    case POSITIONS_ANY: return (int32_t)dice_between(dice, 0, kv_len + 10);
    case POSITIONS_REPEATED: return (int32_t)(kv_len / 2 + query / 3);
    default:
        return dice_chance(dice, 10) ? INT32_MAX : (int32_t)(kv_len + dice_below(dice, 1000000));
    }
}

static bool seq_draw_positions(struct attention_case *problem, struct attention_seq *seq)
{
    enum position_style style = dice_below(&problem->dice, POSITIONS_STYLES);
    seq->positions = calloc(seq->q_len + 1, sizeof *seq->positions);
    for (uint32_t i = 0; seq->positions && i < seq->q_len; i++)
        seq->positions[i] = position_draw(&problem->dice, style, i, seq->kv_len);
    return seq->positions != NULL;
}

// Positions come first: they turn the fresh keys.
bool attention_seq_fill(struct attention_case *problem, struct attention_seq *seq,
                        uint32_t shared_keys)
{
    uint32_t features = problem->parameters[0].features | problem->parameters[1].features;
    if ((features & FEATURE_POSITIONS) && !seq_draw_positions(problem, seq))
        return false;
    seq_fill_kv(problem, seq, shared_keys);
    return true;
}

// ---- queries ----

enum query_style { QUERIES_RANDOM, QUERIES_FLAT, QUERIES_ZERO, QUERIES_PEAKED, QUERIES_STYLES };

// What the device will read for element d of a key.
static float key_value(const struct attention_case *problem, const struct attention_seq *seq,
                       uint32_t head, uint32_t key, uint32_t d)
{
    const struct attention_shape *shape = &problem->shape;
    uint32_t at = key % shape->kv.block_size;
    const uint8_t *block = problem->after[seq->blocks[key / shape->kv.block_size]];
    float scale = 1;
    if (shape->kv.scale_mode == SCALE_PER_TOKEN_HEAD && shape_scaled(shape, false))
        memcpy(&scale, block + block_scale_at(shape, head, at, false), sizeof scale);
    else if (shape_scaled(shape, false))
        scale = problem->parameters[0].k_scale;
    return scale *
           (float)oracle_load(block + block_row_at(shape, head, at, false), shape->kv.k_dtype, d);
}

// A peaked query points along one key, which then outweighs the others.
static void row_draw(struct attention_case *problem, const struct attention_seq *seq,
                     uint32_t kv_head, uint64_t first, enum query_style style)
{
    const struct attention_shape *shape = &problem->shape;
    struct dice *dice = &problem->dice;
    uint32_t key = dice_below(dice, seq->kv_len ? seq->kv_len : 1);
    bool peaked = style == QUERIES_PEAKED && seq->kv_len > 0;
    float factor = (float)dice_between(dice, 6, 16) / (shape->scale * (float)shape->kv.head_dim_k);
    for (uint32_t d = 0; d < shape->kv.head_dim_k; d++) {
        float element = dice_normal(dice);
        if (peaked)
            element = factor * key_value(problem, seq, kv_head, key, d);
        else if (style == QUERIES_FLAT || style == QUERIES_ZERO)
            element *= style == QUERIES_FLAT ? 0.01f : 0;
        oracle_store(seq->q, shape->io_dtype, first + d, element);
    }
}

static bool seq_draw_queries(struct attention_case *problem, struct attention_seq *seq)
{
    const struct attention_shape *shape = &problem->shape;
    uint32_t heads = shape_heads(shape);
    seq->q = malloc(
        (uint64_t)seq->q_len * heads * shape->kv.head_dim_k * dtype_size((int)shape->io_dtype) + 1);
    if (!seq->q)
        return false;
    for (uint32_t row = 0; row < seq->q_len * heads; row++)
        row_draw(problem, seq, row % heads / shape->group, (uint64_t)row * shape->kv.head_dim_k,
                 dice_below(&problem->dice, QUERIES_STYLES));
    return true;
}

// Rows that see all, none, one key, or some share of the keys.
static void mask_row_draw(struct dice *dice, uint8_t *mask, uint64_t first, uint32_t kv_len)
{
    static const uint32_t PERCENT[] = {0, 100, 10, 50, 50, 90};
    uint32_t percent = PERCENT[dice_below(dice, COUNT(PERCENT))];
    uint32_t only = percent == 0 && dice_chance(dice, 50) ? dice_below(dice, kv_len) : kv_len;
    for (uint32_t key = 0; key < kv_len; key++)
        if (key == only || dice_chance(dice, percent))
            mask[(first + key) / 8] |= (uint8_t)(1u << (first + key) % 8);
}

uint64_t attention_mask_bytes(const struct attention_seq *seq, uint32_t rows)
{
    return ((uint64_t)rows * seq->kv_len + 7) / 8;
}

static bool seq_draw_mask(struct attention_case *problem, struct attention_seq *seq)
{
    seq->mask = calloc(attention_mask_bytes(seq, seq->q_len) + 1, 1);
    for (uint32_t i = 0; seq->mask && seq->kv_len && i < seq->q_len; i++)
        mask_row_draw(&problem->dice, seq->mask, (uint64_t)i * seq->kv_len, seq->kv_len);
    return seq->mask != NULL;
}

bool attention_seq_ask(struct attention_case *problem, struct attention_seq *seq)
{
    uint32_t features = problem->parameters[0].features | problem->parameters[1].features;
    return seq_draw_queries(problem, seq) &&
           (!(features & FEATURE_MASK) || seq_draw_mask(problem, seq));
}
