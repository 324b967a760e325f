// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_parameters.c - rules for the tensors and parameters of a run of attention over the
// pool, field by field, and that the engine gets them unchanged. Other kinds of runs, and K and V
// in the arena: test_core_run.c.

#include "core/pool/session.h"
#include "rigs/check_main.h"
#include "rigs/scheduler_world.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define REFUSED(change, status, text)                                                              \
    do {                                                                                           \
        struct core_run_params p = worker_run_params(&a, batch_a, 0, 8, tokens);                   \
        uint64_t none_ = 0;                                                                        \
        p.entry.q.offset = 0, p.entry.k.offset = 4096, p.entry.v.offset = 8192,                    \
        p.entry.out.offset = 16384;                                                                \
        change;                                                                                    \
        ck_assert_refused(core_run(a.session, &p, &none_, &error), status, text);                  \
        ck_assert_uint_eq(none_, 0);                                                               \
    } while (0)

#define ACCEPTED(change)                                                                           \
    do {                                                                                           \
        struct core_run_params p = worker_run_params(&a, batch_a, 0, 8, tokens);                   \
        uint64_t ticket_ = 0;                                                                      \
        p.entry.q.offset = 0, p.entry.k.offset = 4096, p.entry.v.offset = 8192,                    \
        p.entry.out.offset = 16384;                                                                \
        change;                                                                                    \
        ck_assert_status(core_run(a.session, &p, &ticket_, &error), STATUS_OK);                    \
        world_finish_all(&world);                                                                  \
        worker_reap(&a, ticket_, STATUS_OK);                                                       \
    } while (0)

START_TEST(each_kind_of_bad_run_has_its_status_and_a_sentence_with_the_values)
{
    REFUSED(p.entry.batch = 999, STATUS_NOT_FOUND, "no batch 999");
    REFUSED(p.entry.batch = batch_b, STATUS_NOT_FOUND, "no batch"); // a batch of another session
    REFUSED(p.entry.layer = 2, STATUS_OUT_OF_RANGE, "layer 2 of a cache with 2");
    REFUSED(p.entry.num_heads = 0, STATUS_INVALID, "num_heads 0");
    REFUSED(p.entry.scale = NAN, STATUS_INVALID, "scale is");
    REFUSED(p.entry.scale = INFINITY, STATUS_INVALID, "scale is inf");
    REFUSED(p.entry.q.memory = 2, STATUS_UNSUPPORTED, "q lies in memory kind 2");
    REFUSED(p.entry.k.dtype = DTYPE_F32, STATUS_MISMATCH, "k is f32, but out is f16");
    REFUSED(p.entry.v.dtype = 99, STATUS_INVALID, "v has dtype 99");
    REFUSED(p.entry.out.dtype = DTYPE_INT8, STATUS_UNSUPPORTED,
            "out is int8; it may be f32, f16 or bf16");
    REFUSED(p.entry.q.offset = 8, STATUS_MISALIGNED, "offset 8");
    REFUSED(p.entry.k.token_stride = 24, STATUS_MISALIGNED, "token stride 24");
    REFUSED(p.entry.out.head_stride = 4, STATUS_MISALIGNED, "head stride 4");
    REFUSED(p.entry.out.offset = WORLD_ARENA - 112, STATUS_OUT_OF_RANGE,
            "ends past the arena's 1048576");
    REFUSED(p.entry.q.offset = UINT64_MAX - 15, STATUS_OUT_OF_RANGE, "q at 18446744073709551600");
    REFUSED(p.entry.q.token_stride = UINT64_MAX - 15, STATUS_OUT_OF_RANGE, "q at 0");
    REFUSED(p.entry.v.token_stride = (uint64_t)1 << 62, STATUS_OUT_OF_RANGE,
            "v at"); // times 4 it would wrap to 0
    REFUSED(p.entry.out.token_stride = 0, STATUS_INVALID, "out's rows of 16 bytes overlap");
    REFUSED((p.entry.num_heads = 2, p.entry.out.head_stride = 0), STATUS_INVALID, "overlap");
    REFUSED((p.entry.num_heads = 2, p.entry.out.head_stride = 16, p.entry.out.token_stride = 16),
            STATUS_INVALID, "overlap");
    REFUSED(p.entry.out.offset = 112, STATUS_INVALID, "out at 112 overlaps q at 0");
    REFUSED(p.entry.out = p.entry.v, STATUS_INVALID, "out at 8192 overlaps v");
    ck_assert_uint_eq(run(&a, 0), 1); // the session still works, and no ticket was used
}
END_TEST

