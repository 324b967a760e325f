// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_rig.c - see attention_rig.h. One thread drives; the engine's threads only post the
// semaphore.

#include "attention_rig.h"

#include "attention_contents.h"

#include <check.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// Room for the most that is drawn: K and V of 32 blocks of 256 tokens, 4 heads of 256 f32 each, and
// queries beside them.
#define ARENA_SIZE (128u << 20)
#define GUARD      (64u << 10) // poisoned and checked behind the last tensor

static const char *variant_wanted(void)
{
    const char *name = getenv("AULE_VARIANT");
    return name && *name ? name : NULL;
}

static void rig_wake(void *context)
{
    sem_post(context);
}

static void rig_wake_nobody(void *context)
{
    (void)context;
}

static void rig_log(void *context, int level, const char *format, const char *text)
{
    (void)context;
    (void)format;
    if (level <= 1)
        fprintf(stderr, "engine: %s\n", text);
}

// lavapipe leaks a little in a library that is unloaded before the leak checker looks: keep it
// loaded.
static void driver_pin(void)
{
#if defined(__SANITIZE_ADDRESS__)
    if (!dlopen("libvulkan_lvp.so", RTLD_NOW | RTLD_NODELETE))
        fprintf(stderr, "lavapipe is not pinned: %s\n", dlerror());
#endif
}

