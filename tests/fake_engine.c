// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fake_engine.c - see fake_engine.h. Arenas may come and go on any thread; the rest is the dispatcher's.

#include "fake_engine.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *(*fake_engine_alloc)(size_t count, size_t size) = calloc;

enum growth_state { NOT_GROWN, GROWTH_WANTED, GROWN };

struct fake_chunk {
    enum growth_state state;
    int32_t *slots; // [num_layers, chunk_blocks, block_size]
};

struct engine_cache {
    struct engine *engine;
    struct engine_cache *next;
    struct engine_cache_params params;
    struct fake_chunk *chunks; // [num_chunks]
    uint32_t num_chunks;
};

struct engine_arena {
    struct engine *engine;
    uint8_t *base;
    uint64_t size;
};

struct engine_batch {
    struct engine_cache *cache;
    uint32_t refs, num_seqs, max_blocks, num_tokens;
    int32_t *cu_seqlens_q, *seq_lens_kv, *block_table;
    int64_t *slot_mapping;
    int32_t *positions;
    uint8_t *mask;
};

struct fake_growth {
    struct fake_growth *next;
    struct engine_cache *cache; // NULL: destroyed meanwhile
    uint32_t chunk;
    bool ready;
};

struct fake_event {
    struct fake_event *next;
    struct engine_event event;
    struct engine_run_result *results;
};

struct engine {
    struct engine_params params;
    struct engine_device device;
    struct engine_cache *caches;
    struct fake_submission *submissions; // unfinished, oldest first
    struct fake_growth *growths;
    struct fake_event *events, *shown; // shown: the one that the last poll gave out
    uint64_t sequence;
    bool hold_chunks, automatic;
    atomic_bool lost; // engine_arena_destroy() asks from any thread
    uint32_t refuse_chunks, most_unfinished, asked_chunks, batches;
    enum status refuse_submit;
    atomic_uint arenas;
};

