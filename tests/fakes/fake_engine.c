// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fake_engine.c - see fake_engine.h. Arenas may be created and destroyed on any thread; all else
// belongs to the dispatcher.

#include "fake_parts.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *(*fake_engine_alloc)(size_t count, size_t size) = calloc;

static void wake(struct engine *engine)
{
    if (engine->params.wake)
        engine->params.wake(engine->params.context);
}

// ---- device ----

enum status engine_list_devices(struct engine_device **out, uint32_t *count, struct error *error)
{
    *out = calloc(1, sizeof(**out));
    if (!*out)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the list of devices");
    **out = (struct engine_device){
        .name = "fake", .type = "other", .usable = true, .max_allocation_bytes = 1ull << 32};
    *count = 1;
    return STATUS_OK;
}

enum status engine_create(const struct engine_params *params, struct engine **out,
                          struct error *error)
{
    (void)error;
    struct engine *engine = fake_make(1, sizeof(*engine));
    engine->params = *params;
    engine->gpu_ns = 1000;
    engine->device = (struct engine_device){
        .name = "fake",
        .driver = "none",
        .type = "other",
        .usable = true,
        .heap_bytes = 1ull << 34,
        .budget_bytes = 1ull << 34,
        .max_allocation_bytes = 1ull << 32,
        .subgroup_size = 1,
        .import_alignment = 4096,
        .host_import = !params->force_staging,
        .memory_export = true,
    };
    *out = engine;
    return STATUS_OK;
}

struct engine *fake_engine_create(void)
{
    struct engine *engine;
    engine_create(&(struct engine_params){0}, &engine, NULL);
    return engine;
}

static void submission_free(struct fake_submission *submission)
{
    for (uint32_t i = 0; i < submission->num_runs; i++)
        fake_run_finish(&submission->runs[i]);
    free(submission->zeroes);
    free(submission->runs);
    free(submission);
}

static void drop_submissions(struct engine *engine)
{
    while (engine->hauls) {
        struct fake_submission *next = engine->hauls->next;
        submission_free(engine->hauls);
        engine->hauls = next;
    }
    while (engine->submissions) {
        struct fake_submission *next = engine->submissions->next;
        submission_free(engine->submissions);
        engine->submissions = next;
    }
}

static void event_free(struct fake_event *event)
{
    if (event)
        free(event->results);
    free(event);
}

static void growths_free(struct engine *engine)
{
    while (engine->growths) {
        struct fake_growth *next = engine->growths->next;
        free(engine->growths);
        engine->growths = next;
    }
}

bool engine_destroy_within(struct engine *engine, int timeout_ms)
{
    (void)timeout_ms;
    if (!engine)
        return true;
    if (engine->caches || engine->batches || engine->arenas)
        fake_broken("destroyed with caches, %u batches, %u arenas alive", engine->batches,
                    atomic_load(&engine->arenas));
    drop_submissions(engine);
    while (engine->events) {
        struct fake_event *next = engine->events->next;
        event_free(engine->events);
        engine->events = next;
    }
    event_free(engine->shown);
    growths_free(engine);
    free(engine);
    return true;
}

void engine_destroy(struct engine *engine)
{
    engine_destroy_within(engine, -1);
}

const struct engine_device *engine_device(const struct engine *engine)
{
    return &engine->device;
}

uint64_t engine_budget_bytes(struct engine *engine)
{
    return engine->device.budget_bytes;
}

uint32_t engine_num_pipelines(struct engine *engine)
{
    (void)engine;
    return 0;
}

const char *engine_variant(const struct engine *engine)
{
    (void)engine;
    return "fake";
}

bool engine_variant_at(const struct engine *engine, uint32_t index, struct engine_variant_info *out)
{
    (void)engine;
    *out = (struct engine_variant_info){.name = "fake", .needs = "nothing"};
    return index == 0;
}

void engine_metrics(const struct engine *engine, uint64_t metrics[NUM_ENGINE_METRICS])
{
    (void)engine;
    memset(metrics, 0, NUM_ENGINE_METRICS * sizeof *metrics);
}

