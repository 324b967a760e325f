// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine.c - the engine on a real device, always under the validation layer: devices, memory, order, faults. What
// attention computes is test_attention.c's; here one key is enough, whose value comes back bit for bit. Faults that a
// healthy device does not show are brought about through the engine's private structs.

#include "../daemon/engine/cache.h"
#include "../daemon/engine/submission.h"
#include "check_main.h"

#include <ctype.h>
#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 8, ARENA_BYTES = 1 << 20, DEADLINE_S = 60 };

// ---- the world of one test: forked, so that globals are its own ----

static struct engine *engine;
static struct engine_arena *arena;
static char *memory; // of the arena
static atomic_uint wakes;

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[1 << 16];
static size_t log_used;

static void on_log(void *context, int level, const char *text)
{
    (void)context;
    pthread_mutex_lock(&log_lock);
    if (log_used < sizeof log_text)
        log_used += (size_t)snprintf(log_text + log_used, sizeof log_text - log_used, "%d %s\n", level, text);
    pthread_mutex_unlock(&log_lock);
}

static bool logged(const char *text)
{
    pthread_mutex_lock(&log_lock);
    bool found = strstr(log_text, text) != NULL;
    pthread_mutex_unlock(&log_lock);
    return found;
}

static void on_wake(void *context)
{
    (void)context;
    atomic_fetch_add(&wakes, 1);
}

static struct engine *open_engine(struct engine_params params)
{
    struct engine *fresh = NULL;
    struct error error = {0};
    params.validation = true;
    params.log = on_log;
    params.wake = on_wake;
    enum status status = engine_create(&params, &fresh, &error);
    ck_assert_msg(status == STATUS_OK, "engine_create: %s", error.text);
    return fresh;
}

static void close_engine(struct engine *old)
{
    uint32_t messages = engine_validation_messages(old);
    engine_destroy(old);
    ck_assert_msg(messages == 0 && !logged("validation:"), "the validation layer said:\n%s", log_text);
}

static void open_arena(void)
{
    struct error error = {0};
    memory = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    ck_assert_int_eq(engine_arena_create(engine, memory, ARENA_BYTES, &arena, &error), STATUS_OK);
}

static void setup_import(void)
{
    engine = open_engine((struct engine_params){0});
    open_arena();
}

static void setup_staging(void)
{
    engine = open_engine((struct engine_params){.force_staging = true});
    open_arena();
}

static void teardown(void)
{
    engine_arena_destroy(arena);
    close_engine(engine);
    munmap(memory, ARENA_BYTES);
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
}

static struct engine_event next_event(void)
{
    struct engine_event event;
    double deadline = now_s() + DEADLINE_S;
    while (!engine_poll(engine, &event)) {
        ck_assert_msg(now_s() < deadline, "no event in %d s", DEADLINE_S);
        nap();
    }
    return event;
}

static struct engine_event expect_event(enum engine_event_kind kind)
{
    struct engine_event event = next_event();
    ck_assert_msg(event.kind == kind, "event %d instead of %d: %s", event.kind, kind, event.error.text);
    return event;
}

// ---- small words for caches, batches and runs ----

static struct engine_cache_params shape(uint32_t num_layers, uint32_t num_kv_heads, uint32_t head_dim, enum dtype dtype)
{
    return (struct engine_cache_params){
        .name = "test",
        .num_layers = num_layers,
        .num_kv_heads = num_kv_heads,
        .head_dim_k = head_dim,
        .head_dim_v = head_dim,
        .block_size = BLOCK,
        .k_dtype = dtype,
        .v_dtype = dtype,
        .chunk_blocks = 4,
    };
}

static struct engine_cache *open_cache(struct engine_cache_params params)
{
    struct engine_cache *cache = NULL;
    struct error error = {0};
    enum status status = engine_cache_create(engine, &params, &cache, &error);
    ck_assert_msg(status == STATUS_OK, "engine_cache_create: %s", error.text);
    return cache;
}

static void grow_chunk(struct engine_cache *cache, uint32_t chunk)
{
    engine_cache_grow(cache, chunk);
    struct engine_event event = expect_event(ENGINE_EVENT_CHUNK);
    ck_assert_msg(event.error.status == STATUS_OK, "growth: %s", event.error.text);
    ck_assert_ptr_eq(event.cache, cache);
    ck_assert_uint_eq(event.chunk, chunk);
}

// Layers 2, one KV head of 8 f32, 32 bytes a row: the plainest cache, with memory for blocks 0..3.
static struct engine_cache *plain_cache(void)
{
    struct engine_cache *cache = open_cache(shape(2, 1, 8, DTYPE_F32));
    grow_chunk(cache, 0);
    return cache;
}

static struct engine_batch *open_batch(struct engine_batch_params params)
{
    struct engine_batch *batch = NULL;
    struct error error = {0};
    enum status status = engine_batch_create(&params, &batch, &error);
    ck_assert_msg(status == STATUS_OK, "engine_batch_create: %s", error.text);
    return batch;
}

// One sequence of one query that sees the one key in `block`, offset 0; it is written there first if `write`.
static struct engine_batch *one_key(struct engine_cache *cache, int32_t block, bool write)
{
    return open_batch((struct engine_batch_params){
        .cache = cache,
        .num_seqs = 1,
        .max_blocks = 1,
        .num_tokens = 1,
        .cu_seqlens_q = (int32_t[]){0, 1},
        .seq_lens_kv = (int32_t[]){1},
        .block_table = &block,
        .slot_mapping = write ? (int64_t[]){(int64_t)block * BLOCK} : NULL,
    });
}

// A dense [tokens, heads, dim] tensor at `offset` of the arena.
static struct engine_tensor dense(uint64_t offset, uint32_t heads, uint32_t dim, enum dtype dtype)
{
    uint64_t row = (uint64_t)dim * dtype_size(dtype);
    return (struct engine_tensor){offset, heads * row, row, dtype};
}

// Of the plain cache: one head; q, k, v and out at the given offsets.
static struct engine_run plain_run(struct engine_batch *batch, uint32_t layer, uint64_t q, uint64_t k, uint64_t v,
                                   uint64_t out)
{
    return (struct engine_run){
        .batch = batch,
        .arena = arena,
        .layer = layer,
        .num_heads = 1,
        .q = dense(q, 1, 8, DTYPE_F32),
        .k = dense(k, 1, 8, DTYPE_F32),
        .v = dense(v, 1, 8, DTYPE_F32),
        .out = dense(out, 1, 8, DTYPE_F32),
        .scale = 0.5f,
        .causal = true,
    };
}

static uint64_t submit(const struct engine_submission *submission)
{
    uint64_t sequence = 0;
    struct error error = {0};
    enum status status = engine_submit(engine, submission, &sequence, &error);
    ck_assert_msg(status == STATUS_OK, "engine_submit: %s", error.text);
    return sequence;
}

static uint64_t submit_runs(const struct engine_run *runs, uint32_t count)
{
    return submit(&(struct engine_submission){.runs = runs, .num_runs = count, .wave_ends = &count, .num_waves = 1});
}

static struct engine_event expect_done(uint64_t sequence)
{
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_OK);
    struct engine_event event = expect_event(ENGINE_EVENT_DONE);
    ck_assert_uint_eq(event.sequence, sequence);
    for (uint32_t i = 0; i < event.num_results; i++)
        ck_assert_int_eq(event.results[i].status, STATUS_OK);
    return event;
}

static float *floats(uint64_t offset)
{
    return (float *)(memory + offset);
}

static void fill(uint64_t offset, float first)
{
    for (int i = 0; i < 8; i++)
        floats(offset)[i] = first + (float)i;
}

static void expect_floats(uint64_t offset, float first)
{
    for (int i = 0; i < 8; i++)
        ck_assert_float_eq(floats(offset)[i], first + (float)i);
}

static void expect_bytes(const void *got, const void *wanted, size_t size, const char *what)
{
    const unsigned char *a = got, *b = wanted;
    for (size_t i = 0; i < size; i++)
        ck_assert_msg(a[i] == b[i], "%s: byte %zu of %zu is 0x%02x, not 0x%02x", what, i, size, a[i], b[i]);
}

// ---- devices ----

static struct engine_device *list_devices(uint32_t *count)
{
    struct engine_device *devices = NULL;
    struct error error = {0};
    ck_assert_int_eq(engine_list_devices(&devices, count, &error), STATUS_OK);
    ck_assert_uint_gt(*count, 0);
    return devices;
}

