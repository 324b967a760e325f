// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine_cascade.c - sequences with a common prefix are computed together, with the same bits
// as alone and as in an engine without the cascade. On matrix_emulated, which every device runs.

#include "engine/plan/cut.h"
#include "engine/plan/joint.h"
#include "rigs/dice.h"
#include "rigs/engine_world.h"

#include <dlfcn.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>

enum { MOST_DIM = 256, LAYERS = 2, KEYS = 16, HEADS = 4, KV_HEADS = 2, SEQS = 11, BLOCKS = 256 };
#define ROW (HEADS * dim * 2 /* bytes */)
enum { COLUMNS = 64, LSE_ROW = HEADS * 4, MOST_TOKENS = 64 };
enum { Q = 0, OUT = 1 << 17, LSE = 1 << 18, OTHER = 1 << 19, OTHER_LSE = OTHER + (1 << 17) };

// Group 2: a tile has at most 4 tokens of a sequence. Sequences 0 to 6 share 40 blocks, and 7 to 10
// share the first 24 of them. Sequences 3 to 6 share 8 more.
static const int32_t q_lens[SEQS] = {1, 1, 2, 1, 4, 1, 3, 1, 1, 2, 1};
static const int32_t kv_lens[SEQS] = {660, 700, 745, 768, 770, 790, 800, 650, 641, 720, 768};

static const struct look {
    const char *name;
    enum dtype dtype; // of Q and the results
    enum dtype kv_dtype;
    enum scale_mode scale_mode;
    bool features;
    uint32_t dim; // head dim
} looks[] = {
    {"f16", DTYPE_F16, DTYPE_F16, SCALE_NONE, false, 32},
    {"f16 with soft cap, ALiBi, sinks and LSE", DTYPE_F16, DTYPE_F16, SCALE_NONE, true, 32},
    {"bf16", DTYPE_BF16, DTYPE_BF16, SCALE_NONE, false, 32},
    {"int8, scaled by token and head", DTYPE_F16, DTYPE_INT8, SCALE_PER_TOKEN_HEAD, false, 32},
    {"e4m3, scaled by token and head, with features", DTYPE_BF16, DTYPE_FP8_E4M3,
     SCALE_PER_TOKEN_HEAD, true, 32},
    {"f16, 256 dims", DTYPE_F16, DTYPE_F16, SCALE_NONE, false, 256},
    {"int8 with one scale", DTYPE_F16, DTYPE_INT8, SCALE_PER_TENSOR, false, 32},
    {"e5m2 without scales, 144 dims, with features", DTYPE_F16, DTYPE_FP8_E5M2, SCALE_NONE, true,
     144},
    {"int8, scaled by token and head, 256 dims", DTYPE_F16, DTYPE_INT8, SCALE_PER_TOKEN_HEAD, false,
     256},
    {"bf16, 192 dims", DTYPE_BF16, DTYPE_BF16, SCALE_NONE, false, 192},
    {"e4m3 with one scale, 256 dims", DTYPE_BF16, DTYPE_FP8_E4M3, SCALE_PER_TENSOR, false, 256},
};

static struct engine_cache *cache_;
static uint32_t dim;
static struct engine_arena *other_arena; // of another session
static char *other_memory;
static int32_t table[SEQS][COLUMNS];
static const float slopes[HEADS] = {0.01f, 0.02f, 0.04f, 0.08f}, sinks[HEADS] = {1, -1, 0, 2};

static void fill_table(void)
{
    int32_t next = 48;
    for (int32_t seq = 0; seq < SEQS; seq++) {
        int32_t shared = seq < 3 ? 40 : seq < 7 ? 48 : 24;
        for (int32_t i = 0; i < COLUMNS; i++) {
            bool in_use = i < (kv_lens[seq] + KEYS - 1) / KEYS;
            table[seq][i] = i < shared ? i * 11 % 48 : in_use ? next++ : -1;
        }
    }
    ck_assert_int_le(next, BLOCKS);
}