uint32_t engine_validation_messages(const struct engine *engine)
{
    (void)engine;
    return 0;
}

void fake_engine_counts(const struct engine *engine, struct fake_counts *out)
{
    *out = (struct fake_counts){
        .batches = engine->batches,
        .arenas = engine->arenas,
        .most_unfinished = engine->most_unfinished,
        .asked_chunks = engine->asked_chunks,
    };
    for (const struct engine_cache *cache = engine->caches; cache; cache = cache->next) {
        out->caches++;
        for (uint32_t i = 0; i < cache->num_chunks; i++)
            out->chunks += cache->chunks[i].state == GROWN;
    }
    for (const struct fake_submission *s = engine->submissions; s; s = s->next)
        out->unfinished++;
}

// ---- events ----

static struct fake_event *event_add(struct engine *engine, enum engine_event_kind kind)
{
    struct fake_event *event = fake_make(1, sizeof(*event)), **at = &engine->events;
    event->event.kind = kind;
    while (*at)
        at = &(*at)->next;
    *at = event;
    return event;
}

// ---- caches ----

static bool has_shader(enum engine_place place, enum dtype dtype, enum scale_mode mode)
{
    bool small = dtype_size((int)dtype) == 1;
    return dtype_size((int)dtype) &&
           (mode != SCALE_PER_TOKEN_HEAD || (small && place == ENGINE_POOL));
}

enum status engine_kv_check(const struct engine *engine, enum engine_place place,
                            const struct engine_kv *kv, struct error *error)
{
    (void)engine;
    if (kv->block_bytes)
        return kv->block_bytes % 16 == 0 && place == ENGINE_POOL
                   ? STATUS_OK
                   : error_set(error, STATUS_INVALID, "block_bytes %" PRIu32 " in place %d",
                               kv->block_bytes, (int)place);
    const uint32_t dims[] = {kv->head_dim_k, kv->head_dim_v};
    for (int i = 0; i < 2; i++) {
        if (dims[i] == 0 || dims[i] % 8 || dims[i] > 576)
            return error_set(error, STATUS_UNSUPPORTED, "head_dim %" PRIu32 " has no shader",
                             dims[i]);
    }
    if (kv->v_is_k_prefix && kv->head_dim_v > kv->head_dim_k)
        return error_set(error, STATUS_INVALID,
                         "head_dim_v %" PRIu32 " is no part of head_dim_k %" PRIu32, kv->head_dim_v,
                         kv->head_dim_k);
    if (!has_shader(place, kv->k_dtype, kv->scale_mode) ||
        !has_shader(place, kv->v_dtype, kv->scale_mode))
        return error_set(
            error, STATUS_UNSUPPORTED, "KV dtypes %s and %s with scale_mode %d have no shader",
            dtype_name((int)kv->k_dtype), dtype_name((int)kv->v_dtype), (int)kv->scale_mode);
    if ((kv->block_size == 0) != (place == ENGINE_ROWS))
        fake_broken("block_size %" PRIu32 " in place %d", kv->block_size, (int)place);
    return STATUS_OK;
}

enum status engine_cache_check(const struct engine *engine,
                               const struct engine_cache_params *params, struct error *error)
{
    return engine_kv_check(engine, ENGINE_POOL, &params->kv, error);
}

uint64_t engine_layer_block_bytes(const struct engine_cache_params *p)
{
    const struct engine_kv *kv = &p->kv;
    if (kv->block_bytes)
        return kv->block_bytes;
    uint64_t k = (uint64_t)kv->head_dim_k * dtype_size((int)kv->k_dtype);
    uint64_t v = kv->v_is_k_prefix ? 0 : (uint64_t)kv->head_dim_v * dtype_size((int)kv->v_dtype);
    uint64_t scales = kv->scale_mode == SCALE_PER_TOKEN_HEAD ? (kv->v_is_k_prefix ? 4 : 8) : 0;
    return (k + v + scales) * kv->num_kv_heads * kv->block_size;
}

uint64_t engine_block_bytes(const struct engine_cache_params *params)
{
    return engine_layer_block_bytes(params) * params->num_layers;
}

