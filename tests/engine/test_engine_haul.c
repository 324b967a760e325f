// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine_haul.c - hauls: copies between a cache and host memory beside the submissions, by a
// shader where the device has compute queues to spare, and by copy commands alone. On a device with
// one queue, which a software device is, the queue of the runs stands for all others. The host
// memory has parts, as a large host tier has.

#include "base/clock.h"
#include "rigs/engine_world.h"

#include <stdlib.h>
#include <string.h>

enum {
    PART = 2 << 20,
    HOST = 2 * PART,
    PLAIN = 2 * 512
}; // bytes; PLAIN: a block of the plain cache

static struct engine_arena *host;
static unsigned char *host_memory;
static struct engine_cache *cache;
static enum engine_haul_mode how;

static void open_host(void)
{
    struct error error = {0};
    host_memory = aligned_alloc(PART, HOST);
    memset(host_memory, 0x55, HOST);
    ck_assert_msg(engine_arena_create_parts(engine, host_memory, HOST, PART, &host, &error) ==
                      STATUS_OK,
                  "%s", error.text);
}

static void setup(void)
{
    engine = open_engine((struct engine_params){.haul = how});
    ck_assert(engine_hauls(engine));
    open_arena();
    open_host();
    cache = plain_cache();
}

static void setup_any(void)
{
    how = ENGINE_HAUL_ON;
    setup();
}

static void setup_copies(void)
{
    how = ENGINE_HAUL_COPIES;
    setup();
}

static void finish(void)
{
    engine_cache_destroy(cache);
    ck_assert(engine_arena_destroy(host));
    teardown();
    free(host_memory);
}

static uint64_t haul(const struct engine_copy *copies, uint32_t count, uint64_t after)
{
    struct error error = {0};
    uint64_t number = 0;
    const struct engine_haul params = {
        .cache = cache, .arena = host, .copies = copies, .num_copies = count, .after = after};
    ck_assert_msg(engine_haul(engine, &params, &number, &error) == STATUS_OK, "%s", error.text);
    return number;
}

// The haul's event is the next one.
static void expect_hauled(uint64_t number)
{
    ck_assert_int_eq(engine_haul_wait(engine, number, DEADLINE_S * 1000), STATUS_OK);
    const struct engine_event event = expect_event(ENGINE_EVENT_HAULED);
    ck_assert_uint_eq(event.haul, number);
    ck_assert_int_eq(event.error.status, STATUS_OK);
}

static uint64_t hauled_bytes(void)
{
    uint64_t metrics[NUM_ENGINE_METRICS];
    engine_metrics(engine, metrics);
    return metrics[ENGINE_METRIC_HAULED_BYTES];
}

START_TEST(blocks_go_to_both_parts_of_host_memory_and_come_back_with_all_layers)
{
    unsigned char bytes[2][512];
    const uint64_t last = HOST - PLAIN; // in the second part
    write_pattern(cache, 0, 1, bytes[0]);
    write_pattern(cache, 1, 1, bytes[1]);
    expect_hauled(haul(
        (struct engine_copy[]){{1, ENGINE_COPY_ARENA, 4096}, {1, ENGINE_COPY_ARENA, last}}, 2, 0));
    for (int i = 0; i < 2; i++) {
        const unsigned char *at = host_memory + (i ? last : 4096);
        expect_bytes(at, bytes[0], 512, "layer 0");
        expect_bytes(at + 512, bytes[1], 512, "layer 1");
    }
    ck_assert_int_eq(host_memory[4095], 0x55);
    ck_assert_int_eq(host_memory[4096 + PLAIN], 0x55);
    ck_assert_int_eq(host_memory[last - 1], 0x55);
    expect_hauled(haul((struct engine_copy[]){{ENGINE_COPY_ARENA, 3, last}}, 1, 0));
    for (uint32_t layer = 0; layer < 2; layer++)
        expect_block(cache, layer, 3, bytes[layer]);
    ck_assert_uint_eq(hauled_bytes(), 3 * PLAIN);
}
END_TEST

