// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_daemon_commands.c - each command and parameter that queues GPU work, through the wire of a
// real aule-daemon, with numbers that show whether it arrived: kinds of runs, layouts, forms of
// metadata, scales, rotation, copies, merges; and commands that wait for a ticket. Refused
// commands: test_daemon_refused.c. The engine's suites check accuracy.

#include "rigs/check_main.h"
#include "rigs/daemon_step.h"
#include "rigs/daemon_suite.h"

#include <math.h>
#include <string.h>

enum { KEYS_AT = 16384, VALUES_AT = 20480, SPANS_AT = 32768, BLOCK_BYTES = BLOCK * ROW };

static uint64_t queue(struct raw_client *raw, const struct wire_request *request)
{
    struct wire_reply reply;
    raw_call(raw, request, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "%s: %s", wire_command_name(request->command),
                  reply.message);
    ck_assert_int_eq(reply.answer, WIRE_ANSWER_RUN);
    return reply.run.ticket;
}

static void do_queued(struct raw_client *raw, const struct wire_request *request)
{
    wait_done(raw, queue(raw, request));
}

static struct wire_request kind_request(uint64_t batch, enum wire_run_kind kind)
{
    struct wire_request request = run_request(batch, 20000);
    request.run.entry.kind = kind;
    return request;
}

static struct wire_request copy_request(uint64_t cache, const int32_t *from, const int32_t *to)
{
    return (struct wire_request){
        .command = WIRE_COMMAND_BLOCKS_COPY,
        .blocks_copy = {.cache = cache, .from = {from, 1}, .to = {to, 1}, .timeout_ms = 20000}};
}

static void check_floats(struct raw_client *raw, size_t offset, size_t count, float value)
{
    for (size_t i = 0; i < count; i++)
        ck_assert_float_eq_tol(floats_at(raw, offset)[i], value, 1e-5f * fmaxf(1, fabsf(value)));
}

// Gathers K and V of `block` to K_AT and V_AT.
static void gather(struct raw_client *raw, uint64_t cache, int32_t block)
{
    const struct wire_request create = fill_request(cache, &block, NULL);
    const struct wire_request run = kind_request(create_batch(raw, &create), WIRE_RUN_GATHER);
    memset(raw_arena(raw) + K_AT, 0xff, BLOCK_BYTES);
    memset(raw_arena(raw) + V_AT, 0xff, BLOCK_BYTES);
    do_queued(raw, &run);
}

// ---- kinds ----

START_TEST(a_gather_returns_what_a_write_wrote)
{
    int32_t block;
    int64_t slots[BLOCK];
    float k[BLOCK * DIM], v[BLOCK * DIM];
    start(memory_path(_i));
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "kinds");
    lease(raw, cache, 1, &block);
    slots_of(block, slots);
    for (int i = 0; i < BLOCK * DIM; i++) {
        floats_at(raw, K_AT)[i] = k[i] = (float)i;
        floats_at(raw, V_AT)[i] = v[i] = (float)-i;
    }
    const struct wire_request create = fill_request(cache, &block, slots);
    struct wire_request write = kind_request(create_batch(raw, &create), WIRE_RUN_WRITE);
    write.run.entry.q = write.run.entry.out = (struct wire_tensor){.dtype = 0}; // it has neither
    do_queued(raw, &write);
    gather(raw, cache, block);
    ck_assert_mem_eq(floats_at(raw, K_AT), k, sizeof k);
    ck_assert_mem_eq(floats_at(raw, V_AT), v, sizeof v);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(a_copied_block_attends_as_the_original)
{
    int32_t copy;
    start(memory_path(_i));
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "copies");
    int32_t original = do_step(raw, cache, 3);
    lease(raw, cache, 1, &copy);
    const struct wire_request request = copy_request(cache, &original, &copy);
    do_queued(raw, &request);
    const struct wire_request create = fill_request(cache, &copy, NULL);
    put_step(raw, -1);
    wait_done(raw, submit(raw, create_batch(raw, &create)));
    check_out(raw, 3);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(a_block_copied_from_none_is_zeroed)
{
    static const int32_t none = -1;
    static const uint8_t mask[BLOCK] = {255, 255, 255, 255, 255, 255, 255, 255};
    start(memory_path(_i));
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "zeroes");
    int32_t block = do_step(raw, cache, 3);
    gather(raw, cache, block);
    check_floats(raw, V_AT, BLOCK * DIM, 3);
    const struct wire_request request = copy_request(cache, &none, &block);
    do_queued(raw, &request);
    struct wire_request create = fill_request(cache, &block, NULL);
    const struct wire_request gathering = kind_request(create_batch(raw, &create), WIRE_RUN_GATHER);
    raw_expect(raw, &gathering, STATUS_UNWRITTEN); // zeroes are not written
    // With a mask a run may read them. Scores are 0, so the LSE is ln(BLOCK).
    create.batch_create.mask = (struct wire_bytes){mask, sizeof(mask)};
    put_step(raw, 1);
    struct wire_request run = run_request(create_batch(raw, &create), 20000);
    run.run.entry.lse =
        (struct wire_tensor){.dtype = DTYPE_F32, .offset = V_AT, .token_stride = sizeof(float)};
    do_queued(raw, &run);
    check_floats(raw, OUT_AT, BLOCK * DIM, 0);
    check_floats(raw, V_AT, BLOCK, logf(BLOCK));
    raw_close(raw);
    stop_clean();
}
END_TEST

