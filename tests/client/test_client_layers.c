// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_layers.c - a prepared batch run for several layers at once, and its next steps from
// their changes, through libaule-client and the real daemon. Each layer of each step is compared
// with loops in double.

#include "rigs/client_step.h"

#include <string.h>

static void setup(void)
{
    launch(NULL);
}

static void setup_staging(void)
{
    launch((const char *const[]){DAEMON_STAGED, NULL});
}

// ---- a scene: tensors and histories for all layers, and a decode of two sequences ----

enum { PROMPT = 17, STEPS = 12 };

struct scene {
    struct step step; // its tensors are those of one layer, see at_layer()
    struct aule_tensor q, k, v, out;
    struct aule_layers layers;
    struct history histories[LAYERS][MAX_SEQS];
};
static struct scene scene;

static uint64_t layer_stride(uint32_t heads)
{
    return (uint64_t)MAX_TOKENS * heads * DIM * sizeof(float);
}

static void open_scene(void)
{
    struct step *step = &scene.step;
    memset(&scene, 0, sizeof scene);
    open_step(step, NULL);
    const uint64_t q = layer_stride(HEADS), k = layer_stride(KV_HEADS);
    ok(aule_tensor_create(step->session, AULE_F32, (LAYERS + 1) * MAX_TOKENS, HEADS, DIM,
                          &scene.q)); // one for a chain
    ok(aule_tensor_create(step->session, AULE_F32, LAYERS * MAX_TOKENS, KV_HEADS, DIM, &scene.k));
    ok(aule_tensor_create(step->session, AULE_F32, LAYERS * MAX_TOKENS, KV_HEADS, DIM, &scene.v));
    ok(aule_tensor_create(step->session, AULE_F32, LAYERS * MAX_TOKENS, HEADS, DIM, &scene.out));
    scene.layers = (struct aule_layers){
        .num_layers = LAYERS, .q_stride = q, .k_stride = k, .v_stride = k, .out_stride = q};
}

// Makes the step's tensors those of one layer.
static void at_layer(uint32_t layer)
{
    struct step *step = &scene.step;
    step->q = scene.q;
    step->k = scene.k;
    step->v = scene.v;
    step->out = scene.out;
    step->q.offset += layer * scene.layers.q_stride;
    step->k.offset += layer * scene.layers.k_stride;
    step->v.offset += layer * scene.layers.v_stride;
    step->out.offset += layer * scene.layers.out_stride;
    step->run.q = step->q;
    step->run.k = step->k;
    step->run.v = step->v;
    step->run.out = step->out;
}

// Each layer and each `seed` has other numbers.
static void fill_layers(uint32_t seed)
{
    for (uint32_t layer = LAYERS; layer-- > 0;) {
        at_layer(layer);
        fill(&scene.step, &scene.step.q, HEADS, 100 * seed + 3 * layer);
        fill(&scene.step, &scene.step.k, KV_HEADS, 100 * seed + 3 * layer + 1);
        fill(&scene.step, &scene.step.v, KV_HEADS, 100 * seed + 3 * layer + 2);
        remember_all(&scene.step, scene.histories[layer]);
    }
}

static void expect_layers(void)
{
    for (uint32_t layer = LAYERS; layer-- > 0;) {
        at_layer(layer);
        expect_attention(&scene.step, scene.histories[layer]);
    }
}

static void run_layers(struct aule_batch *batch)
{
    struct aule_run_result result;
    ok(aule_run_layers(batch, &scene.step.run, &scene.layers, WAIT_MS, &result));
    ck_assert_uint_eq(result.num_sessions, 1);
}

// Writes the prompts of both sequences, in all layers.
static void prefill(void)
{
    fill_layers(1);
    struct aule_batch *batch = create_batch(&scene.step);
    run_layers(batch);
    aule_batch_destroy(batch);
    expect_layers();
}

static int64_t slot_of(uint32_t s, int32_t position)
{
    const struct step *step = &scene.step;
    return (int64_t)step->table[s * step->batch.max_blocks + (uint32_t)position / BLOCK] * BLOCK +
           position % BLOCK;
}

