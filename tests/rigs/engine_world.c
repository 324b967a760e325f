// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// engine_world.c - see engine_world.h.

#include "engine_world.h"

#include "base/clock.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct engine *engine;
struct engine_arena *arena;
char *memory; // of the arena
atomic_uint wakes;

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
char log_text[LOG_BYTES];
static size_t log_used;

static void on_log(void *context, int level, const char *format, const char *text)
{
    (void)context;
    (void)format;
    pthread_mutex_lock(&log_lock);
    if (log_used < sizeof log_text)
        log_used += (size_t)snprintf(log_text + log_used, sizeof log_text - log_used, "%d %s\n",
                                     level, text);
    pthread_mutex_unlock(&log_lock);
}

bool logged(const char *text)
{
    pthread_mutex_lock(&log_lock);
    bool found = strstr(log_text, text) != NULL;
    pthread_mutex_unlock(&log_lock);
    return found;
}

void forget_log(void)
{
    pthread_mutex_lock(&log_lock);
    log_used = 0;
    log_text[0] = '\0';
    pthread_mutex_unlock(&log_lock);
}

static void on_wake(void *context)
{
    (void)context;
    atomic_fetch_add(&wakes, 1);
}

// ---- the validation layer ----

static uint64_t num_forks; // in a test, which one of the program it is

static void count_fork(void)
{
    num_forks++;
}

// The build says where the layer is wanted. It doubles the time to open an engine: every second
// test of a program runs under it, or all with AULE_TEST_LONG=1. The seed says which ones.
static bool validated(void)
{
    return check_number("AULE_TEST_VALIDATION", 0) != 0 &&
           (check_is_long() || (check_seed() + num_forks) % 2 == 0);
}

struct engine *open_engine(struct engine_params params)
{
    struct engine *fresh = NULL;
    struct error error = {0};
    params.validation = validated();
    if (!params.variant)
        params.variant = getenv("AULE_VARIANT");
    params.all_cascades = true;
    params.log = on_log;
    params.wake = on_wake;
    enum status status = engine_create(&params, &fresh, &error);
    ck_assert_msg(status == STATUS_OK, "engine_create: %s", error.text);
    return fresh;
}

void close_engine(struct engine *old)
{
    uint32_t messages = engine_validation_messages(old);
    engine_destroy(old);
    ck_assert_msg(messages == 0 && !logged("validation:"), "the validation layer said:\n%s",
                  log_text);
}

void open_arena(void)
{
    struct error error = {0};
    memory = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    ck_assert_int_eq(engine_arena_create(engine, memory, ARENA_BYTES, &arena, &error), STATUS_OK);
}

void setup_import(void)
{
    engine = open_engine((struct engine_params){0});
    open_arena();
}

void setup_staging(void)
{
    engine = open_engine((struct engine_params){.force_staging = true});
    open_arena();
}

void teardown(void)
{
    engine_arena_destroy(arena);
    close_engine(engine);
    munmap(memory, ARENA_BYTES);
}

double now_s(void)
{
    return (double)clock_now_ns() * 1e-9;
}

void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
}

uint32_t num_pieces(void)
{
    pthread_mutex_lock(&engine->slabs.lock);
    uint32_t count = engine->slabs.num_pieces;
    pthread_mutex_unlock(&engine->slabs.lock);
    return count;
}

struct engine_event next_event(void)
{
    struct engine_event event;
    double deadline = now_s() + DEADLINE_S;
    while (!engine_poll(engine, &event)) {
        ck_assert_msg(now_s() < deadline, "no event in %d s", DEADLINE_S);
        nap();
    }
    return event;
}

struct engine_event expect_event(enum engine_event_kind kind)
{
    struct engine_event event = next_event();
    ck_assert_msg(event.kind == kind, "event %d instead of %d: %s", event.kind, kind,
                  event.error.text);
    return event;
}

// ---- small words for caches, batches and runs ----

struct engine_cache_params shape(uint32_t num_layers, uint32_t num_kv_heads, uint32_t head_dim,
                                 enum dtype dtype)
{
    return (struct engine_cache_params){
        .name = "test",
        .num_layers = num_layers,
        .chunk_blocks = 4,
        .kv =
            {
                .num_kv_heads = num_kv_heads,
                .head_dim_k = head_dim,
                .head_dim_v = head_dim,
                .block_size = BLOCK,
                .k_dtype = dtype,
                .v_dtype = dtype,
            },
    };
}

struct engine_cache *open_cache(struct engine_cache_params params)
{
    struct engine_cache *cache = NULL;
    struct error error = {0};
    enum status status = engine_cache_create(engine, &params, &cache, &error);
    ck_assert_msg(status == STATUS_OK, "engine_cache_create: %s", error.text);
    return cache;
}

void grow_chunk(struct engine_cache *cache, uint32_t chunk)
{
    engine_cache_grow(cache, chunk);
    struct engine_event event = expect_event(ENGINE_EVENT_CHUNK);
    ck_assert_msg(event.error.status == STATUS_OK, "growth: %s", event.error.text);
    ck_assert_ptr_eq(event.cache, cache);
    ck_assert_uint_eq(event.chunk, chunk);
}

// 2 layers, one KV head of 8 f32, 32 bytes a row: the plain cache, with memory for blocks 0..3.
struct engine_cache *plain_cache(void)
{
    struct engine_cache *cache = open_cache(shape(2, 1, 8, DTYPE_F32));
    grow_chunk(cache, 0);
    return cache;
}