static uint16_t any_half(struct dice *dice, enum dtype dtype) // 0.125 to 1, of either sign
{
    uint32_t least = dtype == DTYPE_BF16 ? 0x3e00 : 0x3000,
             one = dtype == DTYPE_BF16 ? 0x3f80 : 0x3c00;
    return (uint16_t)(least + dice_below(dice, one - least) + (dice_chance(dice, 50) ? 0x8000 : 0));
}

static void fill_blocks(const struct look *look)
{
    static uint8_t block[KV_HEADS * 2 * KEYS * MOST_DIM * 2];
    struct dice dice = {.state = 5};
    for (int32_t i = 0; i < BLOCKS; i++) {
        for (size_t n = 0; n < (size_t)KV_HEADS * 2 * KEYS * dim; n++) {
            uint16_t half = any_half(&dice, look->dtype);
            if (look->kv_dtype == look->dtype)
                memcpy(block + 2 * n, &half, 2);
            else
                block[n] = (uint8_t)(half >> 8 & 0x80) | (uint8_t)(0x20 + (half & 0x1f));
        }
        for (size_t n = 0; look->scale_mode == SCALE_PER_TOKEN_HEAD && n < 2 * KV_HEADS * KEYS;
             n++) { // after all elements
            float scale = n % 7 == 3 ? 0 : ldexpf(1, (int)dice_between(&dice, 0, 12) - 14);
            memcpy(block + KV_HEADS * 2 * KEYS * dim + n * sizeof scale, &scale, sizeof scale);
        }
        ck_assert_int_eq(engine_block_write(cache_, 0, i, block), STATUS_OK);
    }
}

static void open_world(const struct look *look, bool no_cascade)
{
    struct dice dice = {.state = 9};
    engine =
        open_engine((struct engine_params){.variant = "matrix_emulated", .no_cascade = no_cascade});
    open_arena();
    dim = look->dim;
    struct engine_cache_params params = shape(LAYERS, KV_HEADS, dim, look->kv_dtype);
    params.kv.block_size = KEYS;
    params.kv.scale_mode = look->scale_mode;
    params.chunk_blocks = BLOCKS;
    cache_ = open_cache(params);
    grow_chunk(cache_, 0);
    fill_blocks(look);
    fill_table();
    for (uint32_t i = 0; i < MOST_TOKENS * ROW / 2; i++)
        ((uint16_t *)(memory + Q))[i] = any_half(&dice, look->dtype);
    struct error error = {0};
    other_memory =
        mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(other_memory, MAP_FAILED);
    ck_assert_int_eq(engine_arena_create(engine, other_memory, ARENA_BYTES, &other_arena, &error),
                     STATUS_OK);
    memcpy(other_memory + Q, memory + Q, (size_t)MOST_TOKENS * ROW);
}

static void close_world(void)
{
    engine_arena_destroy(other_arena);
    engine_cache_destroy(cache_);
    teardown();
    munmap(other_memory, ARENA_BYTES);
}

static struct engine_batch *batch_over(int32_t tables[][COLUMNS], uint32_t first, uint32_t count)
{
    int32_t cu[SEQS + 1] = {0};
    for (uint32_t i = 0; i < count; i++)
        cu[i + 1] = cu[i] + q_lens[first + i];
    return open_batch((struct engine_batch_params){
        .cache = cache_,
        .num_seqs = count,
        .max_blocks = COLUMNS,
        .num_tokens = (uint32_t)cu[count],
        .cu_seqlens_q = cu,
        .seq_lens_kv = kv_lens + first,
        .block_table = tables[first],
    });
}

static struct engine_batch *batch_of(uint32_t first, uint32_t count)
{
    return batch_over(table, first, count);
}

