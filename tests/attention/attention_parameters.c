// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_parameters.c - see attention_parameters.h. Every feature has its values, whether its
// bit is set or not.

#include "attention_parameters.h"

#include "oracle/numbers.h"

#include <math.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

uint32_t shape_heads(const struct attention_shape *shape)
{
    return shape->kv.num_kv_heads * shape->group;
}

uint64_t shape_k_bytes(const struct attention_shape *shape)
{
    return (uint64_t)shape->kv.head_dim_k * dtype_size((int)shape->kv.k_dtype);
}

uint64_t shape_v_bytes(const struct attention_shape *shape)
{
    return (uint64_t)shape->kv.head_dim_v * dtype_size((int)shape->kv.v_dtype);
}

static int32_t window_draw(struct dice *dice, uint32_t block_size)
{
    const int32_t choices[] = {-1,
                               0,
                               1,
                               (int32_t)block_size - 1,
                               (int32_t)block_size,
                               (int32_t)dice_below(dice, 100),
                               (int32_t)dice_below(dice, 1500),
                               INT32_MAX};
    return choices[dice_below(dice, COUNT(choices))];
}

static uint32_t chunk_draw(struct dice *dice, uint32_t block_size)
{
    const uint32_t choices[] = {1,
                                block_size,
                                block_size + 1,
                                1 + dice_below(dice, 100),
                                1 + dice_below(dice, 1500),
                                UINT32_MAX};
    return choices[dice_below(dice, COUNT(choices))];
}

// So that values of about 1 use the type's range, or are too large for it now and then.
static float scale_draw(struct dice *dice, enum dtype dtype)
{
    static const float REACH[] = {3, 3, 1.5f, 10};
    float reach = REACH[dice_below(dice, COUNT(REACH))] *
                  (0.9f + 0.2f * (float)dice_below(dice, 1000) / 1000);
    return reach / numbers_largest(dtype);
}

// Frequencies as models scale them, and some that only the contract allows: more than a turn a
// position, none, backwards.
static void rope_draw(struct dice *dice, const struct attention_shape *shape,
                      struct attention_parameters *parameters)
{
    static const float THETAS[] = {10000, 500000, 1000000, 3};
    static const double ODD[] = {0, 7.5, -0.3, 1000};
    uint32_t dim = shape->kv.head_dim_k;
    const uint32_t dims[] = {dim, dim, dim / 2, 2, dim - 2};
    parameters->rope_dim = dims[dice_below(dice, COUNT(dims))];
    parameters->theta = THETAS[dice_below(dice, COUNT(THETAS))];
    parameters->by_frequencies = dice_chance(dice, 40);
    for (uint32_t n = 0; n < parameters->rope_dim / 2; n++) {
        double usual = pow((double)parameters->theta, -2.0 * n / parameters->rope_dim);
        parameters->frequencies[n] = dice_chance(dice, 10)
                                         ? ODD[dice_below(dice, COUNT(ODD))]
                                         : usual * (dice_chance(dice, 50) ? 1 : 0.125);
    }
}

struct attention_parameters attention_parameters_draw(struct dice *dice,
                                                      const struct attention_shape *shape,
                                                      uint32_t features)
{
    static const float CAPS[] = {1, 5, 30, 50};
    struct attention_parameters parameters = {
        .features = features,
        .causal = shape->causal,
        .window_left = window_draw(dice, shape->kv.block_size),
        .window_right = window_draw(dice, shape->kv.block_size),
        .attention_chunk = chunk_draw(dice, shape->kv.block_size),
        .soft_cap = CAPS[dice_below(dice, COUNT(CAPS))],
        .num_splits = shape->num_splits,
        .k_scale = scale_draw(dice, shape->kv.k_dtype),
        .v_scale = scale_draw(dice, shape->kv.v_dtype),
    };
    for (uint32_t head = 0; head < MAX_HEADS; head++) {
        parameters.slopes[head] = ldexpf(1, -(int)dice_below(dice, 10));
        parameters.sinks[head] = dice_normal(dice) * (dice_chance(dice, 20) ? 8 : 2);
    }
    rope_draw(dice, shape, &parameters);
    return parameters;
}