enum status engine_cache_create(struct engine *engine, const struct engine_cache_params *params,
                                struct engine_cache **out, struct error *error)
{
    enum status status = engine_cache_check(engine, params, error);
    if (status != STATUS_OK)
        return status;
    struct engine_cache *cache = fake_make(1, sizeof(*cache));
    *cache = (struct engine_cache){.engine = engine, .params = *params, .next = engine->caches};
    engine->caches = cache;
    *out = cache;
    return STATUS_OK;
}

static void forbid_use(const struct engine_cache *cache)
{
    for (const struct fake_submission *s = cache->engine->submissions; s; s = s->next) {
        for (uint32_t i = 0; i < s->num_runs; i++) {
            if (fake_run_cache(&s->runs[i]) == cache)
                fake_broken("a cache ends that submission %" PRIu64 " uses", s->sequence);
        }
    }
}

void engine_cache_destroy(struct engine_cache *cache)
{
    struct engine *engine = cache->engine;
    struct engine_cache **at = &engine->caches;
    // A submission may still zero blocks that no run reads any more. The engine keeps the memory
    // until the submission has ended.
    for (struct fake_submission *s = engine->submissions; s; s = s->next) {
        for (uint32_t i = 0; i < s->num_zeroes; i++) {
            if (s->zeroes[i].cache == cache)
                s->zeroes[i].cache = NULL;
        }
    }
    forbid_use(cache);
    for (struct fake_growth *growth = engine->growths; growth; growth = growth->next) {
        if (growth->cache == cache)
            growth->cache = NULL;
    }
    for (struct fake_event *event = engine->events; event; event = event->next) {
        if (event->event.kind == ENGINE_EVENT_CHUNK && event->event.cache == cache)
            fake_broken("a chunk's event outlives its cache");
    }
    while (*at != cache)
        at = &(*at)->next;
    *at = cache->next;
    for (uint32_t i = 0; i < cache->num_chunks; i++)
        free(cache->chunks[i].slots);
    free(cache->chunks);
    free(cache);
}

static struct fake_chunk *find_chunk(const struct engine_cache *cache, uint32_t number)
{
    return number < cache->num_chunks ? &cache->chunks[number] : NULL;
}

static struct fake_chunk *make_chunk(struct engine_cache *cache, uint32_t number)
{
    if (number >= cache->num_chunks) {
        uint32_t count = 2 * number + 1;
        struct fake_chunk *chunks = fake_make(count, sizeof(*chunks));
        if (cache->num_chunks)
            memcpy(chunks, cache->chunks, cache->num_chunks * sizeof(*chunks));
        free(cache->chunks);
        cache->chunks = chunks;
        cache->num_chunks = count;
    }
    return &cache->chunks[number];
}

bool engine_cache_grow(struct engine_cache *cache, uint32_t number)
{
    struct engine *engine = cache->engine;
    if (engine->unasked_chunks) {
        engine->unasked_chunks--;
        return false;
    }
    struct fake_chunk *chunk = make_chunk(cache, number);
    if (chunk->state != NOT_GROWN)
        fake_broken("chunk %" PRIu32 " grows twice", number);
    chunk->state = GROWTH_WANTED;
    struct fake_growth *growth = fake_make(1, sizeof(*growth)), **at = &engine->growths;
    *growth = (struct fake_growth){.cache = cache, .chunk = number, .ready = !engine->hold_chunks};
    while (*at)
        at = &(*at)->next;
    *at = growth;
    engine->asked_chunks++;
    if (growth->ready)
        wake(engine);
    return true;
}

void engine_cache_shrink(struct engine_cache *cache, uint32_t number)
{
    struct fake_chunk *chunk = find_chunk(cache, number);
    if (!chunk || chunk->state != GROWN)
        fake_broken("chunk %" PRIu32 " shrinks without memory", number);
    free(chunk->slots);
    chunk->slots = NULL;
    chunk->state = NOT_GROWN;
}

