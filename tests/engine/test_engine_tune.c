// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine_tune.c - tuning on a real device: measured after the work, kept in a file, read by
// the next engine. No bit depends on tuning, and only its own events report it. On matrix_emulated,
// which every device runs and whose decode has several workgroup sizes.

#include "engine/tuning/tune_file.h"
#include "rigs/engine_world.h"
#include "shaders/layout.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATIENCE_S = DEADLINE_S + 40 };
enum {
    DIM = 16,
    KEYS = 16,
    NUM_BLOCKS = 64,
    HEADS = 2,
    ROW = HEADS * DIM * 2 /* bytes */,
    KV_LEN = 300
};
enum {
    Q = 0,
    OUT = 1 << 12,
    OTHER = 1 << 13,
    LSE = 1 << 14,
    TENSOR_K = 1 << 15,
    TENSOR_V = 1 << 17
};

static char folder[] = "/tmp/aule-engine-tune-XXXXXX";
static struct engine_cache *cache_;

static void setup_folder(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static char pipelines[128];

static void teardown_folder(void)
{
    unlink(pipelines);
    snprintf(pipelines, sizeof pipelines, "%s/pipelines.key", folder);
    unlink(pipelines);
    ck_assert_msg(rmdir(folder) == 0, "something was left in %s", folder);
}

static uint64_t tune_memory;               // 0 = the default
static uint32_t tune_time_ms = UINT32_MAX; // only one test depends on the speed of the machine

static void begin_life(enum engine_tune tune, uint32_t max_tuned)
{
    uint16_t block[2 * KEYS * DIM];
    forget_log();
    engine = open_engine((struct engine_params){.variant = "matrix_emulated",
                                                .tune = tune,
                                                .tune_time_ms = tune_time_ms,
                                                .max_tuned = max_tuned,
                                                .tune_memory_bytes = tune_memory,
                                                .cache_folder = folder});
    char uuid[UUID_TEXT_SIZE];
    snprintf(pipelines, sizeof pipelines, "%s/pipelines-%s", folder,
             uuid_text(engine_device(engine)->uuid, uuid));
    open_arena();
    struct engine_cache_params params = shape(1, 1, DIM, DTYPE_F16);
    params.kv.block_size = KEYS;
    params.chunk_blocks = NUM_BLOCKS;
    cache_ = open_cache(params);
    grow_chunk(cache_, 0);
    for (int32_t i = 0; i < NUM_BLOCKS; i++) {
        for (size_t j = 0; j < sizeof block / sizeof *block; j++)
            block[j] = (uint16_t)(0x3000 + (i * 977 + (int)j * 613) % 0xc00);
        ck_assert_int_eq(engine_block_write(cache_, 0, i, block), STATUS_OK);
    }
    for (int i = 0; i < (1 << 18) / 2; i++)
        ((uint16_t *)(void *)memory)[i] = (uint16_t)(0x3000 + i * 331 % 0xc00);
}

static void end_life(void)
{
    engine_cache_destroy(cache_);
    teardown();
}

// One decode of this many keys, in the blocks of this place.
static struct engine_batch *batch_of(enum engine_place place, int32_t kv_len, bool positions)
{
    static const int32_t cu[] = {0, 1}, starts[] = {0};
    int32_t table[NUM_BLOCKS], position = kv_len - 1;
    for (int32_t i = 0; i < NUM_BLOCKS; i++)
        table[i] = i * 7 % NUM_BLOCKS;
    struct engine_batch_params params = {.num_seqs = 1,
                                         .num_tokens = 1,
                                         .cu_seqlens_q = cu,
                                         .seq_lens_kv = &kv_len,
                                         .positions = positions ? &position : NULL};
    if (place != ENGINE_ROWS) {
        params.max_blocks = NUM_BLOCKS;
        params.block_table = table;
    }
    if (place == ENGINE_POOL) {
        params.cache = cache_;
        return open_batch(params);
    }
    params.engine = engine;
    params.place = place;
    params.kv = cache_->params.kv;
    if (place == ENGINE_ROWS) {
        params.kv.block_size = 0;
        params.kv_starts = starts;
    }
    return open_batch(params);
}

static struct engine_run run_of(struct engine_batch *batch, uint64_t out)
{
    uint64_t outer = batch->place == ENGINE_BLOCKS ? KEYS * DIM * 2 : 0;
    struct wire_tensor keys = {.offset = TENSOR_K,
                               .token_stride = DIM * 2,
                               .head_stride = KEYS * DIM * 2,
                               .dtype = DTYPE_F16,
                               .outer_stride = outer};
    struct wire_tensor values = keys;
    values.offset = TENSOR_V;
    return (struct engine_run){
        .batch = batch,
        .arena = arena,
        .num_heads = HEADS,
        .q = dense(Q, HEADS, DIM, DTYPE_F16),
        .out = dense(out, HEADS, DIM, DTYPE_F16),
        .keys = batch->place == ENGINE_POOL ? (struct wire_tensor){0} : keys,
        .values = batch->place == ENGINE_POOL ? (struct wire_tensor){0} : values,
        .scale = 1,
        .causal = true,
        .k_scale = 1,
        .v_scale = 1,
    };
}

static void decode(int32_t kv_len, uint64_t out)
{
    struct engine_batch *batch = batch_of(ENGINE_POOL, kv_len, false);
    struct engine_run run = run_of(batch, out);
    expect_done(submit_runs(&run, 1));
    engine_batch_destroy(batch);
}

static struct engine_tuning state(void)
{
    struct engine_tuning tuning;
    engine_tuning(engine, &tuning);
    return tuning;
}

static struct engine_tuned tuned_at(uint32_t index)
{
    struct engine_tuned tuned;
    ck_assert(engine_tuned_at(engine, index, &tuned));
    return tuned;
}

// Waits until nothing is left to measure, and this many kinds were measured.
static void await_measured(uint32_t count)
{
    AWAIT(PATIENCE_S, state().num_waiting == 0 && state().num_entries >= count);
    ck_assert_uint_eq(state().num_entries, count);
    for (uint32_t i = 0; i < count; i++)
        ck_assert_msg(tuned_at(i).state == ENGINE_TUNE_MEASURED, "%u is not measured:\n%s", i,
                      log_text);
}

static void await_file(const char *path, bool there)
{
    AWAIT(PATIENCE_S, (access(path, R_OK) == 0) == there);
}

// An engine that measures one kind and writes the file `path`.
static void begin_life_that_measured(char path[256])
{
    begin_life(ENGINE_TUNE_ON, 0);
    decode(KV_LEN, OUT);
    await_measured(1);
    snprintf(path, 256, "%s", state().path);
    await_file(path, true);
}

static void clear(void)
{
    engine_tune(engine, ENGINE_TUNE_CLEAR);
    await_file(state().path, false);
}

START_TEST(measurements_outlive_the_engine_until_they_are_cleared_and_change_no_bit)
{
    struct engine_event event;
    begin_life(ENGINE_TUNE_ON, 0);
    decode(KV_LEN, OUT);
    await_measured(1);
    struct engine_tuned tuned = tuned_at(0);
    ck_assert_str_eq(tuned.kernel, "attention_decode_emulated");
    ck_assert_uint_eq(tuned.num_keys, 256);
    ck_assert_uint_gt(tuned.num_candidates, 1);
    ck_assert_uint_gt(tuned.num_samples, 0);
    ck_assert_uint_gt(tuned.gpu_ns, 0);
    ck_assert_msg(!engine_poll(engine, &event), "a measurement is an event");
    decode(KV_LEN, OTHER);
    expect_bytes(memory + OTHER, memory + OUT, ROW, "after it was measured");
    await_file(state().path, true);
    end_life();
    begin_life(ENGINE_TUNE_ON, 0);
    ck_assert_msg(!logged("ignored"), "%s", log_text);
    await_measured(1);
    ck_assert_uint_eq(tuned_at(0).gpu_ns, tuned.gpu_ns); // as in the file
    engine_tune(engine, ENGINE_TUNE_RENEW);
    await_measured(1);
    engine_tune(engine, ENGINE_TUNE_CLEAR);
    ck_assert_uint_eq(state().num_entries, 0);
    await_file(state().path, false);
    engine_tune(engine, ENGINE_TUNE_DISABLE);
    decode(KV_LEN, OTHER);
    ck_assert_uint_eq(state().num_entries, 0);
    engine_tune(engine, ENGINE_TUNE_ENABLE);
    decode(KV_LEN, OTHER);
    await_measured(1);
    clear();
    end_life();
}
END_TEST

// The choice of the only entry in the file.
static void change_choice(const char *path, uint32_t local_size)
{
    struct tune_device device = tune_device_of(engine_device(engine));
    struct tune_list list;
    struct error error = {0};
    ck_assert_int_eq(tune_file_read(path, &device, &list, &error), STATUS_OK);
    ck_assert_uint_eq(list.count, 1);
    list.entries[0].local_size = local_size;
    ck_assert_int_eq(tune_file_write(path, &device, &list, &error), STATUS_OK);
    tune_list_finish(&list);
}

START_TEST(every_candidate_gives_the_same_bits_and_what_is_none_is_ignored)
{
    char path[256], local[32];
    begin_life_that_measured(path);
    char wanted[ROW];
    memcpy(wanted, memory + OUT, ROW);
    const struct kernel *kernel = engine->pipelines.variant->kernels[0];
    for (const uint32_t *at = kernel->candidates; *at; at++) {
        if (*at > kernel->shader.local_size)
            continue;
        change_choice(path, *at);
        end_life();
        begin_life(ENGINE_TUNE_ON, 0);
        ck_assert_uint_eq(tuned_at(0).local_size, *at);
        decode(KV_LEN, OUT);
        expect_bytes(memory + OUT, wanted, ROW, "by this candidate");
        snprintf(local, sizeof local, "local%u", *at);
        ck_assert_msg(logged(local), "%s is not used:\n%s", local, log_text);
    }
    change_choice(path, 96);
    end_life();
    begin_life(ENGINE_TUNE_OFF, 0);
    ck_assert_uint_eq(state().num_entries, 0);
    ck_assert_msg(logged("workgroups of 96 is ignored: it is none of the kernel's candidates"),
                  "%s", log_text);
    clear();
    end_life();
}
END_TEST

static void other_tile_rows(struct tune_key *key)
{
    key->spec[AULE_SPEC_TILE_ROWS] *= 2;
}

static void unknown_feature(struct tune_key *key)
{
    key->spec[AULE_SPEC_FEATURES] |= 1u << 31;
}

static void no_splits(struct tune_key *key)
{
    key->num_splits = 1;
}

static void odd_splits(struct tune_key *key)
{
    key->num_splits = 3;
}

static void odd_block_size(struct tune_key *key)
{
    key->spec[AULE_SPEC_BLOCK_SIZE] = 12;
}

static void custom_mask(struct tune_key *key)
{
    key->spec[AULE_SPEC_FEATURES] |= AULE_FEATURE_MASK;
}

static void other_code(struct tune_key *key)
{
    key->shader++;
}

START_TEST(entries_that_no_run_can_ask_for_are_ignored_with_the_reason)
{
    static const struct {
        void (*change)(struct tune_key *key);
        const char *why;
    } cases[] = {
        {other_tile_rows, "its tile rows are not the kernel's"},
        {unknown_feature, "its features are not those of a run with its splits"},
        {no_splits, "its features are not those of a run with its splits"},
        {odd_splits, "it is of a size that is none"},
        {odd_block_size, "no run is of its geometry"},
        {custom_mask, "the kernel does not serve its geometry"},
        {other_code, "the kernel has changed"},
    };
    enum { CASES = sizeof cases / sizeof *cases };
    struct tune_entry entries[CASES + 1];
    struct tune_list list, spoilt = {.entries = entries, .count = CASES + 1};
    struct error error = {0};
    char path[256];
    begin_life_that_measured(path);
    struct tune_device device = tune_device_of(engine_device(engine));
    end_life();
    ck_assert_int_eq(tune_file_read(path, &device, &list, &error), STATUS_OK);
    ck_assert_uint_eq(list.count, 1);
    for (int i = 0; i <= CASES; i++) {
        entries[i] = list.entries[0];
        if (i < CASES)
            cases[i].change(&entries[i].key);
    }
    tune_list_finish(&list);
    ck_assert_int_eq(tune_file_write(path, &device, &spoilt, &error), STATUS_OK);
    begin_life(ENGINE_TUNE_OFF, 0);
    for (int i = 0; i < CASES; i++)
        ck_assert_msg(logged(cases[i].why), "\"%s\" is not in:\n%s", cases[i].why, log_text);
    ck_assert_uint_eq(state().num_entries, 1); // an unchanged entry is accepted
    clear();
    end_life();
}
END_TEST

// A folder with the name of the file prevents writing.
START_TEST(a_file_that_cannot_be_written_is_tried_again_at_the_end)
{
    char path[256];
    begin_life(ENGINE_TUNE_ON, 0);
    snprintf(path, sizeof path, "%s", state().path);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    decode(KV_LEN, OUT);
    await_measured(1);
    AWAIT(PATIENCE_S, logged("is not written until it can be read"));
    ck_assert_int_eq(rmdir(path), 0);
    end_life();
    ck_assert_int_eq(access(path, R_OK), 0);
    ck_assert_int_eq(unlink(path), 0);
}
END_TEST

// As if two daemons of one device used one file.
START_TEST(a_file_that_another_daemon_replaced_is_replaced_by_the_next_write)
{
    char path[256];
    struct tune_list list;
    struct error error = {0};
    begin_life_that_measured(path);
    struct tune_device device = tune_device_of(engine_device(engine));
    change_choice(path, 64);
    decode(2 * KV_LEN, OUT);
    await_measured(2);
    end_life();
    ck_assert_int_eq(tune_file_read(path, &device, &list, &error), STATUS_OK);
    ck_assert_uint_eq(list.count, 2);
    tune_list_finish(&list);
    ck_assert_int_eq(unlink(path), 0);
}
END_TEST

// 1 ms may be enough on a fast device; then there is nothing to log.
START_TEST(too_little_time_to_measure_is_a_debug_line)
{
    tune_time_ms = 1;
    begin_life(ENGINE_TUNE_ON, 0);
    decode(KV_LEN, OUT);
    AWAIT(PATIENCE_S, state().num_waiting == 0);
    if (tuned_at(0).state == ENGINE_TUNE_FAILED)
        ck_assert_msg(logged("3 tuning: attention_decode_emulated") &&
                          logged("--tune-time 1 ms is too short"),
                      "%s", log_text);
    ck_assert_msg(!logged("1 tuning:"), "%s", log_text);
    clear();
    end_life();
}
END_TEST

START_TEST(other_splits_are_another_kind)
{
    begin_life(ENGINE_TUNE_ON, 0);
    struct engine_batch *batch = batch_of(ENGINE_POOL, 3 * KV_LEN, false);
    struct engine_run run = run_of(batch, OUT);
    for (run.num_splits = 0; run.num_splits <= 4; run.num_splits += 2)
        expect_done(submit_runs(&run, 1));
    await_measured(3);
    engine_batch_destroy(batch);
    clear();
    end_life();
}
END_TEST

START_TEST(a_kind_that_needs_too_much_memory_keeps_the_rule_and_says_so)
{
    tune_memory = 4096;
    begin_life(ENGINE_TUNE_ON, 0);
    decode(KV_LEN, OUT);
    AWAIT(PATIENCE_S, state().num_waiting == 0);
    ck_assert_uint_eq(state().num_entries, 1);
    ck_assert_int_eq(tuned_at(0).state,
                     ENGINE_TUNE_MEASURED); // several sequences read the same few blocks
    end_life();
    tune_memory = 64;
    begin_life(ENGINE_TUNE_ON, 0);
    engine_tune(engine, ENGINE_TUNE_RENEW);
    AWAIT(PATIENCE_S, state().num_waiting == 0);
    ck_assert_msg(logged("--tune-memory allows 64"), "%s", log_text);
    ck_assert_int_eq(tuned_at(0).state, ENGINE_TUNE_MEASURED); // as before
    clear();
    decode(KV_LEN, OUT);
    AWAIT(PATIENCE_S, state().num_waiting == 0);
    ck_assert_int_eq(tuned_at(0).state, ENGINE_TUNE_FAILED);
    end_life();
}
END_TEST

static void add_features(struct engine_run *run)
{
    static const float zeroes[HEADS];
    run->windowed = true;
    run->window_left = 100;
    run->window_right = -1;
    run->soft_cap = 20;
    run->slopes = run->sinks = zeroes;
    run->lse = (struct wire_tensor){.offset = LSE, .token_stride = HEADS * 4, .dtype = DTYPE_F32};
    run->rope = (struct engine_rope){.dim = DIM, .interleaved = true, .theta = 10000};
}

// Otherwise the rule's choice could not be compared, and a smaller device would have no choice.
START_TEST(what_a_rule_says_is_among_the_candidates)
{
    static const uint32_t specs[][SPEC_CONSTANTS] = {
        {[AULE_SPEC_HEAD_DIM_K] = 128, [AULE_SPEC_HEAD_DIM_V] = 128},
        {[AULE_SPEC_HEAD_DIM_K] = 256, [AULE_SPEC_HEAD_DIM_V] = 256}};
    const struct variant *variant;
    for (uint32_t i = 0; (variant = variant_at(i)); i++)
        for (uint32_t j = 0; j < variant->num_kernels; j++) {
            const struct kernel *kernel = variant->kernels[j];
            for (uint64_t workgroups = 2; kernel->candidates && workgroups < 4000; workgroups++) {
                uint32_t local_size =
                    kernel_local_size(kernel, specs[workgroups % 2], workgroups / 2, 132);
                const uint32_t *at = kernel->candidates;
                while (*at && *at != local_size)
                    at++;
                ck_assert_msg(*at, "%s: %u of %llu workgroups", kernel->shader.name, local_size,
                              (unsigned long long)workgroups / 2);
            }
        }
}
END_TEST

START_TEST(every_place_and_feature_can_be_measured)
{
    static const enum engine_place places[] = {ENGINE_POOL, ENGINE_BLOCKS, ENGINE_ROWS};
    begin_life(ENGINE_TUNE_ON, 0);
    struct engine_batch *batch = batch_of(places[_i], KV_LEN, _i == 0);
    struct engine_run run = run_of(batch, OUT);
    if (_i == 0)
        add_features(&run);
    expect_done(submit_runs(&run, 1));
    run.num_splits = 1; // a run without splits has one workgroup size: nothing to measure
    expect_done(submit_runs(&run, 1));
    engine_batch_destroy(batch);
    await_measured(1);
    clear();
    end_life();
}
END_TEST

START_TEST(a_full_table_measures_no_more_and_says_so)
{
    begin_life(ENGINE_TUNE_ON, 1);
    decode(KV_LEN, OUT);
    decode(2 * KV_LEN, OUT);
    await_measured(1);
    ck_assert_msg(strstr(state().note, "--max-tuned 1") != NULL, "%s", state().note);
    clear();
    end_life();
}
END_TEST

START_TEST(by_itself_a_software_device_measures_nothing_and_says_why)
{
    begin_life(ENGINE_TUNE_AUTO, 0);
    bool software = engine_device(engine)->software;
    ck_assert(state().enabled == !software);
    if (software) {
        decode(KV_LEN, OUT);
        ck_assert_uint_eq(state().num_entries, 0);
        ck_assert_msg(strstr(state().note, "off by default") != NULL, "%s", state().note);
    }
    end_life();
    engine = open_engine((struct engine_params){.variant = "plain", .tune = ENGINE_TUNE_ON});
    ck_assert_msg(strstr(state().note, "nothing can be tuned") != NULL, "%s", state().note);
    ck_assert_str_eq(state().path, "");
    close_engine(engine);
}
END_TEST

void add_tune_tests(Suite *suite)
{
    TCase *tcase = tcase_create("tuning");
    tcase_set_tags(tcase, "tune");
    tcase_add_checked_fixture(tcase, setup_folder, teardown_folder);
    tcase_add_test(tcase, measurements_outlive_the_engine_until_they_are_cleared_and_change_no_bit);
    tcase_add_test(tcase, every_candidate_gives_the_same_bits_and_what_is_none_is_ignored);
    tcase_add_test(tcase, entries_that_no_run_can_ask_for_are_ignored_with_the_reason);
    tcase_add_test(tcase, a_file_that_cannot_be_written_is_tried_again_at_the_end);
    tcase_add_test(tcase, a_file_that_another_daemon_replaced_is_replaced_by_the_next_write);
    tcase_add_test(tcase, too_little_time_to_measure_is_a_debug_line);
    tcase_add_test(tcase, other_splits_are_another_kind);
    tcase_add_test(tcase, a_kind_that_needs_too_much_memory_keeps_the_rule_and_says_so);
    tcase_add_test(tcase, what_a_rule_says_is_among_the_candidates);
    check_loop(tcase, every_place_and_feature_can_be_measured, 3);
    tcase_add_test(tcase, a_full_table_measures_no_more_and_says_so);
    tcase_add_test(tcase, by_itself_a_software_device_measures_nothing_and_says_why);
    suite_add_tcase(suite, tcase);
}