START_TEST(a_stride_beyond_what_the_engine_counts_is_refused)
{
    a.session->arena_size = UINT64_C(1) << 42; // no byte of it is touched
    fake_engine_widen_arena(a.arena, a.session->arena_size);
    const uint64_t most = (uint64_t)UINT32_MAX * 16;
    REFUSED(p.entry.q.token_stride = most + 16, STATUS_OUT_OF_RANGE,
            "q has a stride of 68719476736 bytes");
    REFUSED((p.entry.num_heads = 2, p.entry.out.head_stride = most + 16), STATUS_OUT_OF_RANGE,
            "out has a stride of 68719476736");
    REFUSED((p.entry.lse =
                 (struct wire_tensor){.dtype = DTYPE_F32, .offset = 20480, .token_stride = most}),
            STATUS_OUT_OF_RANGE, "lse has a stride of 68719476720 bytes; at most 17179869180");
    ACCEPTED(p.entry.q.token_stride = most);
    ACCEPTED(p.entry.q.head_stride = most + 16); // there is one head, so its stride has no meaning
}
END_TEST

START_TEST(heads_must_divide)
{
    struct core_cache_identity identity = world_identity("grouped");
    struct core_cache_info info;
    identity.kv.num_kv_heads = 4;
    ck_assert_status(core_cache_open(a.session, &identity, &info, &error), STATUS_OK);
    a.cache = info.cache;
    int32_t block;
    worker_lease(&a, 1, &block);
    uint64_t batch = worker_batch(&a, &block, 8, 8);
    REFUSED((p.entry.batch = batch, p.entry.num_heads = 6), STATUS_INVALID,
            "num_heads 6 is not a multiple of the cache's 4");
}
END_TEST

START_TEST(rows_may_lie_in_any_order_that_does_not_overlap)
{
    ACCEPTED(p.entry.out.offset = WORLD_ARENA - 128); // to the last byte
    ACCEPTED((p.entry.q.token_stride = 0,
              p.entry.num_heads = 1)); // one query for all: tensors that are read may overlap
    ACCEPTED((p.entry.num_heads = 3, p.entry.out.head_stride = 16,
              p.entry.out.token_stride = 48)); // [tokens, heads]
    ACCEPTED((p.entry.num_heads = 3, p.entry.out.head_stride = 128,
              p.entry.out.token_stride = 16)); // [heads, tokens]
    ACCEPTED(p.entry.out.head_stride = 0);     // there is one head, so its stride has no meaning
}
END_TEST

START_TEST(slices_of_one_fused_tensor_interleave_without_overlapping)
{
    // [8 tokens][q 2 heads | k | v | out 2 heads], 16 bytes a head
    ACCEPTED((p.entry.num_heads = 2,
              p.entry.q.token_stride = p.entry.k.token_stride = p.entry.v.token_stride =
                  p.entry.out.token_stride = 96,
              p.entry.q.offset = 0, p.entry.k.offset = 32, p.entry.v.offset = 48,
              p.entry.out.offset = 64));
    // out begins one head too early: its first head is v
    REFUSED((p.entry.num_heads = 2,
             p.entry.q.token_stride = p.entry.k.token_stride = p.entry.v.token_stride =
                 p.entry.out.token_stride = 96,
             p.entry.q.offset = 0, p.entry.k.offset = 32, p.entry.v.offset = 48,
             p.entry.out.offset = 48),
            STATUS_INVALID, "overlaps v");
    // out has a stride that reaches into the next token's q
    REFUSED((p.entry.num_heads = 2,
             p.entry.q.token_stride = p.entry.k.token_stride = p.entry.v.token_stride =
                 p.entry.out.token_stride = 96,
             p.entry.q.offset = 0, p.entry.k.offset = 32, p.entry.v.offset = 48,
             p.entry.out.offset = 80),
            STATUS_INVALID, "overlaps q");
    // other strides, but q is dense and out overlaps it
    REFUSED((p.entry.q.offset = 0, p.entry.out.offset = 64, p.entry.out.token_stride = 160),
            STATUS_INVALID, "overlaps q");
    // other strides: out lies in the gaps of q
    ACCEPTED((p.entry.q.offset = 0, p.entry.q.token_stride = 256, p.entry.out.offset = 16,
              p.entry.out.token_stride = 16));
    // without K/V writes, k and v are not checked
    uint64_t reader = make_reader(&a, blocks[0], 8, 8);
    ACCEPTED((p.entry.batch = reader, p.entry.k = (struct wire_tensor){.offset = UINT64_MAX},
              p.entry.v = p.entry.out));
}
END_TEST