// A shader moves tiles of AULE_HAUL_TILE bytes. A piece is shorter than one, is one, or is no
// multiple.
START_TEST(pieces_of_any_length_move_whole_and_touch_nothing_beside_them)
{
    static const uint32_t shapes[][2] = {{1, 8}, {4, 64}, {5, 104}, {3, 200}}; // heads, head dim
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        engine_cache_destroy(cache);
        cache = open_cache(shape(2, shapes[i][0], shapes[i][1], DTYPE_F32));
        grow_chunk(cache, 0);
        const size_t size = engine_layer_block_bytes(&cache->params);
        unsigned char *bytes[2] = {malloc(size), malloc(size)}, *nothing = calloc(1, size);
        for (uint32_t layer = 0; layer < 2; layer++)
            write_pattern(cache, layer, 1, bytes[layer]);
        memset(host_memory, 0x55, HOST);
        expect_hauled(haul((struct engine_copy[]){{1, ENGINE_COPY_ARENA, 4096}}, 1, 0));
        expect_bytes(host_memory + 4096, bytes[0], size, "layer 0");
        expect_bytes(host_memory + 4096 + size, bytes[1], size, "layer 1");
        ck_assert_int_eq(host_memory[4095], 0x55);
        ck_assert_int_eq(host_memory[4096 + 2 * size], 0x55);
        expect_hauled(haul((struct engine_copy[]){{ENGINE_COPY_ARENA, 3, 4096}}, 1, 0));
        for (uint32_t layer = 0; layer < 2; layer++) {
            expect_block(cache, layer, 1, bytes[layer]);
            expect_block(cache, layer, 2, nothing);
            expect_block(cache, layer, 3, bytes[layer]);
            expect_block(cache, layer, 0, nothing);
            free(bytes[layer]);
        }
        free(nothing);
    }
}
END_TEST

// More pieces than a list of ranges has room for at first, and than a copy command gets.
START_TEST(a_haul_has_as_many_blocks_as_the_caller_wants)
{
    enum { BLOCKS = 300 };
    unsigned char bytes[2][512];
    struct engine_copy copies[BLOCKS];
    engine_cache_destroy(cache);
    struct engine_cache_params params = shape(2, 1, 8, DTYPE_F32);
    params.chunk_blocks = 512;
    cache = open_cache(params);
    grow_chunk(cache, 0);
    for (uint32_t round = 0; round < 4; round++) {
        const uint32_t count = round % 2 ? 3 : BLOCKS; // short ones after long ones, too
        for (uint32_t i = 0; i < count; i++) {
            copies[i] = (struct engine_copy){(int32_t)i, ENGINE_COPY_ARENA, (uint64_t)i * PLAIN};
            for (uint32_t layer = 0; layer < 2; layer++)
                write_pattern(cache, layer, (int32_t)i, bytes[layer]);
        }
        memset(host_memory, 0x55, HOST);
        expect_hauled(haul(copies, count, 0));
        ck_assert_int_eq(host_memory[count * PLAIN], 0x55);
        for (uint32_t i = 0; i < count; i++) // to another block
            copies[i] = (struct engine_copy){ENGINE_COPY_ARENA, (int32_t)(count - 1 - i),
                                             (uint64_t)i * PLAIN};
        expect_hauled(haul(copies, count, 0));
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t layer = 0; layer < 2; layer++)
                expect_block(cache, layer, (int32_t)(count - 1 - i),
                             host_memory + i * PLAIN + layer * 512);
    }
}
END_TEST

START_TEST(a_run_sees_what_a_haul_brought_and_a_haul_what_a_run_wrote)
{
    struct engine_batch *writer = one_key(cache, 2, true), *reader = one_key(cache, 3, false);
    struct engine_run runs[] = {plain_run(writer, 0, 0, 1024, 2048, 4096),
                                plain_run(reader, 0, 0, 0, 0, 8192)};
    for (int i = 0; i < 20; i++) {
        fill(1024, (float)i);
        fill(2048, 100.0f * (float)i);
        const uint64_t sequence = submit_runs(runs, 1);
        expect_done(sequence);
        expect_hauled(haul((struct engine_copy[]){{2, ENGINE_COPY_ARENA, 0}}, 1, sequence));
        expect_hauled(haul((struct engine_copy[]){{ENGINE_COPY_ARENA, 3, 0}}, 1, sequence));
        expect_done(submit_runs(runs + 1, 1));
        expect_floats(8192, 100.0f * (float)i);
    }
    engine_batch_destroy(writer);
    engine_batch_destroy(reader);
}
END_TEST