START_TEST(list_describes_every_device)
{
    uint32_t count = 0;
    struct engine_device *devices = list_devices(&count);
    bool indices[64] = {false};
    for (uint32_t i = 0; i < count; i++) {
        const struct engine_device *device = &devices[i];
        ck_assert_uint_lt(device->index, count);
        ck_assert(!indices[device->index]);
        indices[device->index] = true;
        ck_assert_uint_gt(strlen(device->name), 0);
        ck_assert_uint_gt(strlen(device->driver), 1);
        ck_assert_int_eq(device->software, strcmp(device->type, "cpu") == 0);
        ck_assert_int_eq(device->usable, device->missing[0] == '\0');
        ck_assert_uint_gt(device->heap_bytes, 0);
        ck_assert_uint_le(device->budget_bytes, device->heap_bytes);
        ck_assert_uint_gt(device->max_allocation_bytes, 0);
        ck_assert_uint_gt(device->subgroup_size, 0);
        ck_assert_uint_ge(device->shared_memory_bytes, 16384);
        ck_assert_uint_eq(device->host_import, device->import_alignment != 0);
    }
    free(devices);
}
END_TEST

static void expect_choice(const char *wanted, const struct engine_device *device)
{
    struct engine *chosen = open_engine((struct engine_params){.device = wanted});
    ck_assert_uint_eq(engine_device(chosen)->index, device->index);
    ck_assert_str_eq(engine_device(chosen)->name, device->name);
    ck_assert_mem_eq(engine_device(chosen)->uuid, device->uuid, 16);
    close_engine(chosen);
}

START_TEST(best_device_is_the_default)
{
    uint32_t count = 0;
    struct engine_device *devices = list_devices(&count);
    ck_assert(devices[0].usable);
    expect_choice(NULL, &devices[0]);
    free(devices);
}
END_TEST

START_TEST(device_is_chosen_by_index)
{
    uint32_t count = 0;
    struct engine_device *devices = list_devices(&count);
    char index[16];
    snprintf(index, sizeof index, "%u", devices[0].index);
    expect_choice(index, &devices[0]);
    free(devices);
}
END_TEST

START_TEST(device_is_chosen_by_uuid_with_and_without_dashes)
{
    uint32_t count = 0;
    struct engine_device *devices = list_devices(&count);
    char plain[40] = "", dashed[40] = "";
    for (int i = 0; i < 16; i++) {
        sprintf(plain + strlen(plain), "%02x", devices[0].uuid[i]);
        sprintf(dashed + strlen(dashed), "%s%02X", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                devices[0].uuid[i]);
    }
    expect_choice(plain, &devices[0]);
    expect_choice(dashed, &devices[0]);
    free(devices);
}
END_TEST

START_TEST(device_is_chosen_by_part_of_its_name_in_any_case)
{
    uint32_t count = 0;
    struct engine_device *devices = list_devices(&count);
    char part[8] = "";
    for (int i = 0; i < 5 && devices[0].name[i]; i++)
        part[i] = (char)(islower((unsigned char)devices[0].name[i]) ? toupper((unsigned char)devices[0].name[i])
                                                                    : tolower((unsigned char)devices[0].name[i]));
    expect_choice(part, &devices[0]);
    free(devices);
}
END_TEST

static void expect_refusal(const char *wanted, const char *sentence)
{
    struct engine *chosen = NULL;
    struct error error = {0};
    struct engine_params params = {.device = wanted};
    ck_assert_int_eq(engine_create(&params, &chosen, &error), STATUS_NOT_FOUND);
    ck_assert_int_eq(error.status, STATUS_NOT_FOUND);
    ck_assert_ptr_null(chosen);
    ck_assert_ptr_nonnull(strstr(error.text, wanted));
    ck_assert_msg(strstr(error.text, sentence) != NULL, "'%s' is not in: %s", sentence, error.text);
}

START_TEST(unknown_device_is_refused_with_the_list)
{
    uint32_t count = 0;
    struct engine_device *devices = list_devices(&count);
    expect_refusal("no such gpu", devices[0].name);
    expect_refusal("999", devices[0].name);
    expect_refusal("00000000-0000-0000-0000-0000000000ff", devices[0].name);
    free(devices);
}
END_TEST

// ---- caches ----

START_TEST(cache_check_names_what_has_no_shader)
{
    struct engine_cache_params good = shape(2, 4, 64, DTYPE_F16);
    struct {
        struct engine_cache_params params;
        enum status status;
        const char *value;
    } cases[] = {
        {good, STATUS_UNSUPPORTED, "head_dim 12"},      {good, STATUS_UNSUPPORTED, "head_dim 0"},
        {good, STATUS_UNSUPPORTED, "head_dim 264"},     {good, STATUS_UNSUPPORTED, "head_dim_k 64 and head_dim_v 128"},
        {good, STATUS_UNSUPPORTED, "block_size 4"},     {good, STATUS_UNSUPPORTED, "block_size 512"},
        {good, STATUS_UNSUPPORTED, "block_size 24"},    {good, STATUS_UNSUPPORTED, "K dtype bf16"},
        {good, STATUS_UNSUPPORTED, "V dtype fp8_e4m3"}, {good, STATUS_UNSUPPORTED, "K dtype unknown (77)"},
        {good, STATUS_INVALID, "chunk_blocks 6"},       {good, STATUS_INVALID, "num_layers is 0"},
        {good, STATUS_UNSUPPORTED, "num_kv_heads 0"},   {good, STATUS_UNSUPPORTED, "1073741824 blocks"},
    };
    cases[0].params.head_dim_k = cases[0].params.head_dim_v = 12;
    cases[1].params.head_dim_k = cases[1].params.head_dim_v = 0;
    cases[2].params.head_dim_k = cases[2].params.head_dim_v = 264;
    cases[3].params.head_dim_v = 128;
    cases[4].params.block_size = 4;
    cases[5].params.block_size = 512;
    cases[6].params.block_size = 24;
    cases[7].params.k_dtype = DTYPE_BF16;
    cases[8].params.v_dtype = DTYPE_FP8_E4M3;
    cases[9].params.k_dtype = (enum dtype)77;
    cases[10].params.chunk_blocks = 6;
    cases[11].params.num_layers = 0;
    cases[12].params.num_kv_heads = 0;
    cases[13].params.chunk_blocks = 1u << 30;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error error = {0};
        struct engine_cache *cache = NULL;
        ck_assert_int_eq(engine_cache_check(engine, &cases[i].params, &error), cases[i].status);
        ck_assert_msg(strstr(error.text, cases[i].value) != NULL, "'%s' is not in: %s", cases[i].value, error.text);
        ck_assert_int_eq(engine_cache_create(engine, &cases[i].params, &cache, &error), cases[i].status);
        ck_assert_ptr_null(cache);
    }
    ck_assert_int_eq(engine_cache_check(engine, &good, NULL), STATUS_OK);
}
END_TEST

START_TEST(block_bytes_count_k_and_v_of_every_layer)
{
    struct engine_cache_params params = shape(3, 4, 64, DTYPE_F16);
    params.v_dtype = DTYPE_F32;
    ck_assert_uint_eq(engine_layer_block_bytes(&params), 4 * BLOCK * 64 * (2 + 4));
    ck_assert_uint_eq(engine_block_bytes(&params), 3 * 4 * BLOCK * 64 * (2 + 4));
}
END_TEST

static void expect_block(struct engine_cache *cache, uint32_t layer, int32_t block, const void *wanted)
{
    size_t size = engine_layer_block_bytes(&cache->params);
    char *got = malloc(size);
    memset(got, 0xEE, size);
    ck_assert_int_eq(engine_block_read(cache, layer, block, got), STATUS_OK);
    char what[64];
    snprintf(what, sizeof what, "layer %u block %d", layer, block);
    expect_bytes(got, wanted, size, what);
    free(got);
}

static void write_pattern(struct engine_cache *cache, uint32_t layer, int32_t block, unsigned char *bytes)
{
    size_t size = engine_layer_block_bytes(&cache->params);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (unsigned char)(i * 7 + layer * 31 + (unsigned)block * 101 + 1);
    ck_assert_int_eq(engine_block_write(cache, layer, block, bytes), STATUS_OK);
}

static const char zero_block[1 << 14];