__attribute__((format(printf, 1, 2), noreturn)) static void broken(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("fake engine: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

static void *make(size_t count, size_t size)
{
    void *memory = fake_engine_alloc(count ? count : 1, size);
    if (!memory)
        broken("out of memory");
    return memory;
}

static void *copy(const void *data, size_t count, size_t size)
{
    void *memory = make(count, size);
    if (count)
        memcpy(memory, data, count * size);
    return memory;
}

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
    **out = (struct engine_device){.name = "fake", .type = "other", .usable = true, .max_allocation_bytes = 1ull << 32};
    *count = 1;
    return STATUS_OK;
}

enum status engine_create(const struct engine_params *params, struct engine **out, struct error *error)
{
    (void)error;
    struct engine *engine = make(1, sizeof(*engine));
    engine->params = *params;
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
    for (uint32_t i = 0; i < submission->num_runs; i++) {
        engine_batch_destroy(submission->runs[i].batch);
        free(submission->runs[i].slopes);
        free(submission->runs[i].sinks);
    }
    free(submission->zeroes);
    free(submission->runs);
    free(submission);
}

static void drop_submissions(struct engine *engine)
{
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
        broken("destroyed with caches, %u batches, %u arenas alive", engine->batches, atomic_load(&engine->arenas));
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
    struct fake_event *event = make(1, sizeof(*event)), **at = &engine->events;
    event->event.kind = kind;
    while (*at)
        at = &(*at)->next;
    *at = event;
    return event;
}

// ---- caches ----

enum status engine_cache_check(const struct engine *engine, const struct engine_cache_params *params,
                               struct error *error)
{
    (void)engine;
    const uint32_t dims[] = {params->head_dim_k, params->head_dim_v};
    for (int i = 0; i < 2; i++) {
        if (dims[i] % 8 || dims[i] > 256)
            return error_set(error, STATUS_UNSUPPORTED, "head_dim %" PRIu32 " has no shader", dims[i]);
    }
    if ((params->k_dtype != DTYPE_F32 && params->k_dtype != DTYPE_F16) ||
        (params->v_dtype != DTYPE_F32 && params->v_dtype != DTYPE_F16))
        return error_set(error, STATUS_UNSUPPORTED, "KV dtypes %s and %s have no shader",
                         dtype_name((int)params->k_dtype), dtype_name((int)params->v_dtype));
    return STATUS_OK;
}

uint64_t engine_layer_block_bytes(const struct engine_cache_params *p)
{
    uint64_t k = (uint64_t)p->head_dim_k * dtype_size((int)p->k_dtype);
    uint64_t v = (uint64_t)p->head_dim_v * dtype_size((int)p->v_dtype);
    return (k + v) * p->num_kv_heads * p->block_size;
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
    struct engine_cache *cache = make(1, sizeof(*cache));
    *cache = (struct engine_cache){.engine = engine, .params = *params, .next = engine->caches};
    engine->caches = cache;
    *out = cache;
    return STATUS_OK;
}

static void forbid_use(const struct engine_cache *cache)
{
    for (const struct fake_submission *s = cache->engine->submissions; s; s = s->next) {
        for (uint32_t i = 0; i < s->num_runs; i++) {
            if (s->runs[i].batch->cache == cache)
                broken("a cache ends that submission %" PRIu64 " uses", s->sequence);
        }
    }
}

void engine_cache_destroy(struct engine_cache *cache)
{
    struct engine *engine = cache->engine;
    struct engine_cache **at = &engine->caches;
    // A submission may still zero blocks that nobody reads any more; the engine keeps the memory until it has passed.
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
            broken("a chunk's event outlives its cache");
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
        struct fake_chunk *chunks = make(count, sizeof(*chunks));
        if (cache->num_chunks)
            memcpy(chunks, cache->chunks, cache->num_chunks * sizeof(*chunks));
        free(cache->chunks);
        cache->chunks = chunks;
        cache->num_chunks = count;
    }
    return &cache->chunks[number];
}

void engine_cache_grow(struct engine_cache *cache, uint32_t number)
{
    struct engine *engine = cache->engine;
    struct fake_chunk *chunk = make_chunk(cache, number);
    if (chunk->state != NOT_GROWN)
        broken("chunk %" PRIu32 " grows twice", number);
    chunk->state = GROWTH_WANTED;
    struct fake_growth *growth = make(1, sizeof(*growth)), **at = &engine->growths;
    *growth = (struct fake_growth){.cache = cache, .chunk = number, .ready = !engine->hold_chunks};
    while (*at)
        at = &(*at)->next;
    *at = growth;
    engine->asked_chunks++;
    if (growth->ready)
        wake(engine);
}

void engine_cache_shrink(struct engine_cache *cache, uint32_t number)
{
    struct fake_chunk *chunk = find_chunk(cache, number);
    if (!chunk || chunk->state != GROWN)
        broken("chunk %" PRIu32 " shrinks without memory", number);
    free(chunk->slots);
    chunk->slots = NULL;
    chunk->state = NOT_GROWN;
}

static int32_t *slot_at(const struct engine_cache *cache, uint32_t layer, int64_t block, uint32_t slot)
{
    const struct engine_cache_params *p = &cache->params;
    struct fake_chunk *chunk = find_chunk(cache, (uint32_t)(block / p->chunk_blocks));
    if (!chunk || !chunk->slots)
        return NULL;
    size_t row = (size_t)layer * p->chunk_blocks + (size_t)(block % p->chunk_blocks);
    return chunk->slots + row * p->block_size + slot;
}

int32_t fake_engine_slot(const struct engine_cache *cache, uint32_t layer, int32_t block, uint32_t slot)
{
    const int32_t *at = slot_at(cache, layer, block, slot);
    if (!at)
        broken("block %" PRId32 " has no memory", block);
    return *at;
}