// ---- K and V in the arena ----

static struct wire_request local_request(struct wire_request create, uint32_t block_size)
{
    create.batch_create.has_layout = true;
    create.batch_create.layout = (struct wire_kv_layout){.num_kv_heads = 1,
                                                         .head_dim_k = DIM,
                                                         .head_dim_v = DIM,
                                                         .k_dtype = DTYPE_F32,
                                                         .v_dtype = DTYPE_F32,
                                                         .block_size = block_size,
                                                         .num_blocks = block_size ? 3 : 0};
    return create;
}

static struct wire_request local_run(uint64_t batch, uint64_t outer_stride)
{
    struct wire_request run = run_request(batch, 20000);
    run.run.entry.keys = run.run.entry.values = (struct wire_tensor){.dtype = DTYPE_F32,
                                                                     .offset = KEYS_AT,
                                                                     .token_stride = ROW,
                                                                     .head_stride = ROW,
                                                                     .outer_stride = outer_stride};
    run.run.entry.values.offset = VALUES_AT;
    return run;
}

START_TEST(attention_over_block_tensors_writes_and_reads_the_arena)
{
    static const int32_t block = 2;
    int64_t slots[BLOCK];
    start(memory_path(_i));
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    slots_of(block, slots);
    const struct wire_request create = local_request(fill_request(0, &block, slots), BLOCK);
    const struct wire_request run = local_run(create_batch(raw, &create), BLOCK_BYTES);
    put_step(raw, 5);
    do_queued(raw, &run);
    check_out(raw, 5);
    ck_assert_mem_eq(floats_at(raw, KEYS_AT + 2 * BLOCK_BYTES), floats_at(raw, K_AT), BLOCK_BYTES);
    check_floats(raw, VALUES_AT, 2 * (size_t)BLOCK * DIM, 0);
    check_floats(raw, VALUES_AT + 2 * BLOCK_BYTES, BLOCK * DIM, 5);
    raw_close(raw);
    stop_clean();
}
END_TEST

// Two sequences of one query and four keys, one after the other. Value row r is r, and all keys
// have the same weight.
static struct wire_request ragged_request(void)
{
    static const int32_t cu_seqlens_q[3] = {0, 1, 2}, seq_lens_kv[2] = {4, 4},
                         kv_starts[2] = {4, 0};
    const struct wire_request create = {.command = WIRE_COMMAND_BATCH_CREATE,
                                        .batch_create = {.num_seqs = 2,
                                                         .cu_seqlens_q = {cu_seqlens_q, 3},
                                                         .seq_lens_kv = {seq_lens_kv, 2},
                                                         .kv_starts = {kv_starts, 2}}};
    return local_request(create, 0);
}

static uint64_t create_any(struct raw_client *raw, const struct wire_request *create)
{
    struct wire_reply reply;
    raw_call(raw, create, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "BatchCreate: %s", reply.message);
    return reply.batch_create.batch;
}

START_TEST(attention_over_ragged_rows_finds_each_sequence)
{
    start(memory_path(_i));
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    for (int i = 0; i < BLOCK * DIM; i++)
        floats_at(raw, VALUES_AT)[i] = (float)(i / DIM);
    const struct wire_request create = ragged_request(),
                              run = local_run(create_any(raw, &create), 0);
    do_queued(raw, &run);
    check_floats(raw, OUT_AT, DIM, 5.5f);
    check_floats(raw, OUT_AT + ROW, DIM, 1.5f);
    raw_close(raw);
    stop_clean();
}
END_TEST