START_TEST(new_chunk_is_zero_and_keeps_what_is_written)
{
    struct engine_cache *cache = open_cache(shape(3, 2, 16, DTYPE_F16));
    unsigned char bytes[2 * BLOCK * 16 * 2 * 2];
    ck_assert_uint_eq(engine_layer_block_bytes(&cache->params), sizeof bytes);
    mallopt(M_PERTURB, 0x5a); // a software device's fresh memory is otherwise zero by chance
    grow_chunk(cache, 0);
    for (uint32_t layer = 0; layer < 3; layer++)
        for (int32_t block = 0; block < 4; block++)
            expect_block(cache, layer, block, zero_block);
    write_pattern(cache, 1, 2, bytes);
    for (uint32_t layer = 0; layer < 3; layer++)
        for (int32_t block = 0; block < 4; block++)
            expect_block(cache, layer, block, layer == 1 && block == 2 ? (char *)bytes : zero_block);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(growing_moves_no_block_whatever_the_order)
{
    struct engine_cache *cache = plain_cache();
    unsigned char first[512], last[512];
    write_pattern(cache, 1, 3, first);
    uint64_t address = cache_block_address(cache, 1, 3);
    grow_chunk(cache, 9); // beyond the first table
    grow_chunk(cache, 3);
    write_pattern(cache, 0, 9 * 4 + 1, last);
    expect_block(cache, 1, 3, first);
    expect_block(cache, 0, 9 * 4 + 1, last);
    expect_block(cache, 1, 3 * 4, zero_block);
    ck_assert_uint_eq(cache_block_address(cache, 1, 3), address);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(chunk_is_split_by_whole_layers_where_the_device_allows_no_more)
{
    struct engine_cache_params params = shape(5, 4, 64, DTYPE_F32);
    params.chunk_blocks = 64;
    uint64_t layer_bytes = engine_layer_block_bytes(&params) * params.chunk_blocks;
    engine->device.adapter.info.max_allocation_bytes = 2 * layer_bytes + 100; // two layers and a bit
    struct engine_cache *cache = open_cache(params);
    grow_chunk(cache, 0);
    size_t size = engine_layer_block_bytes(&params);
    unsigned char *bytes = malloc(5 * size);
    for (uint32_t layer = 0; layer < 5; layer++)
        write_pattern(cache, layer, 63, bytes + layer * size);
    for (uint32_t layer = 0; layer < 5; layer++) {
        expect_block(cache, layer, 63, bytes + layer * size);
        expect_block(cache, layer, 62, zero_block);
    }
    ck_assert_uint_eq(cache_block_address(cache, 1, 0) - cache_block_address(cache, 0, 0), layer_bytes);
    ck_assert_uint_eq(cache_block_address(cache, 3, 0) - cache_block_address(cache, 2, 0), layer_bytes);
    free(bytes);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(chunk_given_back_is_gone_and_returns_zeroed)
{
    struct engine_cache *cache = plain_cache();
    unsigned char bytes[512], untouched[512] = {1};
    grow_chunk(cache, 1);
    write_pattern(cache, 0, 5, bytes);
    engine_cache_shrink(cache, 1);
    ck_assert_int_eq(engine_block_read(cache, 0, 5, untouched), STATUS_OUT_OF_RANGE);
    ck_assert_int_eq(engine_block_write(cache, 0, 5, bytes), STATUS_OUT_OF_RANGE);
    ck_assert_uint_eq(untouched[0], 1);
    grow_chunk(cache, 1);
    expect_block(cache, 0, 5, zero_block);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(block_of_no_chunk_or_layer_is_out_of_range)
{
    struct engine_cache *cache = plain_cache();
    char bytes[512] = {0};
    ck_assert_int_eq(engine_block_read(cache, 0, -1, bytes), STATUS_OUT_OF_RANGE);
    ck_assert_int_eq(engine_block_read(cache, 0, 4, bytes), STATUS_OUT_OF_RANGE);
    ck_assert_int_eq(engine_block_read(cache, 2, 0, bytes), STATUS_OUT_OF_RANGE);
    ck_assert_int_eq(engine_block_write(cache, 0, 1 << 30, bytes), STATUS_OUT_OF_RANGE);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(chunk_that_is_there_is_not_grown_again)
{
    struct engine_cache *cache = plain_cache();
    unsigned char bytes[512];
    write_pattern(cache, 0, 1, bytes);
    engine_cache_grow(cache, 0);
    struct engine_event event = expect_event(ENGINE_EVENT_CHUNK);
    ck_assert_int_eq(event.error.status, STATUS_INVALID);
    expect_block(cache, 0, 1, bytes);
    engine_cache_destroy(cache);
}
END_TEST

// Address space that this process may still take.
static void leave_room(uint64_t bytes)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%llu", &pages), 1);
    fclose(file);
    rlim_t limit = pages * (rlim_t)sysconf(_SC_PAGESIZE) + bytes;
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &(struct rlimit){limit, limit}), 0);
}

START_TEST(growth_without_memory_is_told_and_harms_nothing)
{
    if (!engine_device(engine)->software)
        return; // only a device that takes its memory from this process can be starved here
    struct engine_cache *cache = plain_cache();
    struct engine_cache_params params = shape(1, 1, 256, DTYPE_F32);
    params.chunk_blocks = 32768; // 512 MiB
    struct engine_cache *large = open_cache(params);
    unsigned char bytes[512];
    write_pattern(cache, 0, 1, bytes);
    leave_room(UINT64_C(128) << 20);
    engine_cache_grow(large, 0);
    struct engine_event event = expect_event(ENGINE_EVENT_CHUNK);
    ck_assert_ptr_eq(event.cache, large);
    ck_assert_int_eq(event.error.status, STATUS_NO_MEMORY);
    ck_assert_msg(strstr(event.error.text, "536870912") != NULL, "no bytes in: %s", event.error.text);
    expect_block(cache, 0, 1, bytes);
    grow_chunk(cache, 1);
    engine_cache_destroy(large);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(destroyed_cache_is_heard_of_no_more)
{
    struct engine_cache *cache = open_cache(shape(2, 1, 8, DTYPE_F32));
    for (uint32_t chunk = 0; chunk < 20; chunk++)
        engine_cache_grow(cache, chunk);
    double deadline = now_s() + DEADLINE_S;
    while (atomic_load(&wakes) == 0 && now_s() < deadline)
        nap();
    engine_cache_destroy(cache);                // with some chunks there, but not yet heard of, and others to come
    struct engine_cache *other = plain_cache(); // its event is the next
    engine_cache_destroy(other);
    struct engine_event event;
    ck_assert(!engine_poll(engine, &event));
}
END_TEST

START_TEST(memory_of_caches_comes_back)
{
    uint64_t before = atomic_load(&engine->device.pool_bytes), budget = engine_budget_bytes(engine);
    struct engine_cache *cache = open_cache(shape(2, 4, 64, DTYPE_F32));
    grow_chunk(cache, 0);
    uint64_t chunk_bytes = engine_block_bytes(&cache->params) * 4;
    ck_assert_uint_ge(atomic_load(&engine->device.pool_bytes), before + chunk_bytes);
    ck_assert_uint_le(engine_budget_bytes(engine), budget);
    engine_cache_destroy(cache);
    // A slab of metadata stays in stock.
    double deadline = now_s() + DEADLINE_S;
    while (atomic_load(&engine->device.pool_bytes) > before + (1 << 20)) {
        ck_assert(now_s() < deadline);
        nap();
    }
}
END_TEST

// ---- runs ----

static uint32_t noise_state = 12345;

static unsigned char noise(void)
{
    noise_state = noise_state * 1664525u + 1013904223u;
    return (unsigned char)(noise_state >> 24);
}

static void fill_noise(void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((unsigned char *)bytes)[i] = noise();
}

// Slots in two chunks, out of order, one of them nowhere; Q, K, V are slices of one fused tensor, with gaps. Any bits
// must arrive as they are, NaNs too; nothing else may change.
static void check_kv_write(enum dtype dtype)
{
    enum { HEADS = 2, DIM = 16, TOKENS = 5, LAYER = 1 };
    const uint32_t size = dtype_size(dtype), row = DIM * size;
    const uint64_t token_stride = (4 + 2 + 2) * row + 64, base = 4096;
    const int64_t slots[TOKENS] = {2 * BLOCK + 7, 6 * BLOCK, -1, 0, 6 * BLOCK + 3};
    struct engine_cache *cache = open_cache(shape(3, HEADS, DIM, dtype));
    grow_chunk(cache, 0);
    grow_chunk(cache, 1);
    size_t block_bytes = engine_layer_block_bytes(&cache->params);
    char *wanted = calloc(8, block_bytes), *before = malloc(ARENA_BYTES);
    fill_noise(memory, ARENA_BYTES);
    memcpy(before, memory, ARENA_BYTES);
    for (int token = 0; token < TOKENS; token++)
        for (int head = 0; head < HEADS && slots[token] >= 0; head++) {
            char *block = wanted + slots[token] / BLOCK * (int64_t)block_bytes;
            const char *from = memory + base + token * token_stride + (4 + head) * row;
            char *to = block + (head * BLOCK + slots[token] % BLOCK) * row;
            memcpy(to, from, row);                                     // K
            memcpy(to + HEADS * BLOCK * row, from + HEADS * row, row); // V
        }
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .cache = cache,
        .num_seqs = 1,
        .max_blocks = 1,
        .num_tokens = TOKENS,
        .cu_seqlens_q = (int32_t[]){0, TOKENS},
        .seq_lens_kv = (int32_t[]){0}, // nobody reads: out is zeroes
        .block_table = (int32_t[]){-1},
        .slot_mapping = slots,
    });
    const uint64_t out = 65536, out_stride = 4 * row + 32;
    struct engine_run run = {
        .batch = batch,
        .arena = arena,
        .layer = LAYER,
        .num_heads = 4,
        .q = {base, token_stride, row, dtype},
        .k = {base + 4 * row, token_stride, row, dtype},
        .v = {base + 6 * row, token_stride, row, dtype},
        .out = {out, out_stride, row, dtype},
        .scale = 1,
        .causal = true,
    };
    expect_done(submit_runs(&run, 1));
    for (uint32_t layer = 0; layer < 3; layer++)
        for (int32_t block = 0; block < 8; block++)
            expect_block(cache, layer, block, layer == LAYER ? wanted + block * block_bytes : zero_block);
    for (int token = 0; token < TOKENS; token++)
        memset(before + out + token * out_stride, 0, 4 * row);
    expect_bytes(memory, before, ARENA_BYTES, "the arena");
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
    free(wanted);
    free(before);
}

START_TEST(f32_keys_and_values_reach_their_slots_bit_for_bit)
{
    check_kv_write(DTYPE_F32);
}
END_TEST

START_TEST(f16_keys_and_values_reach_their_slots_bit_for_bit)
{
    check_kv_write(DTYPE_F16);
}
END_TEST

START_TEST(arena_is_imported_unless_staging_is_forced)
{
    bool forced = !engine_device(engine)->host_import;
    ck_assert_int_eq(engine_arena_imported(arena), !forced);
    ck_assert_int_eq(logged("arenas mirrored"), forced);
}
END_TEST

START_TEST(unaligned_arena_is_mirrored_and_works)
{
    struct engine_arena *old = arena;
    struct error error = {0};
    char *old_memory = memory;
    memory += 16; // no import begins here
    ck_assert_int_eq(engine_arena_create(engine, memory, 8192, &arena, &error), STATUS_OK);
    ck_assert(!engine_arena_imported(arena));
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 1, true);
    struct engine_run run = plain_run(batch, 0, 0, 64, 128, 192);
    fill(128, 3);
    expect_done(submit_runs(&run, 1));
    expect_floats(192, 3);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
    engine_arena_destroy(arena);
    arena = old;
    memory = old_memory;
}
END_TEST

