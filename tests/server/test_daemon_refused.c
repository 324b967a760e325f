// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_daemon_refused.c - wrong values in each command that core and engine check: one valid
// request, one change, and the expected status and words. After all of them the daemon serves as
// before.

#include "rigs/check_main.h"
#include "rigs/daemon_step.h"
#include "rigs/daemon_suite.h"

#include <math.h>
#include <string.h>

enum { KEYS_AT = 16384, VALUES_AT = 20480, SPANS_AT = 32768, BLOCK_BYTES = BLOCK * ROW };

// A session with a cache, and blocks in each state that a command can find.
static struct world {
    struct raw_client *raw, *other;
    uint64_t cache;
    int32_t written, leased, sealed, foreign; // `foreign` is leased to `other`
    uint64_t batch, rows_batch,
        blocks_batch; // over `written`; over contiguous K and V; over block tensors
} world;

static int32_t seal_a_block(void)
{
    static int32_t tokens[BLOCK] = {1, 2, 3, 4, 5, 6, 7, 8};
    int32_t block = do_step(world.raw, world.cache, 4);
    raw_expect(world.raw,
               &(struct wire_request){.command = WIRE_COMMAND_PREFIX_PUBLISH,
                                      .prefix_publish = {.cache = world.cache,
                                                         .tokens = {tokens, BLOCK},
                                                         .blocks = {&block, 1}}},
               STATUS_OK);
    return block;
}

static void check_refused(const struct wire_request *request, enum status status, const char *words,
                          const char *change)
{
    struct wire_reply reply;
    raw_call(world.raw, request, &reply);
    ck_assert_msg(reply.status == (int)status, "%s: %s (%s), not %s", change,
                  status_name(reply.status), reply.message, status_name((int)status));
    ck_assert_msg(strstr(reply.message, words) != NULL, "%s: \"%s\" lacks \"%s\"", change,
                  reply.message, words);
    ck_assert_int_eq(reply.answer, WIRE_ANSWER_EMPTY);
}