// ---- forms of metadata ----

// Token i is in row 7 - i. Row r of V has the number of its token, and all keys have the same
// weight. So the output of token i is i / 2.
START_TEST(tokens_may_lie_in_any_rows_and_the_rows_in_the_arena)
{
    int32_t block, *rows;
    int64_t slots[BLOCK];
    start(memory_path(_i));
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "rows");
    lease(raw, cache, 1, &block);
    rows = (int32_t *)(void *)(raw_arena(raw) + SPANS_AT);
    for (int i = 0; i < BLOCK; i++) {
        rows[i] = BLOCK - 1 - i;
        slots[BLOCK - 1 - i] = (int64_t)block * BLOCK + i;
    }
    for (int i = 0; i < BLOCK * DIM; i++)
        floats_at(raw, V_AT)[i] = (float)(BLOCK - 1 - i / DIM);
    struct wire_request create = fill_request(cache, &block, slots);
    create.batch_create.token_rows_span = (struct wire_span){SPANS_AT, BLOCK};
    uint64_t batch = create_batch(raw, &create);
    memset(rows, 0xff, BLOCK * sizeof *rows); // they were copied
    wait_done(raw, submit(raw, batch));
    for (size_t row = 0; row < BLOCK; row++)
        check_floats(raw, OUT_AT + row * ROW, DIM, (float)(BLOCK - 1 - row) / 2);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(rows_beyond_q_lens_become_zero)
{
    static const int32_t q_lens[1] = {3};
    start(memory_path(_i));
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "padding");
    int32_t block = do_step(raw, cache, 3);
    struct wire_request create = fill_request(cache, &block, NULL);
    create.batch_create.q_lens = (struct wire_ints){q_lens, 1};
    create.batch_create.max_seqlen_q = 3;
    put_step(raw, 0);
    wait_done(raw, submit(raw, create_batch(raw, &create)));
    check_floats(raw, OUT_AT, 3 * (size_t)DIM, 3);
    check_floats(raw, OUT_AT + 3 * ROW, 5 * (size_t)DIM, 0);
    raw_close(raw);
    stop_clean();
}
END_TEST

// ---- parameters of a run ----

// A batch that fills a block of an 8-bit cache.
static uint64_t scaled_batch(struct raw_client *raw, uint32_t num_layers)
{
    static int32_t block;
    static int64_t slots[BLOCK];
    struct wire_reply reply;
    struct wire_request open = cache_request("scaled");
    open.cache_open.num_layers = num_layers;
    open.cache_open.k_dtype = open.cache_open.v_dtype = DTYPE_INT8;
    open.cache_open.scale_mode = SCALE_PER_TENSOR;
    raw_call(raw, &open, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "CacheOpen: %s", reply.message);
    lease(raw, reply.cache_open.cache, 1, &block);
    slots_of(block, slots);
    const struct wire_request create = fill_request(reply.cache_open.cache, &block, slots);
    return create_batch(raw, &create);
}

START_TEST(scales_per_tensor_reach_the_write_and_the_gather)
{
    start(memory_path(_i));
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    struct wire_request run = run_request(scaled_batch(raw, 1), 20000);
    run.run.entry.k_scale = 0.5f;
    run.run.entry.v_scale = 0.25f;
    put_step(raw, 2);
    do_queued(raw, &run);
    check_out(raw, 2);
    run.run.entry.kind = WIRE_RUN_GATHER;
    run.run.entry.v_scale = 0.5f; // the stored value 8 now means 4
    do_queued(raw, &run);
    check_floats(raw, V_AT, BLOCK * DIM, 4);
    raw_close(raw);
    stop_clean();
}
END_TEST

// All layers of `run` write the same values and have their own outputs. V of layer n is then
// stored[n].
static void expect_stored(struct raw_client *raw, struct wire_request gather, uint32_t num_layers,
                          const float *stored)
{
    gather.run.entry.kind = WIRE_RUN_GATHER;
    gather.run.layers = (struct wire_layers){0};
    gather.run.scales = (struct wire_span){0};
    gather.run.entry.k_scale = gather.run.entry.v_scale = 1;
    for (uint32_t layer = 0; layer < num_layers; layer++) {
        gather.run.entry.layer = layer;
        do_queued(raw, &gather);
        check_floats(raw, V_AT, BLOCK * DIM, stored[layer]);
    }
}