enum status engine_cache_export(struct engine_cache *cache, uint32_t part,
                                struct engine_cache_part *out, struct error *error)
{
    const struct engine_cache_params *params = &cache->params;
    const uint64_t block_bytes = engine_layer_block_bytes(params);
    *out = (struct engine_cache_part){.memory.fd = -1,
                                      .num_parts = 1,
                                      .num_layers = params->num_layers,
                                      .layer_bytes = block_bytes * params->chunk_blocks,
                                      .block_bytes = block_bytes};
    if (part > 0)
        return error_set(error, STATUS_OUT_OF_RANGE, "allocation %" PRIu32 " of 1", part);
    // Nothing of the fake's blocks is in this memory.
    out->memory.allocated = out->layer_bytes * params->num_layers;
    out->memory.fd = memfd_create("exported cache", MFD_CLOEXEC);
    return out->memory.fd >= 0 ? STATUS_OK
                               : error_set(error, STATUS_NO_MEMORY, "no descriptor for a cache");
}

int32_t *fake_slot_at(const struct engine_cache *cache, uint32_t layer, int64_t block,
                      uint32_t slot)
{
    const struct engine_cache_params *p = &cache->params;
    struct fake_chunk *chunk = find_chunk(cache, (uint32_t)(block / p->chunk_blocks));
    if (!chunk || !chunk->slots)
        return NULL;
    size_t row = (size_t)layer * p->chunk_blocks + (size_t)(block % p->chunk_blocks);
    return chunk->slots + row * p->kv.block_size + slot;
}

int32_t fake_engine_slot(const struct engine_cache *cache, uint32_t layer, int32_t block,
                         uint32_t slot)
{
    const int32_t *at = fake_slot_at(cache, layer, block, slot);
    if (!at)
        fake_broken("block %" PRId32 " has no memory", block);
    return *at;
}

static size_t row_bytes(const struct engine_cache *cache)
{
    return (size_t)cache->params.kv.head_dim_k * dtype_size((int)cache->params.kv.k_dtype);
}

enum status engine_block_read(struct engine_cache *cache, uint32_t layer, int32_t block,
                              void *bytes)
{
    if (!fake_slot_at(cache, layer, block, 0))
        return STATUS_OUT_OF_RANGE;
    memset(bytes, 0, engine_layer_block_bytes(&cache->params));
    for (uint32_t i = 0; i < cache->params.kv.block_size; i++)
        memcpy((uint8_t *)bytes + i * row_bytes(cache), fake_slot_at(cache, layer, block, i),
               sizeof(int32_t));
    return STATUS_OK;
}

enum status engine_block_write(struct engine_cache *cache, uint32_t layer, int32_t block,
                               const void *bytes)
{
    if (!fake_slot_at(cache, layer, block, 0))
        return STATUS_OUT_OF_RANGE;
    for (uint32_t i = 0; i < cache->params.kv.block_size; i++)
        memcpy(fake_slot_at(cache, layer, block, i), (const uint8_t *)bytes + i * row_bytes(cache),
               sizeof(int32_t));
    return STATUS_OK;
}

// ---- chunks on demand ----

void fake_engine_hold_chunks(struct engine *engine, bool hold)
{
    engine->hold_chunks = hold;
}

void fake_engine_fail_to_ask(struct engine *engine, uint32_t count)
{
    engine->unasked_chunks = count;
}

bool fake_engine_give_chunk(struct engine *engine)
{
    struct fake_growth *growth = engine->growths;
    while (growth && growth->ready)
        growth = growth->next;
    if (!growth)
        return false;
    growth->ready = true;
    wake(engine);
    return true;
}

void fake_engine_refuse_chunks(struct engine *engine, uint32_t count)
{
    engine->refuse_chunks = count;
}

void fake_engine_limit_allocation(struct engine *engine, uint64_t bytes)
{
    engine->device.max_allocation_bytes = bytes;
}