static struct engine_run run_of(struct engine_batch *batch, const struct look *look, uint32_t token,
                                uint64_t out, uint64_t lse)
{
    struct engine_run run = {
        .batch = batch,
        .arena = arena,
        .num_heads = HEADS,
        .q = dense(Q + token * ROW, HEADS, dim, look->dtype),
        .out = dense(out + token * ROW, HEADS, dim, look->dtype),
        .scale = 0.5f,
        .k_scale = 0.5f,
        .v_scale = 2,
        .causal = true,
        .num_splits = 3, // parts of 256 keys
    };
    if (!look->features)
        return run;
    run.soft_cap = 5;
    run.slopes = slopes;
    run.sinks = sinks;
    run.lse = (struct wire_tensor){
        .offset = lse + token * LSE_ROW, .token_stride = LSE_ROW, .dtype = DTYPE_F32};
    return run;
}

static uint32_t num_crowds(struct engine_batch *batch, const struct engine_run *run)
{
    struct cutting cutting = cutting_of_run(run);
    struct cuts cuts;
    ck_assert(cuts_make(&cuts, &batch, 1, &cutting));
    uint32_t count = cuts.crowds.num_crowds;
    cuts_finish(&cuts);
    return count;
}

// Compares results at OTHER of `arena_memory` with those at OUT of the first arena.
static void expect_same_in(const char *arena_memory, const struct look *look, uint32_t token,
                           uint32_t count, const char *what)
{
    expect_bytes(memory + OUT + token * ROW, arena_memory + OTHER + token * ROW,
                 (size_t)count * ROW, what);
    if (look->features)
        expect_bytes(memory + LSE + token * LSE_ROW, arena_memory + OTHER_LSE + token * LSE_ROW,
                     (size_t)count * LSE_ROW, what);
}

static void expect_same(const struct look *look, uint32_t token, uint32_t count, const char *what)
{
    expect_same_in(memory, look, token, count, what);
}

static uint32_t run_all(const struct look *look, uint64_t out, uint64_t lse, uint32_t crowds)
{
    struct engine_batch *batch = batch_of(0, SEQS);
    struct engine_run run = run_of(batch, look, 0, out, lse);
    ck_assert_uint_eq(num_crowds(batch, &run), crowds);
    memset(memory + out, 0x55, MOST_TOKENS * ROW);
    uint32_t num_dispatches = expect_done(submit_runs(&run, 1)).num_dispatches;
    engine_batch_destroy(batch);
    return num_dispatches;
}

// Runs of one wave: run i has sequences [ends[i - 1], ends[i]) in a batch of its own.
struct wave {
    struct engine_batch *batches[SEQS];
    struct engine_run runs[SEQS];
    uint32_t count;
};

// Every other run belongs to the second session.
static struct wave wave_of(const struct look *look, const uint32_t *ends, uint32_t count)
{
    struct wave wave = {.count = count};
    for (uint32_t i = 0, seq = 0, token = 0; i < count; i++) {
        wave.batches[i] = batch_of(seq, ends[i] - seq);
        wave.runs[i] = run_of(wave.batches[i], look, token, OTHER, OTHER_LSE);
        wave.runs[i].arena = i % 2 ? other_arena : arena;
        for (; seq < ends[i]; seq++)
            token += (uint32_t)q_lens[seq];
    }
    return wave;
}

static uint32_t run_wave(const struct wave *wave)
{
    memset(memory + OTHER, 0x55, (size_t)MOST_TOKENS * ROW);
    memset(other_memory + OTHER, 0x55, (size_t)MOST_TOKENS * ROW);
    return expect_done(submit_runs(wave->runs, wave->count)).num_dispatches;
}

static void end_wave(const struct wave *wave)
{
    for (uint32_t i = 0; i < wave->count; i++)
        engine_batch_destroy(wave->batches[i]);
}

// The results of the runs are those of run_all() at OUT.
static void expect_wave(const struct wave *wave, const struct look *look, const char *what)
{
    for (uint32_t i = 0, token = 0; i < wave->count; i++) {
        uint32_t tokens = wave->batches[i]->num_tokens;
        expect_same_in(i % 2 ? other_memory : memory, look, token, tokens, what);
        token += tokens;
    }
}