// One more token for each sequence; the table has room for four blocks of each.
static struct aule_batch *begin_decode(void)
{
    struct step *step = &scene.step;
    int32_t more;
    ok(aule_blocks_lease(step->cache, 1, 0, &more));
    memset(step->table, -1, sizeof step->table);
    for (uint32_t i = 0; i < 2; i++)
        step->table[i] = step->blocks[i];
    step->table[2] = more;
    step->table[4] = step->blocks[2];
    step->batch.max_blocks = 4;
    step->cu[1] = 1;
    step->cu[2] = 2;
    step->lens[0] = PROMPT;
    step->lens[1] = 2;
    for (uint32_t s = 0; s < 2; s++)
        step->slots[s] = slot_of(s, step->lens[s] - 1);
    return create_batch(step);
}

// The changes from step to step: each sequence grows by one token, and sometimes by a block.
static void advance(struct aule_batch *batch, bool say_lengths)
{
    struct step *step = &scene.step;
    struct aule_table_entry entries[2];
    uint32_t count = 0;
    for (uint32_t s = 0; s < 2; s++) {
        int32_t column = step->lens[s]++ / BLOCK;
        int32_t *entry = &step->table[s * 4 + (uint32_t)column];
        if (*entry < 0) {
            ok(aule_blocks_lease(step->cache, 1, 0, entry));
            entries[count++] = (struct aule_table_entry){s, (uint32_t)column, *entry};
        }
        step->slots[s] = slot_of(s, step->lens[s] - 1);
    }
    ok(aule_batch_advance(batch,
                          &(struct aule_advance){.seq_lens_kv = say_lengths ? step->lens : NULL,
                                                 .slot_mapping = step->slots,
                                                 .entries = count ? entries : NULL,
                                                 .num_entries = count}));
}

// ---- layers ----

START_TEST(layers_of_one_run_are_each_what_a_run_of_that_layer_is)
{
    open_scene();
    prefill();
    close_step(&scene.step);
}
END_TEST

START_TEST(a_layer_may_read_what_the_layer_before_it_wrote)
{
    struct step *step = &scene.step;
    open_scene();
    fill_layers(1);
    at_layer(0);
    step->run.out.offset =
        step->q.offset + scene.layers.q_stride; // the queries of the next layer are there
    struct aule_batch *batch = create_batch(step);
    run_layers(batch);
    aule_batch_destroy(batch);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        at_layer(layer);
        step->out = step->q;
        step->out.offset += scene.layers.q_stride;
        expect_attention(step, scene.histories[layer]);
    }
    close_step(step);
}
END_TEST

START_TEST(a_run_of_layers_is_refused_as_a_whole_with_the_layer_that_is_wrong)
{
    struct step *step = &scene.step;
    open_scene();
    fill_layers(1);
    struct aule_batch *batch = create_batch(step);
    struct aule_layers bad = scene.layers;
    bad.layer_step = 7;
    expect(aule_run_layers(batch, &step->run, &bad, WAIT_MS, NULL), AULE_OUT_OF_RANGE,
           "layer 7 of a cache with 2");
    bad = scene.layers;
    bad.num_layers = 0;
    expect(aule_run_layers(batch, &step->run, &bad, WAIT_MS, NULL), AULE_INVALID, "num_layers = 0");
    bad = scene.layers;
    bad.out_stride = UINT64_C(1) << 40;
    expect(aule_run_layers(batch, &step->run, &bad, WAIT_MS, NULL), AULE_OUT_OF_RANGE,
           "out has num_rows");
    bad = scene.layers;
    bad.q_stride = 8;
    expect(aule_run_layers(batch, &step->run, &bad, WAIT_MS, NULL), AULE_MISALIGNED,
           "q has layer stride 8");
    run_layers(batch);
    aule_batch_destroy(batch);
    expect_layers();
    close_step(step);
}
END_TEST

// ---- scales ----

