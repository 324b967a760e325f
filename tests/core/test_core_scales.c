// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_scales.c - numbers of special runs over the pool: scales of 8-bit types, RoPE, and
// splits.

#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/run_world.h"

#include <float.h>
#include <math.h>
#include <string.h>

// ---- scales ----

START_TEST(scales_are_given_for_8_bits_a_tensor_and_nothing_else)
{
    struct core_layout plain = layout_of(8), scaled = layout_of(8);
    scaled.kv.k_dtype = DTYPE_FP8_E5M2;
    scaled.kv.scale_mode = SCALE_PER_TENSOR; // V stays f16
    struct core_run_params none = over_blocks(local_blocks(&plain, false), ENGINE_ATTEND);
    struct core_run_params some = over_blocks(local_blocks(&scaled, false), ENGINE_ATTEND);
    some.keys.dtype = DTYPE_FP8_E5M2;
    some.keys.token_stride = 16;
    REFUSED(none, p.k_scale = 1.0f, STATUS_INVALID,
            "k_scale is given, but K and V have scale_mode 0");
    REFUSED(none, p.v_scale = NAN, STATUS_INVALID,
            "v_scale is given, but K and V have scale_mode 0");
    REFUSED(some, p.v_scale = 1.0f, STATUS_INVALID,
            "v_scale is given, but v_dtype f16 is not scaled");
    REFUSED(some, p.k_scale = -1.0f, STATUS_INVALID, "k_scale is -1");
    REFUSED(some, p.k_scale = NAN, STATUS_INVALID, "k_scale is nan");
    REFUSED(some, p.k_scale = INFINITY, STATUS_INVALID, "k_scale is inf");
    REFUSED(some, p.k_scale = 1e-45f, STATUS_INVALID, "it and its inverse must be finite");
    ACCEPTED(some, p.k_scale = 1e-38f);
    uint64_t ticket;
    ck_assert_status(core_run(a.session, &some, &ticket, &error), STATUS_OK);
    world_step(&world);
    ck_assert_float_eq(fake_engine_oldest(world.engine)->runs[0].run.k_scale, 1.0f); // the default
    world_finish_all(&world);
}
END_TEST

// Three layers over K and V of 8 bits. The layers share all tensors except `out`.
static struct core_run_params three_layers(bool v_is_k_prefix)
{
    struct core_layout layout = layout_of(8);
    layout.kv.k_dtype = layout.kv.v_dtype = DTYPE_INT8;
    layout.kv.head_dim_k = layout.kv.head_dim_v = 16;
    layout.kv.v_is_k_prefix = v_is_k_prefix;
    layout.kv.scale_mode = SCALE_PER_TENSOR;
    struct core_run_params p = over_blocks(local_blocks(&layout, false), ENGINE_ATTEND);
    p.keys.dtype = p.values.dtype = DTYPE_INT8;
    p.q.token_stride = p.out.token_stride = 32;
    p.layers = (struct wire_layers){.num_layers = 3, .out = 512};
    return p;
}

// What the engine gets, layer by layer. The caller's arrays are gone by then.
static void expect_scales(struct core_run_params params, const float *k, const float *v)
{
    const size_t size = params.layers.num_layers * sizeof(float);
    float given[2][3];
    uint64_t ticket;
    if (params.k_scales)
        params.k_scales = memcpy(given[0], params.k_scales, size);
    if (params.v_scales)
        params.v_scales = memcpy(given[1], params.v_scales, size);
    ck_assert_status(core_run(a.session, &params, &ticket, &error), STATUS_OK);
    memset(given, 0xff, sizeof given);
    world_step(&world);
    const struct fake_submission *s = fake_engine_newest(world.engine);
    ck_assert_uint_eq(s->num_runs, params.layers.num_layers);
    for (uint32_t i = 0; i < s->num_runs; i++) {
        ck_assert_float_eq(s->runs[i].run.k_scale, k[i]);
        ck_assert_float_eq(s->runs[i].run.v_scale, v[i]);
    }
    world_finish_all(&world);
    worker_reap(&a, ticket, STATUS_OK);
}