static struct wire_request three_layers(uint64_t batch)
{
    struct wire_request run = run_request(batch, 20000);
    run.run.layers = (struct wire_layers){.num_layers = 3, .out = BLOCK_BYTES};
    run.run.scales = (struct wire_span){SPANS_AT, 6};
    return run;
}

START_TEST(each_layers_scales_reach_its_write)
{
    start(memory_path(_i));
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    struct wire_request run = three_layers(scaled_batch(raw, 3));
    run.run.entry.v_scale = 1; // not read
    put_step(raw, 2);
    memcpy(floats_at(raw, SPANS_AT), (const float[]){1, 0.5f, 0, 0.25f, 0, 0.5f},
           6 * sizeof(float));
    do_queued(raw, &run);
    check_floats(raw, OUT_AT, 3 * (size_t)BLOCK * DIM,
                 2); // each is read with the scale that it was written with
    expect_stored(raw, run, 3, (const float[]){8, 2, 4});
    raw_close(raw);
    stop_clean();
}
END_TEST

// K is e0 in every row. The first pair, (0, 4), turns by a quarter turn a position; the others do
// not turn.
START_TEST(rotary_frequencies_turn_k_as_it_is_written)
{
    static const float turned[4][2] = {{1, 0}, {0, 1}, {-1, 0}, {0, -1}};
    int32_t block;
    int64_t slots[BLOCK];
    start(memory_path(_i));
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "rotated");
    lease(raw, cache, 1, &block);
    slots_of(block, slots);
    double *frequencies = (double *)(void *)(raw_arena(raw) + SPANS_AT);
    frequencies[0] = acos(-1) / 2;
    for (int i = 0; i < BLOCK; i++)
        floats_at(raw, K_AT)[(ptrdiff_t)i * DIM] = 1;
    const struct wire_request create = fill_request(cache, &block, slots);
    struct wire_request run = kind_request(create_batch(raw, &create), WIRE_RUN_WRITE);
    run.run.entry.rope_dim = DIM;
    run.run.entry.rope_frequencies = (struct wire_span){SPANS_AT, DIM / 2};
    do_queued(raw, &run);
    gather(raw, cache, block);
    for (size_t i = 0; i < BLOCK; i++) {
        ck_assert_float_eq_tol(floats_at(raw, K_AT)[i * DIM], turned[i % 4][0], 1e-5f);
        ck_assert_float_eq_tol(floats_at(raw, K_AT)[i * DIM + 4], turned[i % 4][1], 1e-5f);
    }
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(splits_and_what_means_excluded_are_taken)
{
    start(memory_path(_i));
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "taken");
    int32_t block = do_step(raw, cache, 3);
    const struct wire_request create = fill_request(cache, &block, NULL);
    uint64_t batch = create_batch(raw, &create);
    for (uint32_t i = 0; i < 3; i++) {
        struct wire_request run = run_request(batch, 20000);
        run.run.entry.mask_value = (const float[]){-0.0f, -1e30f, -INFINITY}[i];
        run.run.entry.num_splits = 2 * i;
        do_queued(raw, &run);
        check_out(raw, 3);
    }
    raw_close(raw);
    stop_clean();
}
END_TEST

// ---- merging ----

enum { PARTS_AT = 16384, LSES_AT = 24576 };

// Parts of two tokens: out 1 and 3, lse 0.
static struct wire_request merge_request(struct raw_client *raw, struct wire_tensor parts[2],
                                         struct wire_tensor lses[2])
{
    for (size_t n = 0; n < 2; n++) {
        parts[n] = (struct wire_tensor){.dtype = DTYPE_F32,
                                        .offset = PARTS_AT + n * 4096,
                                        .token_stride = ROW,
                                        .head_stride = ROW};
        lses[n] = (struct wire_tensor){
            .dtype = DTYPE_F32, .offset = LSES_AT + n * 64, .token_stride = 16};
        for (size_t i = 0; i < 2 * (size_t)DIM; i++)
            floats_at(raw, parts[n].offset)[i] = n ? 3 : 1;
        memset(raw_arena(raw) + lses[n].offset, 0, 32);
    }
    struct wire_request request = {.command = WIRE_COMMAND_MERGE,
                                   .merge = {.num_tokens = 2,
                                             .num_heads = 1,
                                             .head_dim = DIM,
                                             .outs = {parts, 2},
                                             .lses = {lses, 2},
                                             .out = parts[0],
                                             .lse = lses[0],
                                             .timeout_ms = 20000}};
    request.merge.out.offset = OUT_AT;
    return request;
}