START_TEST(each_parameter_of_attention_has_its_range)
{
    const float plain[] = {1.0f}, none[] = {-INFINITY}, nan[] = {NAN}, inf[] = {INFINITY};
    REFUSED(p.entry.window_left = -2, STATUS_INVALID, "window_left -2, window_right -1");
    REFUSED(p.entry.window_right = INT32_MIN, STATUS_INVALID, "window_right -2147483648");
    REFUSED(p.entry.logits_soft_cap = -1, STATUS_INVALID, "logits_soft_cap is -1;");
    REFUSED(p.entry.logits_soft_cap = NAN, STATUS_INVALID, "logits_soft_cap is nan");
    REFUSED(p.entry.logits_soft_cap = INFINITY, STATUS_INVALID, "logits_soft_cap is inf");
    REFUSED(p.slopes = nan, STATUS_INVALID, "slopes[0] is nan");
    REFUSED(p.slopes = inf, STATUS_INVALID, "slopes[0] is inf");
    REFUSED(p.slopes = none, STATUS_INVALID, "slopes[0] is -inf");
    REFUSED(p.sinks = nan, STATUS_INVALID, "sinks[0] is nan");
    REFUSED(p.sinks = inf, STATUS_INVALID, "sinks[0] is inf");
    ACCEPTED((p.entry.window_left = p.entry.window_right = -1));
    ACCEPTED((p.entry.window_left = p.entry.window_right = INT32_MAX));
    ACCEPTED((p.slopes = plain, p.sinks = none, p.entry.logits_soft_cap = FLT_MIN));
}
END_TEST

static struct wire_tensor lse_at(uint64_t offset, uint64_t token_stride, uint64_t head_stride)
{
    return (struct wire_tensor){.dtype = DTYPE_F32,
                                .offset = offset,
                                .token_stride = token_stride,
                                .head_stride = head_stride};
}

START_TEST(lse_is_an_output_of_its_own_type_and_place)
{
    REFUSED((p.entry.lse = lse_at(20480, 16, 0), p.entry.lse.dtype = DTYPE_F16), STATUS_MISMATCH,
            "lse is f16; it must be f32");
    REFUSED((p.entry.lse = lse_at(20480, 16, 0), p.entry.lse.dtype = 77), STATUS_INVALID,
            "lse has dtype 77");
    REFUSED((p.entry.lse = lse_at(20480, 16, 0), p.entry.lse.memory = 2), STATUS_UNSUPPORTED,
            "lse lies in memory kind 2");
    REFUSED(p.entry.lse = lse_at(20482, 16, 0), STATUS_MISALIGNED, "lse has offset 20482");
    REFUSED(p.entry.lse = lse_at(20480, 6, 0), STATUS_MISALIGNED,
            "outer stride 0: each must be a multiple of 4");
    REFUSED(p.entry.lse = lse_at(20480, 16, 16), STATUS_INVALID, "lse has head stride 16");
    REFUSED(p.entry.lse = lse_at(20480, 0, 4), STATUS_INVALID, "lse's rows of 4 bytes overlap");
    REFUSED((p.entry.num_heads = 5, p.entry.q.head_stride = 16,
             p.entry.q.token_stride = p.entry.out.token_stride = 80, p.entry.out.head_stride = 16,
             p.entry.lse = lse_at(20480, 16, 4)),
            STATUS_INVALID, "lse's rows of 20 bytes overlap");
    REFUSED(p.entry.lse = lse_at(WORLD_ARENA - 112, 16, 4), STATUS_OUT_OF_RANGE, "lse at 1048464");
    REFUSED(p.entry.lse = lse_at(0, (uint64_t)1 << 62, 4), STATUS_OUT_OF_RANGE, "lse at 0");
    REFUSED(p.entry.lse = lse_at(64, 16, 4), STATUS_INVALID, "lse at 64 overlaps q at 0");
    REFUSED(p.entry.lse = lse_at(4096, 16, 4), STATUS_INVALID, "lse at 4096 overlaps k at 4096");
    REFUSED(p.entry.lse = lse_at(8192 + 112, 16, 4), STATUS_INVALID, "overlaps v at 8192");
    REFUSED(p.entry.lse = lse_at(16384, 16, 4), STATUS_INVALID,
            "out at 16384 overlaps lse at 16384");
    ACCEPTED(p.entry.lse = lse_at(20480, 16, 4));
    ACCEPTED(p.entry.lse =
                 lse_at(WORLD_ARENA - 128, 16, 0)); // the last row ends 12 bytes before the arena
    uint64_t reader = make_reader(&a, blocks[0], 8, 8);
    ACCEPTED((p.entry.batch = reader, p.entry.lse = lse_at(4096, 16, 4))); // k is not checked
}
END_TEST