// `valid` makes a request `r`, and `change` changes it.
#define REFUSED(valid, change, status, words)                                                      \
    do {                                                                                           \
        struct wire_request r = (valid);                                                           \
        change;                                                                                    \
        check_refused(&r, status, words, #change);                                                 \
    } while (0)

// ---- batches ----

static const int32_t two_seqs[3] = {0, 4, 8}, lens[2] = {4, 4}, starts[2] = {0, 4};

static struct wire_kv_layout f32_layout(uint32_t block_size)
{
    return (struct wire_kv_layout){.num_kv_heads = 1,
                                   .head_dim_k = DIM,
                                   .head_dim_v = DIM,
                                   .k_dtype = DTYPE_F32,
                                   .v_dtype = DTYPE_F32,
                                   .block_size = block_size,
                                   .num_blocks = block_size ? 3 : 0};
}

// Two sequences of four tokens over contiguous K and V.
static struct wire_request rows_request(void)
{
    return (struct wire_request){.command = WIRE_COMMAND_BATCH_CREATE,
                                 .batch_create = {.has_layout = true,
                                                  .layout = f32_layout(0),
                                                  .num_seqs = 2,
                                                  .cu_seqlens_q = {two_seqs, 3},
                                                  .seq_lens_kv = {lens, 2},
                                                  .kv_starts = {starts, 2}}};
}

// One sequence of eight tokens in block 2 of block tensors.
static struct wire_request blocks_request(void)
{
    static const int32_t block = 2;
    struct wire_request request = fill_request(0, &block, NULL);
    request.batch_create.has_layout = true;
    request.batch_create.layout = f32_layout(BLOCK);
    return request;
}

static struct wire_request pool_request(void)
{
    return fill_request(world.cache, &world.written, NULL);
}

static struct wire_request open_request(void)
{
    return cache_request("refused");
}

static struct wire_ints ints(const int32_t *data, uint32_t count)
{
    return (struct wire_ints){data, count};
}

static void set_up(void)
{
    start(NULL);
    world.raw = raw_session(daemon_.socket, ARENA);
    world.other = raw_session(daemon_.socket, ARENA);
    world.cache = open_cache(world.raw, "world");
    world.written = do_step(world.raw, world.cache, 3);
    world.sealed = seal_a_block();
    lease(world.raw, world.cache, 1, &world.leased);
    lease(world.other, open_cache(world.other, "world"), 1, &world.foreign);
    struct wire_request create = pool_request();
    world.batch = create_batch(world.raw, &create);
    create = rows_request();
    world.rows_batch = create_batch(world.raw, &create);
    create = blocks_request();
    world.blocks_batch = create_batch(world.raw, &create);
}

// Refused requests have changed nothing, not even in their own session.
static void check_served(void)
{
    do_step(world.raw, world.cache, 6);
    do_step(world.other, world.cache, 7);
    raw_close(world.raw);
    raw_close(world.other);
    stop_clean();
}

START_TEST(caches_of_no_shape_are_refused)
{
    set_up();
    REFUSED(open_request(), r.cache_open.num_kv_heads = 0, STATUS_INVALID, "num_kv_heads");
    REFUSED(open_request(), r.cache_open.num_layers = 0, STATUS_INVALID, "num_layers");
    REFUSED(open_request(), r.cache_open.head_dim_k = 12, STATUS_UNSUPPORTED, "12");
    REFUSED(open_request(), r.cache_open.head_dim_k = 1u << 30, STATUS_LIMIT, "--memory-fraction");
    REFUSED(open_request(), r.cache_open.head_dim_k = 584, STATUS_UNSUPPORTED, "584");
    REFUSED(open_request(), r.cache_open.head_dim_v = 520, STATUS_UNSUPPORTED, "520");
    REFUSED(open_request(), r.cache_open.block_size = 12, STATUS_UNSUPPORTED, "12");
    REFUSED(open_request(), r.cache_open.k_dtype = 77, STATUS_UNSUPPORTED, "77");
    REFUSED(open_request(), r.cache_open.v_dtype = UINT32_MAX, STATUS_UNSUPPORTED,
            "V dtype unknown (-1)");
    REFUSED(open_request(), r.cache_open.scale_mode = 3, STATUS_UNSUPPORTED, "scale mode 3");
    REFUSED(open_request(), r.cache_open.scale_mode = SCALE_PER_TENSOR, STATUS_INVALID,
            "only 8-bit");
    REFUSED(open_request(), (r.cache_open.v_is_k_prefix = true, r.cache_open.head_dim_v = 16),
            STATUS_INVALID, "16");
    check_served();
}
END_TEST

START_TEST(batches_of_no_layout_are_refused)
{
    set_up();
    REFUSED(rows_request(), r.batch_create.has_layout = false, STATUS_INVALID,
            "no cache and has no layout");
    REFUSED(rows_request(), r.batch_create.cache = world.cache, STATUS_INVALID, "has a layout");
    REFUSED(rows_request(), r.batch_create.layout.num_kv_heads = 0, STATUS_UNSUPPORTED,
            "num_kv_heads");
    REFUSED(rows_request(), r.batch_create.layout.head_dim_k = 12, STATUS_UNSUPPORTED, "12");
    REFUSED(rows_request(), r.batch_create.layout.k_dtype = 99, STATUS_UNSUPPORTED, "99");
    REFUSED(rows_request(), r.batch_create.layout.num_blocks = 2, STATUS_INVALID, "contiguous");
    REFUSED(rows_request(), r.batch_create.slot_mapping = ((struct wire_longs){(int64_t[8]){0}, 8}),
            STATUS_INVALID, "slot_mapping is given");
    REFUSED(rows_request(), r.batch_create.max_blocks = 1, STATUS_INVALID, "max_blocks");
    REFUSED(blocks_request(), r.batch_create.kv_starts = ints(starts, 1), STATUS_INVALID,
            "kv_starts is given");
    REFUSED(blocks_request(), r.batch_create.layout.block_size = 12, STATUS_UNSUPPORTED, "12");
    REFUSED(blocks_request(), r.batch_create.layout.num_blocks = 2, STATUS_OUT_OF_RANGE,
            "block_table[0][0] = 2");
    REFUSED(blocks_request(),
            (r.batch_create.layout.k_dtype = r.batch_create.layout.v_dtype = DTYPE_INT8,
             r.batch_create.layout.scale_mode = SCALE_PER_TOKEN_HEAD),
            STATUS_UNSUPPORTED, "scales per token and head");
    REFUSED(pool_request(), r.batch_create.kv_starts = ints(starts, 1), STATUS_INVALID,
            "kv_starts is given");
    check_served();
}
END_TEST

START_TEST(metadata_that_contradicts_itself_is_refused)
{
    static const int32_t twice[8] = {0, 1, 2, 3, 4, 5, 6, 6}, outside[8] = {0, 1, 2, 3, 4, 5, 6, 8},
                         below[8] = {0, 1, 2, 3, 4, 5, 6, -1}, right[8] = {7, 6, 5, 4, 3, 2, 1, 0},
                         nine = 9, minus = -1, three = 3, behind[2] = {0, INT32_MAX},
                         negative[2] = {0, -4};
    set_up();
    REFUSED(pool_request(), r.batch_create.token_rows = ints(twice, 8), STATUS_INVALID,
            "= 6 occurs twice");
    REFUSED(pool_request(), r.batch_create.token_rows = ints(outside, 8), STATUS_OUT_OF_RANGE,
            "token_rows[7] = 8");
    REFUSED(pool_request(), r.batch_create.token_rows = ints(below, 8), STATUS_OUT_OF_RANGE,
            "token_rows[7] = -1");
    REFUSED(pool_request(), r.batch_create.token_rows = ints(right, 7), STATUS_INVALID,
            "token_rows has 7 entries");
    REFUSED(pool_request(),
            (r.batch_create.token_rows = ints(right, 8), r.batch_create.q_lens = ints(&three, 1)),
            STATUS_INVALID, "exclude each other");
    REFUSED(pool_request(), r.batch_create.q_lens = ints(&nine, 1), STATUS_OUT_OF_RANGE,
            "q_lens[0] = 9");
    REFUSED(pool_request(), r.batch_create.q_lens = ints(&minus, 1), STATUS_OUT_OF_RANGE,
            "q_lens[0] = -1");
    REFUSED(pool_request(), r.batch_create.q_lens = ints(right, 2), STATUS_INVALID,
            "q_lens has 2 entries");
    REFUSED(pool_request(), r.batch_create.max_seqlen_q = 7, STATUS_OUT_OF_RANGE,
            "exceeds max_seqlen_q 7");
    REFUSED(pool_request(), r.batch_create.max_context_len = 7, STATUS_OUT_OF_RANGE,
            "exceeds max_context_len 7");
    REFUSED(pool_request(), r.batch_create.block_table = ints(&world.foreign, 1), STATUS_NOT_HELD,
            "block_table[0][0]");
    REFUSED(rows_request(), r.batch_create.kv_starts = ints(negative, 2), STATUS_OUT_OF_RANGE,
            "kv_starts[1] = -4");
    REFUSED(rows_request(), r.batch_create.kv_starts = ints(starts, 1), STATUS_INVALID,
            "kv_starts has 1 entries");
    // The end of the rows is only known with the tensors of a run.
    struct wire_request far = rows_request();
    far.batch_create.kv_starts = ints(behind, 2);
    struct wire_reply reply;
    raw_call(world.raw, &far, &reply);
    ck_assert_msg(reply.status == STATUS_OK || reply.status == STATUS_OUT_OF_RANGE, "%s",
                  reply.message);
    check_served();
}
END_TEST

// Each new vector may be in the arena. A span is checked like any other.
START_TEST(spans_of_metadata_outside_the_arena_are_refused)
{
    static const struct wire_span past = {ARENA - 4, 2}, wraps = {UINT64_MAX - 3, 1},
                                  between = {2, 8};
    set_up();
    REFUSED(pool_request(), r.batch_create.q_lens_span = past, STATUS_OUT_OF_RANGE,
            "q_lens: 2 elements");
    REFUSED(pool_request(), r.batch_create.token_rows_span = wraps, STATUS_OUT_OF_RANGE,
            "token_rows: 1 elements");
    REFUSED(pool_request(), r.batch_create.kv_starts_span = between, STATUS_MISALIGNED,
            "kv_starts: arena offset 2");
    REFUSED(rows_request(), r.batch_create.kv_starts_span = ((struct wire_span){0, 2}),
            STATUS_INVALID, "kv_starts is given in the message and as a span");
    check_served();
}
END_TEST

// ---- runs ----

static struct wire_request run_of(uint64_t batch)
{
    return run_request(batch, 0);
}

static struct wire_request local_run(uint64_t batch, uint64_t outer_stride)
{
    struct wire_request run = run_request(batch, 0);
    run.run.entry.keys = run.run.entry.values = (struct wire_tensor){.dtype = DTYPE_F32,
                                                                     .offset = KEYS_AT,
                                                                     .token_stride = ROW,
                                                                     .head_stride = ROW,
                                                                     .outer_stride = outer_stride};
    run.run.entry.values.offset = VALUES_AT;
    return run;
}

static struct wire_span span(uint64_t offset, uint64_t count)
{
    return (struct wire_span){offset, count};
}

START_TEST(runs_with_bad_parameters_are_refused)
{
    set_up();
    const uint64_t batch = world.batch;
    REFUSED(run_of(batch), r.run.entry.flags |= 1u << 31, STATUS_UNSUPPORTED, "unknown 0x80000000");
    REFUSED(run_of(batch), r.run.entry.flags |= 8, STATUS_UNSUPPORTED,
            "flags 0x9 hold the unknown 0x8");
    REFUSED(run_of(batch), r.run.entry.kind = 3, STATUS_UNSUPPORTED, "unknown kind 3");
    REFUSED(run_of(batch), r.run.options.reserved[0] = 9, STATUS_UNSUPPORTED, "unknown option 0x9");
    REFUSED(run_of(batch), r.run.options.lse_base2 = 2, STATUS_INVALID, "lse_base2 is 2; it is");
    REFUSED(run_of(batch), r.run.options.lse_base2 = 1, STATUS_INVALID, "the run has no lse");
    REFUSED(run_of(batch), r.run.entry.kind = UINT32_MAX, STATUS_UNSUPPORTED,
            "unknown kind 4294967295");
    REFUSED(run_of(batch), r.run.entry.kind = WIRE_RUN_WRITE, STATUS_INVALID,
            "without a slot_mapping");
    REFUSED(run_of(batch), r.run.entry.layer = 1, STATUS_OUT_OF_RANGE,
            "layer 1 of a cache with 1 layers");
    REFUSED(run_of(batch), r.run.entry.num_heads = 0, STATUS_INVALID, "num_heads 0");
    REFUSED(run_of(batch), r.run.entry.scale = NAN, STATUS_INVALID, "scale is nan");
    REFUSED(run_of(batch), r.run.entry.scale = INFINITY, STATUS_INVALID, "scale is inf");
    REFUSED(run_of(batch), r.run.entry.logits_soft_cap = NAN, STATUS_INVALID,
            "logits_soft_cap is nan");
    REFUSED(run_of(batch), r.run.entry.mask_value = -10000, STATUS_INVALID, "mask_value is -10000");
    REFUSED(run_of(batch), r.run.entry.mask_value = INFINITY, STATUS_INVALID, "mask_value is inf");
    REFUSED(run_of(batch), r.run.entry.mask_value = NAN, STATUS_INVALID, "mask_value is nan");
    REFUSED(run_of(batch), r.run.entry.window_left = -2, STATUS_INVALID, "window_left -2");
    REFUSED(run_of(batch), r.run.entry.k_scale = 0.5f, STATUS_INVALID, "k_scale is given");
    REFUSED(run_of(batch), r.run.entry.v_scale = NAN, STATUS_INVALID, "v_scale is given");
    REFUSED(run_of(batch), r.run.entry.keys.dtype = DTYPE_F32, STATUS_INVALID, "keys is given");
    REFUSED(run_of(batch), r.run.entry.out.outer_stride = 8, STATUS_MISALIGNED, "outer stride 8");
    REFUSED(run_of(batch), r.run.timeout_ms = -7, STATUS_INVALID, "timeout_ms = -7");
    check_served();
}
END_TEST

START_TEST(invalid_slopes_sinks_and_rotations_are_refused)
{
    set_up();
    const uint64_t batch = world.batch;
    float *floats = floats_at(world.raw, SPANS_AT);
    double *doubles = (double *)(void *)(raw_arena(world.raw) + SPANS_AT + 64);
    floats[0] = NAN;
    doubles[3] = INFINITY;
    REFUSED(run_of(batch), r.run.entry.slopes = span(0, 2), STATUS_INVALID,
            "slopes has 2 entries; num_heads is 1");
    REFUSED(run_of(batch), r.run.entry.slopes = span(ARENA, 1), STATUS_OUT_OF_RANGE,
            "slopes: 1 elements");
    REFUSED(run_of(batch), r.run.entry.slopes = span(SPANS_AT, 1), STATUS_INVALID,
            "slopes[0] is nan");
    REFUSED(run_of(batch), r.run.entry.sinks = span(UINT64_MAX - 3, 1), STATUS_OUT_OF_RANGE,
            "sinks: 1 elements of 4 bytes at offset 18446744073709551612");
    REFUSED(run_of(batch), r.run.entry.sinks = span(2, 1), STATUS_MISALIGNED,
            "sinks: arena offset 2");
    REFUSED(run_of(batch),
            (r.run.entry.num_heads = UINT32_MAX, r.run.entry.sinks = span(0, UINT32_MAX)),
            STATUS_OUT_OF_RANGE, "sinks: 4294967295 elements");
    REFUSED(run_of(batch), r.run.entry.rope_dim = 7, STATUS_INVALID, "rope.dim is 7");
    REFUSED(run_of(batch), r.run.entry.rope_dim = 16, STATUS_INVALID, "at most head_dim_k 8");
    REFUSED(run_of(batch), r.run.entry.rope_dim = UINT32_MAX - 1, STATUS_INVALID,
            "rope.dim is 4294967294");
    REFUSED(run_of(batch), r.run.entry.rope_theta = 10000, STATUS_INVALID, "rope.dim is 0");
    REFUSED(run_of(batch), r.run.entry.flags |= WIRE_RUN_ROPE_INTERLEAVED, STATUS_INVALID,
            "rope.dim is 0");
    REFUSED(run_of(batch), (r.run.entry.rope_dim = 8, r.run.entry.rope_theta = NAN), STATUS_INVALID,
            "rope.theta is nan");
    REFUSED(run_of(batch), (r.run.entry.rope_dim = 8, r.run.entry.rope_theta = -1), STATUS_INVALID,
            "rope.theta is -1");
    REFUSED(run_of(batch),
            (r.run.entry.rope_dim = 8, r.run.entry.rope_frequencies = span(SPANS_AT, 8)),
            STATUS_INVALID, "rope_frequencies has 8 entries; rope_dim / 2 is 4");
    REFUSED(run_of(batch), r.run.entry.rope_frequencies = span(SPANS_AT, 1), STATUS_INVALID,
            "rope_dim / 2 is 0");
    REFUSED(run_of(batch),
            (r.run.entry.rope_dim = 8, r.run.entry.rope_frequencies = span(SPANS_AT + 4, 4)),
            STATUS_MISALIGNED, "is no multiple of 8");
    REFUSED(run_of(batch),
            (r.run.entry.rope_dim = 8, r.run.entry.rope_frequencies = span(ARENA - 24, 4)),
            STATUS_OUT_OF_RANGE, "rope_frequencies: 4 elements of 8 bytes");
    REFUSED(run_of(batch),
            (r.run.entry.rope_dim = 8, r.run.entry.rope_frequencies = span(SPANS_AT + 64, 4)),
            STATUS_INVALID, "frequencies[3] is inf");
    check_served();
}
END_TEST

// Two for each layer, for any claimed number of layers.
START_TEST(invalid_scales_of_layers_are_refused)
{
    set_up();
    const uint64_t batch = world.batch;
    floats_at(world.raw, SPANS_AT)[0] = NAN;
    REFUSED(run_of(batch), r.run.scales = span(0, 1), STATUS_INVALID,
            "scales has 1 entries; two for each layer is 2");
    REFUSED(run_of(batch), r.run.scales = span(0, UINT64_MAX), STATUS_INVALID,
            "two for each layer is 2");
    REFUSED(run_of(batch), (r.run.layers.num_layers = 3, r.run.scales = span(0, 2)), STATUS_INVALID,
            "scales has 2 entries; two for each layer is 6");
    REFUSED(run_of(batch), r.run.scales = span(SPANS_AT, 2), STATUS_INVALID,
            "k_scales[0] is given");
    REFUSED(run_of(batch), r.run.scales = span(SPANS_AT - 4, 2), STATUS_INVALID,
            "v_scales[0] is given");
    REFUSED(run_of(batch), r.run.scales = span(SPANS_AT + 2, 2), STATUS_MISALIGNED,
            "scales: arena offset 32770");
    REFUSED(run_of(batch), r.run.scales = span(ARENA - 4, 2), STATUS_OUT_OF_RANGE,
            "scales: 2 elements of 4 bytes");
    REFUSED(run_of(batch), r.run.scales = span(UINT64_MAX - 3, 2), STATUS_OUT_OF_RANGE,
            "scales: 2 elements");
    REFUSED(run_of(batch), (r.run.layers.num_layers = 1025, r.run.scales = span(0, 2050)),
            STATUS_LIMIT, "a run of 1025 layers");
    REFUSED(
        run_of(batch),
        (r.run.layers.num_layers = UINT32_MAX, r.run.scales = span(0, UINT64_C(2) * UINT32_MAX)),
        STATUS_OUT_OF_RANGE, "scales: 8589934590 elements");
    REFUSED(run_of(batch),
            (r.run.layers.num_layers = UINT32_MAX, r.run.scales = span(0, UINT32_MAX - 1)),
            STATUS_INVALID, "two for each layer is 8589934590");
    check_served();
}
END_TEST

START_TEST(runs_over_memory_that_is_not_theirs_are_refused)
{
    set_up();
    const uint64_t rows = world.rows_batch, blocks = world.blocks_batch;
    REFUSED(run_of(rows), (void)0, STATUS_INVALID, "keys");
    REFUSED(local_run(rows, 0), r.run.entry.keys.offset = ARENA - ROW, STATUS_OUT_OF_RANGE, "keys");
    REFUSED(local_run(rows, 0), r.run.entry.values.offset = ARENA - 7 * ROW, STATUS_OUT_OF_RANGE,
            "values");
    REFUSED(local_run(rows, 0), r.run.entry.values.offset = UINT64_MAX - 15, STATUS_OUT_OF_RANGE,
            "values");
    REFUSED(local_run(rows, 0), r.run.entry.q.outer_stride = UINT64_MAX - 15, STATUS_OUT_OF_RANGE,
            "q at 0 with strides");
    REFUSED(local_run(rows, 0), r.run.entry.out.outer_stride = ARENA, STATUS_OUT_OF_RANGE,
            "out at 12288");
    REFUSED(local_run(rows, 0), r.run.entry.keys.offset += 8, STATUS_MISALIGNED, "keys");
    REFUSED(local_run(rows, 0), r.run.entry.keys.dtype = DTYPE_F16, STATUS_MISMATCH, "keys is f16");
    REFUSED(local_run(rows, 0), r.run.entry.keys.memory = 2, STATUS_UNSUPPORTED, "memory kind 2");
    REFUSED(local_run(rows, 0), r.run.entry.values.token_stride = UINT64_C(1) << 63,
            STATUS_OUT_OF_RANGE, "values");
    REFUSED(local_run(rows, 0), r.run.entry.kind = WIRE_RUN_WRITE, STATUS_INVALID,
            "without a slot_mapping");
    REFUSED(local_run(rows, 0), r.run.entry.layer = 1, STATUS_OUT_OF_RANGE,
            "layer 1 of K and V in the arena");
    REFUSED(local_run(blocks, 0), (void)0, STATUS_INVALID, "no outer stride, that of a block");
    REFUSED(local_run(blocks, BLOCK_BYTES), r.run.entry.values.offset = ARENA - 2 * BLOCK_BYTES,
            STATUS_OUT_OF_RANGE, "values");
    REFUSED(local_run(blocks, BLOCK_BYTES), r.run.entry.keys.outer_stride = ARENA / 2,
            STATUS_OUT_OF_RANGE, "keys");
    REFUSED(local_run(blocks, BLOCK_BYTES), r.run.entry.kind = WIRE_RUN_GATHER;
            r.run.entry.k.offset = ARENA - ROW, STATUS_OUT_OF_RANGE, "k");
    check_served();
}
END_TEST

// ---- copies ----

static struct wire_request copy_of(const int32_t *from, const int32_t *to)
{
    return (struct wire_request){
        .command = WIRE_COMMAND_BLOCKS_COPY,
        .blocks_copy = {.cache = world.cache, .from = {from, 1}, .to = {to, 1}}};
}

static struct wire_request move_of(enum wire_copy_way way, const int32_t *block)
{
    const struct wire_ints blocks = {block, 1}, none = {NULL, 0};
    return (struct wire_request){.command = WIRE_COMMAND_BLOCKS_COPY,
                                 .blocks_copy = {.cache = world.cache,
                                                 .from = way == WIRE_COPY_OUT ? blocks : none,
                                                 .to = way == WIRE_COPY_OUT ? none : blocks,
                                                 .way = way}};
}

START_TEST(blocks_go_to_and_from_the_sessions_own_arena_only)
{
    set_up();
    const int32_t *const written = &world.written, *const leased = &world.leased;
    REFUSED(move_of(WIRE_COPY_OUT, written), r.blocks_copy.way = 3, STATUS_UNSUPPORTED, "way 3");
    REFUSED(move_of(WIRE_COPY_OUT, written), r.blocks_copy.to = r.blocks_copy.from, STATUS_INVALID,
            "a copy to the arena names 1 blocks on the arena's side");
    REFUSED(move_of(WIRE_COPY_IN, leased), r.blocks_copy.from = r.blocks_copy.to, STATUS_INVALID,
            "a copy from the arena names 1 blocks");
    REFUSED(move_of(WIRE_COPY_OUT, &world.foreign), (void)0, STATUS_NOT_HELD, "from[0]");
    REFUSED(move_of(WIRE_COPY_IN, &world.foreign), (void)0, STATUS_NOT_HELD, "to[0]");
    REFUSED(move_of(WIRE_COPY_IN, &world.sealed), (void)0, STATUS_SEALED, "to[0]");
    REFUSED(move_of(WIRE_COPY_IN, leased), r.blocks_copy.offset = ARENA - 16, STATUS_OUT_OF_RANGE,
            "offset");
    REFUSED(move_of(WIRE_COPY_IN, leased), r.blocks_copy.offset = UINT64_MAX - 15,
            STATUS_OUT_OF_RANGE, "offset 18446744073709551600");
    REFUSED(move_of(WIRE_COPY_OUT, written), r.blocks_copy.offset = 8, STATUS_MISALIGNED,
            "offset 8");
    REFUSED(move_of(WIRE_COPY_OUT, written), r.blocks_copy.flags = WIRE_RUN_CAUSAL,
            STATUS_UNSUPPORTED, "flags 0x1");
    check_served();
}
END_TEST

START_TEST(copies_that_are_not_the_sessions_to_make_are_refused)
{
    static const int32_t none = -1, below = -2, far = INT32_MAX;
    set_up();
    const int32_t *const written = &world.written, *const leased = &world.leased;
    const int32_t both[2] = {world.leased, world.leased}, from[2] = {world.written, world.leased},
                  to[2] = {world.leased, world.written};
    REFUSED(copy_of(written, leased), r.blocks_copy.cache += 1000, STATUS_NOT_FOUND, "cache");
    REFUSED(copy_of(written, leased), r.blocks_copy.from.count = 0, STATUS_INVALID,
            "from 0 blocks to 1");
    REFUSED(copy_of(written, leased), r.blocks_copy.from.count = r.blocks_copy.to.count = 0,
            STATUS_INVALID, "a copy of 0 blocks");
    REFUSED(copy_of(written, leased), r.blocks_copy.flags = WIRE_RUN_CAUSAL, STATUS_UNSUPPORTED,
            "BLOCKS_COPY: flags 0x1");
    REFUSED(copy_of(written, leased), r.blocks_copy.timeout_ms = -2, STATUS_INVALID,
            "timeout_ms = -2");
    REFUSED(copy_of(&world.foreign, leased), (void)0, STATUS_NOT_HELD, "from[0]");
    REFUSED(copy_of(written, &world.foreign), (void)0, STATUS_NOT_HELD, "to[0]");
    REFUSED(copy_of(written, &world.sealed), (void)0, STATUS_SEALED, "to[0]");
    REFUSED(copy_of(written, &none), (void)0, STATUS_OUT_OF_RANGE, "to[0] = -1");
    REFUSED(copy_of(&below, leased), (void)0, STATUS_OUT_OF_RANGE, "from[0] = -2");
    REFUSED(copy_of(&far, leased), (void)0, STATUS_OUT_OF_RANGE, "from[0] = 2147483647");
    REFUSED(copy_of(leased, leased), (void)0, STATUS_INVALID, "is in `to` as well");
    REFUSED(copy_of(from, both), r.blocks_copy.from.count = r.blocks_copy.to.count = 2,
            STATUS_INVALID, "occurs twice");
    REFUSED(copy_of(from, to), r.blocks_copy.from.count = r.blocks_copy.to.count = 2,
            STATUS_INVALID, "is in `to` as well");
    check_served();
}
END_TEST

// ---- merges ----

static struct wire_tensor parts[2], lses[2];

static struct wire_request merge_request(void)
{
    for (uint64_t n = 0; n < 2; n++) {
        parts[n] = (struct wire_tensor){.dtype = DTYPE_F32,
                                        .offset = KEYS_AT + n * 4096,
                                        .token_stride = ROW,
                                        .head_stride = ROW};
        lses[n] = (struct wire_tensor){
            .dtype = DTYPE_F32, .offset = SPANS_AT + n * 64, .token_stride = 16};
    }
    return (struct wire_request){.command = WIRE_COMMAND_MERGE,
                                 .merge = {.num_tokens = 2,
                                           .num_heads = 1,
                                           .head_dim = DIM,
                                           .outs = {parts, 2},
                                           .lses = {lses, 2},
                                           .out = parts[0]}};
}

START_TEST(merges_that_fit_neither_one_another_nor_the_arena_are_refused)
{
    set_up();
    REFUSED(merge_request(), r.merge.lses.count = 1, STATUS_INVALID, "2 outs and 1 lses");
    REFUSED(merge_request(), r.merge.outs.count = r.merge.lses.count = 0, STATUS_INVALID,
            "a merge of 0 parts");
    REFUSED(merge_request(), r.merge.flags = WIRE_RUN_CAUSAL, STATUS_UNSUPPORTED,
            "MERGE: flags 0x1");
    REFUSED(merge_request(), r.merge.timeout_ms = -2, STATUS_INVALID, "timeout_ms = -2");
    REFUSED(merge_request(), r.merge.num_heads = 0, STATUS_INVALID, "num_heads is 0");
    REFUSED(merge_request(), r.merge.head_dim = 12, STATUS_UNSUPPORTED, "head_dim 12");
    REFUSED(merge_request(), r.merge.num_tokens = UINT32_MAX, STATUS_INVALID,
            "num_tokens is 4294967295");
    REFUSED(merge_request(), r.merge.num_tokens = 1u << 20, STATUS_OUT_OF_RANGE, "out");
    REFUSED(merge_request(), parts[1].offset = ARENA - ROW, STATUS_OUT_OF_RANGE, "outs[1]");
    REFUSED(merge_request(), parts[1].offset += 8, STATUS_MISALIGNED, "outs[1]");
    REFUSED(merge_request(), parts[1].dtype = DTYPE_F16, STATUS_MISMATCH, "outs[1]");
    REFUSED(merge_request(), parts[1].outer_stride = 4096, STATUS_INVALID, "outs[1]");
    REFUSED(merge_request(), lses[0].offset = ARENA - 16, STATUS_OUT_OF_RANGE, "lses[0]");
    REFUSED(merge_request(), lses[0].dtype = 0, STATUS_INVALID, "lses[0]");
    REFUSED(merge_request(), r.merge.out.offset = UINT64_MAX - 15, STATUS_OUT_OF_RANGE, "out");
    REFUSED(merge_request(), r.merge.out.dtype = DTYPE_INT8, STATUS_UNSUPPORTED, "int8");
    REFUSED(merge_request(), (r.merge.lse = lses[0], r.merge.lse.offset = ARENA),
            STATUS_OUT_OF_RANGE, "lse");
    check_served();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("daemon, what it refuses");
    suite_add(
        suite, "refused",
        (const TTest *const[]){
            caches_of_no_shape_are_refused, batches_of_no_layout_are_refused,
            metadata_that_contradicts_itself_is_refused,
            spans_of_metadata_outside_the_arena_are_refused, runs_with_bad_parameters_are_refused,
            invalid_slopes_sinks_and_rotations_are_refused, invalid_scales_of_layers_are_refused,
            runs_over_memory_that_is_not_theirs_are_refused,
            copies_that_are_not_the_sessions_to_make_are_refused,
            blocks_go_to_and_from_the_sessions_own_arena_only,
            merges_that_fit_neither_one_another_nor_the_arena_are_refused, NULL},
        1);
    return check_main(suite);
}