START_TEST(a_haul_waits_for_the_submission_that_it_names_and_other_hauls_do_not)
{
    struct engine_batch *writer = one_key(cache, 2, true);
    struct engine_run run = plain_run(writer, 0, 0, 1024, 2048, 4096);
    unsigned char bytes[512];
    write_pattern(cache, 0, 1, bytes);
    fill(1024, 7);
    fill(2048, 9);
    pthread_mutex_lock(&engine->device.queues[0].lock); // the submitter cannot reach the GPU
    const uint64_t sequence = submit_runs(&run, 1);
    const uint64_t late = haul((struct engine_copy[]){{2, ENGINE_COPY_ARENA, 0}}, 1, sequence);
    ck_assert_int_eq(engine_haul_wait(engine, late, 50), STATUS_TIMEOUT);
    pthread_mutex_unlock(&engine->device.queues[0].lock);
    expect_done(sequence);
    expect_hauled(late);
    ck_assert_mem_eq(host_memory + 256, floats(2048), 32);
    expect_hauled(haul((struct engine_copy[]){{1, ENGINE_COPY_ARENA, 0}}, 1, 0));
    expect_bytes(host_memory, bytes, 512, "the other block");
    engine_batch_destroy(writer);
}
END_TEST

// Both ways at once, beside runs. Each haul in brings what the haul out before it took.
START_TEST(hauls_of_both_ways_and_runs_go_on_side_by_side)
{
    enum { ROUNDS = 50 };
    struct engine_batch *batch = one_key(cache, 0, true);
    const struct engine_run run = plain_run(batch, 1, 0, 64, 128, 192);
    unsigned char bytes[2][512];
    for (uint32_t layer = 0; layer < 2; layer++)
        write_pattern(cache, layer, 1, bytes[layer]);
    expect_hauled(haul((struct engine_copy[]){{1, ENGINE_COPY_ARENA, 0}}, 1, 0));
    fill(128, 5);
    uint32_t counts[2] = {0};
    for (uint64_t i = 0; i < ROUNDS; i++) {
        submit_runs(&run, 1);
        haul((struct engine_copy[]){{1, ENGINE_COPY_ARENA, 4096 + i * 4096}}, 1, 0);
        haul((struct engine_copy[]){{ENGINE_COPY_ARENA, (int32_t)(2 + i % 2), 0}}, 1, 0);
    }
    while (counts[0] < ROUNDS || counts[1] < 2 * ROUNDS) {
        const struct engine_event event = next_event();
        ck_assert(event.kind == ENGINE_EVENT_DONE || event.kind == ENGINE_EVENT_HAULED);
        counts[event.kind == ENGINE_EVENT_HAULED]++;
        if (event.kind == ENGINE_EVENT_HAULED)
            ck_assert_int_eq(event.error.status, STATUS_OK);
    }
    for (uint64_t i = 0; i < ROUNDS; i++)
        expect_bytes(host_memory + 4096 + i * 4096, bytes[0], 512, "a haul out");
    for (uint32_t layer = 0; layer < 2; layer++)
        for (int32_t block = 2; block < 4; block++)
            expect_block(cache, layer, block, bytes[layer]);
    expect_floats(192, 5);
    engine_batch_destroy(batch);
}
END_TEST