static void finish_growth(struct engine *engine, const struct fake_growth *growth)
{
    struct engine_cache *cache = growth->cache;
    if (!cache)
        return;
    struct fake_chunk *chunk = find_chunk(cache, growth->chunk);
    struct engine_event *event = &event_add(engine, ENGINE_EVENT_CHUNK)->event;
    event->cache = cache;
    event->chunk = growth->chunk;
    if (engine->refuse_chunks) {
        engine->refuse_chunks--;
        chunk->state = NOT_GROWN;
        error_set(&event->error, STATUS_NO_MEMORY, "out of device memory");
        return;
    }
    chunk->state = GROWN;
    chunk->slots = fake_make((size_t)cache->params.num_layers * cache->params.chunk_blocks *
                                 cache->params.kv.block_size,
                             sizeof(int32_t));
}

static void finish_growths(struct engine *engine)
{
    while (engine->growths && engine->growths->ready) {
        struct fake_growth *growth = engine->growths;
        engine->growths = growth->next;
        finish_growth(engine, growth);
        free(growth);
    }
}

// ---- arenas ----

enum status engine_arena_create(struct engine *engine, void *base, uint64_t size,
                                struct engine_arena **out, struct error *error)
{
    (void)error;
    struct engine_arena *arena = fake_make(1, sizeof(*arena));
    *arena = (struct engine_arena){.engine = engine, .base = base, .size = size, .exported = -1};
    atomic_fetch_add(&engine->arenas, 1);
    *out = arena;
    return STATUS_OK;
}

enum status engine_arena_create_parts(struct engine *engine, void *base, uint64_t size,
                                      uint64_t part_bytes, struct engine_arena **out,
                                      struct error *error)
{
    (void)part_bytes;
    return engine_arena_create(engine, base, size, out, error);
}

uint64_t engine_arena_part_bytes(const struct engine_arena *arena)
{
    return arena->size;
}

enum status engine_arena_create_exported(struct engine *engine, uint64_t size,
                                         struct engine_arena **out, struct error *error)
{
    int fd = memfd_create("exported arena", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0)
        fake_broken("no memory for an arena of %" PRIu64 " bytes", size);
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        fake_broken("no memory for an arena of %" PRIu64 " bytes", size);
    enum status status = engine_arena_create(engine, base, size, out, error);
    (*out)->exported = fd;
    return status;
}

enum status engine_arena_export(const struct engine_arena *arena, struct engine_export *out,
                                struct error *error)
{
    *out = (struct engine_export){.fd = fcntl(arena->exported, F_DUPFD_CLOEXEC, 0),
                                  .allocated = arena->size};
    return out->fd >= 0 ? STATUS_OK : error_set(error, STATUS_NO_MEMORY, "no descriptor is left");
}

static void unmap_exported(const struct engine_arena *arena)
{
    if (arena->exported < 0)
        return;
    munmap(arena->base, arena->size);
    close(arena->exported);
}

static void forbid_arena(const struct fake_submission *list, const struct engine_arena *arena)
{
    for (const struct fake_submission *s = list; s; s = s->next) {
        for (uint32_t i = 0; i < s->num_runs; i++) {
            if (s->runs[i].arena == arena)
                fake_broken("an arena ends that submission or haul %" PRIu64 " uses", s->sequence);
        }
    }
}

bool engine_arena_destroy(struct engine_arena *arena)
{
    if (!arena)
        return true;
    forbid_arena(arena->engine->submissions, arena);
    forbid_arena(arena->engine->hauls, arena);
    atomic_fetch_sub(&arena->engine->arenas, 1);
    bool lost = arena->engine->lost;
    unmap_exported(arena);
    free(arena);
    return !lost;
}

void fake_engine_widen_arena(struct engine_arena *arena, uint64_t size)
{
    arena->size = size;
}

uint8_t *fake_engine_arena_memory(struct engine_arena *arena)
{
    return arena->base;
}

bool engine_arena_imported(const struct engine_arena *arena)
{
    return arena->engine->device.host_import;
}

// ---- submissions ----

static void group(struct fake_submission *s)
{
    for (uint32_t i = 0; i < s->num_runs; i++) {
        s->runs[i].dispatch = s->num_dispatches;
        for (uint32_t j = i; j-- > 0 && s->runs[j].wave == s->runs[i].wave;) {
            if (fake_run_shares_dispatch(&s->runs[i], &s->runs[j]))
                s->runs[i].dispatch = s->runs[j].dispatch;
        }
        s->num_dispatches += s->runs[i].dispatch == s->num_dispatches;
    }
}