START_TEST(run_of_heads_before_tokens_layout_touches_only_its_rows)
{
    enum { TOKENS = 3 };
    struct engine_cache *cache = open_cache(shape(1, 1, 8, DTYPE_F32));
    grow_chunk(cache, 0);
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .cache = cache,
        .num_seqs = 1,
        .max_blocks = 1,
        .num_tokens = TOKENS,
        .cu_seqlens_q = (int32_t[]){0, TOKENS},
        .seq_lens_kv = (int32_t[]){1}, // query 2 alone stands at position 0 and sees the key
        .block_table = (int32_t[]){2},
    });
    struct engine_run run = plain_run(batch, 0, 0, 0, 0, 0);
    char *before = malloc(ARENA_BYTES);
    float key[128] = {0};
    key[64] = 42; // V of slot 0, first element
    ck_assert_int_eq(engine_block_write(cache, 0, 2, key), STATUS_OK);
    memset(memory, 0, ARENA_BYTES);
    run.num_heads = 2;
    run.q = (struct engine_tensor){1024, 32, 512, DTYPE_F32}; // [heads, tokens, dim], a gap between the heads
    run.out = (struct engine_tensor){8192, 32, 1024, DTYPE_F32};
    memset(memory + 8192, 0x55, 4096);
    memcpy(before, memory, ARENA_BYTES);
    for (int head = 0; head < 2; head++) {
        memset(before + 8192 + head * 1024, 0, TOKENS * 32);
        memcpy(before + 8192 + head * 1024 + 2 * 32, &key[64], 32);
    }
    expect_done(submit_runs(&run, 1));
    expect_bytes(memory, before, ARENA_BYTES, "the arena");
    free(before);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(later_wave_reads_what_an_earlier_one_wrote)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *writer = one_key(cache, 3, true), *reader = one_key(cache, 3, false);
    struct engine_batch *other = one_key(cache, 1, true);
    // Wave 0 writes block 3 of layer 0; wave 1 reads it there, and writes wave 0's result into block 1 of layer 1.
    struct engine_run runs[3] = {
        plain_run(writer, 0, 0, 64, 128, 192),
        plain_run(reader, 0, 192, 0, 0, 256),
        plain_run(other, 1, 0, 64, 192, 320),
    };
    struct engine_submission submission = {
        .runs = runs, .num_runs = 3, .wave_ends = (uint32_t[]){1, 3}, .num_waves = 2};
    fill(0, 1);
    fill(64, 2);
    fill(128, 1000);
    struct engine_event event = expect_done(submit(&submission));
    expect_floats(192, 1000);
    expect_floats(256, 1000);
    expect_floats(320, 1000);
    ck_assert_uint_eq(event.num_dispatches, 2);
    ck_assert_uint_ne(event.results[0].dispatch, event.results[1].dispatch);
    ck_assert_uint_eq(event.results[1].dispatch, event.results[2].dispatch);
    engine_batch_destroy(writer);
    engine_batch_destroy(reader);
    engine_batch_destroy(other);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(submissions_run_in_order_and_pass_results_on)
{
    enum { HOPS = 40 };
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batches[2] = {one_key(cache, 0, true), one_key(cache, 1, true)};
    uint64_t last = 0;
    fill(128, 7); // hop i writes hop i - 1's output as its value
    for (uint64_t i = 0; i < HOPS; i++) {
        struct engine_run run = plain_run(batches[i % 2], i % 2, 0, 64, 128 + i * 64, 128 + (i + 1) * 64);
        last = submit_runs(&run, 1);
        ck_assert_uint_eq(last, i + 1);
    }
    ck_assert_int_eq(engine_wait(engine, last, DEADLINE_S * 1000), STATUS_OK);
    for (uint64_t i = 0; i < HOPS; i++)
        ck_assert_uint_eq(expect_event(ENGINE_EVENT_DONE).sequence, i + 1);
    expect_floats(128 + HOPS * 64, 7);
    ck_assert_uint_ge(atomic_load(&wakes), 2);
    engine_batch_destroy(batches[0]);
    engine_batch_destroy(batches[1]);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(arena_may_be_rewritten_between_submissions_in_flight)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 0, true);
    for (int i = 0; i < 20; i++) {
        struct engine_run first = plain_run(batch, 0, 0, 64, 128, 192), second = plain_run(batch, 1, 0, 64, 192, 128);
        fill(128, (float)i);
        fill(192, -1);
        uint64_t sequence = submit_runs(&first, 1);
        expect_done(sequence);
        expect_floats(192, (float)i);
        fill(192, (float)(i + 100));
        expect_done(submit_runs(&second, 1));
        expect_floats(128, (float)(i + 100));
    }
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(runs_of_one_geometry_share_one_dispatch)
{
    struct engine_cache *cache = plain_cache(), *twin = plain_cache();
    struct engine_cache *wide = open_cache(shape(1, 1, 16, DTYPE_F32));
    grow_chunk(wide, 0);
    struct engine_batch *a = one_key(cache, 0, true), *b = one_key(twin, 2, true), *reader = one_key(cache, 3, false);
    struct engine_batch *c = one_key(wide, 1, true);
    struct engine_run runs[4] = {
        plain_run(reader, 1, 0, 0, 0, 1024),
        plain_run(a, 0, 0, 64, 128, 1088),
        plain_run(c, 0, 0, 64, 128, 1152),
        plain_run(b, 1, 0, 64, 192, 1280),
    };
    runs[2].q = dense(0, 1, 16, DTYPE_F32);
    runs[2].k = dense(64, 1, 16, DTYPE_F32);
    runs[2].v = dense(128, 1, 16, DTYPE_F32);
    runs[2].out = dense(1152, 1, 16, DTYPE_F32);
    runs[3].num_heads = 4; // another group size, in the same dispatch
    runs[3].q = dense(512, 4, 8, DTYPE_F32);
    runs[3].out = dense(1280, 4, 8, DTYPE_F32);
    fill(128, 5);
    fill(160, 13);
    fill(192, 9);
    memset(memory + 1024, 0x55, 512);
    struct engine_event event = expect_done(submit_runs(runs, 4));
    ck_assert_uint_eq(event.num_results, 4);
    ck_assert_uint_eq(event.num_dispatches, 2);
    ck_assert_uint_eq(event.results[0].dispatch, event.results[1].dispatch);
    ck_assert_uint_eq(event.results[0].dispatch, event.results[3].dispatch);
    ck_assert_uint_ne(event.results[0].dispatch, event.results[2].dispatch);
    ck_assert_uint_eq(event.results[0].gpu_ns, event.results[3].gpu_ns);
    if (engine->device.adapter.timestamp_bits)
        ck_assert_uint_gt(event.results[0].gpu_ns, 0);
    for (int i = 0; i < 8; i++)
        ck_assert_float_eq(floats(1024)[i], 0); // block 3 is zeroes
    expect_floats(1088, 5);
    expect_floats(1152, 5);
    expect_floats(1184, 13);
    for (uint64_t head = 0; head < 4; head++)
        expect_floats(1280 + head * 32, 9);
    engine_batch_destroy(a);
    engine_batch_destroy(b);
    engine_batch_destroy(c);
    engine_batch_destroy(reader);
    engine_cache_destroy(cache);
    engine_cache_destroy(twin);
    engine_cache_destroy(wide);
}
END_TEST

