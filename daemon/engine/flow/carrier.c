// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// carrier.c - see carrier.h. A haul that waits for a submission waits on the CPU, so a stream never
// waits on the GPU for work that is not submitted yet. That would stop a queue that streams share.
//
// Beside runs hauls go to copy engines. A shader is faster (haul_shader.c), but takes more from a
// decode beside it. Probably the shader slows the workgroups on its multiprocessors, and a dispatch
// ends with its slowest workgroup.
// While there are no runs, the shader gets hauls into a cache. Hauls out of a cache go to copy
// engines first, and to the shader when these are busy. Runs that come meanwhile take the shader's
// waiting hauls to the copy engines; at most CARRIER_SLOTS of each stream are on the GPU already.
// A device that has streams of one kind only uses these for all hauls.

#include "carrier.h"

#include "base/clock.h"
#include "base/container_of.h"
#include "base/list.h"
#include "engine/memory/arena.h"
#include "engine/memory/cache.h"
#include "engine/vulkan/vk.h"
#include "haul_shader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

// A worker that decodes comes back within this time.
static const int64_t runs_linger_ns = 5 * NS_PER_MS;

// One haul runs, and one stands behind it.
enum { CARRIER_SLOTS = 2, NUM_CARRIERS = NUM_STREAMS - STREAM_FIRST_HAULS };

struct haul {
    struct event_node node;   // the ENGINE_EVENT_HAULED
    struct haul *prev, *next; // carriers->live, until it is reported
    struct haul *behind;      // of its stream, while it waits
    uint64_t number, after;
    bool out; // of the cache
    struct engine_cache *cache;
    const struct engine_arena *arena;
    uint32_t num_copies;
    struct engine_copy copies[]; // [num_copies]
};

struct carrier_slot {
    VkCommandPool pool;
    VkCommandBuffer commands;
    struct haul *haul;         // on the GPU
    struct haul_ranges ranges; // the haul's, in a stream of shaders
};

// What one thread has, if the device has its stream. The lock guards all that is not said to be the
// thread's.
struct carrier {
    struct engine *engine;
    enum stream_kind stream;
    pthread_t thread;
    bool runs, gone, stopping, cond_made;
    pthread_cond_t more;                      // a haul, the end of a submission, or the end
    uint32_t num_live;                        // hauls of this stream that are not reported
    struct haul *waiting, *newest;            // a list through `behind`; the newest one of it
    struct carrier_slot slots[CARRIER_SLOTS]; // see slot_of()
    uint64_t sent, ended;                     // numbers in the stream; the thread's
};

struct carriers {
    struct haul_shader shader;
    struct carrier list[NUM_CARRIERS];
    uint64_t last;     // number of the newest haul; the lock guards this and the next
    struct haul *live; // hauls that are not reported; owned
};

static bool has_lane(const struct carrier *carrier)
{
    return carrier->engine->device.streams[carrier->stream].queue != NULL;
}

static bool uses_shader(const struct carrier *carrier)
{
    return carrier->stream == STREAM_SHADER_1 || carrier->stream == STREAM_SHADER_2;
}

static struct carrier_slot *slot_of(struct carrier *carrier, uint64_t number)
{
    return &carrier->slots[number % CARRIER_SLOTS];
}

// ---- recording ----

static VkBufferCopy region_of(const struct haul *haul, const struct engine_copy *copy,
                              uint32_t layer, VkBuffer *block_buffer, VkBuffer *arena_buffer_out)
{
    const bool out = haul->out;
    struct engine_cache *cache = haul->cache;
    uint64_t in_arena = copy->offset + layer * cache->layer_block_bytes, in_cache = 0;
    *arena_buffer_out = arena_buffer(haul->arena, &in_arena)->handle;
    if (!cache_block_place(cache, layer, out ? copy->from : copy->to, block_buffer, &in_cache))
        *block_buffer = VK_NULL_HANDLE;
    return (VkBufferCopy){.srcOffset = out ? in_cache : in_arena,
                          .dstOffset = out ? in_arena : in_cache,
                          .size = cache->layer_block_bytes};
}