START_TEST(a_haul_that_makes_no_sense_is_refused_with_its_values)
{
    static const struct {
        struct engine_copy copies[2];
        uint64_t after;
        const char *text;
    } cases[] = {
        {{{1, ENGINE_COPY_ARENA, 0}, {ENGINE_COPY_ARENA, 2, 0}}, 0, "copy 1"},
        {{{1, ENGINE_COPY_ARENA, 0}, {1, 2, 0}}, 0, "from block 1 to block 2"},
        {{{ENGINE_COPY_ARENA, 1, 0}, {ENGINE_COPY_ARENA, ENGINE_COPY_ARENA, 0}}, 0, "copy 1"},
        {{{1, ENGINE_COPY_ARENA, 0}, {1, ENGINE_COPY_ARENA, 0}}, 77, "submission 77"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error error = {0};
        uint64_t number = 0;
        const struct engine_haul params = {.cache = cache,
                                           .arena = host,
                                           .copies = cases[i].copies,
                                           .num_copies = 2,
                                           .after = cases[i].after};
        ck_assert_int_eq(engine_haul(engine, &params, &number, &error), STATUS_INVALID);
        ck_assert_msg(strstr(error.text, cases[i].text) != NULL, "%s", error.text);
    }
    ck_assert_int_eq(engine_haul_wait(engine, 1, 0), STATUS_NOT_FOUND);
}
END_TEST

START_TEST(host_memory_in_parts_serves_copies_of_the_other_kind_too_and_nothing_else)
{
    unsigned char bytes[512];
    struct error error = {0};
    struct engine_arena *none = NULL;
    write_pattern(cache, 1, 1, bytes);
    struct engine_run copy = {
        .kind = ENGINE_COPY,
        .cache = cache,
        .arena = host,
        .copies = (struct engine_copy[]){{1, ENGINE_COPY_ARENA, PART}},
        .num_copies = 1,
    };
    expect_done(submit_runs(&copy, 1));
    expect_bytes(host_memory + PART + 512, bytes, 512, "layer 1");
    struct engine_batch *batch = one_key(cache, 0, true);
    struct engine_run run = plain_run(batch, 1, 0, 64, 128, 192);
    run.arena = host;
    ck_assert_int_eq(engine_run_check(engine, &run, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "copies of blocks only"));
    ck_assert_int_eq(engine_arena_create_parts(engine, host_memory, HOST, 4096, &none, &error),
                     STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "4096"));
    engine_batch_destroy(batch);
}
END_TEST

START_TEST(hauls_that_wait_end_without_an_event_when_the_device_is_lost)
{
    struct engine_batch *writer = one_key(cache, 2, true);
    struct engine_run run = plain_run(writer, 0, 0, 1024, 2048, 4096);
    struct error error = {0};
    uint64_t number;
    pthread_mutex_lock(&engine->device.queues[0].lock);
    const uint64_t sequence = submit_runs(&run, 1);
    const uint64_t late = haul((struct engine_copy[]){{2, ENGINE_COPY_ARENA, 0}}, 1, sequence);
    device_lose(&engine->device, "a test");
    pthread_mutex_unlock(&engine->device.queues[0].lock);
    ck_assert_int_eq(engine_haul_wait(engine, late, DEADLINE_S * 1000), STATUS_DEVICE_LOST);
    expect_event(ENGINE_EVENT_LOST);
    const struct engine_haul params = {.cache = cache,
                                       .arena = host,
                                       .copies = (struct engine_copy[]){{1, ENGINE_COPY_ARENA, 0}},
                                       .num_copies = 1};
    ck_assert_int_eq(engine_haul(engine, &params, &number, &error), STATUS_DEVICE_LOST);
    ck_assert(!engine_arena_destroy(host));
    ck_assert(engine_destroy_within(engine, DEADLINE_S * 1000));
    free(host_memory);
    engine = open_engine((struct engine_params){.haul = how});
    open_arena();
    open_host();
    cache = plain_cache();
}
END_TEST

static bool has_stream(enum stream_kind kind)
{
    return engine->device.streams[kind].queue != NULL;
}

// Without further queues, streams of both kinds share the queue of the runs.
START_TEST(a_shader_moves_blocks_only_where_the_caller_lets_it)
{
    const struct adapter *adapter = &engine->device.adapter;
    const bool transfers = adapter->num_haul_queues > 0, computes = adapter->num_queues > 1,
               may_shade = how == ENGINE_HAUL_ON;
    ck_assert(has_stream(STREAM_COPY_1) == (transfers || !computes || !may_shade));
    ck_assert(has_stream(STREAM_SHADER_1) == (may_shade && (computes || !transfers)));
}
END_TEST

// Hauls that streams of a kind have ended.
static uint64_t num_ended(enum stream_kind first)
{
    return engine->device.streams[first].passed + engine->device.streams[first + 1].passed;
}

static uint32_t num_with_runs(void)
{
    pthread_mutex_lock(&engine->lock);
    const uint32_t count = engine->num_with_runs;
    pthread_mutex_unlock(&engine->lock);
    return count;
}

// A worker that decodes has no run for a moment between two steps.
static void set_runs(uint32_t count, int64_t ended_ns)
{
    pthread_mutex_lock(&engine->lock);
    engine->num_with_runs = count;
    engine->runs_ended_ns = ended_ns;
    pthread_mutex_unlock(&engine->lock);
}