START_TEST(ragged_batch_spans_chunks_and_pads_with_empty_sequences)
{
    struct engine_cache *cache = plain_cache();
    grow_chunk(cache, 1);
    enum { SEQS = 5, TOKENS = 12 };
    // Sequences 0 and 3 have no query; 1 writes 10 tokens over blocks 6 and 1; 2 sees nothing; 4 reads block 5.
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .cache = cache,
        .num_seqs = SEQS,
        .max_blocks = 2,
        .num_tokens = TOKENS,
        .cu_seqlens_q = (int32_t[]){0, 0, 10, 11, 11, 12},
        .seq_lens_kv = (int32_t[]){3, 10, 0, 0, 1},
        .block_table = (int32_t[]){-1, 99999, 6, 1, -7, 1 << 30, 0, 0, 5, -1},
        .slot_mapping = (int64_t[]){48, 49, 50, 51, 52, 53, 54, 55, 8, 9, -1, 40},
    });
    struct engine_run run = plain_run(batch, 1, 0, 1024, 2048, 4096);
    memset(memory, 0, ARENA_BYTES); // equal scores: out is the mean of the values seen
    for (int token = 0; token < TOKENS; token++)
        for (int i = 0; i < 8; i++)
            floats(2048)[token * 8 + i] = (float)(2 * token);
    memset(memory + 4096, 0x55, TOKENS * 32);
    expect_done(submit_runs(&run, 1));
    for (int token = 0; token < TOKENS; token++) {
        float wanted = token < 10 ? (float)token : token == 10 ? 0.0f : 22.0f;
        for (int i = 0; i < 8; i++)
            ck_assert_float_eq_tol(floats(4096)[token * 8 + i], wanted, 1e-4f);
    }
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(grid_folds_where_the_device_ends_it)
{
    // One sequence of 40 queries of 8 heads: 40 tiles and 40 tokens on a device that claims to take 7 at a time.
    enum { TOKENS = 40 };
    engine->device.adapter.max_groups[1] = 7;
    engine->device.adapter.max_groups[0] = 3;
    struct engine_cache *cache = plain_cache();
    for (uint32_t chunk = 1; chunk < 3; chunk++)
        grow_chunk(cache, chunk);
    int64_t slots[TOKENS];
    int32_t blocks[TOKENS / BLOCK] = {8, 3, 11, 0, 5};
    for (int i = 0; i < TOKENS; i++)
        slots[i] = blocks[i / BLOCK] * BLOCK + i % BLOCK;
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .cache = cache,
        .num_seqs = 1,
        .max_blocks = TOKENS / BLOCK,
        .num_tokens = TOKENS,
        .cu_seqlens_q = (int32_t[]){0, TOKENS},
        .seq_lens_kv = (int32_t[]){TOKENS},
        .block_table = blocks,
        .slot_mapping = slots,
    });
    struct engine_run run = plain_run(batch, 0, 0, 16384, 32768, 65536);
    run.num_heads = 8;
    run.q = dense(0, 8, 8, DTYPE_F32);
    run.out = dense(65536, 8, 8, DTYPE_F32);
    memset(memory, 0, 16384);
    for (int token = 0; token < TOKENS; token++)
        fill(32768 + (uint64_t)token * 32, (float)(2 * token));
    struct engine_zero zeroes[] = {{cache, 1}, {cache, 2}, {cache, 4}, {cache, 6}}; // 8 ranges, 3 at a time
    unsigned char bytes[512];
    for (int i = 0; i < 4; i++)
        write_pattern(cache, 1, zeroes[i].block, bytes);
    expect_done(submit(&(struct engine_submission){
        .zeroes = zeroes, .num_zeroes = 4, .runs = &run, .num_runs = 1, .wave_ends = (uint32_t[]){1}, .num_waves = 1}));
    for (uint64_t token = 0; token < TOKENS; token++)
        for (uint64_t head = 0; head < 8; head++)
            for (int i = 0; i < 8; i++)
                ck_assert_float_eq_tol(floats(65536 + (token * 8 + head) * 32)[i], (float)token + (float)i, 1e-3f);
    for (int i = 0; i < 4; i++)
        expect_block(cache, 1, zeroes[i].block, zero_block);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(zeroes_come_before_the_runs_and_spare_the_neighbours)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *reader = one_key(cache, 2, false);
    struct engine_run run = plain_run(reader, 0, 0, 0, 0, 192);
    unsigned char bytes[2][4][512];
    for (uint32_t layer = 0; layer < 2; layer++)
        for (int32_t block = 0; block < 4; block++)
            write_pattern(cache, layer, block, bytes[layer][block]);
    fill(192, 77);
    struct engine_zero zero = {cache, 2};
    expect_done(submit(&(struct engine_submission){
        .zeroes = &zero, .num_zeroes = 1, .runs = &run, .num_runs = 1, .wave_ends = (uint32_t[]){1}, .num_waves = 1}));
    for (int i = 0; i < 8; i++)
        ck_assert_float_eq(floats(192)[i], 0);
    for (uint32_t layer = 0; layer < 2; layer++)
        for (int32_t block = 0; block < 4; block++)
            expect_block(cache, layer, block, block == 2 ? zero_block : (char *)bytes[layer][block]);
    expect_done(submit(&(struct engine_submission){.zeroes = &zero, .num_zeroes = 1})); // no run at all
    engine_batch_destroy(reader);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(runs_without_tokens_are_done_without_a_dispatch)
{
    struct engine_cache *cache = open_cache(shape(2, 1, 8, DTYPE_F32)); // not even memory
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .cache = cache,
        .cu_seqlens_q = (int32_t[]){0},
    });
    struct engine_run runs[2] = {plain_run(batch, 0, 0, 0, 0, 0), plain_run(batch, 1, 0, 0, 0, 0)};
    struct engine_event event = expect_done(submit_runs(runs, 2));
    ck_assert_uint_eq(event.num_dispatches, 0);
    ck_assert_uint_ne(event.results[0].dispatch, event.results[1].dispatch);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(cache_grows_and_shrinks_while_submissions_run)
{
    enum { CHUNKS = 12 };
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 1, true);
    uint32_t grown = 0, done = 0, submitted = 0;
    for (uint32_t i = 1; i <= CHUNKS; i++) {
        engine_cache_grow(cache, i);
        for (uint32_t j = 0; j < 3; j++) {
            uint64_t value = 4096 + submitted * 64;
            fill(value, (float)submitted++);
            struct engine_run run = plain_run(batch, 0, 0, 64, value, 65536 + value);
            submit_runs(&run, 1);
        }
    }
    while (grown < CHUNKS || done < submitted) {
        struct engine_event event = next_event();
        if (event.kind == ENGINE_EVENT_CHUNK) {
            ck_assert_int_eq(event.error.status, STATUS_OK);
            grown++;
            if (event.chunk % 2)
                engine_cache_shrink(cache, event.chunk);
        } else {
            ck_assert_int_eq(event.kind, ENGINE_EVENT_DONE);
            ck_assert_int_eq(event.results[0].status, STATUS_OK);
            ck_assert_uint_eq(event.sequence, ++done);
        }
    }
    for (uint32_t i = 0; i < submitted; i++)
        expect_floats(65536 + 4096 + i * 64, (float)i);
    // A chunk that came while the GPU was busy is as good as any.
    struct engine_batch *late = one_key(cache, CHUNKS * 4 + 3, true);
    struct engine_run run = plain_run(late, 1, 0, 64, 128, 192);
    fill(128, 4711);
    expect_done(submit_runs(&run, 1));
    expect_floats(192, 4711);
    engine_batch_destroy(late);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(objects_let_go_right_after_submit_serve_it_to_the_end)
{
    for (int i = 0; i < 10; i++) {
        struct engine_cache *cache = plain_cache();
        struct engine_batch *batch = one_key(cache, 2, true);
        struct engine_run run = plain_run(batch, 1, 0, 64, 128, 192);
        fill(128, (float)i);
        fill(192, -1);
        uint64_t sequence = submit_runs(&run, 1);
        engine_batch_destroy(batch);
        engine_cache_destroy(cache);
        expect_done(sequence);
        expect_floats(192, (float)i);
    }
}
END_TEST