// Copies that have both buffers in common become one command.
struct regions {
    VkCommandBuffer commands;
    bool out;
    VkBuffer block, arena;
    VkBufferCopy *list; // [most]
    uint32_t count, most;
};

static void flush(struct regions *regions)
{
    if (regions->count)
        vkCmdCopyBuffer(regions->commands, regions->out ? regions->block : regions->arena,
                        regions->out ? regions->arena : regions->block, regions->count,
                        regions->list);
    regions->count = 0;
}

static void add(struct regions *regions, VkBuffer block, VkBuffer arena, const VkBufferCopy *region)
{
    if (!block) // its chunk has no memory, so no run has written it
        return;
    if (block != regions->block || arena != regions->arena || regions->count == regions->most)
        flush(regions);
    regions->block = block;
    regions->arena = arena;
    regions->list[regions->count++] = *region;
}

static void record_copies(VkCommandBuffer commands, const struct haul *haul)
{
    VkBufferCopy list[256];
    struct regions regions = {
        .commands = commands, .out = haul->out, .list = list, .most = sizeof list / sizeof *list};
    for (uint32_t i = 0; i < haul->num_copies; i++)
        for (uint32_t layer = 0; layer < haul->cache->params.num_layers; layer++) {
            VkBuffer block, arena;
            const VkBufferCopy region = region_of(haul, &haul->copies[i], layer, &block, &arena);
            add(&regions, block, arena, &region);
        }
    flush(&regions);
}

// By the shader. A block whose chunk has no memory is left out: no run has written it.
static enum status record_ranges(struct carrier *carrier, struct carrier_slot *slot,
                                 const struct haul *haul, struct error *error)
{
    struct engine *engine = carrier->engine;
    struct engine_cache *cache = haul->cache;
    struct haul_ranges *ranges = &slot->ranges;
    const uint32_t num_layers = cache->params.num_layers;
    const enum status status =
        haul_ranges_begin(ranges, &engine->device, haul->num_copies * num_layers, error);
    for (uint32_t i = 0; status == STATUS_OK && i < haul->num_copies; i++)
        for (uint32_t layer = 0; layer < num_layers; layer++) {
            const struct engine_copy *copy = &haul->copies[i];
            uint64_t offset = copy->offset + layer * cache->layer_block_bytes;
            const uint64_t base = arena_buffer(haul->arena, &offset)->address, host = base + offset,
                           block =
                               cache_block_address(cache, layer, haul->out ? copy->from : copy->to);
            if (block)
                ranges->list[ranges->count++] =
                    (struct gpu_range){.from = haul->out ? block : host,
                                       .to = haul->out ? host : block,
                                       .bytes = cache->layer_block_bytes};
        }
    if (status == STATUS_OK)
        haul_shader_record(&engine->carriers->shader, engine, slot->commands, ranges,
                           cache->layer_block_bytes);
    return status;
}

// Afterwards the CPU and later hauls of this stream see what was copied. Other streams wait for
// this stream's timeline.
static void closing_barrier(VkCommandBuffer commands, bool by_shader)
{
    const VkPipelineStageFlags stage =
        by_shader ? VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT : VK_PIPELINE_STAGE_TRANSFER_BIT;
    const VkAccessFlags reads = by_shader ? VK_ACCESS_SHADER_READ_BIT : VK_ACCESS_TRANSFER_READ_BIT,
                        writes =
                            by_shader ? VK_ACCESS_SHADER_WRITE_BIT : VK_ACCESS_TRANSFER_WRITE_BIT;
    const VkMemoryBarrier memory = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = writes,
        .dstAccessMask = reads | writes | VK_ACCESS_HOST_READ_BIT,
    };
    vkCmdPipelineBarrier(commands, stage, stage | VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &memory, 0,
                         NULL, 0, NULL);
}

