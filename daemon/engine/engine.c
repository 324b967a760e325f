// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// engine.c - creates and destroys the engine, and answers questions about it. Knows all rooms;
// decides nothing about runs. Caller's thread.

#include "engine.h"

#include "base/list.h"
#include "engine/flow/carrier.h"
#include "engine/flow/completer.h"
#include "engine/flow/submitter.h"
#include "engine/kernels/hopper.h"
#include "engine/kernels/kv.h"
#include "engine/kernels/matrix.h"
#include "engine/memory/arena.h"
#include "engine/memory/slot.h"
#include "engine/plan/joint.h"
#include "engine/plan/submission.h"
#include "engine/state/state.h"
#include "engine/vulkan/vk.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const uint64_t default_scratch_bytes = UINT64_C(256) << 20;

// After a loss, the GPU gets this long to become idle.
static const uint64_t grace_ns = UINT64_C(5000000000);
// Covers the late begin of a dispatch and the differences among submissions of one shape.
static const int64_t default_look_ns = 100000;
static const int compiler_nice = 10;
// For the polling thread, the submitter, the caller and the rest of the machine.
enum { LEAST_CORES_TO_LOOK = 4 };

static void on_lost(void *owner, const char *why)
{
    struct engine *engine = owner;
    pthread_mutex_lock(&engine->lock);
    bool first = !engine->lost;
    if (first) {
        engine->lost = true;
        engine->lost_event.event.kind = ENGINE_EVENT_LOST;
        error_set(&engine->lost_event.event.error, STATUS_DEVICE_LOST, "%s", why);
    }
    pthread_cond_broadcast(&engine->changed);
    pthread_cond_signal(&engine->more);
    carriers_lose(engine);
    pthread_mutex_unlock(&engine->lock);
    if (first)
        engine_wake(engine);
}

enum status engine_list_devices(struct engine_device **out, uint32_t *count, struct error *error)
{
    struct engine_params params = {0};
    struct instance instance = {0};
    struct adapter *list = NULL;
    enum status status = instance_init(&instance, &params, error);
    if (status == STATUS_OK)
        status = adapter_list(&instance, false, variant_least_shared_memory(), &list, count, error);
    struct engine_device *devices = status == STATUS_OK ? calloc(*count, sizeof *devices) : NULL;
    if (status == STATUS_OK && !devices)
        status = error_set(error, STATUS_NO_MEMORY, "no memory for %u devices", *count);
    for (uint32_t i = 0; devices && i < *count; i++)
        devices[i] = list[i].info;
    *out = devices;
    free(list);
    instance_finish(&instance);
    return status;
}

// ---- create ----

static enum status make_nothing(struct engine *engine, struct error *error)
{
    const uint64_t bytes = 256; // shaders read only the first element
    enum status status = slab_take(&engine->slabs, bytes, &engine->nothing, error);
    if (status == STATUS_OK)
        memset(engine->nothing.mapped, 0, bytes);
    return status;
}

static uint64_t scratch_limit(const struct engine *engine, const struct engine_params *params)
{
    uint64_t bytes = params->max_scratch_bytes ? params->max_scratch_bytes : default_scratch_bytes;
    uint64_t most = engine->device.adapter.info.max_allocation_bytes;
    return bytes < most ? bytes : most;
}

// Cores that this process may run on.
static long num_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                       : sysconf(_SC_NPROCESSORS_ONLN);
}

static int64_t look_ns(const struct engine *engine, uint32_t asked_us)
{
    if (asked_us == ENGINE_NO_POLL || (!asked_us && engine->device.adapter.info.software))
        return 0;
    return asked_us ? asked_us * INT64_C(1000)
                    : forecast_look_ns(default_look_ns, num_cores(), LEAST_CORES_TO_LOOK);
}

// Sets the rules by which the completer waits for submissions. A forecast that is too late costs
// time; one that is too early costs only polling. So longer times are learned slowly.
static void set_watch(struct engine *engine, uint32_t asked_us)
{
    const int64_t ns = look_ns(engine, asked_us);
    engine->watch = (struct forecast_watch){
        .times = {.num_kinds = FORECAST_KINDS, .caution = 8},
        .look_ns = ns,
        .longest_ns = 16 * ns,
        .wake_delay_ns = ns / 4,
        .looks_at_unknown = true,  // most submissions are short
        .sleep_ignores_end = true, // a timed sleep does not notice the GPU
    };
}