START_TEST(steps_that_come_and_go_leave_memory_flat)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = NULL;
    uint64_t after_warm_up = 0;
    for (int i = 0; i < 300; i++) {
        batch = one_key(cache, i % 4, true);
        struct engine_run run = plain_run(batch, 0, 0, 64, 128, 192);
        expect_done(submit_runs(&run, 1));
        engine_batch_destroy(batch);
        if (i == 50)
            after_warm_up = atomic_load(&engine->device.pool_bytes);
    }
    ck_assert_uint_eq(atomic_load(&engine->device.pool_bytes), after_warm_up);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(equal_geometry_is_compiled_once)
{
    struct engine_cache *cache = plain_cache(), *twin = plain_cache();
    struct engine_batch *a = one_key(cache, 0, true), *b = one_key(twin, 0, true);
    struct engine_run first = plain_run(a, 0, 0, 64, 128, 192), second = plain_run(b, 1, 0, 64, 128, 192);
    ck_assert_uint_eq(engine_num_pipelines(engine), 0);
    expect_done(submit_runs(&first, 1));
    ck_assert_uint_eq(engine_num_pipelines(engine), 2);
    expect_done(submit_runs(&second, 1));
    ck_assert_uint_eq(engine_num_pipelines(engine), 2);
    ck_assert_str_eq(engine_variant(engine), "plain");
    engine_batch_destroy(a);
    engine_batch_destroy(b);
    engine_cache_destroy(cache);
    engine_cache_destroy(twin);
}
END_TEST

// ---- faults ----

START_TEST(oversized_batch_is_refused_with_the_limit)
{
    struct engine_cache *cache = open_cache(shape(1, 1, 8, DTYPE_F32));
    struct engine_batch *batch = NULL;
    struct error error = {0};
    struct engine_batch_params params = {
        .cache = cache, .num_seqs = 1u << 31, .max_blocks = 1u << 31, .cu_seqlens_q = (int32_t[]){0}};
    ck_assert_int_eq(engine_batch_create(&params, &batch, &error), STATUS_LIMIT);
    ck_assert_ptr_nonnull(strstr(error.text, "2147483648 sequences"));
    ck_assert_ptr_null(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(oversized_arena_is_refused_with_the_limit)
{
    struct engine_arena *large = NULL;
    struct error error = {0};
    ck_assert_int_eq(engine_arena_create(engine, memory, UINT64_C(1) << 50, &large, &error), STATUS_LIMIT);
    ck_assert_ptr_nonnull(strstr(error.text, "1125899906842624"));
    ck_assert_int_eq(engine_arena_create(engine, memory, 0, &large, &error), STATUS_INVALID);
    ck_assert_ptr_null(large);
}
END_TEST

START_TEST(run_that_no_dispatch_can_count_fails_alone)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *good = one_key(cache, 0, true);
    struct engine_batch *vast = open_batch((struct engine_batch_params){
        .cache = cache,
        .num_seqs = 1,
        .num_tokens = 1 << 16,
        .cu_seqlens_q = (int32_t[]){0, 1 << 16},
        .seq_lens_kv = (int32_t[]){0},
    });
    struct engine_run runs[2] = {plain_run(vast, 0, 0, 0, 0, 0), plain_run(good, 0, 0, 64, 128, 192)};
    runs[0].num_heads = 1 << 16;
    fill(128, 21);
    uint64_t sequence = submit_runs(runs, 2);
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_OK);
    struct engine_event event = expect_event(ENGINE_EVENT_DONE);
    ck_assert_int_eq(event.results[0].status, STATUS_LIMIT);
    ck_assert_int_eq(event.results[1].status, STATUS_OK);
    ck_assert_uint_eq(event.num_dispatches, 1);
    ck_assert_uint_ge(event.results[0].dispatch, 1);
    expect_floats(192, 21);
    engine_batch_destroy(vast);
    engine_batch_destroy(good);
    engine_cache_destroy(cache);
}
END_TEST

// More runs than the metadata at hand has room for, while the device gives none.
static struct engine_event starved_submission(struct engine_cache *cache, struct engine_batch *batch, bool zero)
{
    enum { RUNS = 500 };
    struct engine_run *runs = calloc(RUNS, sizeof *runs);
    for (int i = 0; i < RUNS; i++)
        runs[i] = plain_run(batch, 0, 0, 64, 128, 192);
    uint64_t most = engine->device.adapter.info.max_allocation_bytes;
    engine->device.adapter.info.max_allocation_bytes = 1;
    submit(&(struct engine_submission){.zeroes = &(struct engine_zero){cache, 0},
                                       .num_zeroes = zero,
                                       .runs = runs,
                                       .num_runs = RUNS,
                                       .wave_ends = (uint32_t[]){RUNS},
                                       .num_waves = 1});
    struct engine_event event = next_event();
    engine->device.adapter.info.max_allocation_bytes = most;
    free(runs);
    return event;
}

START_TEST(submission_that_cannot_be_recorded_fails_and_the_next_one_runs)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 0, true);
    struct engine_run run = plain_run(batch, 0, 0, 64, 128, 192);
    expect_done(submit_runs(&run, 1));
    struct engine_event event = starved_submission(cache, batch, false);
    ck_assert_int_eq(event.kind, ENGINE_EVENT_DONE);
    ck_assert_uint_eq(event.num_dispatches, 0);
    for (uint32_t i = 0; i < event.num_results; i++)
        ck_assert_int_eq(event.results[i].status, STATUS_LIMIT);
    fill(128, 31);
    expect_done(submit_runs(&run, 1));
    expect_floats(192, 31);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

static void expect_lost_everywhere(struct engine_cache *cache, struct engine_batch *batch)
{
    struct engine_event event;
    struct error error = {0};
    uint64_t sequence = 0;
    char bytes[512];
    struct engine_cache *no_cache = NULL;
    struct engine_batch *no_batch = NULL;
    struct engine_arena *no_arena = NULL;
    struct engine_cache_params params = shape(1, 1, 8, DTYPE_F32);
    struct engine_batch_params step = {.cache = cache, .cu_seqlens_q = (int32_t[]){0}};
    struct engine_run run = plain_run(batch, 0, 0, 64, 128, 192);
    struct engine_submission submission = {.runs = &run, .num_runs = 1, .wave_ends = (uint32_t[]){1}, .num_waves = 1};
    ck_assert(!engine_poll(engine, &event)); // told once
    ck_assert_int_eq(engine_submit(engine, &submission, &sequence, &error), STATUS_DEVICE_LOST);
    ck_assert_uint_eq(sequence, 0);
    ck_assert_int_eq(engine_cache_create(engine, &params, &no_cache, &error), STATUS_DEVICE_LOST);
    ck_assert_int_eq(engine_batch_create(&step, &no_batch, &error), STATUS_DEVICE_LOST);
    ck_assert_int_eq(engine_arena_create(engine, memory, 4096, &no_arena, &error), STATUS_DEVICE_LOST);
    ck_assert_int_eq(engine_block_read(cache, 0, 0, bytes), STATUS_DEVICE_LOST);
    ck_assert_int_eq(engine_block_write(cache, 0, 0, bytes), STATUS_DEVICE_LOST);
    engine_cache_grow(cache, 1);
    nap();
    ck_assert(!engine_poll(engine, &event));
}