static enum status send(struct carrier *carrier, struct carrier_slot *slot, struct haul *haul,
                        struct error *error)
{
    struct device *device = &carrier->engine->device;
    enum status status = STATUS_OK;
    const VkCommandBufferBeginInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
        .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT,
    };
    VK_TRY(vkResetCommandPool(device->handle, slot->pool, 0));
    VK_TRY(vkBeginCommandBuffer(slot->commands, &info));
    if (uses_shader(carrier))
        status = record_ranges(carrier, slot, haul, error);
    else
        record_copies(slot->commands, haul);
    if (status != STATUS_OK)
        return status;
    closing_barrier(slot->commands, uses_shader(carrier));
    VK_TRY(vkEndCommandBuffer(slot->commands));
    VK_TRY(
        device_submit(device, carrier->stream, slot->commands, carrier->sent + 1, VK_NULL_HANDLE));
    slot->haul = haul;
    carrier->sent++;
fail:
    return status;
}

// ---- the end of a haul ----

static void end_event(struct engine *engine, struct event_node *node)
{
    (void)engine;
    free(container_of(node, struct haul, node));
}

static void report(struct carrier *carrier, struct haul *haul, const struct error *outcome)
{
    struct engine *engine = carrier->engine;
    haul->node.event =
        (struct engine_event){.kind = ENGINE_EVENT_HAULED, .haul = haul->number, .error = *outcome};
    pthread_mutex_lock(&engine->lock);
    LIST_DELETE(engine->carriers->live, haul);
    carrier->num_live--;
    event_post(engine, &haul->node);
    pthread_mutex_unlock(&engine->lock);
    engine_wake(engine);
}

// Waits for the oldest haul on the GPU. False: it will never end.
static bool end_oldest(struct carrier *carrier)
{
    struct device *device = &carrier->engine->device;
    struct carrier_slot *slot = slot_of(carrier, carrier->ended + 1);
    const struct haul *haul = slot->haul;
    const uint64_t bytes =
        haul->num_copies * haul->cache->layer_block_bytes * haul->cache->params.num_layers;
    const VkResult result = device_watch_stream(device, carrier->stream, carrier->ended + 1);
    if (result != VK_SUCCESS) {
        if (result == VK_TIMEOUT)
            atomic_store(&device->hung, true);
        device_lose(device, "haul %llu did not end in %llu ms (%s)",
                    (unsigned long long)haul->number,
                    (unsigned long long)device->watchdog_ns / 1000000, vk_result_name(result));
        return false;
    }
    carrier->ended++;
    atomic_store(&device->streams[carrier->stream].passed, carrier->ended);
    device_count(device, ENGINE_METRIC_HAULED_BYTES, bytes);
    report(carrier, slot->haul, &(struct error){.status = STATUS_OK});
    slot->haul = NULL;
    return true;
}

// ---- which stream carries a haul; with the lock held ----

static bool may_begin(const struct carrier *carrier)
{
    return !carrier->engine->lost && carrier->waiting &&
           carrier->waiting->after <= carrier->engine->completed;
}

// The stream of the kind with the fewest hauls; NULL: there is none.
static struct carrier *least_busy(struct carriers *carriers, bool by_shader)
{
    struct carrier *least = NULL;
    for (int i = 0; i < NUM_CARRIERS; i++) {
        struct carrier *carrier = &carriers->list[i];
        if (has_lane(carrier) && uses_shader(carrier) == by_shader &&
            (!least || carrier->num_live < least->num_live))
            least = carrier;
    }
    return least;
}

// There are runs, or there were a moment ago. The engine does not see the runs of processes that
// use an exported cache by kernels of their own, so there may always be some.
static bool has_runs(const struct engine *engine, const struct engine_cache *cache)
{
    return cache->params.exported || engine->num_with_runs ||
           clock_now_ns() - engine->runs_ended_ns < runs_linger_ns;
}

static struct carrier *choose(struct carriers *carriers, const struct haul *haul)
{
    struct carrier *copies = least_busy(carriers, false), *shader = least_busy(carriers, true);
    if (!copies || !shader)
        return copies ? copies : shader;
    return has_runs(copies->engine, haul->cache) || (haul->out && copies->num_live == 0) ? copies
                                                                                         : shader;
}