START_TEST(layers_have_scales_of_their_own_where_they_are_given)
{
    const float k[] = {0.5f, 0, 2}, v[] = {3, 4, 0};
    struct core_run_params p = three_layers(false);
    p.k_scale = 7;
    p.v_scale = 8;
    expect_scales(p, (const float[]){7, 7, 7}, (const float[]){8, 8, 8});
    p.k_scales = k;
    expect_scales(p, (const float[]){0.5f, 1, 2}, (const float[]){8, 8, 8});
    p.k_scales = NULL;
    p.v_scales = v;
    expect_scales(p, (const float[]){7, 7, 7}, (const float[]){3, 4, 1});
    p.k_scales = k;
    p.layers.num_layers = 1;
    expect_scales(p, (const float[]){0.5f}, (const float[]){3});
    p = three_layers(true); // V is a part of K
    p.k_scales = k;
    expect_scales(p, (const float[]){0.5f, 1, 2}, (const float[]){0.5f, 1, 2});
}
END_TEST

START_TEST(an_invalid_scale_is_named_with_its_layer)
{
    const float none[] = {0, 0, 0}, bad[] = {1, 1, NAN}, negative[] = {1, -1, 1},
                tiny[] = {1e-45f, 1, 1};
    const float large[] = {1, 1e30f, 1}, inf[] = {1, 1, INFINITY};
    struct core_run_params good = three_layers(false), prefix = three_layers(true);
    struct core_run_params plain = run_of(worker_batch(&a, blocks, 8, 8), ENGINE_ATTEND);
    REFUSED(good, p.k_scales = bad, STATUS_INVALID,
            "k_scales[2] is nan; it and its inverse must be finite");
    REFUSED(good, p.v_scales = bad, STATUS_INVALID, "v_scales[2] is nan");
    REFUSED(good, p.v_scales = inf, STATUS_INVALID, "v_scales[2] is inf");
    REFUSED(good, p.k_scales = negative, STATUS_INVALID, "k_scales[1] is -1");
    REFUSED(good, p.v_scales = tiny, STATUS_INVALID, "v_scales[0] is 1.4013e-45");
    REFUSED(good, (p.k_scales = large, p.scale = 1e9f), STATUS_INVALID,
            "scale is 1e+09 and k_scales[1] 1e+30; their product must be finite");
    REFUSED(prefix, p.v_scales = negative, STATUS_INVALID,
            "v_scales[0] is given, but V is a part of K");
    REFUSED(plain, p.k_scales = large, STATUS_INVALID,
            "k_scales[0] is given, but K and V have scale_mode 0");
    ACCEPTED(good, (p.v_scales = large, p.scale = 1e9f));        // scores do not contain V's scale
    ACCEPTED(good, (p.layers.num_layers = 2, p.k_scales = bad)); // there is no third
    ACCEPTED(prefix, p.v_scales = none);
    ACCEPTED(plain, p.k_scales = p.v_scales = none);
}
END_TEST

static float next(float value)
{
    return nextafterf(value, INFINITY);
}

