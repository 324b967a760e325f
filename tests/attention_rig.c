// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_rig.c - see attention_rig.h. One thread drives; the engine's threads only post the semaphore.

#include "attention_rig.h"

#include <check.h>
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ARENA_SIZE (64u << 20)
#define GUARD      (64u << 10) // poisoned and checked behind the last tensor

static void rig_wake(void *context)
{
    sem_post(context);
}

static void rig_log(void *context, int level, const char *text)
{
    (void)context;
    if (level <= 1)
        fprintf(stderr, "engine: %s\n", text);
}

// lavapipe leaks a little in a library that is unloaded before the leak checker looks: keep it loaded.
static void driver_pin(void)
{
#if defined(__SANITIZE_ADDRESS__)
    if (!dlopen("libvulkan_lvp.so", RTLD_NOW | RTLD_NODELETE))
        fprintf(stderr, "lavapipe is not pinned: %s\n", dlerror());
#endif
}

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        struct error error = {0};                                                                                      \
        enum status status = (call);                                                                                   \
        if (status != STATUS_OK)                                                                                       \
            ck_abort_msg("%s: %s: %s", #call, status_name(status), error.text);                                        \
    } while (0)

void rig_open(struct rig *rig, bool force_staging, bool validation)
{
    driver_pin();
    memset(rig, 0, sizeof *rig);
    ck_assert_int_eq(sem_init(&rig->news, 0, 0), 0);
    struct engine_params params = {
        .force_staging = force_staging,
        .validation = validation,
        .wake = rig_wake,
        .log = rig_log,
        .context = &rig->news,
    };
    MUST(engine_create(&params, &rig->engine, &error));
    int shared = memfd_create("arena", MFD_CLOEXEC);
    ck_assert_int_ge(shared, 0);
    ck_assert_int_eq(ftruncate(shared, ARENA_SIZE), 0);
    rig->image.bytes = mmap(NULL, ARENA_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
    ck_assert_ptr_ne(rig->image.bytes, MAP_FAILED);
    close(shared);
    rig->image.size = ARENA_SIZE - GUARD;
    rig->image.used = ARENA_SIZE - GUARD;
    rig_arena_clear(rig);
    rig->expected = malloc(ARENA_SIZE);
    ck_assert_ptr_nonnull(rig->expected);
    MUST(engine_arena_create(rig->engine, rig->image.bytes, ARENA_SIZE, &rig->arena, &error));
    if (force_staging)
        ck_assert(!engine_arena_imported(rig->arena));
}

void rig_close(struct rig *rig)
{
    ck_assert_uint_eq(engine_validation_messages(rig->engine), 0);
    engine_arena_destroy(rig->arena);
    engine_destroy(rig->engine);
    munmap(rig->image.bytes, ARENA_SIZE);
    free(rig->expected);
    sem_destroy(&rig->news);
}

// The next event; fails the test when none comes in time.
static struct engine_event rig_event(struct rig *rig)
{
    struct engine_event event;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += RIG_DEADLINE_S;
    while (!engine_poll(rig->engine, &event))
        if (sem_timedwait(&rig->news, &until) != 0 && errno == ETIMEDOUT)
            ck_abort_msg("no event from the engine within %d s", RIG_DEADLINE_S);
    if (event.kind == ENGINE_EVENT_LOST)
        ck_abort_msg("the device is lost: %s", event.error.text);
    return event;
}

static const float *floats_lend(float *lent, const float *from, uint32_t count)
{
    return from ? memcpy(lent, from, count * sizeof *lent) : NULL;
}

// The engine copies what it needs: what was lent is spoilt as soon as it returns.
static uint64_t submit_and_spoil(struct rig *rig, struct engine_submission submission)
{
    static float lent[RIG_MAX_RUNS][2][MAX_HEADS];
    struct engine_run runs[RIG_MAX_RUNS];
    uint64_t sequence;
    ck_assert_uint_le(submission.num_runs, RIG_MAX_RUNS);
    for (uint32_t i = 0; i < submission.num_runs; i++) {
        runs[i] = submission.runs[i];
        runs[i].slopes = floats_lend(lent[i][0], runs[i].slopes, runs[i].num_heads);
        runs[i].sinks = floats_lend(lent[i][1], runs[i].sinks, runs[i].num_heads);
    }
    submission.runs = runs;
    MUST(engine_submit(rig->engine, &submission, &sequence, &error));
    memset(lent, 0xff, sizeof lent);
    memset(runs, 0xff, sizeof runs);
    return sequence;
}

void rig_submit(struct rig *rig, const struct engine_submission *submission, struct engine_run_result *results)
{
    uint64_t sequence = submit_and_spoil(rig, *submission);
    struct engine_event event = rig_event(rig);
    ck_assert_int_eq(event.kind, ENGINE_EVENT_DONE);
    ck_assert_uint_eq(event.sequence, sequence);
    ck_assert_uint_eq(event.num_results, submission->num_runs);
    for (uint32_t i = 0; i < submission->num_runs; i++) {
        ck_assert_str_eq(status_name(event.results[i].status), "OK");
        results[i] = event.results[i];
    }
}

// ---- caches ----

struct engine_cache *rig_cache_open(struct rig *rig, const struct attention_case *problem)
{
    const struct attention_shape *shape = &problem->shape;
    struct engine_cache_params params = {
        .name = "test",
        .num_layers = shape->num_layers,
        .num_kv_heads = shape->num_kv_heads,
        .head_dim_k = shape->head_dim,
        .head_dim_v = shape->head_dim,
        .block_size = shape->block_size,
        .k_dtype = shape->k_dtype,
        .v_dtype = shape->v_dtype,
        .chunk_blocks = shape->chunk_blocks,
    };
    ck_assert_uint_eq(engine_layer_block_bytes(&params), problem->block_bytes);
    MUST(engine_cache_check(rig->engine, &params, &error));
    struct engine_cache *cache;
    MUST(engine_cache_create(rig->engine, &params, &cache, &error));
    uint32_t chunks = problem->num_blocks / shape->chunk_blocks;
    for (uint32_t i = 0; i < chunks; i++)
        engine_cache_grow(cache, i);
    for (uint32_t i = 0; i < chunks; i++) {
        struct engine_event event = rig_event(rig);
        ck_assert_int_eq(event.kind, ENGINE_EVENT_CHUNK);
        ck_assert_int_eq(event.error.status, STATUS_OK);
    }
    for (uint32_t i = 0; i < problem->num_blocks; i++)
        ck_assert_int_eq(engine_block_write(cache, shape->layer, (int32_t)i, problem->before[i]), STATUS_OK);
    return cache;
}

static void other_layer_check(struct engine_cache *cache, const struct attention_case *problem, uint8_t *bytes)
{
    uint32_t layer = (problem->shape.layer + 1) % problem->shape.num_layers;
    int32_t block = (int32_t)(problem->num_blocks / 2);
    if (layer == problem->shape.layer)
        return;
    ck_assert_int_eq(engine_block_read(cache, layer, block, bytes), STATUS_OK);
    for (uint64_t i = 0; i < problem->block_bytes; i++)
        ck_assert_uint_eq(bytes[i], 0);
}

void rig_cache_check(struct rig *rig, struct engine_cache *cache, const struct attention_case *problem,
                     uint8_t *const *blocks)
{
    (void)rig;
    uint8_t *bytes = malloc(problem->block_bytes);
    ck_assert_ptr_nonnull(bytes);
    for (uint32_t i = 0; i < problem->num_blocks; i++) {
        ck_assert_int_eq(engine_block_read(cache, problem->shape.layer, (int32_t)i, bytes), STATUS_OK);
        for (uint64_t at = 0; memcmp(bytes, blocks[i], problem->block_bytes) != 0 && at < problem->block_bytes; at++)
            if (bytes[at] != blocks[i][at])
                ck_abort_msg("block %u of %u, byte %llu of %llu: %02x, expected %02x", i, problem->num_blocks,
                             (unsigned long long)at, (unsigned long long)problem->block_bytes, bytes[at],
                             blocks[i][at]);
    }
    other_layer_check(cache, problem, bytes);
    free(bytes);
}

// ---- batches ----

void rig_arena_clear(struct rig *rig)
{
    memset(rig->image.bytes, 0xff, rig->image.used + GUARD);
    rig->image.used = 0;
}

void rig_batch_init(struct rig *rig, struct attention_batch *batch, const struct attention_case *problem, uint32_t set,
                    const uint32_t *order, uint32_t num_seqs, struct dice *dice)
{
    if (!attention_batch_init(batch, problem, set, order, num_seqs, &rig->image, dice))
        ck_abort_msg("no room: the arena image has %llu of %llu bytes in use", (unsigned long long)rig->image.used,
                     (unsigned long long)rig->image.size);
}

static struct engine_batch *rig_upload(struct engine_cache *cache, const struct attention_batch *batch)
{
    struct engine_batch_params params = {
        .cache = cache,
        .num_seqs = batch->num_seqs,
        .max_blocks = batch->max_blocks,
        .num_tokens = batch->num_tokens,
        .cu_seqlens_q = batch->cu_seqlens_q,
        .seq_lens_kv = batch->seq_lens_kv,
        .block_table = batch->block_table,
        .slot_mapping = batch->slot_mapping,
        .positions = batch->positions,
        .mask = batch->mask,
        .mask_bytes = batch->mask_bytes,
    };
    struct engine_batch *uploaded;
    MUST(engine_batch_create(&params, &uploaded, &error));
    return uploaded;
}

static struct engine_run rig_run_of(struct rig *rig, const struct attention_batch *batch, struct engine_batch *uploaded)
{
    const struct attention_shape *shape = &batch->problem->shape;
    const struct attention_parameters *parameters = batch->parameters;
    return (struct engine_run){
        .batch = uploaded,
        .arena = rig->arena,
        .layer = shape->layer,
        .num_heads = shape_heads(shape),
        .q = batch->q,
        .k = batch->k,
        .v = batch->v,
        .out = batch->out,
        .scale = shape->scale,
        .causal = parameters->causal,
        .windowed = parameters->features & FEATURE_WINDOW,
        .window_left = parameters->window_left,
        .window_right = parameters->window_right,
        .soft_cap = parameters->features & FEATURE_SOFT_CAP ? parameters->soft_cap : 0,
        .slopes = parameters->features & FEATURE_ALIBI ? parameters->slopes : NULL,
        .sinks = parameters->features & FEATURE_SINKS ? parameters->sinks : NULL,
        .lse = batch->lse,
    };
}

static void output_copy(const struct attention_batch *batch, uint8_t *to, const uint8_t *from)
{
    const struct attention_shape *shape = &batch->problem->shape;
    uint64_t row = (uint64_t)shape->head_dim * dtype_size(shape->io_dtype);
    for (uint32_t t = 0; batch->lse.dtype && t < batch->num_tokens; t++) {
        uint64_t at = batch->lse.offset + t * batch->lse.token_stride;
        memcpy(to + at, from + at, shape_heads(shape) * sizeof(float));
    }
    for (uint32_t t = 0; t < batch->num_tokens; t++)
        for (uint32_t h = 0; h < shape_heads(shape); h++) {
            uint64_t at = batch->out.offset + t * batch->out.token_stride + h * batch->out.head_stride;
            memcpy(to + at, from + at, row);
        }
}

void rig_run(struct rig *rig, struct engine_cache *cache, const struct attention_batch *batches, uint32_t num_batches,
             struct engine_run_result *results)
{
    struct engine_batch *uploaded[RIG_MAX_RUNS];
    struct engine_run runs[RIG_MAX_RUNS];
    ck_assert_uint_le(num_batches, RIG_MAX_RUNS);
    for (uint32_t i = 0; i < num_batches; i++) {
        uploaded[i] = rig_upload(cache, &batches[i]);
        runs[i] = rig_run_of(rig, &batches[i], uploaded[i]);
    }
    uint64_t checked = rig->image.used + GUARD;
    memcpy(rig->expected, rig->image.bytes, checked);
    struct engine_submission submission = {
        .runs = runs, .num_runs = num_batches, .wave_ends = &num_batches, .num_waves = 1};
    rig_submit(rig, &submission, results);
    for (uint32_t i = 0; i < num_batches; i++) {
        output_copy(&batches[i], rig->expected, rig->image.bytes);
        engine_batch_destroy(uploaded[i]);
    }
    for (uint64_t at = 0; memcmp(rig->expected, rig->image.bytes, checked) != 0 && at < checked; at++)
        if (rig->expected[at] != rig->image.bytes[at])
            ck_abort_msg("byte %llu of the arena, which is no output, changed from %02x to %02x",
                         (unsigned long long)at, rig->expected[at], rig->image.bytes[at]);
}

// ---- against the oracle ----

double rig_bound(enum dtype dtype)
{
    return dtype == DTYPE_F16 ? 2e-3 : 1e-5;
}

static double row_check(const struct attention_batch *batch, const uint8_t *arena, uint32_t token, uint32_t head,
                        const double *expected)
{
    const struct attention_shape *shape = &batch->problem->shape;
    const uint8_t *row = arena + batch->out.offset + token * batch->out.token_stride + head * batch->out.head_stride;
    double largest = shape->io_dtype == DTYPE_F16 ? 0x1p-14 : 1e-30, worst = 0; // below, numbers lose their digits
    for (uint32_t d = 0; d < shape->head_dim; d++)
        largest = fabs(expected[d]) > largest ? fabs(expected[d]) : largest;
    for (uint32_t d = 0; d < shape->head_dim; d++) {
        double value = oracle_load(row, shape->io_dtype, d), error = fabs(value - expected[d]);
        if (!(error <= rig_bound(shape->io_dtype) * largest)) // also when NaN
            ck_abort_msg(
                "token %u, head %u, dim %u: %.9g, expected %.9g; the row's largest is %.9g, the error %.2g of it",
                token, head, d, value, expected[d], largest, error / largest);
        worst = error > worst * largest ? error / largest : worst;
    }
    return worst;
}

static void lse_check(const struct attention_batch *batch, const uint8_t *arena, uint32_t token, uint32_t head,
                      double expected)
{
    float lse;
    memcpy(&lse, arena + batch->lse.offset + token * batch->lse.token_stride + head * sizeof lse, sizeof lse);
    double bound = batch->problem->shape.io_dtype == DTYPE_F32 ? 1e-4 : 2e-3;
    bool close =
        isinf(expected) ? (double)lse == expected : fabs((double)lse - expected) <= bound * fmax(1, fabs(expected));
    if (!close)
        ck_abort_msg("token %u, head %u: LSE %.9g, expected %.9g", token, head, (double)lse, expected);
}

double rig_check(struct rig *rig, const struct attention_batch *batch)
{
    const struct attention_shape *shape = &batch->problem->shape;
    struct oracle_params params = attention_batch_oracle(batch, rig->image.bytes);
    double *expected = calloc(shape->head_dim, sizeof *expected), worst = 0;
    ck_assert_ptr_nonnull(expected);
    for (uint32_t token = 0; token < batch->num_tokens; token++)
        for (uint32_t head = 0; head < shape_heads(shape); head++) {
            double lse;
            ck_assert(oracle_row(&params, token, head, expected, &lse));
            double error = row_check(batch, rig->image.bytes, token, head, expected);
            if (batch->lse.dtype)
                lse_check(batch, rig->image.bytes, token, head, lse);
            worst = error > worst ? error : worst;
        }
    free(expected);
    return worst;
}

bool rig_device_present(void)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct engine_device *devices = NULL;
        uint32_t count = 0, usable = 0;
        struct error error = {0};
        if (engine_list_devices(&devices, &count, &error) != STATUS_OK)
            fprintf(stderr, "%s\n", error.text);
        for (uint32_t i = 0; i < count; i++)
            usable += devices[i].usable;
        _exit(usable > 0 ? 0 : 1);
    }
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