static void give(struct carrier *carrier, struct haul *haul)
{
    haul->behind = NULL;
    if (carrier->waiting)
        carrier->newest->behind = haul;
    else
        carrier->waiting = haul;
    carrier->newest = haul;
    carrier->num_live++;
    pthread_cond_signal(&carrier->more);
}

// Gives hauls that a shader would begin now to copy engines if there are runs by now. While the
// engine ends, the threads of copy engines may have ended.
static void pass_on(struct carrier *carrier)
{
    struct carriers *carriers = carrier->engine->carriers;
    struct haul *haul;
    while (uses_shader(carrier) && !carrier->stopping && may_begin(carrier) &&
           has_runs(carrier->engine, carrier->waiting->cache) && least_busy(carriers, false)) {
        haul = carrier->waiting;
        carrier->waiting = haul->behind;
        carrier->num_live--;
        give(least_busy(carriers, false), haul);
    }
}

// ---- the thread ----

// With the lock held. Takes the next haul. NULL: none can begin now.
static struct haul *take(struct carrier *carrier)
{
    pass_on(carrier);
    struct haul *haul = may_begin(carrier) ? carrier->waiting : NULL;
    if (haul)
        carrier->waiting = haul->behind;
    return haul;
}

// The same. `sleeps`: waits for a haul; then NULL means that the thread ends.
static struct haul *await(struct carrier *carrier, bool sleeps)
{
    struct engine *engine = carrier->engine;
    pthread_mutex_lock(&engine->lock);
    struct haul *haul = take(carrier);
    while (sleeps && !haul && !engine->lost && !(carrier->stopping && !carrier->waiting)) {
        pthread_cond_wait(&carrier->more, &engine->lock);
        haul = take(carrier);
    }
    pthread_mutex_unlock(&engine->lock);
    return haul;
}

static void begin(struct carrier *carrier, struct haul *haul)
{
    struct error error = {.status = STATUS_OK};
    struct carrier_slot *slot = slot_of(carrier, carrier->sent + 1);
    error.status = send(carrier, slot, haul, &error);
    if (error.status != STATUS_OK)
        report(carrier, haul, &error);
}

static void *carrier_thread(void *argument)
{
    struct carrier *carrier = argument;
    struct engine *engine = carrier->engine;
    bool goes_on = true;
    while (goes_on) {
        const uint64_t flying = carrier->sent - carrier->ended;
        struct haul *haul = flying < CARRIER_SLOTS ? await(carrier, flying == 0) : NULL;
        if (haul)
            begin(carrier, haul);
        else
            goes_on = flying && end_oldest(carrier);
    }
    pthread_mutex_lock(&engine->lock);
    carrier->gone = true;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

// ---- the caller's part ----

bool engine_hauls(const struct engine *engine)
{
    return engine->carriers != NULL;
}

static enum status check(const struct engine_haul *params, struct error *error)
{
    const bool out = params->copies[0].to == ENGINE_COPY_ARENA;
    if (!params->arena->imported)
        return error_set(error, STATUS_INVALID, "a haul from or to an arena that is not imported");
    for (uint32_t i = 0; i < params->num_copies; i++) {
        const struct engine_copy *copy = &params->copies[i];
        if ((out ? copy->to : copy->from) != ENGINE_COPY_ARENA || (out ? copy->from : copy->to) < 0)
            return error_set(
                error, STATUS_INVALID, "copy %u of a haul %s goes from block %d to block %d", i,
                out ? "out of a cache" : "into a cache", (int)copy->from, (int)copy->to);
    }
    return STATUS_OK;
}

// With the lock held. Returns the haul's number; the stream's thread may free the haul as soon as
// the lock is free.
static uint64_t queue(struct carriers *carriers, struct haul *haul)
{
    haul->number = ++carriers->last;
    LIST_APPEND(carriers->live, haul);
    give(choose(carriers, haul), haul);
    return haul->number;
}

enum status engine_haul(struct engine *engine, const struct engine_haul *params, uint64_t *number,
                        struct error *error)
{
    enum status status = check(params, error);
    if (status != STATUS_OK)
        return status;
    struct haul *haul = calloc(1, sizeof *haul + params->num_copies * sizeof *haul->copies);
    if (!haul)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a haul of %u blocks",
                         params->num_copies);
    haul->node.end = end_event;
    haul->after = params->after;
    haul->cache = params->cache;
    haul->arena = params->arena;
    haul->num_copies = params->num_copies;
    memcpy(haul->copies, params->copies, params->num_copies * sizeof *haul->copies);
    haul->out = params->copies[0].to == ENGINE_COPY_ARENA;
    pthread_mutex_lock(&engine->lock);
    if (engine->lost)
        status = error_set(error, STATUS_DEVICE_LOST, "the device is lost");
    else if (params->after > engine->last_sequence)
        status =
            error_set(error, STATUS_INVALID, "a haul after submission %llu; the last is %llu",
                      (unsigned long long)params->after, (unsigned long long)engine->last_sequence);
    else
        *number = queue(engine->carriers, haul);
    pthread_mutex_unlock(&engine->lock);
    if (status != STATUS_OK)
        free(haul);
    return status;
}