// Eight tokens of one head in 32 bytes, of three in 96.
START_TEST(a_dense_lse_of_any_number_of_heads_is_taken)
{
#define THREE_HEADS                                                                                \
    p.entry.num_heads = 3, p.entry.q.token_stride = p.entry.out.token_stride = 48,                 \
    p.entry.q.head_stride = p.entry.out.head_stride = 16
    ACCEPTED(p.entry.lse = lse_at(20484, 4, 0));
    ACCEPTED(p.entry.lse = lse_at(WORLD_ARENA - 32, 4, 4));
    REFUSED(p.entry.lse = lse_at(WORLD_ARENA - 28, 4, 4), STATUS_OUT_OF_RANGE, "lse at 1048548");
    ACCEPTED((THREE_HEADS, p.entry.lse = lse_at(20484, 12, 4)));
    ACCEPTED((THREE_HEADS, p.entry.lse = lse_at(WORLD_ARENA - 96, 12, 0)));
    ACCEPTED((THREE_HEADS, p.entry.lse = lse_at(4096 - 96, 12, 0)));
    REFUSED((THREE_HEADS, p.entry.lse = lse_at(4096 - 92, 12, 0)), STATUS_INVALID,
            "lse at 4004 overlaps k at 4096");
    REFUSED((THREE_HEADS, p.entry.lse = lse_at(WORLD_ARENA - 92, 12, 0)), STATUS_OUT_OF_RANGE,
            "lse at 1048484");
    REFUSED((THREE_HEADS, p.entry.lse = lse_at(20484, 8, 0)), STATUS_INVALID,
            "lse's rows of 12 bytes overlap");
    REFUSED((THREE_HEADS, p.entry.lse = lse_at(20481, 12, 0)), STATUS_MISALIGNED,
            "lse has offset 20481");
    REFUSED((THREE_HEADS, p.entry.out.offset += 4, p.entry.lse = lse_at(20484, 12, 0)),
            STATUS_MISALIGNED, "a multiple of 16");
#undef THREE_HEADS
}
END_TEST

START_TEST(parameters_reach_the_engine_and_arrays_are_copied)
{
    float slopes[] = {0.5f, 0.25f}, sinks[] = {1.0f, -2.0f};
    struct core_run_params p = worker_run_params(&a, batch_a, 1, 8, tokens);
    uint64_t ticket;
    p.entry.num_heads = 2;
    p.entry.q.token_stride = p.entry.out.token_stride = 32;
    p.entry.q.offset = 4096, p.entry.out.offset = 8192, p.entry.k.offset = 0,
    p.entry.v.offset = 512;
    p.entry.window_left = 3, p.entry.window_right = -1, p.entry.logits_soft_cap = 30.0f;
    p.slopes = slopes, p.sinks = sinks, p.entry.lse = lse_at(20480, 16, 4);
    ck_assert_status(core_run(a.session, &p, &ticket, &error), STATUS_OK);
    p.slopes = NULL;
    ck_assert_status(core_run(a.session, &p, &ticket, &error), STATUS_OK);
    memset(slopes, 0xff, sizeof(slopes));
    memset(sinks, 0xff, sizeof(sinks));
    world_step(&world);
    const struct fake_submission *s = fake_engine_oldest(world.engine);
    const struct engine_run *run = &s->runs[0].run;
    ck_assert(run->windowed);
    ck_assert_int_eq(run->window_left, 3);
    ck_assert_int_eq(run->window_right, -1);
    ck_assert_float_eq(run->soft_cap, 30.0f);
    ck_assert_float_eq(run->slopes[1], 0.25f);
    ck_assert_float_eq(run->sinks[1], -2.0f);
    ck_assert_uint_eq(run->lse.offset, 20480);
    ck_assert_uint_eq(run->lse.token_stride, 16);
    ck_assert_ptr_null(s->runs[1].run.slopes);
    ck_assert_float_eq(s->runs[1].run.sinks[0], 1.0f);
    world_finish_all(&world);
}
END_TEST