// All sequences share the first part. The second part, which ends at key 512, is shared by those
// with 40 common blocks.
START_TEST(sequences_that_share_keys_get_the_bits_that_each_gets_alone)
{
    const struct look *look = &looks[_i];
    open_world(look, false);
    for (int round = 0; round < 2; round++) // the counters are used again
        ck_assert_uint_eq(run_all(look, OUT, LSE, 2), 2);
    for (uint32_t seq = 0, token = 0; seq < SEQS; token += (uint32_t)q_lens[seq++]) {
        struct engine_batch *alone = batch_of(seq, 1);
        struct engine_run run = run_of(alone, look, token, OTHER, OTHER_LSE);
        ck_assert_uint_eq(expect_done(submit_runs(&run, 1)).num_dispatches, 1);
        expect_same(look, token, (uint32_t)q_lens[seq], look->name);
        engine_batch_destroy(alone);
    }
    const struct wave wave = wave_of(look, (uint32_t[]){2, 6, 9, SEQS}, 4);
    for (int round = 0; round < 2; round++) {
        ck_assert_uint_eq(run_wave(&wave), 2);
        expect_wave(&wave, look, look->name);
    }
    ck_assert(engine->joints && engine->joints->shares && !engine->joints->next);
    end_wave(&wave);
    close_world();
}
END_TEST

// All of them have nothing in common in their own batch.
START_TEST(sequences_of_eleven_sessions_are_computed_together)
{
    const uint32_t ends[SEQS] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    const struct look *look = &looks[0];
    open_world(look, false);
    run_all(look, OUT, LSE, 2);
    struct wave wave = wave_of(look, ends, SEQS);
    ck_assert_uint_eq(run_wave(&wave), 2);
    expect_wave(&wave, look, "of one sequence each");
    ck_assert_uint_eq(engine->joints->num_batches, SEQS);
    ck_assert(engine->joints->shares);
    wave.count = 3; // too few
    ck_assert_uint_eq(run_wave(&wave), 1);
    expect_wave(&wave, look, "of three sequences");
    ck_assert(!engine->joints->shares);
    wave.count = SEQS;
    end_wave(&wave);
    close_world();
}
END_TEST

// Other layers, scales and caches have other keys or scores. The runs may share a dispatch.
START_TEST(runs_that_read_other_keys_are_no_company)
{
    const struct look *look = &looks[0];
    open_world(look, false);
    struct wave wave = wave_of(look, (uint32_t[]){3, 6}, 2);
    ck_assert_uint_eq(run_wave(&wave), 2);
    wave.runs[1].layer = 1;
    ck_assert_uint_eq(run_wave(&wave), 1);
    wave.runs[1].layer = 0;
    wave.runs[1].scale = 0.25f;
    ck_assert_uint_eq(run_wave(&wave), 1);
    wave.runs[1].scale = 0.5f;
    wave.runs[1].windowed = true;
    wave.runs[1].window_left = 10000;
    wave.runs[1].window_right = -1;
    ck_assert_uint_eq(run_wave(&wave), 2); // of two pipelines
    wave.runs[1].windowed = false;
    ck_assert_uint_eq(run_wave(&wave), 2);
    end_wave(&wave);
    close_world();
}
END_TEST

// A company of two layers, and a run with a crowd of its own, all in one wave.
START_TEST(companies_of_several_layers_share_a_dispatch)
{
    const struct look *look = &looks[0];
    open_world(look, false);
    run_all(look, OUT, LSE, 2);
    struct wave first = wave_of(look, (uint32_t[]){3, 7, SEQS}, 3), all = {.count = 6};
    struct wave second = wave_of(look, (uint32_t[]){3, 7, SEQS}, 3);
    for (uint32_t i = 0; i < 3; i++) { // in turn
        all.runs[2 * i] = first.runs[i];
        all.runs[2 * i + 1] = second.runs[i];
        all.runs[2 * i + 1].layer = i < 2; // two in layer 1; the last one stays
        all.runs[2 * i + 1].out.offset = OUT + 2 * MOST_TOKENS * ROW;
    }
    ck_assert_uint_eq(run_wave(&all), 2);
    expect_wave(&first, look, "beside another layer");
    end_wave(&first);
    end_wave(&second);
    close_world();
}
END_TEST