START_TEST(partial_results_are_merged_by_their_lse)
{
    struct wire_tensor parts[2], lses[2];
    start(memory_path(_i));
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    const struct wire_request request = merge_request(raw, parts, lses);
    do_queued(raw, &request);
    check_floats(raw, OUT_AT, 2 * (size_t)DIM, 2);
    check_floats(raw, LSES_AT, 1, logf(2));
    check_floats(raw, LSES_AT + 16, 1, logf(2));
    raw_close(raw);
    stop_clean();
}
END_TEST

// ---- commands that wait for a ticket: there is one, and the test has it ----

static const char *const one_ticket[] = {"--max-tickets", "1", NULL};

// The daemon handles a connection's messages in order, so earlier ones are parked or done.
static void wait_taken(struct raw_client *raw)
{
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_PING}, STATUS_OK);
}

static uint64_t end_queued(struct raw_pending *pending)
{
    struct wire_reply reply;
    raw_end(pending, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "%s", reply.message);
    return reply.run.ticket;
}

// NaN slopes would be refused.
START_TEST(a_run_that_waits_keeps_its_slopes)
{
    struct raw_pending pending;
    start(one_ticket);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "waits");
    int32_t block = do_step(raw, cache, 3);
    const struct wire_request create = fill_request(cache, &block, NULL);
    uint64_t batch = create_batch(raw, &create), first = submit(raw, batch);
    struct wire_request run = run_request(batch, -1);
    run.run.entry.slopes = run.run.entry.sinks = (struct wire_span){SPANS_AT, 1};
    floats_at(raw, SPANS_AT)[0] = -100; // a sink with no weight
    raw_begin(raw, &run, &pending);
    wait_taken(raw);
    memset(raw_arena(raw) + SPANS_AT, 0xff, 64);
    put_step(raw, 0);
    wait_done(raw, first);
    wait_done(raw, end_queued(&pending));
    check_out(raw, 3);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(a_run_that_waits_keeps_the_scales_of_its_layers)
{
    struct raw_pending pending;
    start(one_ticket);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t batch = scaled_batch(raw, 3);
    put_step(raw, 2);
    struct wire_request run = three_layers(batch);
    uint64_t first = submit(raw, batch);
    memcpy(floats_at(raw, SPANS_AT), (const float[]){1, 1, 1, 0.25f, 1, 0.5f}, 6 * sizeof(float));
    run.run.timeout_ms = -1;
    raw_begin(raw, &run, &pending);
    wait_taken(raw);
    memset(floats_at(raw, SPANS_AT), 0xff, 64); // NaN, which would be refused
    wait_done(raw, first);
    wait_done(raw, end_queued(&pending));
    expect_stored(raw, run, 3, (const float[]){8, 2, 4});
    raw_close(raw);
    stop_clean();
}
END_TEST

// The run reads the block that the copy before it fills. The merge between them has to wait, too.
START_TEST(copies_and_merges_wait_and_go_in_their_order)
{
    struct wire_tensor parts[2], lses[2];
    struct raw_pending copying, merging, running;
    int32_t copy;
    start(one_ticket);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "order");
    int32_t original = do_step(raw, cache, 3);
    lease(raw, cache, 1, &copy);
    store(raw, cache, &copy, 1);
    const struct wire_request create = fill_request(cache, &copy, NULL);
    uint64_t batch = create_batch(raw, &create), first = submit(raw, batch);
    struct wire_request request = copy_request(cache, &original, &copy);
    raw_begin(raw, &request, &copying);
    request = merge_request(raw, parts, lses);
    raw_begin(raw, &request, &merging);
    request = run_request(batch, -1);
    raw_begin(raw, &request, &running);
    wait_taken(raw);
    wait_done(raw, first);
    wait_done(raw, end_queued(&copying));
    wait_done(raw, end_queued(&merging)); // this lets the run continue: it overwrites the merged
                                          // values
    wait_done(raw, end_queued(&running));
    check_out(raw, 3);
    raw_close(raw);
    stop_clean();
}
END_TEST

static void expect_words(struct raw_client *raw, const struct wire_request *request, int status,
                         const char *words)
{
    struct wire_reply reply;
    raw_call(raw, request, &reply);
    ck_assert_msg(reply.status == status, "%s: %s", status_name(reply.status), reply.message);
    ck_assert_msg(strstr(reply.message, words) != NULL, "\"%s\" lacks %s", reply.message, words);
}