static size_t row_bytes(const struct engine_cache *cache)
{
    return (size_t)cache->params.head_dim_k * dtype_size((int)cache->params.k_dtype);
}

enum status engine_block_read(struct engine_cache *cache, uint32_t layer, int32_t block, void *bytes)
{
    if (!slot_at(cache, layer, block, 0))
        return STATUS_OUT_OF_RANGE;
    memset(bytes, 0, engine_layer_block_bytes(&cache->params));
    for (uint32_t i = 0; i < cache->params.block_size; i++)
        memcpy((uint8_t *)bytes + i * row_bytes(cache), slot_at(cache, layer, block, i), sizeof(int32_t));
    return STATUS_OK;
}

enum status engine_block_write(struct engine_cache *cache, uint32_t layer, int32_t block, const void *bytes)
{
    if (!slot_at(cache, layer, block, 0))
        return STATUS_OUT_OF_RANGE;
    for (uint32_t i = 0; i < cache->params.block_size; i++)
        memcpy(slot_at(cache, layer, block, i), (const uint8_t *)bytes + i * row_bytes(cache), sizeof(int32_t));
    return STATUS_OK;
}

// ---- chunks on demand ----

void fake_engine_hold_chunks(struct engine *engine, bool hold)
{
    engine->hold_chunks = hold;
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
    chunk->slots =
        make((size_t)cache->params.num_layers * cache->params.chunk_blocks * cache->params.block_size, sizeof(int32_t));
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

enum status engine_arena_create(struct engine *engine, void *base, uint64_t size, struct engine_arena **out,
                                struct error *error)
{
    (void)error;
    struct engine_arena *arena = make(1, sizeof(*arena));
    *arena = (struct engine_arena){.engine = engine, .base = base, .size = size};
    atomic_fetch_add(&engine->arenas, 1);
    *out = arena;
    return STATUS_OK;
}

bool engine_arena_destroy(struct engine_arena *arena)
{
    if (!arena)
        return true;
    for (const struct fake_submission *s = arena->engine->submissions; s; s = s->next) {
        for (uint32_t i = 0; i < s->num_runs; i++) {
            if (s->runs[i].arena == arena)
                broken("an arena ends that submission %" PRIu64 " uses", s->sequence);
        }
    }
    atomic_fetch_sub(&arena->engine->arenas, 1);
    bool lost = arena->engine->lost;
    free(arena);
    return !lost;
}

bool engine_arena_imported(const struct engine_arena *arena)
{
    return arena->engine->device.host_import;
}

// ---- batches ----

enum status engine_batch_create(const struct engine_batch_params *p, struct engine_batch **out, struct error *error)
{
    (void)error;
    struct engine_batch *batch = make(1, sizeof(*batch));
    *batch = (struct engine_batch){
        .cache = p->cache,
        .refs = 1,
        .num_seqs = p->num_seqs,
        .max_blocks = p->max_blocks,
        .num_tokens = p->num_tokens,
        .cu_seqlens_q = copy(p->cu_seqlens_q, (size_t)p->num_seqs + 1, sizeof(int32_t)),
        .seq_lens_kv = copy(p->seq_lens_kv, p->num_seqs, sizeof(int32_t)),
        .block_table = copy(p->block_table, (size_t)p->num_seqs * p->max_blocks, sizeof(int32_t)),
        .slot_mapping = p->slot_mapping ? copy(p->slot_mapping, p->num_tokens, sizeof(int64_t)) : NULL,
        .positions = p->positions ? copy(p->positions, p->num_tokens, sizeof(int32_t)) : NULL,
        .mask = p->mask ? copy(p->mask, p->mask_bytes, 1) : NULL,
    };
    p->cache->engine->batches++;
    *out = batch;
    return STATUS_OK;
}

void engine_batch_destroy(struct engine_batch *batch)
{
    if (!batch || --batch->refs)
        return;
    batch->cache->engine->batches--;
    free(batch->cu_seqlens_q);
    free(batch->seq_lens_kv);
    free(batch->block_table);
    free(batch->slot_mapping);
    free(batch->positions);
    free(batch->mask);
    free(batch);
}

static void check_block(const struct engine_batch *batch, int64_t block)
{
    if (block < 0 || !slot_at(batch->cache, 0, block, 0))
        broken("a run names block %" PRId64 ", which has no memory", block);
}

static int64_t position_of(const struct engine_batch *batch, uint32_t s, int32_t token)
{
    if (batch->positions)
        return batch->positions[token];
    return (int64_t)batch->seq_lens_kv[s] - batch->cu_seqlens_q[s + 1] + token;
}

// The first key that some query of the sequence sees; the right edge is none of this check.
static int64_t first_key(const struct engine_batch *batch, const struct engine_run *run, uint32_t s)
{
    int64_t least = INT64_MAX;
    if (!run->windowed || run->window_left < 0)
        return 0;
    for (int32_t t = batch->cu_seqlens_q[s]; t < batch->cu_seqlens_q[s + 1]; t++) {
        int64_t first = position_of(batch, s, t) - run->window_left;
        least = first < least ? first : least;
    }
    return least > 0 ? least : 0;
}

static void check_batch(const struct engine_batch *batch, const struct engine_run *run)
{
    int64_t block_size = batch->cache->params.block_size;
    for (uint32_t s = 0; s < batch->num_seqs; s++) {
        if (batch->cu_seqlens_q[s + 1] == batch->cu_seqlens_q[s])
            continue;
        int64_t first = first_key(batch, run, s), seq_len = batch->seq_lens_kv[s];
        for (int64_t key = first; key < seq_len; key = (key / block_size + 1) * block_size)
            check_block(batch, batch->block_table[(int64_t)s * batch->max_blocks + key / block_size]);
    }
    for (uint32_t t = 0; batch->slot_mapping && t < batch->num_tokens; t++) {
        if (batch->slot_mapping[t] != -1)
            check_block(batch, batch->slot_mapping[t] / block_size);
    }
}

// ---- submissions ----

static bool shares_dispatch(const struct fake_run *a, const struct fake_run *b)
{
    return a->wave == b->wave && a->batch->cache == b->batch->cache && a->run.layer == b->run.layer &&
           a->run.num_heads == b->run.num_heads;
}

static void group(struct fake_submission *s)
{
    for (uint32_t i = 0; i < s->num_runs; i++) {
        s->runs[i].dispatch = s->num_dispatches;
        for (uint32_t j = i; j-- > 0 && s->runs[j].wave == s->runs[i].wave;) {
            if (shares_dispatch(&s->runs[i], &s->runs[j]))
                s->runs[i].dispatch = s->runs[j].dispatch;
        }
        s->num_dispatches += s->runs[i].dispatch == s->num_dispatches;
    }
}

static void copy_heads(struct fake_run *run)
{
    const float *slopes = run->run.slopes, *sinks = run->run.sinks;
    run->slopes = slopes ? copy(slopes, run->run.num_heads, sizeof(*slopes)) : NULL;
    run->sinks = sinks ? copy(sinks, run->run.num_heads, sizeof(*sinks)) : NULL;
    run->run.slopes = run->slopes;
    run->run.sinks = run->sinks;
}

static void copy_runs(struct fake_submission *s, const struct engine_submission *from)
{
    uint32_t wave = 0;
    if (from->num_runs && (!from->num_waves || from->wave_ends[from->num_waves - 1] != from->num_runs))
        broken("the last wave does not end with the last run");
    s->runs = make(from->num_runs, sizeof(*s->runs));
    for (uint32_t i = 0; i < from->num_runs; i++) {
        while (i >= from->wave_ends[wave])
            wave++;
        s->runs[i] = (struct fake_run){
            .batch = from->runs[i].batch, .arena = from->runs[i].arena, .run = from->runs[i], .wave = wave};
        s->runs[i].batch->refs++;
        check_batch(s->runs[i].batch, &from->runs[i]);
        copy_heads(&s->runs[i]);
    }
    group(s);
}

enum status engine_submit(struct engine *engine, const struct engine_submission *from, uint64_t *sequence,
                          struct error *error)
{
    if (engine->lost)
        return error_set(error, STATUS_DEVICE_LOST, "the fake device is lost");
    if (engine->refuse_submit != STATUS_OK) {
        enum status status = engine->refuse_submit;
        engine->refuse_submit = STATUS_OK;
        return error_set(error, status, "the fake engine was told to refuse");
    }
    struct fake_submission *s = make(1, sizeof(*s)), **at = &engine->submissions;
    struct fake_counts counts;
    s->sequence = *sequence = ++engine->sequence;
    s->num_zeroes = from->num_zeroes;
    s->num_runs = from->num_runs;
    s->num_waves = from->num_waves;
    s->zeroes = copy(from->zeroes, from->num_zeroes, sizeof(*s->zeroes));
    for (uint32_t i = 0; i < s->num_zeroes; i++) {
        if (!slot_at(s->zeroes[i].cache, 0, s->zeroes[i].block, 0))
            broken("block %" PRId32 " is zeroed without memory", s->zeroes[i].block);
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

// Nothing reads memory any more: what was in flight is over, without a word about it.
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
        int32_t *slots = slot_at(zero->cache, layer, zero->block, 0);
        if (slots) // else its chunk went meanwhile
            memset(slots, 0, p->block_size * sizeof(*slots));
    }
}

static void write_slots(const struct fake_run *run)
{
    const struct engine_batch *batch = run->batch;
    uint32_t block_size = batch->cache->params.block_size;
    for (uint32_t t = 0; batch->slot_mapping && t < batch->num_tokens; t++) {
        int64_t slot = batch->slot_mapping[t];
        if (slot < 0)
            continue;
        uint64_t at = run->run.k.offset + t * run->run.k.token_stride;
        if (at + sizeof(int32_t) > run->arena->size)
            broken("k of token %" PRIu32 " lies outside the arena", t);
        memcpy(slot_at(batch->cache, run->run.layer, slot / block_size, (uint32_t)(slot % block_size)),
               run->arena->base + at, sizeof(int32_t));
    }
}

bool fake_engine_finish(struct engine *engine)
{
    struct fake_submission *s = engine->submissions;
    if (!s)
        return false;
    engine->submissions = s->next;
    struct fake_event *event = event_add(engine, ENGINE_EVENT_DONE);
    event->results = make(s->num_runs, sizeof(*event->results));
    for (uint32_t i = 0; i < s->num_zeroes; i++)
        zero(&s->zeroes[i]);
    for (uint32_t i = 0; i < s->num_runs; i++) {
        event->results[i] = (struct engine_run_result){s->runs[i].fail, s->runs[i].dispatch, 1000};
        if (s->runs[i].fail == STATUS_OK)
            write_slots(&s->runs[i]);
    }
    event->event.sequence = s->sequence;
    event->event.results = event->results;
    event->event.num_results = s->num_runs;
    event->event.num_dispatches = s->num_dispatches;
    submission_free(s);
    wake(engine);
    return true;
}

bool engine_poll(struct engine *engine, struct engine_event *event)
{
    finish_growths(engine);
    if (engine->automatic && !engine->lost && engine->submissions)
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

enum status engine_wait(struct engine *engine, uint64_t sequence, int timeout_ms)
{
    (void)timeout_ms;
    if (engine->lost)
        return STATUS_DEVICE_LOST;
    while (engine->submissions && engine->submissions->sequence <= sequence)
        fake_engine_finish(engine);
    return STATUS_OK;
}