// FLT_MAX / log2(e), rounded down: the largest value that the shaders' f32 can hold.
START_TEST(a_scale_that_log2_of_e_makes_infinite_is_refused_with_its_value)
{
    const float most = 0x1.62e42ep127f, slope = 3e38f, bad[] = {0, -3e38f},
                none[] = {-INFINITY, -most};
    struct core_layout scaled = layout_of(8);
    scaled.kv.k_dtype = DTYPE_INT8;
    scaled.kv.head_dim_k = 16;
    scaled.kv.scale_mode = SCALE_PER_TENSOR;
    const struct core_run_params good = run_of(worker_batch(&a, blocks, 8, 8), ENGINE_ATTEND);
    ACCEPTED(good, p.scale = most);
    REFUSED(good, p.scale = next(most), STATUS_INVALID, "scale is 2.35866e+38");
    REFUSED(good, p.scale = -3e38f, STATUS_INVALID,
            "scale is -3e+38; it must be finite in f32, also times log2(e)");
    REFUSED(good, p.scale = NAN, STATUS_INVALID, "scale is nan");
    ACCEPTED(good, p.slopes = &most);
    REFUSED(good, p.slopes = &slope, STATUS_INVALID, "slopes[0] is 3e+38");
    REFUSED(good, (p.num_heads = 2, p.slopes = bad), STATUS_INVALID, "slopes[1] is -3e+38");
    REFUSED(good, (p.num_heads = 2, p.sinks = bad), STATUS_INVALID, "sinks[1] is -3e+38");
    REFUSED(good, p.slopes = none, STATUS_INVALID, "slopes[0] is -inf");
    ACCEPTED(good, (p.num_heads = 2, p.q.token_stride = p.out.token_stride = 32, p.sinks = none));
    ACCEPTED(good, p.soft_cap = most);
    ACCEPTED(good, p.soft_cap = FLT_MIN);
    REFUSED(good, p.soft_cap = next(most), STATUS_INVALID, "logits_soft_cap is 2.35866e+38");
    REFUSED(good, p.soft_cap = FLT_MIN / 2, STATUS_INVALID, "at least 2^-126");
    REFUSED(good, p.soft_cap = -1, STATUS_INVALID, "logits_soft_cap is -1");
    struct core_run_params over = over_blocks(local_blocks(&scaled, false), ENGINE_ATTEND);
    over.keys.dtype = DTYPE_INT8;
    over.q.token_stride = 32;
    ACCEPTED(over, p.k_scale = most); // times 1 / 4
    REFUSED(over, (p.k_scale = 1e30f, p.scale = 1e9f), STATUS_INVALID,
            "scale is 1e+09 and k_scale 1e+30; their product must be finite");
    REFUSED(over, (p.k_scale = 1e30f, p.scale = -1e9f), STATUS_INVALID,
            "scale is -1e+09 and k_scale 1e+30");
}
END_TEST

// ---- RoPE and splits ----

START_TEST(each_part_of_rope_has_its_range)
{
    const double fine[] = {1.0, 0.5}, nan[] = {1.0, NAN}, inf[] = {INFINITY, 1.0};
    struct core_run_params good = run_of(worker_batch(&a, blocks, 8, 8), ENGINE_ATTEND);
    REFUSED(good, p.rope.dim = 3, STATUS_INVALID,
            "rope.dim is 3; it must be even and at most head_dim_k 8");
    REFUSED(good, p.rope.dim = 10, STATUS_INVALID, "rope.dim is 10");
    REFUSED(good, p.rope.theta = 10000.0f, STATUS_INVALID,
            "rope.theta is given, but rope.dim is 0");
    REFUSED(good, p.rope.interleaved = true, STATUS_INVALID, "rope.interleaved is given");
    REFUSED(good, p.rope.frequencies = fine, STATUS_INVALID, "rope.frequencies is given");
    REFUSED(good, (p.rope.dim = 4, p.rope.theta = -1.0f), STATUS_INVALID, "rope.theta is -1.0");
    REFUSED(good, (p.rope.dim = 4, p.rope.theta = NAN), STATUS_INVALID, "rope.theta is nan");
    REFUSED(good, (p.rope.dim = 4, p.rope.theta = INFINITY), STATUS_INVALID, "rope.theta is inf");
    REFUSED(good, (p.rope.dim = 4, p.rope.frequencies = nan), STATUS_INVALID,
            "rope.frequencies[1] is nan");
    REFUSED(good, (p.rope.dim = 4, p.rope.frequencies = inf), STATUS_INVALID,
            "rope.frequencies[0] is inf");
    ACCEPTED(good, (p.rope.dim = 2, p.rope.frequencies = inf + 1));
    struct core_run_params writes = run_of(writer(0), ENGINE_WRITE);
    REFUSED(writes, p.rope.dim = 4, STATUS_INVALID,
            "has neither seq_lens_kv nor positions to turn by");
    const int32_t positions[] = {7};
    const int64_t slots[] = {blocks[3] * 8};
    uint64_t placed = create(&(struct core_batch_params){.cache = a.cache,
                                                         .slot_mapping = slots,
                                                         .num_slot_mapping = 1,
                                                         .positions = positions,
                                                         .num_positions = 1});
    ACCEPTED(run_of(placed, ENGINE_WRITE), p.rope.dim = 4);
}
END_TEST