static bool is_slice(const struct fake_run *run)
{
    return run->run.num_slices > 1;
}

// In a wave, a slice is the only run of its line.
static void forbid_company_of_slices(const struct fake_submission *s)
{
    for (uint32_t i = 1; i < s->num_runs; i++)
        for (uint32_t j = i; j-- > 0 && s->runs[j].wave == s->runs[i].wave;)
            if ((is_slice(&s->runs[i]) || is_slice(&s->runs[j])) &&
                s->runs[i].run.line == s->runs[j].run.line)
                fake_broken("slices of line %" PRIu64 " share wave %" PRIu32, s->runs[i].run.line,
                            s->runs[i].wave);
}

static void copy_runs(struct fake_submission *s, const struct engine_submission *from)
{
    uint32_t wave = 0;
    if (from->num_runs &&
        (!from->num_waves || from->wave_ends[from->num_waves - 1] != from->num_runs))
        fake_broken("the last wave does not end with the last run");
    s->runs = fake_make(from->num_runs, sizeof(*s->runs));
    for (uint32_t i = 0; i < from->num_runs; i++) {
        while (i >= from->wave_ends[wave])
            wave++;
        fake_run_init(&s->runs[i], &from->runs[i]);
        s->runs[i].wave = wave;
    }
    forbid_company_of_slices(s);
    group(s);
}

enum status engine_submit(struct engine *engine, const struct engine_submission *from,
                          uint64_t *sequence, struct error *error)
{
    if (engine->lost)
        return error_set(error, STATUS_DEVICE_LOST, "the fake device is lost");
    if (engine->refuse_submit != STATUS_OK) {
        enum status status = engine->refuse_submit;
        engine->refuse_submit = STATUS_OK;
        return error_set(error, status, "the fake engine was told to refuse");
    }
    struct fake_submission *s = fake_make(1, sizeof(*s)), **at = &engine->submissions;
    struct fake_counts counts;
    s->sequence = *sequence = ++engine->sequence;
    s->num_zeroes = from->num_zeroes;
    s->num_runs = from->num_runs;
    s->num_waves = from->num_waves;
    s->zeroes = fake_copy(from->zeroes, from->num_zeroes, sizeof(*s->zeroes));
    for (uint32_t i = 0; i < s->num_zeroes; i++) {
        if (!fake_slot_at(s->zeroes[i].cache, 0, s->zeroes[i].block, 0))
            fake_broken("block %" PRId32 " is zeroed without memory", s->zeroes[i].block);
    }
    copy_runs(s, from);
    while (*at)
        at = &(*at)->next;
    *at = s;
    fake_engine_counts(engine, &counts);
    if (counts.unfinished > engine->most_unfinished)
        engine->most_unfinished = counts.unfinished;
    if (engine->automatic)
        wake(engine);
    return STATUS_OK;
}

void fake_engine_limit_splits(struct engine *engine, uint32_t splits)
{
    engine->limit_splits = splits;
}

enum status engine_run_check(const struct engine *engine, const struct engine_run *run,
                             struct error *error)
{
    if (!engine->limit_splits || run->num_splits < engine->limit_splits)
        return STATUS_OK;
    return error_set(error, STATUS_LIMIT,
                     "%" PRIu32 " splits need more than the fake has (--max-scratch)",
                     run->num_splits);
}

void fake_engine_automatic(struct engine *engine, bool automatic)
{
    engine->automatic = automatic;
}

struct fake_submission *fake_engine_oldest(struct engine *engine)
{
    return engine->submissions;
}

struct fake_submission *fake_engine_newest(struct engine *engine)
{
    struct fake_submission *s = engine->submissions;
    while (s && s->next)
        s = s->next;
    return s;
}

void fake_engine_refuse_submit(struct engine *engine, enum status status)
{
    engine->refuse_submit = status;
}