// A step later the sequences have one more key each, and still share.
START_TEST(a_company_stays_together_as_its_batches_advance)
{
    const struct look *look = &looks[0];
    open_world(look, false);
    struct wave wave = wave_of(look, (uint32_t[]){3, 6}, 2);
    ck_assert_uint_eq(run_wave(&wave), 2);
    for (uint32_t i = 0; i < 2; i++) {
        struct engine_batch *next;
        struct error error = {0};
        int32_t lens[3];
        for (uint32_t seq = 0; seq < 3; seq++)
            lens[seq] = kv_lens[3 * i + seq] - 1; // they read the blocks that are there
        const struct engine_advance step = {.seq_lens_kv = lens, .block_table = table[3 * i]};
        ck_assert_int_eq(engine_batch_advance(wave.batches[i], &step, &next, &error), STATUS_OK);
        engine_batch_destroy(wave.batches[i]);
        wave.batches[i] = wave.runs[i].batch = next;
    }
    ck_assert_uint_eq(run_wave(&wave), 2);
    ck_assert_ptr_ne(engine->joints->next, NULL); // that of the step before is still there
    end_wave(&wave);
    close_world();
}
END_TEST

START_TEST(an_engine_that_shares_nothing_gives_the_same_bits)
{
    static char kept[MOST_TOKENS * HEADS * MOST_DIM * 2];
    open_world(&looks[0], false);
    run_all(&looks[0], OUT, LSE, 2);
    memcpy(kept, memory + OUT, (size_t)MOST_TOKENS * ROW);
    close_world();
    open_world(&looks[0], true);
    ck_assert_uint_eq(run_all(&looks[0], OUT, LSE, 0), 1);
    expect_bytes(memory + OUT, kept, (size_t)MOST_TOKENS * ROW, "with nothing shared");
    close_world();
}
END_TEST

// The LSE keeps the runs apart: two dispatches, and a cascade for the first.
START_TEST(keys_that_sequences_share_count_once)
{
    static int32_t own[SEQS][COLUMNS];
    open_world(&looks[0], false);
    for (int32_t i = 0; i < SEQS * COLUMNS; i++)
        own[i / COLUMNS][i % COLUMNS] = (i / COLUMNS * KEYS + i % COLUMNS) % BLOCKS;
    struct engine_batch *sharing = batch_over(table, 0, SEQS), *alone = batch_over(own, 0, SEQS);
    struct engine_run runs[] = {run_of(sharing, &looks[0], 0, OUT, LSE),
                                run_of(alone, &looks[0], 0, OTHER, LSE)};
    runs[1].lse = (struct wire_tensor){.offset = LSE, .token_stride = LSE_ROW, .dtype = DTYPE_F32};
    struct engine_event event = expect_done(submit_runs(runs, 2));
    ck_assert_uint_eq(event.num_dispatches, 3);
    uint64_t metrics[NUM_ENGINE_METRICS];
    engine_metrics(engine, metrics);
    ck_assert_uint_eq(metrics[ENGINE_METRIC_CASCADES], 1);
    double keys = 0, shared = (8 + 4) * 256,
           helped = 2 * 256; // those with at most 2 tokens, two parts
    for (int seq = 0; seq < SEQS; seq++)
        keys += kv_lens[seq];
    double ratio = (double)event.results[0].gpu_ns / (double)event.results[1].gpu_ns;
    if (engine->device.adapter.timestamp_bits)
        ck_assert_double_eq_tol(ratio, (keys - shared + helped) / keys, 0.01);
    engine_batch_destroy(sharing);
    engine_batch_destroy(alone);
    close_world();
}
END_TEST