#define MUST(call)                                                                                 \
    do {                                                                                           \
        struct error error = {0};                                                                  \
        enum status status = (call);                                                               \
        if (status != STATUS_OK)                                                                   \
            ck_abort_msg("%s: %s: %s", #call, status_name(status), error.text);                    \
    } while (0)

// A layer that is older than a shader's instructions calls them errors: such a variant runs without
// it.
static void engine_open(struct engine_params params, struct engine **out)
{
    struct error error = {0};
    params.all_cascades = true;
    enum status status = engine_create(&params, out, &error);
    if (params.validation && status == STATUS_UNSUPPORTED &&
        strstr(error.text, "validation layer that knows")) {
        fprintf(stderr, "not validated: %s\n", error.text);
        params.validation = false;
        status = engine_create(&params, out, &error);
    }
    if (status != STATUS_OK)
        ck_abort_msg("engine_create: %s: %s", status_name(status), error.text);
    if (params.variant)
        ck_assert_str_eq(engine_variant(*out), params.variant);
}

void rig_open(struct rig *rig, bool force_staging, bool validation)
{
    driver_pin();
    memset(rig, 0, sizeof *rig);
    ck_assert_int_eq(sem_init(&rig->news, 0, 0), 0);
    struct engine_params params = {
        .force_staging = force_staging,
        .validation = validation,
        .variant = variant_wanted(),
        .wake = rig_wake,
        .log = rig_log,
        .context = &rig->news,
    };
    engine_open(params, &rig->engine);
    int shared = memfd_create("arena", MFD_CLOEXEC);
    ck_assert_int_ge(shared, 0);
    ck_assert_int_eq(ftruncate(shared, ARENA_SIZE), 0);
    rig->image.bytes = mmap(NULL, ARENA_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
    ck_assert_ptr_ne(rig->image.bytes, MAP_FAILED);
    close(shared);
    rig->image.size = ARENA_SIZE - GUARD;
    memset(rig->image.bytes + rig->image.size, 0xff, GUARD);
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

bool rig_has_kernels(const struct rig *rig)
{
    const char *variant = engine_variant(rig->engine);
    return strncmp(variant, "matrix", 6) == 0 || strcmp(variant, "hopper") == 0 ||
           strcmp(variant, "subgroup_small") == 0;
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

// The engine copies what it needs: what was lent is spoilt as soon as it returns.
struct lent {
    float slopes[MAX_HEADS], sinks[MAX_HEADS];
    double frequencies[MAX_HEAD_DIM / 2];
    struct engine_part parts[RIG_MAX_PARTS];
};

static const void *lend(void *lent, const void *from, size_t size)
{
    return from ? memcpy(lent, from, size) : NULL;
}

static struct engine_run run_lend(struct lent *lent, const struct engine_run *from)
{
    struct engine_run run = *from;
    ck_assert_uint_le(run.num_parts, RIG_MAX_PARTS);
    run.slopes = lend(lent->slopes, run.slopes, run.num_heads * sizeof *run.slopes);
    run.sinks = lend(lent->sinks, run.sinks, run.num_heads * sizeof *run.sinks);
    run.rope.frequencies = lend(lent->frequencies, run.rope.frequencies,
                                run.rope.dim / 2 * sizeof *run.rope.frequencies);
    run.parts = lend(lent->parts, run.parts, run.num_parts * sizeof *run.parts);
    return run;
}

static uint64_t submit_and_spoil(struct rig *rig, struct engine_submission submission)
{
    static struct lent lent[RIG_MAX_RUNS];
    struct engine_run runs[RIG_MAX_RUNS];
    uint64_t sequence;
    ck_assert_uint_le(submission.num_runs, RIG_MAX_RUNS);
    for (uint32_t i = 0; i < submission.num_runs; i++) {
        runs[i] = run_lend(&lent[i], &submission.runs[i]);
        MUST(engine_run_check(rig->engine, &runs[i], &error));
    }
    submission.runs = runs;
    MUST(engine_submit(rig->engine, &submission, &sequence, &error));
    memset(lent, 0xff, sizeof lent);
    memset(runs, 0xff, sizeof runs);
    return sequence;
}

void rig_submit(struct rig *rig, const struct engine_submission *submission,
                struct engine_run_result *results)
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
    if (shape->place != ENGINE_POOL)
        return NULL;
    struct engine_cache_params params = {
        .name = "test",
        .num_layers = shape->num_layers,
        .chunk_blocks = shape->chunk_blocks,
        .kv = shape->kv,
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
        ck_assert_int_eq(engine_block_write(cache, shape->layer, (int32_t)i, problem->before[i]),
                         STATUS_OK);
    return cache;
}

static void other_layer_check(struct engine_cache *cache, const struct attention_case *problem,
                              uint8_t *bytes)
{
    uint32_t layer = (problem->shape.layer + 1) % problem->shape.num_layers;
    int32_t block = (int32_t)(problem->num_blocks / 2);
    if (layer == problem->shape.layer)
        return;
    ck_assert_int_eq(engine_block_read(cache, layer, block, bytes), STATUS_OK);
    for (uint64_t i = 0; i < problem->block_bytes; i++)
        if (bytes[i] != 0)
            ck_abort_msg("byte %llu of a block of the other layer is %02x", (unsigned long long)i,
                         bytes[i]);
}

static void block_read(struct rig *rig, struct engine_cache *cache,
                       const struct attention_case *problem, uint32_t block, uint8_t *bytes)
{
    if (cache)
        ck_assert_int_eq(engine_block_read(cache, problem->shape.layer, (int32_t)block, bytes),
                         STATUS_OK);
    else
        attention_image_block(&rig->image, problem, block, bytes);
}

void rig_blocks_check(struct rig *rig, struct engine_cache *cache,
                      const struct attention_case *problem, uint8_t *const *blocks)
{
    uint8_t *bytes = malloc(problem->block_bytes);
    ck_assert_ptr_nonnull(bytes);
    for (uint32_t i = 0; i < problem->num_blocks; i++) {
        block_read(rig, cache, problem, i, bytes);
        for (uint64_t at = 0;
             memcmp(bytes, blocks[i], problem->block_bytes) != 0 && at < problem->block_bytes; at++)
            if (bytes[at] != blocks[i][at])
                ck_abort_msg("block %u of %u, byte %llu of %llu: %02x, expected %02x", i,
                             problem->num_blocks, (unsigned long long)at,
                             (unsigned long long)problem->block_bytes, bytes[at], blocks[i][at]);
    }
    if (cache)
        other_layer_check(cache, problem, bytes);
    free(bytes);
}

void rig_blocks_adopt(struct rig *rig, struct engine_cache *cache, struct attention_case *problem)
{
    uint8_t *bytes = malloc(problem->block_bytes);
    char text[256];
    ck_assert_ptr_nonnull(bytes);
    for (uint32_t s = 0; s < problem->num_seqs && problem->parameters[0].features & FEATURE_ROPE;
         s++) {
        struct attention_seq *seq = &problem->seqs[s];
        for (uint32_t i = 0; seq->slots && i < seq->q_len; i++) {
            if (seq->slots[i] < 0)
                continue;
            block_read(rig, cache, problem,
                       (uint32_t)(seq->slots[i] / problem->shape.kv.block_size), bytes);
            for (uint32_t head = 0; head < problem->shape.kv.num_kv_heads; head++)
                if (!attention_row_adopt(problem, seq, i, head, bytes, text, sizeof text))
                    ck_abort_msg("turned K of sequence %u, token %u, head %u: %s", s, i, head,
                                 text);
        }
    }
    free(bytes);
}

// ---- batches ----

void rig_arena_clear(struct rig *rig)
{
    memset(rig->image.bytes, 0xff, rig->image.used + GUARD);
    rig->image.used = 0;
    rig->image.keys = rig->image.values = (struct wire_tensor){0};
}

void rig_batch_init(struct rig *rig, struct attention_batch *batch,
                    const struct attention_case *problem, uint32_t set, const uint32_t *order,
                    uint32_t num_seqs, const struct attention_form *form, struct dice *dice)
{
    if (!attention_batch_init(batch, problem, set, order, num_seqs, form, &rig->image, dice))
        ck_abort_msg("no room: the arena image has %llu of %llu bytes in use",
                     (unsigned long long)rig->image.used, (unsigned long long)rig->image.size);
}

static struct engine_batch *rig_upload(struct rig *rig, struct engine_cache *cache,
                                       const struct attention_batch *batch)
{
    struct engine_batch_params params = {
        .engine = rig->engine,
        .cache = batch->form.place == ENGINE_POOL ? cache : NULL,
        .place = batch->form.place,
        .kv = batch->problem->shape.kv,
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
        .q_lens = batch->q_lens,
        .token_rows = batch->token_rows,
        .kv_starts = batch->kv_starts,
    };
    if (batch->form.place == ENGINE_ROWS)
        params.kv.block_size = 0;
    MUST(engine_kv_check(rig->engine, params.place, &params.kv, &error));
    struct engine_batch *uploaded;
    MUST(engine_batch_create(&params, &uploaded, &error));
    return uploaded;
}

static struct engine_run rig_run_of(struct rig *rig, const struct attention_batch *batch,
                                    struct engine_batch *uploaded)
{
    const struct attention_shape *shape = &batch->problem->shape;
    const struct attention_parameters *parameters = batch->parameters;
    bool scaled = shape->kv.scale_mode == SCALE_PER_TENSOR;
    return (struct engine_run){
        .kind = ENGINE_ATTEND,
        .batch = uploaded,
        .arena = rig->arena,
        .layer = batch->form.place == ENGINE_POOL ? shape->layer : 0,
        .num_heads = shape_heads(shape),
        .q = batch->q,
        .k = batch->k,
        .v = batch->v,
        .out = batch->out,
        .keys = batch->keys,
        .values = batch->values,
        .scale = shape->scale,
        .causal = parameters->causal,
        .windowed = parameters->features & FEATURE_WINDOW,
        .window_left = parameters->window_left,
        .window_right = parameters->window_right,
        .options.attention_chunk =
            parameters->features & FEATURE_CHUNK ? parameters->attention_chunk : 0,
        .soft_cap = parameters->features & FEATURE_SOFT_CAP ? parameters->soft_cap : 0,
        .slopes = parameters->features & FEATURE_ALIBI ? parameters->slopes : NULL,
        .sinks = parameters->features & FEATURE_SINKS ? parameters->sinks : NULL,
        .lse = batch->lse,
        .num_splits = parameters->num_splits,
        .rope = {.dim = parameters->features & FEATURE_ROPE ? parameters->rope_dim : 0,
                 .interleaved = parameters->features & FEATURE_PAIRS,
                 .theta = parameters->theta,
                 .frequencies = parameters->by_frequencies ? parameters->frequencies : NULL},
        .k_scale = scaled ? parameters->k_scale : 0,
        .v_scale = scaled ? parameters->v_scale : 0,
    };
}

// The rows of the output, those of tokens that are no queries too.
static void output_copy(const struct attention_batch *batch, uint8_t *to, const uint8_t *from)
{
    const struct attention_shape *shape = &batch->problem->shape;
    uint64_t row = (uint64_t)shape->kv.head_dim_v * dtype_size((int)shape->io_dtype);
    for (uint32_t t = 0; t < batch->num_tokens; t++) {
        uint32_t i, seq = attention_batch_seq(batch, t, &i);
        uint64_t at = attention_batch_lse_at(batch, seq, i);
        if (batch->lse.dtype)
            memcpy(to + at, from + at, shape_heads(shape) * sizeof(float));
        for (uint32_t h = 0; h < shape_heads(shape); h++) {
            at = attention_batch_at(batch, &batch->out, seq, i) + h * batch->out.head_stride;
            memcpy(to + at, from + at, row);
        }
    }
}

// The rows of block tensors that the batch writes.
static void writes_copy(const struct attention_batch *batch, uint8_t *to, const uint8_t *from)
{
    const struct attention_shape *shape = &batch->problem->shape;
    if (batch->form.place != ENGINE_BLOCKS || !batch->slot_mapping)
        return;
    for (uint32_t t = 0; t < batch->num_tokens; t++)
        for (uint32_t h = 0; h < 2 * shape->kv.num_kv_heads && batch->slot_mapping[t] >= 0; h++) {
            const struct wire_tensor *tensor = h % 2 ? &batch->values : &batch->keys;
            uint64_t slot = (uint64_t)batch->slot_mapping[t];
            uint64_t at = tensor->offset + slot / shape->kv.block_size * tensor->outer_stride +
                          slot % shape->kv.block_size * tensor->token_stride +
                          h / 2 * tensor->head_stride;
            if (tensor->dtype)
                memcpy(to + at, from + at, h % 2 ? shape_v_bytes(shape) : shape_k_bytes(shape));
        }
}

static void bytes_compare(const uint8_t *got, const uint8_t *expected, uint64_t size)
{
    for (uint64_t at = 0; memcmp(expected, got, size) != 0 && at < size; at++)
        if (expected[at] != got[at])
            ck_abort_msg("byte %llu of the arena, which is no output, changed from %02x to %02x",
                         (unsigned long long)at, expected[at], got[at]);
}

static void submit_slice(struct rig *rig, struct engine_run run, bool writes, uint32_t slice,
                         struct engine_run_result *result)
{
    const struct engine_submission submission = {
        .runs = &run, .num_runs = 1, .wave_ends = &(uint32_t){1}, .num_waves = 1};
    run.kind = writes ? ENGINE_WRITE : run.kind;
    run.is_written = true;
    run.slice = slice;
    run.num_slices = rig->slices;
    rig_submit(rig, &submission, result);
}

// Submits the slices of each run, those of its writes first.
static void submit_slices(struct rig *rig, const struct engine_run *runs, uint32_t num_runs,
                          struct engine_run_result *results)
{
    for (uint32_t i = 0; i < num_runs; i++)
        for (uint32_t slice = 0; slice < 2 * rig->slices; slice++)
            submit_slice(rig, runs[i], slice < rig->slices, slice % rig->slices, &results[i]);
}

void rig_run_waves(struct rig *rig, struct engine_cache *cache,
                   const struct attention_batch *batches, const uint32_t *wave_ends,
                   uint32_t num_waves, struct engine_run_result *results)
{
    uint32_t num_batches = wave_ends[num_waves - 1];
    struct engine_batch *uploaded[RIG_MAX_RUNS];
    struct engine_run runs[RIG_MAX_RUNS];
    ck_assert_uint_le(num_batches, RIG_MAX_RUNS);
    for (uint32_t i = 0; i < num_batches; i++) {
        uploaded[i] = rig_upload(rig, cache, &batches[i]);
        runs[i] = rig_run_of(rig, &batches[i], uploaded[i]);
    }
    uint64_t checked = rig->image.used + GUARD;
    memcpy(rig->expected, rig->image.bytes, checked);
    struct engine_submission submission = {
        .runs = runs, .num_runs = num_batches, .wave_ends = wave_ends, .num_waves = num_waves};
    if (rig->slices)
        submit_slices(rig, runs, num_batches, results);
    else
        rig_submit(rig, &submission, results);
    for (uint32_t i = 0; i < num_batches; i++) {
        output_copy(&batches[i], rig->expected, rig->image.bytes);
        writes_copy(&batches[i], rig->expected, rig->image.bytes);
        engine_batch_destroy(uploaded[i]);
    }
    bytes_compare(rig->image.bytes, rig->expected, checked);
}

void rig_run(struct rig *rig, struct engine_cache *cache, const struct attention_batch *batches,
             uint32_t num_batches, struct engine_run_result *results)
{
    rig_run_waves(rig, cache, batches, &num_batches, 1, results);
}

// ---- is there a device ----

// In a child, so that check can fork afterwards. A variant that this device cannot run is no
// failure, one that nobody knows is.
static int device_probe(void)
{
    struct engine_device *devices = NULL;
    uint32_t count = 0, usable = 0;
    struct error error = {0};
    if (engine_list_devices(&devices, &count, &error) != STATUS_OK)
        fprintf(stderr, "%s\n", error.text);
    for (uint32_t i = 0; i < count; i++)
        usable += devices[i].usable;
    free(devices);
    if (!usable)
        return 1;
    struct engine_params params = {
        .variant = variant_wanted(), .wake = rig_wake_nobody, .log = rig_log};
    struct engine *engine = NULL;
    if (engine_create(&params, &engine, &error) == STATUS_UNSUPPORTED) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    engine_destroy(engine);
    return 0;
}

bool rig_device_present(void)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(device_probe());
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}