static const struct engine_copy in[] = {{ENGINE_COPY_ARENA, 3, 0}},
                                out[] = {{1, ENGINE_COPY_ARENA, 0}};

// Since `before`, so many hauls went by each kind of stream. If the device has one kind, all went
// by this kind.
static void expect_lanes(const uint64_t before[2], uint64_t copies, uint64_t shaders)
{
    const bool copying = has_stream(STREAM_COPY_1), shading = has_stream(STREAM_SHADER_1);
    const uint64_t all = copies + shaders;
    ck_assert_uint_eq(num_ended(STREAM_COPY_1) - before[0], !shading ? all : copying ? copies : 0);
    ck_assert_uint_eq(num_ended(STREAM_SHADER_1) - before[1], !copying  ? all
                                                              : shading ? shaders
                                                                        : 0);
}

static void expect_lane(const struct engine_copy *copies, bool shader)
{
    const uint64_t before[2] = {num_ended(STREAM_COPY_1), num_ended(STREAM_SHADER_1)};
    expect_hauled(haul(copies, 1, 0));
    expect_lanes(before, !shader, shader);
}

START_TEST(hauls_queued_while_there_are_runs_go_by_copy_commands)
{
    expect_lane(in, true);   // no run has ended yet
    expect_lane(out, false); // a copy engine is free
    set_runs(1, 0);
    expect_lane(in, false);
    expect_lane(out, false);
    set_runs(0, 0);
}
END_TEST

START_TEST(a_moment_after_runs_hauls_still_go_by_copy_commands_and_later_by_a_shader)
{
    const uint64_t before[2] = {num_ended(STREAM_COPY_1), num_ended(STREAM_SHADER_1)};
    uint64_t tries = 0, shaders;
    int64_t ended_ns, queued_ns;
    do { // a machine that stands still meanwhile lets the moment pass
        shaders = num_ended(STREAM_SHADER_1) - before[1];
        ended_ns = clock_now_ns() - NS_PER_MS;
        set_runs(0, ended_ns);
        const uint64_t number = haul(in, 1, 0);
        queued_ns = clock_now_ns();
        expect_hauled(number);
        tries++;
    } while (queued_ns - ended_ns >= 5 * NS_PER_MS);
    if (has_stream(STREAM_COPY_1))
        expect_lanes(before, tries - shaders, shaders);
    set_runs(0, clock_now_ns() - NS_PER_S);
    expect_lane(in, true);
    set_runs(0, 0);
}
END_TEST

// A submission without runs, which ends when the test lets go of the queue.
static uint64_t hold_zeroes(void)
{
    static struct engine_zero zero;
    zero = (struct engine_zero){cache, 0};
    pthread_mutex_lock(&engine->device.queues[0].lock); // the submitter cannot reach the GPU
    return submit(&(struct engine_submission){.zeroes = &zero, .num_zeroes = 1});
}

START_TEST(hauls_that_wait_for_a_shader_pass_to_copy_commands_when_runs_come)
{
    enum { HAULS = 4 }; // one for each block
    const uint64_t before[2] = {num_ended(STREAM_COPY_1), num_ended(STREAM_SHADER_1)};
    const uint64_t sequence = hold_zeroes();
    for (int i = 0; i < HAULS; i++)
        haul((struct engine_copy[]){{ENGINE_COPY_ARENA, i, (uint64_t)i * PLAIN}}, 1, sequence);
    set_runs(1, 0);
    pthread_mutex_unlock(&engine->device.queues[0].lock);
    expect_done(sequence);
    for (int i = 0; i < HAULS; i++)
        expect_event(ENGINE_EVENT_HAULED);
    expect_lanes(before, HAULS, 0);
    set_runs(0, 0);
}
END_TEST

START_TEST(hauls_out_go_by_a_shader_while_all_lanes_of_copies_are_busy)
{
    const uint64_t before[2] = {num_ended(STREAM_COPY_1), num_ended(STREAM_SHADER_1)};
    const uint64_t sequence = hold_zeroes();
    for (int i = 0; i < 4; i++)
        haul((struct engine_copy[]){{1, ENGINE_COPY_ARENA, (uint64_t)i * PLAIN}}, 1, sequence);
    pthread_mutex_unlock(&engine->device.queues[0].lock);
    expect_done(sequence);
    for (int i = 0; i < 4; i++)
        expect_event(ENGINE_EVENT_HAULED);
    expect_lanes(before, 2, 2);
}
END_TEST