// With the lock held.
static bool is_live(const struct carriers *carriers, uint64_t number)
{
    const struct haul *haul;
    LIST_EACH(carriers->live, haul)
        if (haul->number == number)
            return true;
    return false;
}

enum status engine_haul_wait(struct engine *engine, uint64_t number, int timeout_ms)
{
    const int64_t deadline_ns = clock_deadline_ns(timeout_ms);
    const struct carriers *carriers = engine->carriers;
    int rc = 0;
    if (!carriers)
        return STATUS_NOT_FOUND;
    pthread_mutex_lock(&engine->lock);
    while (is_live(carriers, number) && !engine->lost && rc != ETIMEDOUT)
        rc = clock_wait(&engine->changed, &engine->lock, deadline_ns);
    const enum status status = number > carriers->last      ? STATUS_NOT_FOUND
                               : !is_live(carriers, number) ? STATUS_OK
                               : engine->lost               ? STATUS_DEVICE_LOST
                                                            : STATUS_TIMEOUT;
    pthread_mutex_unlock(&engine->lock);
    return status;
}

// ---- the life of the threads ----

static enum status make_slot(struct carrier *carrier, struct carrier_slot *slot,
                             struct error *error)
{
    struct device *device = &carrier->engine->device;
    enum status status = STATUS_OK;
    const VkCommandPoolCreateInfo pool = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
        .flags = VK_COMMAND_POOL_CREATE_TRANSIENT_BIT,
        .queueFamilyIndex = device->streams[carrier->stream].queue->family,
    };
    VK_TRY(vkCreateCommandPool(device->handle, &pool, NULL, &slot->pool));
    const VkCommandBufferAllocateInfo commands = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        .commandPool = slot->pool,
        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
        .commandBufferCount = 1,
    };
    VK_TRY(vkAllocateCommandBuffers(device->handle, &commands, &slot->commands));
    DEVICE_NAME(device, COMMAND_POOL, slot->pool, "haul in stream %d", (int)carrier->stream);
    DEVICE_NAME(device, COMMAND_BUFFER, slot->commands, "haul in stream %d", (int)carrier->stream);
fail:
    return status;
}

static enum status make_carrier(struct carrier *carrier, struct error *error)
{
    enum status status = STATUS_OK;
    carrier->cond_made = pthread_cond_init(&carrier->more, NULL) == 0;
    if (!carrier->cond_made)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the threads of hauls");
    for (int i = 0; has_lane(carrier) && status == STATUS_OK && i < CARRIER_SLOTS; i++)
        status = make_slot(carrier, &carrier->slots[i], error);
    return status;
}

enum status carriers_init(struct engine *engine, struct error *error)
{
    enum status status = STATUS_OK;
    if (!device_hauls(&engine->device))
        return STATUS_OK;
    engine->carriers = calloc(1, sizeof *engine->carriers);
    if (!engine->carriers)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the threads of hauls");
    for (int i = 0; i < NUM_CARRIERS; i++) {
        engine->carriers->list[i].engine = engine;
        engine->carriers->list[i].stream = STREAM_FIRST_HAULS + (enum stream_kind)i;
    }
    if (engine->device.streams[STREAM_SHADER_1].queue)
        status = haul_shader_init(&engine->carriers->shader, engine, error);
    for (int i = 0; status == STATUS_OK && i < NUM_CARRIERS; i++)
        status = make_carrier(&engine->carriers->list[i], error);
    return status;
}