// Each run leaves partial results in its own memory. Both kinds of groups are shared.
START_TEST(runs_that_share_a_dispatch_share_the_help_in_it)
{
    const struct look *look = &looks[0];
    open_world(look, false);
    struct engine_batch *first = batch_of(0, SEQS), *second = batch_of(0, 7);
    struct engine_run runs[] = {run_of(first, look, 0, OUT, LSE),
                                run_of(second, look, 0, OTHER, LSE)};
    ck_assert_uint_eq(expect_done(submit_runs(runs, 2)).num_dispatches, 2);
    expect_same(look, 0, 13, "in another run");
    engine_batch_destroy(first);
    engine_batch_destroy(second);
    close_world();
}
END_TEST

// ---- a driver that cannot make the cascade's pipeline ----

static VkShaderModule refused;
static VkResult refusal;

static VkShaderModule module_that_helps(void)
{
    const struct variant *variant = engine->pipelines.variant;
    for (uint32_t i = 0; i < variant->num_kernels; i++)
        if (variant->kernels[i]->helps == variant->kernels[0])
            return engine->pipelines.kernels[i];
    return VK_NULL_HANDLE;
}

// Replaces the loader's function.
VKAPI_ATTR VkResult VKAPI_CALL vkCreateComputePipelines(VkDevice device, VkPipelineCache cache,
                                                        uint32_t count,
                                                        const VkComputePipelineCreateInfo *infos,
                                                        const VkAllocationCallbacks *allocator,
                                                        VkPipeline *pipelines)
{
    void *symbol = dlsym(RTLD_NEXT, "vkCreateComputePipelines");
    PFN_vkCreateComputePipelines create;
    memcpy(&create, &symbol, sizeof create);
    if (refused && infos->stage.module == refused)
        return refusal;
    const VkResult result = before_compile();
    if (result != VK_SUCCESS)
        return result;
    return create(device, cache, count, infos, allocator, pipelines);
}

START_TEST(without_the_cascades_pipeline_runs_still_work)
{
    open_world(&looks[0], false);
    const bool for_memory = _i == 1;
    refused = module_that_helps();
    refusal = for_memory ? VK_ERROR_OUT_OF_HOST_MEMORY : VK_ERROR_UNKNOWN;
    ck_assert(refused != VK_NULL_HANDLE);
    ck_assert_uint_eq(run_all(&looks[0], OUT, LSE, 2), 1);
    ck_assert_int_eq(engine->helpers_refused, !for_memory);
    refused = VK_NULL_HANDLE;
    ck_assert_uint_eq(run_all(&looks[0], OTHER, LSE, 2),
                      1 + for_memory); // the pipeline is requested again only after a lack of
                                       // memory
    expect_same(&looks[0], 0, 18, "without help");
    const struct wave wave = wave_of(&looks[0], (uint32_t[]){2, 6, 9, SEQS}, 4);
    refused = module_that_helps(); // a company has a pipeline of its own
    ck_assert_uint_eq(run_wave(&wave), 1);
    expect_wave(&wave, &looks[0], "apart");
    refused = VK_NULL_HANDLE;
    ck_assert_uint_eq(run_wave(&wave), 1 + for_memory);
    expect_wave(&wave, &looks[0], "together again");
    end_wave(&wave);
    close_world();
}
END_TEST

// ---- pipelines that come late ----

// OUT holds the results without a soft cap, OUT + CAPPED those with one.
enum { CAPPED = MOST_TOKENS * HEADS * 32 * 2, LATE_LINES = 5, LATE_ROUNDS = 10, LATE_NAPS = 40 };

// Runs of one wave that are submitted again until they are done. A line may have several of them.
struct late {
    struct wave wave;
    bool open[SEQS]; // not done yet
    uint32_t num_open;
    bool waits[LATE_LINES + 1]; // lines that were put off and are not resumed yet
};