// Other processes may run kernels over the cache, and the engine does not see them.
START_TEST(blocks_of_an_exported_cache_move_by_copy_commands_even_without_runs)
{
    if (!engine_device(engine)->memory_export) {
        fprintf(stderr, "not tested: the device exports no memory\n");
        return;
    }
    engine_cache_destroy(cache);
    struct engine_cache_params params = shape(2, 1, 8, DTYPE_F32);
    params.exported = true;
    cache = open_cache(params);
    grow_chunk(cache, 0);
    expect_lane(in, false);
    expect_lane(out, false);
}
END_TEST

START_TEST(a_submission_without_runs_is_none)
{
    const uint64_t sequence = hold_zeroes();
    ck_assert_uint_eq(num_with_runs(), 0);
    pthread_mutex_unlock(&engine->device.queues[0].lock);
    expect_done(sequence);
    ck_assert_uint_eq(num_with_runs(), 0);
    ck_assert_int_eq(engine->runs_ended_ns, 0);
}
END_TEST

START_TEST(the_engine_knows_whether_there_are_runs)
{
    struct engine_batch *writer = one_key(cache, 2, true);
    struct engine_run run = plain_run(writer, 0, 0, 1024, 2048, 4096);
    ck_assert_uint_eq(num_with_runs(), 0);
    pthread_mutex_lock(&engine->device.queues[0].lock); // the submitter cannot reach the GPU
    const int64_t begun_ns = clock_now_ns();
    submit_runs(&run, 1);
    const uint64_t last = submit_runs(&run, 1);
    ck_assert_uint_eq(num_with_runs(), 2);
    pthread_mutex_unlock(&engine->device.queues[0].lock);
    expect_done(last - 1);
    expect_done(last);
    ck_assert_uint_eq(num_with_runs(), 0);
    ck_assert_int_ge(engine->runs_ended_ns, begun_ns);
    engine_batch_destroy(writer);
}
END_TEST

START_TEST(without_queues_of_their_own_there_are_hauls_only_if_the_caller_wants_them)
{
    const bool has =
        engine->device.adapter.num_haul_queues > 0 || engine->device.adapter.num_queues > 1;
    struct engine *other = open_engine((struct engine_params){.haul = ENGINE_HAUL_AUTO});
    ck_assert(engine_hauls(other) == has);
    close_engine(other);
    other = open_engine((struct engine_params){.haul = ENGINE_HAUL_OFF});
    ck_assert(!engine_hauls(other));
    ck_assert_int_eq(engine_haul_wait(other, 1, 0), STATUS_NOT_FOUND);
    close_engine(other);
}
END_TEST

void add_haul_tests(Suite *suite)
{
    const TTest *const tests[] = {
        blocks_go_to_both_parts_of_host_memory_and_come_back_with_all_layers,
        pieces_of_any_length_move_whole_and_touch_nothing_beside_them,
        a_haul_has_as_many_blocks_as_the_caller_wants,
        a_run_sees_what_a_haul_brought_and_a_haul_what_a_run_wrote,
        a_haul_waits_for_the_submission_that_it_names_and_other_hauls_do_not,
        hauls_of_both_ways_and_runs_go_on_side_by_side,
        a_haul_that_makes_no_sense_is_refused_with_its_values,
        host_memory_in_parts_serves_copies_of_the_other_kind_too_and_nothing_else,
        hauls_that_wait_end_without_an_event_when_the_device_is_lost,
        a_shader_moves_blocks_only_where_the_caller_lets_it,
        hauls_queued_while_there_are_runs_go_by_copy_commands,
        a_moment_after_runs_hauls_still_go_by_copy_commands_and_later_by_a_shader,
        hauls_that_wait_for_a_shader_pass_to_copy_commands_when_runs_come,
        hauls_out_go_by_a_shader_while_all_lanes_of_copies_are_busy,
        blocks_of_an_exported_cache_move_by_copy_commands_even_without_runs,
        a_submission_without_runs_is_none,
        the_engine_knows_whether_there_are_runs,
        without_queues_of_their_own_there_are_hauls_only_if_the_caller_wants_them,
        NULL,
    };
    check_case(suite, "hauls", setup_any, finish, tests, 1);
    check_case(suite, "hauls by copies", setup_copies, finish, tests, 1);
}