// The scene over a cache of 8 bits.
static void open_scaled_scene(void)
{
    struct step *step = &scene.step;
    open_scene();
    aule_cache_close(step->cache);
    struct aule_cache_params params = cache_params();
    params.name = "scaled";
    params.k_dtype = AULE_FP8_E4M3;
    params.v_dtype = AULE_INT8;
    params.scale_mode = AULE_SCALE_PER_TENSOR;
    ok(aule_cache_open(step->session, &params, &step->cache));
    ok(aule_blocks_lease(step->cache, 4, 0, step->blocks));
    reset(step);
    fill_layers(1);
}

struct results {
    float of[LAYERS][MAX_TOKENS * HEADS * DIM];
};

// Returns `out` and clears it.
static void take_results(struct results *results)
{
    float *out = aule_tensor_data(scene.step.session, &scene.out);
    memcpy(results, out, sizeof *results);
    memset(out, 0xff, sizeof *results);
}

static void run_single_layers(struct aule_batch *batch, const float *k_scales,
                              const float *v_scales)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        at_layer(layer);
        struct aule_run_params run = scene.step.run;
        run.layer = layer;
        run.k_scale = k_scales[layer];
        run.v_scale = v_scales[layer];
        ok(aule_run(batch, &run, WAIT_MS, NULL));
    }
    at_layer(0);
}

START_TEST(layers_with_scales_of_their_own_are_bit_for_bit_single_runs)
{
    static const float k[LAYERS] = {0.0625f, 0.03f}, v[LAYERS] = {0.01f, 0},
                       all_v[LAYERS] = {0.02f, 0.02f};
    struct step *step = &scene.step;
    struct aule_layers layers;
    struct aule_ticket ticket;
    static struct results got, wanted, first;
    open_scaled_scene();
    layers = scene.layers;
    layers.k_scales = k;
    layers.v_scales = v;
    struct aule_batch *batch = create_batch(step);
    take_results(&first); // clears out, so that bytes that no run writes are the same after each
                          // run
    run_single_layers(batch, k, v);
    take_results(&first);
    ok(aule_run_layers(batch, &step->run, &layers, WAIT_MS, NULL));
    take_results(&got);
    ck_assert_mem_eq(got.of, first.of, sizeof got.of);
    step->run.v_scale = all_v[0];
    layers.v_scales = NULL;
    run_single_layers(batch, k, all_v);
    take_results(&wanted);
    ok(aule_run_layers_submit(batch, &step->run, &layers, WAIT_MS, &ticket));
    ok(aule_ticket_wait(step->session, ticket, WAIT_MS, NULL));
    take_results(&got);
    ck_assert_mem_eq(got.of, wanted.of, sizeof got.of);
    for (uint32_t layer = 0; layer < LAYERS; layer++) // the scales make a difference
        ck_assert_mem_ne(got.of[layer], first.of[layer], sizeof got.of[layer]);
    aule_batch_destroy(batch);
    close_step(step);
}
END_TEST

START_TEST(an_invalid_scale_is_refused_with_its_layer)
{
    const float negative[LAYERS] = {1, -2}, nothing[LAYERS] = {0.0f / 0.0f, 1};
    struct step *step = &scene.step;
    open_scaled_scene();
    struct aule_batch *batch = create_batch(step);
    struct aule_layers bad = scene.layers;
    bad.k_scales = negative;
    expect(aule_run_layers(batch, &step->run, &bad, WAIT_MS, NULL), AULE_INVALID,
           "k_scales[1] is -2");
    bad.k_scales = NULL;
    bad.v_scales = nothing;
    expect(aule_run_layers_submit(batch, &step->run, &bad, WAIT_MS, NULL), AULE_INVALID,
           "v_scales[0] is ");
    run_layers(batch);
    aule_batch_destroy(batch);
    close_step(step);
}
END_TEST

// ---- steps ----

START_TEST(a_decode_advances_by_its_changes)
{
    open_scene();
    prefill();
    struct aule_batch *batch = begin_decode();
    for (uint32_t i = 0; i < STEPS; i++) {
        if (i > 0)
            advance(batch, i % 2);
        fill_layers(2 + i);
        run_layers(batch);
        expect_layers();
    }
    aule_batch_destroy(batch);
    close_step(&scene.step);
}
END_TEST