// No memory is read any more: work in flight ends without an event.
void fake_engine_lose(struct engine *engine, const char *why)
{
    engine->lost = true;
    drop_submissions(engine);
    error_set(&event_add(engine, ENGINE_EVENT_LOST)->event.error, STATUS_DEVICE_LOST, "%s", why);
    wake(engine);
}

static void zero(const struct engine_zero *zero)
{
    if (!zero->cache)
        return;
    const struct engine_cache_params *p = &zero->cache->params;
    for (uint32_t layer = 0; layer < p->num_layers; layer++) {
        int32_t *slots = fake_slot_at(zero->cache, layer, zero->block, 0);
        if (slots) // else its chunk was freed meanwhile
            memset(slots, 0, p->kv.block_size * sizeof(*slots));
    }
}

void fake_engine_slow(struct engine *engine, uint64_t gpu_ns)
{
    engine->gpu_ns = gpu_ns;
}

// The number of runs that share the dispatch of run `run`, including itself.
static uint32_t count_in_dispatch(const struct fake_submission *s, uint32_t run)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->num_runs; i++)
        count += s->runs[i].dispatch == s->runs[run].dispatch;
    return count;
}

// ---- lines ----

static struct fake_line *line_of(struct engine *engine, uint64_t number)
{
    for (int i = 0; i < FAKE_LINES; i++)
        if (engine->lines[i].number == number)
            return &engine->lines[i];
    return NULL;
}

void fake_engine_put_off(struct engine *engine, uint64_t line)
{
    struct fake_line *free_line = line_of(engine, 0);
    if (!line || !free_line)
        fake_broken("line %" PRIu64 " cannot be put off", line);
    *free_line = (struct fake_line){.number = line};
}

void fake_engine_compiled(struct engine *engine)
{
    for (int i = 0; i < FAKE_LINES; i++)
        engine->lines[i].compiled = true;
    event_add(engine, ENGINE_EVENT_COMPILED);
    wake(engine);
}

uint32_t fake_engine_num_put_off(const struct engine *engine)
{
    uint32_t count = 0;
    for (int i = 0; i < FAKE_LINES; i++)
        count += engine->lines[i].number != 0;
    return count;
}

bool fake_engine_is_put_off(const struct engine *engine, uint64_t line)
{
    for (int i = 0; i < FAKE_LINES && line; i++)
        if (engine->lines[i].number == line)
            return true;
    return false;
}

bool engine_line_resume(struct engine *engine, uint64_t line)
{
    struct fake_line *found = line_of(engine, line);
    for (const struct fake_submission *s = engine->submissions; s; s = s->next)
        for (uint32_t i = 0; i < s->num_runs; i++)
            if (s->runs[i].run.line == line)
                fake_broken("line %" PRIu64 " is resumed while it has runs", line);
    if (!found)
        return true;
    if (!found->compiled)
        return false;
    *found = (struct fake_line){0};
    return true;
}

void engine_expect(struct engine *engine)
{
    (void)engine;
}

void engine_line_end(struct engine *engine, uint64_t line)
{
    struct fake_line *found = line ? line_of(engine, line) : NULL;
    if (found)
        *found = (struct fake_line){0};
}

bool fake_engine_finish(struct engine *engine)
{
    struct fake_submission *s = engine->submissions;
    if (!s)
        return fake_engine_finish_haul(engine, NULL);
    engine->submissions = s->next;
    struct fake_event *event = event_add(engine, ENGINE_EVENT_DONE);
    event->results = fake_make(s->num_runs, sizeof(*event->results));
    for (uint32_t i = 0; i < s->num_zeroes; i++)
        zero(&s->zeroes[i]);
    for (uint32_t i = 0; i < s->num_runs; i++) {
        const uint64_t line = s->runs[i].run.line;
        if (fake_engine_is_put_off(engine, line))
            s->runs[i].fail = STATUS_BUSY;
        enum status status = s->runs[i].fail;
        uint64_t own_ns = s->runs[i].own_ns;
        event->results[i] = (struct engine_run_result){
            .status = status,
            .dispatch = s->runs[i].dispatch,
            .gpu_ns = engine->gpu_ns,
            .own_ns = own_ns ? own_ns : engine->gpu_ns / count_in_dispatch(s, i),
            .message = s->runs[i].why};
        if (s->runs[i].fail == STATUS_OK)
            fake_run_do(&s->runs[i]);
    }
    event->event.sequence = s->sequence;
    event->event.results = event->results;
    event->event.num_results = s->num_runs;
    event->event.num_dispatches = s->num_dispatches;
    submission_free(s);
    wake(engine);
    return true;
}