// A compile has ended: the maker may save the pipelines, and the caller resume lines.
static void on_compiled(void *owner, bool awaited)
{
    struct engine *engine = owner;
    pthread_mutex_lock(&engine->lock);
    engine->compiled |= awaited;
    maker_wake(engine);
    pthread_mutex_unlock(&engine->lock);
    if (awaited)
        engine_wake(engine);
}

static void *compiler_thread(void *argument)
{
    struct engine *engine = argument;
    compiler_run(&engine->pipelines.compiler);
    pthread_mutex_lock(&engine->lock);
    engine->compiler_gone = true;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

// On a software device, whose cores are missing to all others while they compile for one session.
static void *nice_compiler_thread(void *engine)
{
    setpriority(PRIO_PROCESS, 0, compiler_nice); // of this thread alone
    return compiler_thread(engine);
}

static enum status make_parts(struct engine *engine, const struct engine_params *params,
                              struct error *error)
{
    enum status status = engine_locks_init(engine, error);
    engine->compiled_event.event.kind = ENGINE_EVENT_COMPILED;
    engine->pipelines.compiler.news = on_compiled;
    engine->pipelines.compiler.owner = engine;
    if (status == STATUS_OK)
        status = device_init(&engine->device, params, variant_least_shared_memory(),
                             hopper_wanted(params->variant), error);
    if (status == STATUS_OK)
        status = slabs_init(&engine->slabs, &engine->device, error);
    if (status == STATUS_OK)
        status = transfer_init(&engine->transfer, &engine->device, error);
    if (status == STATUS_OK)
        matrix_look(&engine->device, &engine->transfer);
    if (status == STATUS_OK)
        status =
            pipelines_init(&engine->pipelines, &engine->device, &engine->transfer, params, error);
    if (status == STATUS_OK)
        status = make_nothing(engine, error);
    if (status == STATUS_OK)
        status = carriers_init(engine, error);
    engine->max_scratch_bytes = scratch_limit(engine, params);
    engine->no_cascade = params->no_cascade;
    engine->all_cascades = params->all_cascades;
    set_watch(engine, params->completion_poll_us);
    for (int i = 0; i < ENGINE_SLOTS && status == STATUS_OK; i++)
        status = slot_init(engine, &engine->slots[i], error);
    return status;
}

static enum status start_threads(struct engine *engine, struct error *error)
{
    engine->submitter_runs =
        pthread_create(&engine->submitter, NULL, submitter_thread, engine) == 0;
    engine->completer_runs =
        pthread_create(&engine->completer, NULL, completer_thread, engine) == 0;
    engine->maker_runs = pthread_create(&engine->maker, NULL, maker_thread, engine) == 0;
    void *(*const compile)(void *) =
        engine->device.adapter.info.software ? nice_compiler_thread : compiler_thread;
    engine->compiler_runs = pthread_create(&engine->compiler, NULL, compile, engine) == 0;
    const bool carriers_start_all = carriers_start(engine);
    if (carriers_start_all && engine->compiler_runs && engine->submitter_runs &&
        engine->completer_runs && engine->maker_runs)
        return STATUS_OK;
    return error_set(error, STATUS_NO_MEMORY, "the engine's threads cannot be started");
}

// Logs the kernels of the variant, in the order in which they are tried.
static void log_kernels(struct engine *engine)
{
    const struct variant *variant = engine->pipelines.variant;
    for (uint32_t i = 0; i < variant->num_kernels; i++)
        device_log(&engine->device, 3, "attention kernel %u: %s", i,
                   variant->kernels[i]->shader.name);
}

enum status engine_create(const struct engine_params *params, struct engine **out,
                          struct error *error)
{
    struct engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return error_set(error, STATUS_NO_MEMORY, "no memory for an engine");
    engine->wake = params->wake;
    engine->context = params->context;
    engine->device.on_lost = on_lost;
    engine->device.owner = engine;
    enum status status = make_parts(engine, params, error);
    if (status == STATUS_OK)
        status = start_threads(engine, error);
    if (status != STATUS_OK) {
        engine_destroy(engine);
        return status;
    }
    const struct engine_device *info = &engine->device.adapter.info;
    device_log(&engine->device, 2,
               "device %u: %s (%s, %s), attention variant %s, arenas %s, copies of tiers on %s",
               info->index, info->name, info->type, info->driver, engine_variant(engine),
               info->host_import ? "imported" : "mirrored", carriers_name(engine));
    log_kernels(engine);
    *out = engine;
    return STATUS_OK;
}

// ---- destroy ----

static bool all_gone(const struct engine *engine)
{
    return engine->submitter_gone && engine->completer_gone && engine->maker_gone &&
           carriers_gone(engine);
}

static void join(pthread_t thread, bool *runs)
{
    if (*runs)
        pthread_join(thread, NULL);
    *runs = false;
}

// With the lock held. false: *gone is not true in time.
static bool await(struct engine *engine, bool (*gone)(const struct engine *), int64_t deadline_ns)
{
    int rc = 0;
    while (!gone(engine) && rc != ETIMEDOUT)
        rc = clock_wait(&engine->changed, &engine->lock, deadline_ns);
    return gone(engine);
}

static bool compiler_gone(const struct engine *engine)
{
    return engine->compiler_gone;
}

// The other threads have ended, so that none waits for a pipeline any more. A compile that is under
// way cannot be stopped.
static bool stop_compiler(struct engine *engine, int64_t deadline_ns)
{
    if (!engine->compiler_runs)
        return true;
    compiler_stop(&engine->pipelines.compiler);
    pthread_mutex_lock(&engine->lock);
    bool gone = await(engine, compiler_gone, deadline_ns);
    pthread_mutex_unlock(&engine->lock);
    if (gone)
        join(engine->compiler, &engine->compiler_runs);
    return gone;
}

// A thread that was never started counts as ended. false: not all threads ended in time.
static bool stop_threads(struct engine *engine, int64_t deadline_ns)
{
    pipelines_quit(&engine->pipelines);
    pthread_mutex_lock(&engine->lock);
    engine->stopping = true;
    engine->submitter_gone |= !engine->submitter_runs;
    engine->completer_gone |= !engine->completer_runs;
    engine->maker_gone |= !engine->maker_runs;
    pthread_cond_broadcast(&engine->changed);
    pthread_cond_signal(&engine->more);
    maker_wake(engine);
    carriers_stop(engine);
    bool gone = await(engine, all_gone, deadline_ns);
    pthread_mutex_unlock(&engine->lock);
    if (!gone || !stop_compiler(engine, deadline_ns))
        return false;
    join(engine->submitter, &engine->submitter_runs);
    join(engine->completer, &engine->completer_runs);
    join(engine->maker, &engine->maker_runs);
    carriers_join(engine);
    return true;
}

// Whether nothing on the GPU can still run. Without a loss, the completer and the carriers have
// seen everything end.
static bool at_rest(struct engine *engine, uint64_t timeout_ns)
{
    bool hung = atomic_load(&engine->device.hung);
    if (!hung && !engine->lost)
        return true;
    uint64_t sequence = engine->completed;
    struct submission *submission;
    LIST_EACH(engine->flying, submission)
        if (submission->slot && submission->sent)
            sequence = submission->sequence;
    VkResult result = device_wait(&engine->device, STREAM_RUNS, sequence, timeout_ns);
    if (result == VK_SUCCESS)
        result = carriers_wait(engine, timeout_ns);
    if (result == VK_ERROR_DEVICE_LOST && !hung) // a lost device runs nothing more
        return true;
    return result == VK_SUCCESS && transfer_at_rest(&engine->transfer, timeout_ns);
}

static void free_submissions(struct submission **list)
{
    struct submission *submission, *next;
    LIST_EACH_SAFE(*list, submission, next)
        submission_free(submission);
    *list = NULL;
}

// Frees what the caller did not destroy, or could not because it was in use.
static void free_leftovers(struct engine *engine)
{
    jobs_finish(engine);
    events_finish(engine);
    free_submissions(&engine->waiting);
    free_submissions(&engine->flying);
    carriers_finish(engine);
    while (engine->batches) {
        struct engine_batch *batch = engine->batches;
        LIST_DELETE(engine->batches, batch);
        batch_free(batch);
    }
    joints_finish(engine);
    while (engine->caches) {
        struct engine_cache *cache = engine->caches;
        LIST_DELETE(engine->caches, cache);
        cache_free(cache);
    }
    while (engine->arenas) {
        struct engine_arena *arena = engine->arenas;
        LIST_DELETE(engine->arenas, arena);
        arena_free(arena);
    }
}

static void free_parts(struct engine *engine)
{
    for (int i = 0; i < ENGINE_SLOTS; i++)
        slot_finish(engine, &engine->slots[i]);
    if (engine->pipelines.device)
        pipelines_finish(&engine->pipelines);
    if (engine->transfer.device)
        transfer_finish(&engine->transfer);
    if (engine->slabs.device)
        slabs_finish(&engine->slabs);
    device_finish(&engine->device);
}

// Time in ns that the GPU may still take to become idle.
static uint64_t grace_left(int64_t deadline_ns)
{
    const int64_t left_ns = deadline_ns - clock_now_ns();
    return left_ns < 0 ? 0 : (uint64_t)left_ns < grace_ns ? (uint64_t)left_ns : grace_ns;
}

bool engine_destroy_within(struct engine *engine, int timeout_ms)
{
    if (!engine)
        return true;
    const int64_t deadline_ns = clock_deadline_ns(timeout_ms);
    if ((engine->chores_made && !stop_threads(engine, deadline_ns)) ||
        !at_rest(engine, grace_left(deadline_ns))) {
        device_log(&engine->device, 0,
                   "device %s does not become idle; its memory is left to the driver",
                   engine->device.adapter.info.name);
        return false; // the GPU may still use all memory
    }
    free_leftovers(engine);
    free_parts(engine);
    engine_locks_finish(engine);
    free(engine);
    return true;
}

void engine_destroy(struct engine *engine)
{
    (void)engine_destroy_within(engine, -1); // if it fails, the process ends soon
}

// ---- questions ----

const struct engine_device *engine_device(const struct engine *engine)
{
    return &engine->device.adapter.info;
}

enum status engine_kv_check(const struct engine *engine, enum engine_place place,
                            const struct engine_kv *kv, struct error *error)
{
    return kv_check(place, kv, engine->device.adapter.max_groups[0], error);
}

uint64_t engine_budget_bytes(struct engine *engine)
{
    return adapter_budget(&engine->device.adapter, atomic_load(&engine->device.pool_bytes));
}

uint32_t engine_num_pipelines(struct engine *engine)
{
    return atomic_load(&engine->pipelines.count);
}

void engine_metrics(const struct engine *engine, uint64_t metrics[NUM_ENGINE_METRICS])
{
    for (int i = 0; i < NUM_ENGINE_METRICS; i++)
        metrics[i] = atomic_load_explicit(&engine->device.metrics[i], memory_order_relaxed);
}

bool engine_line_resume(struct engine *engine, uint64_t line)
{
    return line_resume(&engine->pipelines.compiler, line);
}

void engine_line_end(struct engine *engine, uint64_t line)
{
    line_end(&engine->pipelines.compiler, line);
}

const char *engine_variant(const struct engine *engine)
{
    return engine->pipelines.variant->name;
}

bool engine_variant_at(const struct engine *engine, uint32_t index, struct engine_variant_info *out)
{
    const struct variant *variant = variant_at(index);
    if (!variant)
        return false;
    *out = (struct engine_variant_info){.name = variant->name, .needs = variant->needs};
    if (variant == engine->pipelines.variant)
        hopper_states_refusals(&engine->pipelines.natives, out->missing, sizeof out->missing);
    else
        variant_missing(variant, &engine->device.adapter, out->missing, sizeof out->missing);
    return true;
}

uint32_t engine_validation_messages(const struct engine *engine)
{
    return atomic_load(&engine->device.instance.validation_messages);
}