START_TEST(rope_reaches_the_engine_and_frequencies_are_copied)
{
    double frequencies[] = {1.0, 0.5, 0.25, 0.125};
    const float slope = 0.5f, sink = 0.25f;
    struct core_run_params p = run_of(worker_batch(&a, blocks, 8, 8), ENGINE_ATTEND);
    uint64_t ticket;
    p.rope = (struct engine_rope){.dim = 8, .interleaved = true, .frequencies = frequencies};
    p.slopes = &slope;
    p.sinks = &sink;
    ck_assert_status(core_run(a.session, &p, &ticket, &error), STATUS_OK);
    p.rope = (struct engine_rope){.dim = 6, .theta = 500000.0f};
    ck_assert_status(core_run(a.session, &p, &ticket, &error), STATUS_OK);
    p.rope = (struct engine_rope){.dim = 6};
    ck_assert_status(core_run(a.session, &p, &ticket, &error), STATUS_OK);
    memset(frequencies, 0xff, sizeof(frequencies));
    world_step(&world);
    const struct fake_submission *s = fake_engine_oldest(world.engine);
    ck_assert_uint_eq(s->num_runs, 3);
    ck_assert_uint_eq(s->runs[0].run.rope.dim, 8);
    ck_assert(s->runs[0].run.rope.interleaved);
    ck_assert_double_eq(s->runs[0].run.rope.frequencies[3], 0.125);
    ck_assert_float_eq(s->runs[0].run.slopes[0], 0.5f);
    ck_assert_float_eq(s->runs[0].run.sinks[0], 0.25f);
    ck_assert_float_eq(s->runs[1].run.rope.theta, 500000.0f);
    ck_assert_ptr_null(s->runs[1].run.rope.frequencies);
    ck_assert_float_eq(s->runs[2].run.rope.theta, 10000.0f);
    world_finish_all(&world);
}
END_TEST

START_TEST(any_number_of_splits_that_the_engine_has_room_for)
{
    struct core_run_params good = run_of(worker_batch(&a, blocks, 8, 8), ENGINE_ATTEND);
    fake_engine_limit_splits(world.engine, 100);
    ACCEPTED(good, p.num_splits = 99);
    REFUSED(good, p.num_splits = 100, STATUS_LIMIT, "--max-scratch");
    ck_assert_int_eq((int)worker_block(&a, blocks[0]).batch_refs, 1);
    ACCEPTED(good, (p.kind = ENGINE_WRITE, p.num_splits = 100)); // a write has none
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core scales");
    check_case(
        suite, "parameters", open_one, close_one,
        (const TTest *const[]){scales_are_given_for_8_bits_a_tensor_and_nothing_else,
                               layers_have_scales_of_their_own_where_they_are_given,
                               an_invalid_scale_is_named_with_its_layer,
                               a_scale_that_log2_of_e_makes_infinite_is_refused_with_its_value,
                               each_part_of_rope_has_its_range,
                               rope_reaches_the_engine_and_frequencies_are_copied,
                               any_number_of_splits_that_the_engine_has_room_for, NULL},
        1);
    return check_main(suite);
}