START_TEST(runs_in_flight_use_the_step_before)
{
    struct step *step = &scene.step;
    struct aule_tensor other;
    struct aule_ticket tickets[2];
    open_scene();
    prefill();
    ok(aule_tensor_create(step->session, AULE_F32, LAYERS * MAX_TOKENS, HEADS, DIM, &other));
    struct aule_batch *batch = begin_decode();
    fill_layers(2);
    ok(aule_run_layers_submit(batch, &step->run, &scene.layers, WAIT_MS, &tickets[0]));
    // The next step has the same queries, keys and values, but its own results.
    const int32_t lens[2] = {step->lens[0], step->lens[1]};
    struct aule_run_params next = step->run;
    next.out = other;
    advance(batch, false);
    ok(aule_run_layers_submit(batch, &next, &scene.layers, WAIT_MS, &tickets[1]));
    for (int i = 0; i < 2; i++)
        ok(aule_ticket_wait(step->session, tickets[i], WAIT_MS, NULL));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        at_layer(layer);
        remember_all(step, scene.histories[layer]);
        step->out = other;
        step->out.offset += layer * scene.layers.out_stride;
        expect_attention(step, scene.histories[layer]);
    }
    memcpy(step->lens, lens, sizeof lens);
    expect_layers();
    aule_batch_destroy(batch);
    close_step(step);
}
END_TEST

START_TEST(a_step_that_is_refused_leaves_the_batch_as_it_was)
{
    struct step *step = &scene.step;
    open_scene();
    prefill();
    struct aule_batch *batch = begin_decode();
    const int64_t slots[2] = {step->slots[0] + 1, step->slots[1] + 1};
    struct aule_table_entry entry = {0, 3, 60};
    const struct aule_advance good = {.slot_mapping = slots};
    struct aule_advance bad = good;
    bad.entries = &entry;
    bad.num_entries = 1;
    bad.seq_lens_kv = (const int32_t[]){25, 3};
    expect(aule_batch_advance(batch, &bad), AULE_NOT_HELD, "block_table[0][3] = 60");
    entry = (struct aule_table_entry){2, 0, 0};
    expect(aule_batch_advance(batch, &bad), AULE_OUT_OF_RANGE, "entries[0] sets block_table[2][0]");
    bad = good;
    bad.slot_mapping = NULL;
    expect(aule_batch_advance(batch, &bad), AULE_INVALID,
           "slot_mapping has 0 entries; 2 are needed");
    bad = good;
    bad.seq_lens_kv = (const int32_t[]){33, 3};
    expect(aule_batch_advance(batch, &bad), AULE_OUT_OF_RANGE,
           "seq_lens_kv[0] = 33 exceeds the 32 tokens");
    fill_layers(2);
    run_layers(batch);
    expect_layers();
    aule_batch_destroy(batch);
    close_step(step);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client layers");
    add(suite, "layers", setup,
        (const struct entry[]){
            {layers_of_one_run_are_each_what_a_run_of_that_layer_is, 0},
            {a_layer_may_read_what_the_layer_before_it_wrote, 0},
            {a_run_of_layers_is_refused_as_a_whole_with_the_layer_that_is_wrong, 0},
            {layers_with_scales_of_their_own_are_bit_for_bit_single_runs, 0},
            {an_invalid_scale_is_refused_with_its_layer, 0},
            {NULL, 0}});
    add(suite, "steps", setup,
        (const struct entry[]){{a_decode_advances_by_its_changes, 0},
                               {runs_in_flight_use_the_step_before, 0},
                               {a_step_that_is_refused_leaves_the_batch_as_it_was, 0},
                               {NULL, 0}});
    add(suite, "staging", setup_staging,
        (const struct entry[]){{layers_of_one_run_are_each_what_a_run_of_that_layer_is, 0},
                               {a_decode_advances_by_its_changes, 0},
                               {NULL, 0}});
    return check_main(suite);
}