static VkSemaphore make_gate(void)
{
    VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                      .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};
    VkSemaphore gate = VK_NULL_HANDLE;
    ck_assert_int_eq(vkCreateSemaphore(engine->device.handle, &info, NULL, &gate), VK_SUCCESS);
    return gate;
}

// What is submitted from now on waits until open_gate().
static VkSemaphore close_gate(void)
{
    VkSemaphore gate = make_gate();
    uint64_t value = 1;
    VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    VkTimelineSemaphoreSubmitInfo values = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                            .waitSemaphoreValueCount = 1,
                                            .pWaitSemaphoreValues = &value};
    VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                         .pNext = &values,
                         .waitSemaphoreCount = 1,
                         .pWaitSemaphores = &gate,
                         .pWaitDstStageMask = &stage};
    pthread_mutex_lock(&engine->device.queue_lock);
    VkResult result = vkQueueSubmit(engine->device.queue, 1, &info, VK_NULL_HANDLE);
    pthread_mutex_unlock(&engine->device.queue_lock);
    ck_assert_int_eq(result, VK_SUCCESS);
    return gate;
}

// Returns when the GPU is past submission `sequence`, which waited at the gate.
static void open_gate(VkSemaphore gate, uint64_t sequence)
{
    VkSemaphoreSignalInfo open = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, .semaphore = gate, .value = 1};
    VkSemaphoreWaitInfo wait = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                .semaphoreCount = 1,
                                .pSemaphores = &engine->timeline,
                                .pValues = &sequence};
    ck_assert_int_eq(vkSignalSemaphore(engine->device.handle, &open), VK_SUCCESS);
    ck_assert_int_eq(vkWaitSemaphores(engine->device.handle, &wait, DEADLINE_S * UINT64_C(1000000000)), VK_SUCCESS);
    vkDestroySemaphore(engine->device.handle, gate, NULL);
}

START_TEST(watchdog_loses_the_device_once_and_for_all)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 0, true);
    struct engine_run run = plain_run(batch, 0, 0, 64, 128, 192);
    expect_done(submit_runs(&run, 1));
    engine->device.watchdog_ns = 20000000;
    VkSemaphore gate = close_gate();
    uint64_t sequence = submit_runs(&run, 1);
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_DEVICE_LOST);
    struct engine_event event = expect_event(ENGINE_EVENT_LOST);
    ck_assert_int_eq(event.error.status, STATUS_DEVICE_LOST);
    ck_assert_ptr_nonnull(strstr(event.error.text, "submission 2 did not end in 20 ms"));
    expect_lost_everywhere(cache, batch);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
    open_gate(gate, sequence);
}
END_TEST

START_TEST(nothing_that_the_gpu_may_read_ends_before_it_is_done)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 2, true);
    struct engine_run run = plain_run(batch, 1, 0, 64, 128, 192);
    fill(128, 17);
    VkSemaphore gate = close_gate();
    uint64_t sequence = submit_runs(&run, 1);
    engine_batch_destroy(batch);
    engine_cache_shrink(cache, 0);
    engine_cache_destroy(cache);
    for (int i = 0; i < 20; i++)
        nap(); // time for the maker to go wrong
    pthread_mutex_lock(&engine->lock);
    uint32_t kept = 0;
    for (const struct job *job = engine->jobs; job; job = job->next)
        kept += job->after == sequence;
    pthread_mutex_unlock(&engine->lock);
    ck_assert_uint_eq(kept, 3); // the batch, the chunk, the cache
    open_gate(gate, sequence);
    expect_done(sequence);
    expect_floats(192, 17);
}
END_TEST

START_TEST(no_more_than_the_slots_are_on_the_gpu_and_the_rest_follows)
{
    enum { MANY = 3 * ENGINE_SLOTS };
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 2, true);
    struct engine_run run = plain_run(batch, 1, 0, 64, 128, 192);
    VkSemaphore gate = close_gate();
    for (int i = 0; i < MANY; i++)
        submit_runs(&run, 1);
    for (int i = 0; i < 20; i++)
        nap();
    pthread_mutex_lock(&engine->lock);
    uint32_t waiting = 0;
    for (const struct submission *s = engine->waiting; s; s = s->next)
        waiting++;
    pthread_mutex_unlock(&engine->lock);
    ck_assert_uint_ge(waiting, MANY - ENGINE_SLOTS);
    open_gate(gate, 1);
    for (uint64_t i = 1; i <= MANY; i++)
        expect_done(i);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(zeroes_that_cannot_be_done_lose_the_device)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 0, true);
    struct engine_event event = starved_submission(cache, batch, true);
    ck_assert_int_eq(event.kind, ENGINE_EVENT_LOST);
    ck_assert_ptr_nonnull(strstr(event.error.text, "could not be zeroed"));
    expect_lost_everywhere(cache, batch);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(wait_has_a_deadline_and_knows_what_was_submitted)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 0, true);
    struct engine_run run = plain_run(batch, 0, 0, 64, 128, 192);
    ck_assert_int_eq(engine_wait(engine, 1, 1000), STATUS_NOT_FOUND);
    pthread_mutex_lock(&engine->device.queue_lock); // the submitter cannot reach the GPU
    uint64_t sequence = submit_runs(&run, 1);
    enum status early = engine_wait(engine, sequence, 20);
    enum status now = engine_wait(engine, sequence, 0);
    pthread_mutex_unlock(&engine->device.queue_lock);
    ck_assert_int_eq(early, STATUS_TIMEOUT);
    ck_assert_int_eq(now, STATUS_TIMEOUT);
    expect_done(sequence);
    ck_assert_int_eq(engine_wait(engine, sequence, 0), STATUS_OK);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(destroy_with_work_queued_and_chunks_growing_ends_all)
{
    struct engine_cache *cache = plain_cache(), *gone = plain_cache();
    struct engine_batch *batch = one_key(cache, 0, true), *dropped = one_key(gone, 1, true);
    for (uint32_t i = 0; i < 24; i++) {
        struct engine_run run = plain_run(i % 3 ? batch : dropped, 0, 0, 64, 128, 4096 + i * 64);
        submit_runs(&run, 1);
        engine_cache_grow(cache, i + 1);
        engine_cache_grow(gone, i + 1);
    }
    engine_batch_destroy(dropped);
    engine_cache_shrink(cache, 0);
    engine_cache_destroy(gone);
    close_engine(engine); // with a cache, a batch and the arena that live
    engine = open_engine((struct engine_params){0});
    arena = NULL;
}
END_TEST

START_TEST(destroy_takes_nothing_and_the_new)
{
    engine_destroy(NULL);
    engine_batch_destroy(NULL);
    engine_cache_destroy(NULL);
    engine_arena_destroy(NULL);
    close_engine(open_engine((struct engine_params){0}));
}
END_TEST

// ---- the file of compiled pipelines ----

static char folder[] = "/tmp/aule-engine-XXXXXX";
static char cache_path[64];

static void setup_folder(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(cache_path, sizeof cache_path, "%s/new/pipelines", folder);
}

static void teardown_folder(void)
{
    char new_folder[64];
    snprintf(new_folder, sizeof new_folder, "%s/new", folder);
    unlink(cache_path);
    rmdir(new_folder);
    ck_assert_msg(rmdir(folder) == 0, "something was left in %s", folder);
}

// One life of an engine that computes something. With `wait` it lives until the file is there.
static void live_once(const char *path, bool wait)
{
    engine = open_engine((struct engine_params){.pipeline_cache_path = path});
    open_arena();
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 0, true);
    struct engine_run run = plain_run(batch, 0, 0, 64, 128, 192);
    fill(128, 11);
    expect_done(submit_runs(&run, 1));
    expect_floats(192, 11);
    double deadline = now_s() + DEADLINE_S;
    while (wait && access(path, R_OK) != 0) {
        ck_assert(now_s() < deadline);
        nap();
    }
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
    teardown();
}

static size_t read_file(char *bytes, size_t size)
{
    int fd = open(cache_path, O_RDONLY);
    ck_assert_int_ge(fd, 0);
    ssize_t got = read(fd, bytes, size);
    close(fd);
    ck_assert_int_gt(got, 0);
    return (size_t)got;
}

