// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_fake_steps.c - the messages of a run of several layers and of the next step of a
// batch. Each test is a process with a fake daemon in it.

#include "rigs/client_world.h"

#include <string.h>

// What the daemon sees when the command arrives.
struct seen {
    struct wire_run run;
    float slopes[5], scales[6];
    struct wire_batch_advance advance;
    int32_t lens[1], entries[6], positions[1];
    int64_t slots[1];
};

static void keep_advance(const struct wire_batch_advance *advance, struct seen *seen)
{
    seen->advance = *advance;
    if (advance->seq_lens_kv.count == 1)
        memcpy(seen->lens, advance->seq_lens_kv.data, sizeof seen->lens);
    if (advance->entries.count == 6)
        memcpy(seen->entries, advance->entries.data, sizeof seen->entries);
    if (advance->slot_mapping.count == 1)
        memcpy(seen->slots, advance->slot_mapping.data, sizeof seen->slots);
    if (advance->positions.count == 1)
        memcpy(seen->positions, advance->positions.data, sizeof seen->positions);
}

static enum fake_action keep(struct fake_daemon *daemon, const struct wire_request *request,
                             struct wire_reply *reply)
{
    (void)reply;
    struct seen *seen = daemon->context;
    if (request->command == WIRE_COMMAND_RUN)
        seen->run = request->run;
    if (request->command == WIRE_COMMAND_RUN && request->run.entry.slopes.count == 5)
        memcpy(seen->slopes, fake_arena(daemon) + request->run.entry.slopes.offset,
               sizeof seen->slopes);
    if (request->command == WIRE_COMMAND_RUN && request->run.scales.count == 6)
        memcpy(seen->scales, fake_arena(daemon) + request->run.scales.offset, sizeof seen->scales);
    if (request->command == WIRE_COMMAND_BATCH_ADVANCE)
        keep_advance(&request->batch_advance, seen);
    return FAKE_ANSWER;
}

static struct seen seen;
static struct aule_session *session;
static struct aule_cache *cache;
static struct aule_batch *batch;

static void open_all(void)
{
    memset(&seen, 0, sizeof seen);
    fake_start(&fake, path, keep, &seen);
    session = open_session(0);
    cache = open_cache(session);
    batch = create_batch(cache);
}

static void close_all(void)
{
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}

START_TEST(layers_reach_the_daemon_with_arrays_as_long_as_their_strides_say)
{
    static const float slopes[5] = {1, 2, 3, 4, 5};
    const struct aule_run_params run = {.layer = 3, .num_heads = 1, .alibi_slopes = slopes};
    const struct aule_layers layers = {.num_layers = 3,
                                       .layer_step = 2,
                                       .q_stride = 16,
                                       .k_stride = 32,
                                       .v_stride = 48,
                                       .out_stride = 64,
                                       .lse_stride = 4,
                                       .keys_stride = 80,
                                       .values_stride = 96,
                                       .slopes_stride = 2 * sizeof(float)};
    struct aule_ticket ticket;
    open_all();
    ck_assert_int_eq(aule_run_layers_submit(batch, &run, &layers, 0, &ticket), AULE_OK);
    const struct wire_layers *l = &seen.run.layers;
    const uint64_t got[] = {l->num_layers, l->layer_step, l->q,      l->k,      l->v,    l->out,
                            l->lse,        l->keys,       l->values, l->slopes, l->sinks};
    const uint64_t wanted[] = {3, 2, 16, 32, 48, 64, 4, 80, 96, 8, 0};
    ck_assert_mem_eq(got, wanted, sizeof wanted);
    ck_assert_uint_eq(seen.run.entry.layer, 3);
    ck_assert_mem_eq(seen.slopes, slopes, sizeof slopes);
    ck_assert_int_eq(aule_run_layers(batch, &run, &layers, 1000, NULL), AULE_OK);
    ck_assert_int_eq(aule_run(batch, &run, 1000, NULL), AULE_OK);
    ck_assert_uint_eq(seen.run.layers.num_layers, 0); // as in a plain run
    struct aule_layers bad = layers;
    bad.num_layers = 1025;
    expect(aule_run_layers(batch, &run, &bad, 0, NULL), AULE_INVALID, "num_layers = 1025");
    expect_empty_arena(session);
    close_all();
}
END_TEST