// Draws how the sequences go to runs, which line each run has, and which runs have a soft cap.
// `surely`: the first run has a line.
static struct late draw_late(struct dice *dice, bool surely)
{
    uint32_t ends[SEQS], count = 0;
    for (uint32_t end = 1; end <= SEQS; end++)
        if (end == SEQS || dice_chance(dice, 60))
            ends[count++] = end;
    struct late late = {.wave = wave_of(&looks[0], ends, count), .num_open = count};
    const uint32_t percent = dice_below(dice, 3) * 20;
    for (uint32_t i = 0; i < count; i++) {
        struct engine_run *run = &late.wave.runs[i];
        late.open[i] = true;
        const bool has_line = !dice_chance(dice, 10) || (surely && i == 0);
        run->line = has_line ? dice_between(dice, 1, LATE_LINES) : 0;
        run->soft_cap = dice_chance(dice, percent) ? 5 : 0;
    }
    return late;
}

// The results of the runs in submission `sequence`.
static const struct engine_run_result *await_late(uint64_t sequence)
{
    struct engine_event event;
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_OK);
    do
        event = next_event();
    while (event.kind == ENGINE_EVENT_COMPILED);
    ck_assert_int_eq(event.kind, ENGINE_EVENT_DONE);
    ck_assert_uint_eq(event.sequence, sequence);
    return event.results;
}

// Submits the runs that are not done and whose line does not wait. Returns how many were put off.
static uint32_t submit_late(struct late *late)
{
    struct engine_run runs[SEQS];
    uint32_t numbers[SEQS], count = 0, put_off = 0;
    for (uint32_t i = 0; i < late->wave.count; i++)
        if (late->open[i] && !late->waits[late->wave.runs[i].line]) {
            numbers[count] = i;
            runs[count++] = late->wave.runs[i];
        }
    if (count == 0)
        return 0;
    const struct engine_run_result *results = await_late(submit_runs(runs, count));
    for (uint32_t i = 0; i < count; i++) {
        const bool done = results[i].status == STATUS_OK;
        ck_assert(done || results[i].status == STATUS_BUSY);
        ck_assert(!done || !late->waits[runs[i].line]); // it overtakes none of its line
        late->open[numbers[i]] = !done;
        late->num_open -= done;
        late->waits[runs[i].line] |= !done;
        put_off += !done;
    }
    ck_assert(!late->waits[0]);
    return put_off;
}

// Some lines go on as soon as they can, others a little later.
static void resume_late(struct late *late, struct dice *dice)
{
    for (uint64_t line = 1; line <= LATE_LINES; line++)
        if (late->waits[line] && dice_chance(dice, 70))
            late->waits[line] = !engine_line_resume(engine, line);
    nap();
}

static void expect_late(const struct wave *wave)
{
    for (uint32_t i = 0, token = 0; i < wave->count; i++) {
        const uint32_t tokens = wave->batches[i]->num_tokens;
        const uint64_t wanted = OUT + (wave->runs[i].soft_cap > 0 ? CAPPED : 0) + token * ROW;
        expect_bytes((i % 2 ? other_memory : memory) + OTHER + token * ROW, memory + wanted,
                     (size_t)tokens * ROW, "with late pipelines");
        token += tokens;
    }
}

// Runs a drawn wave until all of it is done. Returns how often runs were put off.
static uint32_t run_late(struct dice *dice, bool surely)
{
    struct late late = draw_late(dice, surely);
    uint32_t put_off = 0;
    const double deadline = now_s() + DEADLINE_S;
    memset(memory + OTHER, 0x55, (size_t)MOST_TOKENS * ROW);
    memset(other_memory + OTHER, 0x55, (size_t)MOST_TOKENS * ROW);
    for (; late.num_open > 0; resume_late(&late, dice)) {
        ck_assert_msg(now_s() < deadline, "%u runs are not done", late.num_open);
        put_off += submit_late(&late);
    }
    expect_late(&late.wave);
    end_wave(&late.wave);
    return put_off;
}