bool carriers_start(struct engine *engine)
{
    bool all = true;
    for (int i = 0; engine->carriers && i < NUM_CARRIERS; i++) {
        struct carrier *carrier = &engine->carriers->list[i];
        if (!has_lane(carrier))
            continue;
        carrier->runs = pthread_create(&carrier->thread, NULL, carrier_thread, carrier) == 0;
        all = all && carrier->runs;
    }
    return all;
}

void carriers_notice(struct engine *engine)
{
    for (int i = 0; engine->carriers && i < NUM_CARRIERS; i++)
        if (engine->carriers->list[i].waiting)
            pthread_cond_signal(&engine->carriers->list[i].more);
}

void carriers_stop(struct engine *engine)
{
    for (int i = 0; engine->carriers && i < NUM_CARRIERS; i++) {
        struct carrier *carrier = &engine->carriers->list[i];
        carrier->stopping = true;
        carrier->gone |= !carrier->runs;
        if (carrier->cond_made)
            pthread_cond_signal(&carrier->more);
    }
}

void carriers_lose(struct engine *engine)
{
    for (int i = 0; engine->carriers && i < NUM_CARRIERS; i++)
        if (engine->carriers->list[i].cond_made)
            pthread_cond_signal(&engine->carriers->list[i].more);
}

bool carriers_gone(const struct engine *engine)
{
    for (int i = 0; engine->carriers && i < NUM_CARRIERS; i++)
        if (!engine->carriers->list[i].gone)
            return false;
    return true;
}

void carriers_join(struct engine *engine)
{
    for (int i = 0; engine->carriers && i < NUM_CARRIERS; i++) {
        struct carrier *carrier = &engine->carriers->list[i];
        if (carrier->runs)
            pthread_join(carrier->thread, NULL);
        carrier->runs = false;
    }
}

VkResult carriers_wait(const struct engine *engine, uint64_t timeout_ns)
{
    VkResult result = VK_SUCCESS;
    for (int i = 0; engine->carriers && result == VK_SUCCESS && i < NUM_CARRIERS; i++) {
        const struct carrier *carrier = &engine->carriers->list[i];
        if (has_lane(carrier))
            result = device_wait(&engine->device, carrier->stream, carrier->sent, timeout_ns);
    }
    return result;
}

static void carrier_finish(struct carrier *carrier)
{
    struct device *device = &carrier->engine->device;
    for (int i = 0; i < CARRIER_SLOTS; i++) {
        vkDestroyCommandPool(device->handle, carrier->slots[i].pool, NULL); // takes VK_NULL_HANDLE
        haul_ranges_finish(&carrier->slots[i].ranges, device);
    }
    if (carrier->cond_made)
        pthread_cond_destroy(&carrier->more);
}

void carriers_finish(struct engine *engine)
{
    struct haul *haul, *next;
    if (!engine->carriers)
        return;
    LIST_EACH_SAFE(engine->carriers->live, haul, next)
        free(haul);
    for (int i = 0; i < NUM_CARRIERS; i++)
        carrier_finish(&engine->carriers->list[i]);
    haul_shader_finish(&engine->carriers->shader, &engine->device);
    free(engine->carriers);
    engine->carriers = NULL;
}

const char *carriers_name(const struct engine *engine)
{
    const struct device *device = &engine->device;
    const struct device_queue *copies = device->streams[STREAM_COPY_1].queue,
                              *shaders = device->streams[STREAM_SHADER_1].queue;
    if (!copies && !shaders)
        return "the queue of runs, as shaders";
    if (copies == device->queues)
        return "the queue of runs, apart";
    if (!shaders)
        return "transfer queues";
    return copies ? "transfer and compute queues" : "compute queues";
}