START_TEST(scales_of_layers_reach_the_daemon_as_one_array)
{
    const float k[] = {0.5f, 0, 2}, v[] = {3, 4, 5};
    const struct aule_run_params run = {.num_heads = 1, .k_scale = 7, .v_scale = 8};
    struct aule_layers layers = {.num_layers = 3, .k_scales = k, .v_scales = v};
    open_all();
    ck_assert_int_eq(aule_run_layers(batch, &run, &layers, 1000, NULL), AULE_OK);
    ck_assert_mem_eq(seen.scales, ((const float[]){0.5f, 0, 2, 3, 4, 5}), sizeof seen.scales);
    ck_assert_float_eq(seen.run.entry.k_scale, 7);
    layers.v_scales = NULL;
    ck_assert_int_eq(aule_run_layers(batch, &run, &layers, 1000, NULL), AULE_OK);
    ck_assert_mem_eq(seen.scales, ((const float[]){0.5f, 0, 2, 8, 8, 8}), sizeof seen.scales);
    layers.k_scales = NULL;
    layers.v_scales = v;
    ck_assert_int_eq(aule_run_layers_submit(batch, &run, &layers, 1000, NULL), AULE_OK);
    ck_assert_mem_eq(seen.scales, ((const float[]){7, 7, 7, 3, 4, 5}), sizeof seen.scales);
    layers.num_layers = 1;
    ck_assert_int_eq(aule_run_layers(batch, &run, &layers, 1000, NULL), AULE_OK);
    ck_assert_uint_eq(seen.run.layers.num_layers, 0);
    ck_assert_uint_eq(seen.run.scales.count, 2);
    layers.v_scales = NULL;
    ck_assert_int_eq(aule_run_layers(batch, &run, &layers, 1000, NULL), AULE_OK);
    ck_assert_uint_eq(seen.run.scales.count, 0);
    expect_empty_arena(session);
    close_all();
}
END_TEST

START_TEST(what_a_step_changes_reaches_the_daemon)
{
    const int32_t lens[] = {7}, positions[] = {6};
    const int64_t slots[] = {38};
    const struct aule_table_entry entries[] = {{0, 1, 4}, {2, 3, -1}};
    const int32_t numbers[] = {0, 1, 4, 2, 3, -1};
    open_all();
    ck_assert_int_eq(aule_batch_advance(batch, &(struct aule_advance){.slot_mapping = slots}),
                     AULE_OK);
    ck_assert_uint_eq(seen.advance.batch, 9);
    ck_assert_uint_eq(seen.advance.seq_lens_kv.count, 0);
    ck_assert_uint_eq(seen.advance.entries.count, 0);
    ck_assert_uint_eq(seen.advance.positions.count, 0);
    ck_assert_int_eq(seen.slots[0], 38);
    const struct aule_advance all = {.seq_lens_kv = lens,
                                     .slot_mapping = slots,
                                     .entries = entries,
                                     .num_entries = 2,
                                     .positions = positions};
    ck_assert_int_eq(aule_batch_advance(batch, &all), AULE_OK);
    ck_assert_int_eq(seen.lens[0], 7);
    ck_assert_int_eq(seen.positions[0], 6);
    ck_assert_mem_eq(seen.entries, numbers, sizeof numbers);
    expect(aule_batch_advance(batch, &(struct aule_advance){.num_entries = 1}), AULE_INVALID,
           "entries is NULL, but num_entries is 1");
    expect(aule_batch_advance(batch, NULL), AULE_INVALID, "advance");
    close_all();
}
END_TEST

START_TEST(options_reach_the_daemon)
{
    const struct aule_run_params run = {
        .num_heads = 1, .max_queue_ms = 77, .lse_base2 = true, .attention_chunk = 8192};
    open_all();
    ck_assert_int_eq(aule_run(batch, &run, 1000, NULL), AULE_OK);
    ck_assert_uint_eq(seen.run.options.max_queue_ms, 77);
    ck_assert_uint_eq(seen.run.options.lse_base2, 1);
    ck_assert_uint_eq(seen.run.options.attention_chunk, 8192);
    close_all();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_fake_steps");
    add(suite, "steps",
        (const struct entry[]){
            {layers_reach_the_daemon_with_arrays_as_long_as_their_strides_say, 0},
            {scales_of_layers_reach_the_daemon_as_one_array, 0},
            {what_a_step_changes_reaches_the_daemon, 0},
            {options_reach_the_daemon, 0},
            {NULL, 0}});
    return check_main(suite);
}