START_TEST(a_window_makes_a_run_weigh_less)
{
    ACCEPTED((p.entry.window_left = 1, p.entry.window_right = -1)); // causal: 2 keys a query
    const uint64_t *totals = core_metrics(world.core);
    ck_assert_uint_eq(totals[METRIC_TOKENS_ATTENDED], 16);
    ACCEPTED((p.entry.window_left = 1, p.entry.window_right = -1,
              p.entry.flags &= ~(uint32_t)WIRE_RUN_CAUSAL));
    ck_assert_uint_eq(totals[METRIC_TOKENS_ATTENDED], 16 + 64);
    ACCEPTED((p.entry.window_left = 1, p.entry.window_right = 2,
              p.entry.flags &= ~(uint32_t)WIRE_RUN_CAUSAL));
    ck_assert_uint_eq(totals[METRIC_TOKENS_ATTENDED], 16 + 64 + 32);
    ACCEPTED((p.entry.window_left = INT32_MAX, p.entry.window_right = INT32_MAX,
              p.entry.flags &= ~(uint32_t)WIRE_RUN_CAUSAL));
    ck_assert_uint_eq(totals[METRIC_TOKENS_ATTENDED], 16 + 64 + 32 + 64);
}
END_TEST

START_TEST(scale_is_by_default_one_over_the_root_of_the_head_dimension)
{
    struct core_run_params p = worker_run_params(&a, batch_a, 1, 8, tokens);
    uint64_t ticket;
    ck_assert_status(core_run(a.session, &p, &ticket, &error), STATUS_OK);
    p.entry.scale = 0.25f;
    p.entry.flags &= ~(uint32_t)WIRE_RUN_CAUSAL;
    ck_assert_status(core_run(a.session, &p, &ticket, &error), STATUS_OK);
    world_step(&world);
    const struct fake_submission *s = fake_engine_oldest(world.engine);
    ck_assert_float_eq_tol(s->runs[0].run.scale, 1.0f / sqrtf(8.0f), FLT_EPSILON);
    ck_assert(s->runs[0].run.causal);
    ck_assert_uint_eq(s->runs[0].run.layer, 1);
    ck_assert_float_eq(s->runs[1].run.scale, 0.25f);
    ck_assert(!s->runs[1].run.causal);
    world_finish_all(&world);
}
END_TEST

START_TEST(a_session_without_an_arena_cannot_run)
{
    const struct core_session_params params = {.id = 77, .owner = &c};
    struct core_cache_identity identity = world_identity("kv");
    struct core_cache_info info;
    struct core_session *session;
    const int32_t cu[] = {0, 1}, none[] = {0, 0}, lens[] = {0};
    uint64_t batch, ticket;
    uint32_t made;
    struct world bare;
    struct worker dummy = {.world = &bare};
    world_open(&bare, NULL);
    struct core_session_params bare_params = params;
    bare_params.owner = &dummy;
    ck_assert_status(core_session_open(bare.core, &bare_params, &session, &error), STATUS_OK);
    ck_assert_status(core_cache_open(session, &identity, &info, &error), STATUS_OK);
    struct core_batch_params batch_params = sequences_over(info.cache, 1, cu, lens, NULL, 0);
    ck_assert_refused(world_create(session, &batch_params, &batch, &made, &error),
                      STATUS_OUT_OF_RANGE, "arena of 0 bytes");
    batch_params.cu_seqlens_q = none;
    ck_assert_status(world_create(session, &batch_params, &batch, &made, &error), STATUS_OK);
    const struct core_run_params run_params = {
        .entry = {.batch = batch, .num_heads = 1, .q.dtype = DTYPE_F16, .out.dtype = DTYPE_F16}};
    ck_assert_refused(core_run(session, &run_params, &ticket, &error), STATUS_INVALID,
                      "lies in the arena, but the session has none");
    world_close(&bare);
    ck_assert(dummy.gone);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core parameters");
    check_case(
        suite, "tensors", open_three, close_all,
        (const TTest *const[]){
            each_kind_of_bad_run_has_its_status_and_a_sentence_with_the_values,
            a_stride_beyond_what_the_engine_counts_is_refused, heads_must_divide,
            rows_may_lie_in_any_order_that_does_not_overlap,
            slices_of_one_fused_tensor_interleave_without_overlapping,
            each_parameter_of_attention_has_its_range, lse_is_an_output_of_its_own_type_and_place,
            a_dense_lse_of_any_number_of_heads_is_taken,
            parameters_reach_the_engine_and_arrays_are_copied, a_window_makes_a_run_weigh_less,
            scale_is_by_default_one_over_the_root_of_the_head_dimension,
            a_session_without_an_arena_cannot_run, NULL},
        1);
    return check_main(suite);
}