static void run_capped(void)
{
    struct engine_batch *batch = batch_of(0, SEQS);
    struct engine_run run = run_of(batch, &looks[0], 0, OUT + CAPPED, LSE);
    run.soft_cap = 5;
    expect_done(submit_runs(&run, 1));
    engine_batch_destroy(batch);
}

// Removes all pipelines that are there, since the engine keeps only that of this run. No other run
// of the test needs it, nor does the next call.
static void evict_all(bool with_sinks)
{
    struct engine_batch *batch = batch_of(0, 1);
    struct engine_run run = run_of(batch, &looks[0], 0, OTHER, LSE);
    run.windowed = true;
    run.window_left = 10000;
    run.window_right = -1;
    run.sinks = with_sinks ? sinks : NULL;
    run.num_splits = 1;
    engine->pipelines.most = 1;
    atomic_store(&compile_naps, 0);
    expect_done(submit_runs(&run, 1));
    atomic_store(&compile_naps, LATE_NAPS);
    engine_batch_destroy(batch);
}

// Pipelines are gone when every other round begins, the engine keeps few of them, and compiles take
// a while. So runs are put off, and companies and sizes for many workgroups come and go. Every row
// has the bits that it has with all pipelines there, whenever and beside whatever it runs.
START_TEST(pipelines_that_come_late_change_no_bit)
{
    struct dice dice = {.state = check_draw("late pipelines")};
    const uint32_t rounds = LATE_ROUNDS * (check_is_long() ? 20 : 1);
    uint32_t put_off = 0;
    uint64_t metrics[NUM_ENGINE_METRICS];
    open_world(&looks[0], false);
    run_all(&looks[0], OUT, LSE, 2);
    run_capped();
    for (uint32_t round = 0; round < rounds; round++) {
        if (round % 2 == 0)
            evict_all(round % 4 == 0);
        engine->pipelines.most = 1u << dice_below(&dice, 4);
        const uint32_t waves = dice_between(&dice, 1, 4);
        for (uint32_t wave = 0; wave < waves; wave++)
            put_off += run_late(&dice, wave == 0);
    }
    engine_metrics(engine, metrics);
    printf("%u runs were put off, %llu cascades ran, %llu pipelines were compiled\n", put_off,
           (unsigned long long)metrics[ENGINE_METRIC_CASCADES],
           (unsigned long long)metrics[ENGINE_METRIC_PIPELINES_COMPILED]);
    ck_assert_uint_gt(put_off, 0);
    engine->pipelines.most = 256;
    const struct wave wave = wave_of(&looks[0], (uint32_t[]){2, 6, 9, SEQS}, 4);
    ck_assert_uint_eq(run_wave(&wave), 2); // nothing of the above keeps a company apart
    expect_wave(&wave, &looks[0], "after late pipelines");
    end_wave(&wave);
    close_world();
}
END_TEST

void add_cascade_tests(Suite *suite)
{
    TCase *tcase = tcase_create("cascade");
    tcase_set_tags(tcase, "kernels");
    check_loop(tcase, sequences_that_share_keys_get_the_bits_that_each_gets_alone,
               sizeof looks / sizeof *looks);
    tcase_add_test(tcase, an_engine_that_shares_nothing_gives_the_same_bits);
    tcase_add_test(tcase, sequences_of_eleven_sessions_are_computed_together);
    tcase_add_test(tcase, runs_that_read_other_keys_are_no_company);
    tcase_add_test(tcase, companies_of_several_layers_share_a_dispatch);
    tcase_add_test(tcase, a_company_stays_together_as_its_batches_advance);
    tcase_add_test(tcase, keys_that_sequences_share_count_once);
    tcase_add_test(tcase, runs_that_share_a_dispatch_share_the_help_in_it);
    tcase_add_loop_test(tcase, without_the_cascades_pipeline_runs_still_work, 0, 2);
    suite_add_tcase(suite, tcase);
    TCase *late = tcase_create("late pipelines");
    tcase_set_tags(late, "kernels");
    tcase_add_test(late, pipelines_that_come_late_change_no_bit);
    suite_add_tcase(suite, late);
}