// ---- hauls ----

void fake_engine_have_hauls(struct engine *engine, bool have)
{
    engine->has_hauls = have;
}

bool engine_hauls(const struct engine *engine)
{
    return engine->has_hauls;
}

enum status engine_haul(struct engine *engine, const struct engine_haul *haul, uint64_t *number,
                        struct error *error)
{
    const struct engine_run run = {.kind = ENGINE_COPY,
                                   .cache = haul->cache,
                                   .arena = haul->arena,
                                   .copies = haul->copies,
                                   .num_copies = haul->num_copies};
    if (!engine->has_hauls || haul->after > engine->sequence)
        fake_broken("a haul after submission %" PRIu64, haul->after);
    if (engine->lost)
        return error_set(error, STATUS_DEVICE_LOST, "the fake device is lost");
    struct fake_submission *s = fake_make(1, sizeof(*s)), **at = &engine->hauls;
    s->sequence = *number = ++engine->haul_number;
    s->after = haul->after;
    s->num_runs = 1;
    s->runs = fake_make(1, sizeof(*s->runs));
    fake_run_init(&s->runs[0], &run);
    while (*at)
        at = &(*at)->next;
    *at = s;
    if (engine->automatic)
        wake(engine);
    return STATUS_OK;
}

struct fake_submission *fake_engine_oldest_haul(struct engine *engine)
{
    return engine->hauls;
}

bool fake_engine_finish_haul(struct engine *engine, struct fake_submission *haul)
{
    struct fake_submission *s = haul ? haul : engine->hauls, **at = &engine->hauls;
    if (!s || (engine->submissions && engine->submissions->sequence <= s->after))
        return false;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    struct engine_event *event = &event_add(engine, ENGINE_EVENT_HAULED)->event;
    event->haul = s->sequence;
    if (s->runs[0].fail == STATUS_OK)
        fake_run_do(&s->runs[0]);
    else
        error_set(&event->error, s->runs[0].fail, "%s", s->runs[0].why ? s->runs[0].why : "");
    submission_free(s);
    wake(engine);
    return true;
}

enum status engine_haul_wait(struct engine *engine, uint64_t number, int timeout_ms)
{
    (void)timeout_ms;
    if (engine->lost)
        return STATUS_DEVICE_LOST;
    while (engine->hauls && engine->hauls->sequence <= number)
        fake_engine_finish(engine);
    return STATUS_OK;
}

static bool finishes_by_itself(const struct engine *engine)
{
    return engine->automatic && !engine->lost && (engine->submissions || engine->hauls);
}

bool engine_poll(struct engine *engine, struct engine_event *event)
{
    finish_growths(engine);
    if (finishes_by_itself(engine))
        fake_engine_finish(engine);
    event_free(engine->shown);
    engine->shown = engine->events;
    if (!engine->shown)
        return false;
    engine->events = engine->shown->next;
    engine->shown->next = NULL;
    *event = engine->shown->event;
    return true;
}

bool engine_has_news(const struct engine *engine)
{
    const struct fake_growth *growth = engine->growths;
    while (growth && !growth->ready)
        growth = growth->next;
    return growth || engine->events || finishes_by_itself(engine);
}

enum status engine_wait(struct engine *engine, uint64_t sequence, int timeout_ms)
{
    (void)timeout_ms;
    if (engine->lost)
        return STATUS_DEVICE_LOST;
    while (engine->submissions && engine->submissions->sequence <= sequence)
        fake_engine_finish(engine);
    return STATUS_OK;
}