static void write_file(const char *bytes, size_t size)
{
    int fd = open(cache_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, bytes, size), (ssize_t)size);
    close(fd);
}

START_TEST(pipeline_cache_is_written_at_work_and_read_in_the_next_life)
{
    struct stat status;
    live_once(cache_path, true);
    ck_assert_int_eq(stat(cache_path, &status), 0);
    ck_assert_uint_eq(status.st_mode & 0777, 0600);
    ck_assert(!logged("is ignored"));
    ck_assert(!logged("pipelines: "));
    live_once(cache_path, false);
    ck_assert(!logged("is ignored"));
    ck_assert_msg(logged("pipelines: "), "not read:\n%s", log_text);
}
END_TEST

static char good_file[1 << 20];

// Whatever is wrong with it, the file is left out, said so, and replaced by a good one.
static void expect_ignored(const char *bytes, size_t size, const char *why)
{
    log_used = 0;
    log_text[0] = '\0';
    write_file(bytes, size);
    live_once(cache_path, false);
    ck_assert_msg(logged("is ignored") && logged(why), "'%s' is not in:\n%s", why, log_text);
    log_used = 0;
    log_text[0] = '\0';
    live_once(cache_path, false);
    ck_assert_msg(!logged("is ignored"), "not replaced:\n%s", log_text);
}

START_TEST(spoilt_pipeline_cache_is_ignored_and_replaced)
{
    live_once(cache_path, false);
    size_t size = read_file(good_file, sizeof good_file);
    ck_assert_uint_lt(size, sizeof good_file);
    char *spoilt = malloc(size);
    memcpy(spoilt, good_file, size);
    spoilt[size - 1] ^= 0x10;
    expect_ignored(spoilt, size, "it is corrupt");
    expect_ignored(good_file, size - 1, "cut short");
    expect_ignored(good_file, 7, "cut short");
    expect_ignored("this was never a pipeline cache, whatever its name may say", 50, "it is no pipeline cache");
    free(spoilt);
}
END_TEST

START_TEST(pipeline_cache_that_cannot_be_written_stops_nothing)
{
    live_once("/proc/no/such/place", false);
    ck_assert_msg(logged("/proc/no/such/place is not written"), "silent:\n%s", log_text);
}
END_TEST

// ---- suite ----

static void add_run_tests(TCase *tcase)
{
    tcase_add_test(tcase, arena_is_imported_unless_staging_is_forced);
    tcase_add_test(tcase, f32_keys_and_values_reach_their_slots_bit_for_bit);
    tcase_add_test(tcase, f16_keys_and_values_reach_their_slots_bit_for_bit);
    tcase_add_test(tcase, run_of_heads_before_tokens_layout_touches_only_its_rows);
    tcase_add_test(tcase, later_wave_reads_what_an_earlier_one_wrote);
    tcase_add_test(tcase, submissions_run_in_order_and_pass_results_on);
    tcase_add_test(tcase, arena_may_be_rewritten_between_submissions_in_flight);
    tcase_add_test(tcase, runs_of_one_geometry_share_one_dispatch);
    tcase_add_test(tcase, ragged_batch_spans_chunks_and_pads_with_empty_sequences);
    tcase_add_test(tcase, zeroes_come_before_the_runs_and_spare_the_neighbours);
    tcase_add_test(tcase, cache_grows_and_shrinks_while_submissions_run);
    tcase_add_test(tcase, destroy_with_work_queued_and_chunks_growing_ends_all);
}

static void add_device_tests(Suite *suite)
{
    TCase *tcase = tcase_create("devices");
    tcase_add_test(tcase, list_describes_every_device);
    tcase_add_test(tcase, best_device_is_the_default);
    tcase_add_test(tcase, device_is_chosen_by_index);
    tcase_add_test(tcase, device_is_chosen_by_uuid_with_and_without_dashes);
    tcase_add_test(tcase, device_is_chosen_by_part_of_its_name_in_any_case);
    tcase_add_test(tcase, unknown_device_is_refused_with_the_list);
    tcase_add_test(tcase, destroy_takes_nothing_and_the_new);
    suite_add_tcase(suite, tcase);
}

static void add_cache_tests(Suite *suite)
{
    TCase *tcase = tcase_create("caches");
    tcase_add_checked_fixture(tcase, setup_import, teardown);
    tcase_add_test(tcase, cache_check_names_what_has_no_shader);
    tcase_add_test(tcase, block_bytes_count_k_and_v_of_every_layer);
    tcase_add_test(tcase, new_chunk_is_zero_and_keeps_what_is_written);
    tcase_add_test(tcase, growing_moves_no_block_whatever_the_order);
    tcase_add_test(tcase, chunk_is_split_by_whole_layers_where_the_device_allows_no_more);
    tcase_add_test(tcase, chunk_given_back_is_gone_and_returns_zeroed);
    tcase_add_test(tcase, block_of_no_chunk_or_layer_is_out_of_range);
    tcase_add_test(tcase, chunk_that_is_there_is_not_grown_again);
    tcase_add_test(tcase, growth_without_memory_is_told_and_harms_nothing);
    tcase_add_test(tcase, destroyed_cache_is_heard_of_no_more);
    tcase_add_test(tcase, memory_of_caches_comes_back);
    suite_add_tcase(suite, tcase);
}

static void add_fault_tests(Suite *suite)
{
    TCase *tcase = tcase_create("one path"); // what does not depend on how the arena is reached
    tcase_add_checked_fixture(tcase, setup_import, teardown);
    tcase_add_test(tcase, unaligned_arena_is_mirrored_and_works);
    tcase_add_test(tcase, grid_folds_where_the_device_ends_it);
    tcase_add_test(tcase, runs_without_tokens_are_done_without_a_dispatch);
    tcase_add_test(tcase, objects_let_go_right_after_submit_serve_it_to_the_end);
    tcase_add_test(tcase, steps_that_come_and_go_leave_memory_flat);
    tcase_add_test(tcase, equal_geometry_is_compiled_once);
    tcase_add_test(tcase, oversized_batch_is_refused_with_the_limit);
    tcase_add_test(tcase, oversized_arena_is_refused_with_the_limit);
    tcase_add_test(tcase, run_that_no_dispatch_can_count_fails_alone);
    tcase_add_test(tcase, submission_that_cannot_be_recorded_fails_and_the_next_one_runs);
    tcase_add_test(tcase, watchdog_loses_the_device_once_and_for_all);
    tcase_add_test(tcase, nothing_that_the_gpu_may_read_ends_before_it_is_done);
    tcase_add_test(tcase, no_more_than_the_slots_are_on_the_gpu_and_the_rest_follows);
    tcase_add_test(tcase, zeroes_that_cannot_be_done_lose_the_device);
    tcase_add_test(tcase, wait_has_a_deadline_and_knows_what_was_submitted);
    suite_add_tcase(suite, tcase);
}

static void add_file_tests(Suite *suite)
{
    TCase *tcase = tcase_create("pipeline file");
    tcase_add_checked_fixture(tcase, setup_folder, teardown_folder);
    tcase_add_test(tcase, pipeline_cache_is_written_at_work_and_read_in_the_next_life);
    tcase_add_test(tcase, spoilt_pipeline_cache_is_ignored_and_replaced);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("no pipeline file");
    tcase_add_test(tcase, pipeline_cache_that_cannot_be_written_stops_nothing);
    suite_add_tcase(suite, tcase);
}

static Suite *engine_suite(void)
{
    Suite *suite = suite_create("engine");
    TCase *imported = tcase_create("runs, arena imported"), *staged = tcase_create("runs, arena mirrored");
    add_device_tests(suite);
    add_cache_tests(suite);
    tcase_add_checked_fixture(imported, setup_import, teardown);
    tcase_add_checked_fixture(staged, setup_staging, teardown);
    add_run_tests(imported);
    add_run_tests(staged);
    suite_add_tcase(suite, imported);
    suite_add_tcase(suite, staged);
    add_fault_tests(suite);
    add_file_tests(suite);
    return suite;
}

// Looked for in a process of its own: Vulkan must not be touched before check forks.
static bool have_device(void)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        struct engine_device *devices = NULL;
        uint32_t count = 0;
        struct error error = {0};
        if (engine_list_devices(&devices, &count, &error) != STATUS_OK)
            fprintf(stderr, "skipped: %s\n", error.text);
        _exit(devices ? 0 : 77);
    }
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) != 77;
}

int main(void)
{
    return have_device() ? check_main(engine_suite()) : 77;
}