// Its check is repeated only when it could run, so it is not noticed before that its batch is gone.
START_TEST(a_waiting_command_is_not_looked_at_while_no_ticket_is_free)
{
    struct raw_pending pending, later;
    struct wire_reply reply;
    start(one_ticket);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "looks");
    int32_t block = do_step(raw, cache, 3);
    const struct wire_request create = fill_request(cache, &block, NULL);
    uint64_t batch = create_batch(raw, &create), first = submit(raw, batch);
    const struct wire_request soon = run_request(batch, 50), patient = run_request(batch, -1);
    raw_begin(raw, &soon, &pending);
    raw_begin(raw, &patient, &later);
    wait_taken(raw);
    const struct wire_request destroy = {.command = WIRE_COMMAND_BATCH_DESTROY,
                                         .batch_destroy = {batch}};
    raw_expect(raw, &destroy, STATUS_OK);
    raw_end(&pending, &reply);
    ck_assert_msg(reply.status == STATUS_BUSY, "%s: %s", status_name(reply.status), reply.message);
    wait_done(raw, first);
    raw_end(&later, &reply);
    ck_assert_msg(reply.status == STATUS_NOT_FOUND, "%s: %s", status_name(reply.status),
                  reply.message);
    raw_close(raw);
    stop_clean();
}
END_TEST

// A copy has two ids for each block. 4 bytes are the slopes of one head.
START_TEST(memory_of_waiting_commands_is_bounded_and_the_error_names_the_option)
{
    enum { LIMIT = 4096, MOST = LIMIT / 8 };
    static int32_t none[MOST + 1], ids[MOST + 1];
    struct raw_pending pending;
    start((const char *const[]){"--max-tickets", "1", "--max-batch-memory", "4K", NULL});
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "bounded");
    int32_t block = do_step(raw, cache, 3);
    lease(raw, cache, MOST + 1, ids);
    memset(none, -1, sizeof none);
    const struct wire_request create = fill_request(cache, &block, NULL);
    uint64_t batch = create_batch(raw, &create), first = submit(raw, batch);
    struct wire_request run = run_request(batch, -1), copy = copy_request(cache, none, ids);
    copy.blocks_copy.from.count = copy.blocks_copy.to.count = MOST + 1;
    expect_words(raw, &copy, STATUS_LIMIT, "--max-batch-memory is 4096");
    run.run.entry.slopes = (struct wire_span){SPANS_AT, 1};
    raw_begin(raw, &run, &pending);
    wait_taken(raw);
    copy.blocks_copy.from.count = copy.blocks_copy.to.count = MOST;
    expect_words(raw, &copy, STATUS_LIMIT,
                 "4096 bytes of arrays cannot wait for a ticket beside the 4 bytes");
    run.run.entry.slopes = (struct wire_span){0};
    run.run.timeout_ms = 50;
    expect_words(raw, &run, STATUS_BUSY, "--max-tickets 1"); // without arrays it may wait
    wait_done(raw, first);
    wait_done(raw, end_queued(&pending));
    raw_close(raw);
    stop_clean();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("daemon, its commands");
    suite_add(suite, "queued",
              (const TTest *const[]){
                  a_gather_returns_what_a_write_wrote, a_copied_block_attends_as_the_original,
                  a_block_copied_from_none_is_zeroed,
                  attention_over_block_tensors_writes_and_reads_the_arena,
                  attention_over_ragged_rows_finds_each_sequence,
                  tokens_may_lie_in_any_rows_and_the_rows_in_the_arena,
                  rows_beyond_q_lens_become_zero, scales_per_tensor_reach_the_write_and_the_gather,
                  each_layers_scales_reach_its_write, rotary_frequencies_turn_k_as_it_is_written,
                  splits_and_what_means_excluded_are_taken, partial_results_are_merged_by_their_lse,
                  NULL},
              2);
    suite_add(suite, "waiting",
              (const TTest *const[]){
                  a_run_that_waits_keeps_its_slopes,
                  a_run_that_waits_keeps_the_scales_of_its_layers,
                  copies_and_merges_wait_and_go_in_their_order,
                  a_waiting_command_is_not_looked_at_while_no_ticket_is_free,
                  memory_of_waiting_commands_is_bounded_and_the_error_names_the_option, NULL},
              1);
    return check_main(suite);
}