struct engine_batch *open_batch(struct engine_batch_params params)
{
    struct engine_batch *batch = NULL;
    struct error error = {0};
    params.engine = engine;
    enum status status = engine_batch_create(&params, &batch, &error);
    ck_assert_msg(status == STATUS_OK, "engine_batch_create: %s", error.text);
    return batch;
}

// One sequence of one query that sees the one key in `block`, offset 0. With `write` the run writes
// it first.
struct engine_batch *one_key(struct engine_cache *cache, int32_t block, bool write)
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
struct wire_tensor dense(uint64_t offset, uint32_t heads, uint32_t dim, enum dtype dtype)
{
    uint64_t row = (uint64_t)dim * dtype_size(dtype);
    return (struct wire_tensor){
        .offset = offset, .token_stride = heads * row, .head_stride = row, .dtype = dtype};
}

// For the plain cache: one head; q, k, v and out at the given offsets.
struct engine_run plain_run(struct engine_batch *batch, uint32_t layer, uint64_t q, uint64_t k,
                            uint64_t v, uint64_t out)
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

uint64_t submit(const struct engine_submission *submission)
{
    uint64_t sequence = 0;
    struct error error = {0};
    enum status status = engine_submit(engine, submission, &sequence, &error);
    ck_assert_msg(status == STATUS_OK, "engine_submit: %s", error.text);
    return sequence;
}

uint64_t submit_runs(const struct engine_run *runs, uint32_t count)
{
    return submit(&(struct engine_submission){
        .runs = runs, .num_runs = count, .wave_ends = &count, .num_waves = 1});
}

struct engine_event expect_done(uint64_t sequence)
{
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_OK);
    struct engine_event event = expect_event(ENGINE_EVENT_DONE);
    ck_assert_uint_eq(event.sequence, sequence);
    for (uint32_t i = 0; i < event.num_results; i++)
        ck_assert_int_eq(event.results[i].status, STATUS_OK);
    return event;
}

float *floats(uint64_t offset)
{
    return (float *)(memory + offset);
}

void fill(uint64_t offset, float first)
{
    for (int i = 0; i < 8; i++)
        floats(offset)[i] = first + (float)i;
}

void expect_floats(uint64_t offset, float first)
{
    for (int i = 0; i < 8; i++)
        ck_assert_float_eq(floats(offset)[i], first + (float)i);
}

// Each of Check's assertions is a message to the parent process. A build with a sanitizer reads
// them slowly, so there is not one for each byte.
void expect_bytes(const void *got, const void *wanted, size_t size, const char *what)
{
    const unsigned char *a = got, *b = wanted;
    for (size_t i = 0; i < size; i++)
        if (a[i] != b[i])
            ck_abort_msg("%s: byte %zu of %zu is 0x%02x, not 0x%02x", what, i, size, a[i], b[i]);
}

// ---- blocks ----

void expect_block(struct engine_cache *cache, uint32_t layer, int32_t block, const void *wanted)
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

void write_pattern(struct engine_cache *cache, uint32_t layer, int32_t block, unsigned char *bytes)
{
    size_t size = engine_layer_block_bytes(&cache->params);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (unsigned char)(i * 7 + layer * 31 + (unsigned)block * 101 + 1);
    ck_assert_int_eq(engine_block_write(cache, layer, block, bytes), STATUS_OK);
}

const char zero_block[1 << 14];

// ---- the gate ----

static VkSemaphore make_gate(void)
{
    VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                      .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};
    VkSemaphore gate = VK_NULL_HANDLE;
    ck_assert_int_eq(vkCreateSemaphore(engine->device.handle, &info, NULL, &gate), VK_SUCCESS);
    return gate;
}

void shorten_watchdog(unsigned ms)
{
    engine->device.patient = false;
    engine->device.watchdog_ns = ms * (uint64_t)NS_PER_MS;
}

// Submissions from now on wait until open_gate().
VkSemaphore close_gate(void)
{
    VkSemaphore gate = make_gate();
    uint64_t value = 1;
    VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    VkTimelineSemaphoreSubmitInfo values = {.sType =
                                                VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                            .waitSemaphoreValueCount = 1,
                                            .pWaitSemaphoreValues = &value};
    VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                         .pNext = &values,
                         .waitSemaphoreCount = 1,
                         .pWaitSemaphores = &gate,
                         .pWaitDstStageMask = &stage};
    pthread_mutex_lock(&engine->device.queues[0].lock);
    VkResult result = vkQueueSubmit(engine->device.queues[0].handle, 1, &info, VK_NULL_HANDLE);
    pthread_mutex_unlock(&engine->device.queues[0].lock);
    ck_assert_int_eq(result, VK_SUCCESS);
    return gate;
}

// Returns when the GPU has finished submission `sequence`, which waited at the gate.
void open_gate(VkSemaphore gate, uint64_t sequence)
{
    VkSemaphoreSignalInfo open = {
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, .semaphore = gate, .value = 1};
    VkSemaphoreWaitInfo wait = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                .semaphoreCount = 1,
                                .pSemaphores = &engine->device.streams[STREAM_RUNS].timeline,
                                .pValues = &sequence};
    ck_assert_int_eq(vkSignalSemaphore(engine->device.handle, &open), VK_SUCCESS);
    ck_assert_int_eq(
        vkWaitSemaphores(engine->device.handle, &wait, DEADLINE_S * UINT64_C(1000000000)),
        VK_SUCCESS);
    vkDestroySemaphore(engine->device.handle, gate, NULL);
}

// ---- the suite ----

// Searches for a device in another process, because Vulkan must not be touched before check forks.
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

int run_on_device(Suite *(*make)(void))
{
    check_seed();
    pthread_atfork(count_fork, NULL, NULL);
    return have_device() ? check_main(make()) : 77;
}
