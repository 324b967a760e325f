// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pipeline.c - from a geometry (the specialisation constants) to a pipeline, compiled once. Knows
// nothing of runs. The compiler's thread compiles what the submitter asks for; the submitter itself
// compiles what no line waits for. The maker saves, and so does pipelines_finish().

#include "pipeline.h"

#include "base/list.h"
#include "base/uuid.h"
#include "engine/vulkan/statistics.h"
#include "engine/vulkan/vk.h"
#include "pipeline_file.h"
#include "shaders/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Clients choose shapes, so the number of pipelines needs a limit. A model uses two or three; each
// takes about 100 KB.
static const uint32_t default_most = 256;

struct pipeline {
    struct pipeline_key key;
    VkPipeline handle;
    uint64_t last_sequence; // of the last submission that uses it
    uint32_t pins;          // of the compiler: some line still waits for its turn to use it
    struct payer *payer;    // of those that use it, one with few pipelines
    struct pipeline *prev, *next;
    UT_hash_handle hh;
};

#define BIT(spec) (1u << (spec))
enum {
    SPECS_ALL = (1u << SPEC_CONSTANTS) - 1,
    SPECS_KV = BIT(AULE_SPEC_HEAD_DIM_K) | BIT(AULE_SPEC_HEAD_DIM_V) | BIT(AULE_SPEC_NUM_KV_HEADS) |
               BIT(AULE_SPEC_BLOCK_SIZE) | BIT(AULE_SPEC_K_DTYPE) | BIT(AULE_SPEC_V_DTYPE) |
               BIT(AULE_SPEC_IO_DTYPE) | BIT(AULE_SPEC_FEATURES) | BIT(AULE_SPEC_PLACE) |
               BIT(AULE_SPEC_V_IN_K) | BIT(AULE_SPEC_SCALE_MODE),
};

// The geometry's constants, then those of the device, which are the same for all pipelines.
enum { ALL_CONSTANTS = AULE_SPEC_SOFTWARE + 1 };
_Static_assert((int)SPEC_CONSTANTS == (int)AULE_SPEC_MATRIX_ROWS, "the geometry's come first");

// The constants that each kind is compiled for. The others must not make a second pipeline.
static const struct {
    uint32_t specs;    // bits by id
    uint32_t features; // AULE_FEATURE_*
} used[PIPELINE_KINDS] = {
    [PIPELINE_ATTENTION] = {SPECS_ALL, UINT32_MAX},
    [PIPELINE_SPLITS] = {SPECS_ALL, UINT32_MAX},
    [PIPELINE_KV_WRITE] = {SPECS_KV,
                           AULE_FEATURE_ROPE | AULE_FEATURE_ROPE_PAIRS | AULE_FEATURE_POSITIONS},
    [PIPELINE_GATHER] = {SPECS_KV, 0},
    [PIPELINE_COPY] = {0, 0},
    [PIPELINE_MERGE] = {BIT(AULE_SPEC_IO_DTYPE), 0},
};

static const struct shader *shader_of(const struct pipelines *pipelines, enum pipeline_kind kind,
                                      uint32_t kernel)
{
    const struct shader *shaders[PIPELINE_KINDS] = {
        [PIPELINE_ATTENTION] = &pipelines->variant->kernels[kernel]->shader,
        [PIPELINE_SPLITS] = &shader_splits,
        [PIPELINE_KV_WRITE] = &shader_kv_write,
        [PIPELINE_GATHER] = &shader_gather,
        [PIPELINE_COPY] = &shader_copy,
        [PIPELINE_MERGE] = &shader_merge,
    };
    return shaders[kind];
}

static enum status make_modules(struct pipelines *pipelines, struct error *error)
{
    const struct variant *variant = pipelines->variant;
    enum status status = STATUS_OK;
    for (int kind = 0; kind < PIPELINE_KINDS && status == STATUS_OK; kind++)
        if (kind != PIPELINE_ATTENTION)
            status = shader_module(pipelines->device, shader_of(pipelines, kind, 0),
                                   &pipelines->modules[kind], error);
    for (uint32_t i = 0; i < variant->num_kernels && status == STATUS_OK; i++)
        if (!variant->kernels[i]->is_native)
            status = shader_module(pipelines->device, &variant->kernels[i]->shader,
                                   &pipelines->kernels[i], error);
    return status;
}

static enum status make_layout(struct pipelines *pipelines, struct error *error)
{
    struct device *device = pipelines->device;
    enum status status = STATUS_OK;
    _Static_assert(sizeof(struct gpu_copy) <= sizeof(struct gpu_dispatch),
                   "the largest is the range");
    _Static_assert(sizeof(struct gpu_merging) <= sizeof(struct gpu_dispatch),
                   "the largest is the range");
    VkPushConstantRange range = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT,
                                 .size = sizeof(struct gpu_dispatch)};
    VkPipelineLayoutCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
        .pushConstantRangeCount = 1,
        .pPushConstantRanges = &range,
    };
    VK_TRY(vkCreatePipelineLayout(device->handle, &info, NULL, &pipelines->layout));
    DEVICE_NAME(device, PIPELINE_LAYOUT, pipelines->layout, "all pipelines");
fail:
    return status;
}

static enum status make_cache(struct pipelines *pipelines, struct error *error)
{
    struct device *device = pipelines->device;
    enum status status = STATUS_OK;
    VkPipelineCacheCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
    void *data =
        pipelines->path ? pipeline_file_load(device, pipelines->path, &info.initialDataSize) : NULL;
    info.pInitialData = data;
    VK_TRY(vkCreatePipelineCache(device->handle, &info, NULL, &pipelines->cache));
    DEVICE_NAME(device, PIPELINE_CACHE, pipelines->cache, "all pipelines");
fail:
    free(data);
    return status;
}

static enum status make(void *owner, const struct pipeline_key *key, struct payer *payer,
                        struct pipeline **out, struct error *error);
static void pin(struct pipeline *pipeline, int by);

static bool has_natives(const struct variant *variant)
{
    for (uint32_t i = 0; i < variant->num_kernels; i++)
        if (variant->kernels[i]->is_native)
            return true;
    return false;
}

// Has the driver's cache filled by another process. If that fails, the driver compiles at the first
// dispatch.
static void compile_apart(void *owner, const struct pipeline_key *key, bool awaited)
{
    struct pipelines *pipelines = owner;
    struct device *device = pipelines->device;
    struct compile_request request = {
        .daemon = getpid(), .awaited = awaited, .matrices = device->adapter.matrices, .key = *key};
    struct error error = {0};
    if (key->kind == PIPELINE_NATIVE)
        return;
    uuid_text(device->adapter.info.uuid, request.device);
    snprintf(request.variant, sizeof request.variant, "%s", pipelines->variant->name);
    if (compile_helper_run(&pipelines->helper, &request, &error))
        device_count(device, ENGINE_METRIC_PIPELINES_APART, 1);
    else if (error.status != STATUS_STOPPING)
        device_log(device, 1,
                   "the compile helper failed, so a pipeline is compiled while runs wait: %s",
                   error.text);
}

static enum status make_compiler(struct pipelines *pipelines, const struct engine_params *params,
                                 struct error *error)
{
    const bool apart = params->compile_program && pipelines->device->adapter.info.software;
    pipelines->compiler.compile = make;
    pipelines->compiler.prepare = apart ? compile_apart : NULL;
    pipelines->compiler.pin = pin;
    pipelines->compiler.pipelines = pipelines;
    enum status status = compile_helper_init(&pipelines->helper, params->compile_program, error);
    if (status == STATUS_OK)
        status = compiler_init(&pipelines->compiler, pipelines->most, error);
    return status;
}

enum status pipelines_init(struct pipelines *pipelines, struct device *device,
                           struct transfer *transfer, const struct engine_params *params,
                           struct error *error)
{
    pipelines->device = device;
    pipelines->most = params->max_pipelines ? params->max_pipelines : default_most;
    enum status status = make_compiler(pipelines, params, error);
    if (status == STATUS_OK)
        status = variant_choose(&device->adapter, params->variant, &pipelines->variant, error);
    if (status != STATUS_OK)
        return status;
    if (params->cache_folder &&
        !(pipelines->path = pipeline_file_path(device, params->cache_folder)))
        return error_set(error, STATUS_NO_MEMORY, "no memory for a path");
    if (has_natives(pipelines->variant))
        hopper_states_init(&pipelines->natives, device, transfer, pipelines->path);
    status = make_modules(pipelines, error);
    if (status == STATUS_OK)
        status = make_layout(pipelines, error);
    if (status == STATUS_OK)
        status = make_cache(pipelines, error);
    if (status != STATUS_OK)
        pipelines_finish(pipelines);
    return status;
}

void pipelines_quit(struct pipelines *pipelines)
{
    if (!pipelines->compiler.made)
        return;
    compiler_quit(&pipelines->compiler);
    compile_helper_stop(&pipelines->helper);
}

void pipelines_finish(struct pipelines *pipelines)
{
    struct device *device = pipelines->device;
    compiler_finish(&pipelines->compiler);
    compile_helper_finish(&pipelines->helper);
    if (pipelines_unsaved(pipelines))
        pipelines_save(pipelines);
    struct pipeline *pipeline, *next;
    HASH_ITER(hh, pipelines->by_key, pipeline, next) {
        HASH_DEL(pipelines->by_key, pipeline);
        vkDestroyPipeline(device->handle, pipeline->handle, NULL);
        payer_unref(&pipelines->compiler, pipeline->payer);
        free(pipeline);
    }
    pipelines->by_use = NULL;
    if (pipelines->cache)
        vkDestroyPipelineCache(device->handle, pipelines->cache, NULL);
    if (pipelines->layout)
        vkDestroyPipelineLayout(device->handle, pipelines->layout, NULL);
    for (int kind = 0; kind < PIPELINE_KINDS; kind++)
        // Takes VK_NULL_HANDLE.
        vkDestroyShaderModule(device->handle, pipelines->modules[kind], NULL);
    for (uint32_t i = 0; i < MOST_KERNELS; i++)
        vkDestroyShaderModule(device->handle, pipelines->kernels[i], NULL);
    hopper_states_finish(&pipelines->natives);
    free(pipelines->path);
    memset(pipelines->modules, 0, sizeof pipelines->modules);
    memset(pipelines->kernels, 0, sizeof pipelines->kernels);
    pipelines->path = NULL;
    pipelines->cache = VK_NULL_HANDLE;
    pipelines->layout = VK_NULL_HANDLE;
}

static enum status compile(struct pipelines *pipelines, struct pipeline *pipeline,
                           struct error *error)
{
    struct device *device = pipelines->device;
    enum status status = STATUS_OK;
    const struct geometry *geometry = &pipeline->key.geometry;
    enum pipeline_kind kind = pipeline->key.kind;
    const struct shader *shader = shader_of(pipelines, kind, geometry->kernel);
    const uint32_t *spec = geometry->spec;
    char text[160], name[256];
    const struct matrix_size *matrix = &device->adapter.matrices.size;
    uint32_t values[ALL_CONSTANTS] = {
        [AULE_SPEC_MATRIX_ROWS] = matrix->rows,
        [AULE_SPEC_MATRIX_COLUMNS] = matrix->columns,
        [AULE_SPEC_MATRIX_DEPTH] = matrix->depth,
        [AULE_SPEC_SUBGROUP] = device->adapter.info.subgroup_size,
        [AULE_SPEC_SOFTWARE] = device->adapter.info.software,
    };
    VkSpecializationMapEntry entries[ALL_CONSTANTS];
    memcpy(values, spec, SPEC_CONSTANTS * sizeof *spec);
    for (uint32_t i = 0; i < ALL_CONSTANTS; i++)
        entries[i] = (VkSpecializationMapEntry){i, i * (uint32_t)sizeof *values, sizeof *values};
    VkSpecializationInfo constants = {ALL_CONSTANTS, entries, sizeof values, values};
    VkPipelineShaderStageRequiredSubgroupSizeCreateInfo size;
    VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .flags = statistics_flags(device),
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = kind == PIPELINE_ATTENTION ? pipelines->kernels[geometry->kernel]
                                                       : pipelines->modules[kind],
                  .pName = "main",
                  .pSpecializationInfo = &constants},
        .layout = pipelines->layout,
    };
    if (shader->full_subgroups)
        shader_ask_for_subgroups(&device->adapter, &info.stage, &size);
    VK_TRY(vkCreateComputePipelines(device->handle, pipelines->cache, 1, &info, NULL,
                                    &pipeline->handle));
    device_count(device, ENGINE_METRIC_PIPELINES_COMPILED, 1);
    geometry_text(spec, text, sizeof text);
    DEVICE_NAME(device, PIPELINE, pipeline->handle, "%s %s", shader->name, text);
    snprintf(name, sizeof name, "%s for %s", shader->name, text);
    statistics_log(device, pipeline->handle, name);
fail:
    return status;
}

static struct pipeline_key make_key(const struct pipelines *pipelines, enum pipeline_kind kind,
                                    const struct geometry *geometry)
{
    struct pipeline_key key = {.kind = kind};
    for (uint32_t i = 0; geometry && i < SPEC_CONSTANTS; i++)
        if (used[kind].specs & BIT(i))
            key.geometry.spec[i] = geometry->spec[i];
    uint32_t *features = &key.geometry.spec[AULE_SPEC_FEATURES];
    *features &= used[kind].features;
    // A key's position matters only if it is rotated.
    if (kind == PIPELINE_KV_WRITE && !(*features & AULE_FEATURE_ROPE))
        *features = 0;
    if (kind == PIPELINE_ATTENTION)
        key.geometry.kernel = geometry->kernel;
    else
        key.geometry.spec[AULE_SPEC_LOCAL_SIZE] = shader_of(pipelines, kind, 0)->local_size;
    return key;
}

void pipelines_begin(struct pipelines *pipelines, uint64_t sequence, uint64_t passed)
{
    pthread_mutex_lock(&pipelines->compiler.lock);
    pipelines->sequence = sequence;
    pipelines->passed = passed;
    pthread_mutex_unlock(&pipelines->compiler.lock);
}

// ---- keeping; with the lock held ----

static void pin(struct pipeline *pipeline, int by)
{
    pipeline->pins += (uint32_t)by;
}

// The least recently used one of a payer that has the most.
static struct pipeline *oldest_idle(const struct pipelines *pipelines)
{
    struct pipeline *pipeline;
    struct payer *payer, *next;
    uint32_t most = 0;
    HASH_ITER(hh, pipelines->compiler.payers, payer, next)
        most = payer->num_pipelines > most ? payer->num_pipelines : most;
    LIST_EACH(pipelines->by_use, pipeline)
        if (pipeline->payer->num_pipelines == most && !pipeline->pins &&
            pipeline->last_sequence <= pipelines->passed)
            break;
    return pipeline;
}

// Evicts pipelines beyond the limit, so that a payer that asks for many evicts its own. Those that
// the GPU may still run stay, and so do those that a line waits to use, even if they are too many
// for a while. The driver's cache keeps what it compiled, so an evicted pipeline comes back fast.
static void evict(struct pipelines *pipelines)
{
    struct pipeline *oldest;
    while (HASH_COUNT(pipelines->by_key) > pipelines->most && (oldest = oldest_idle(pipelines))) {
        LIST_DELETE(pipelines->by_use, oldest);
        HASH_DEL(pipelines->by_key, oldest);
        vkDestroyPipeline(pipelines->device->handle, oldest->handle, NULL);
        oldest->payer->num_pipelines--;
        payer_unref(&pipelines->compiler, oldest->payer);
        free(oldest);
    }
    atomic_store(&pipelines->count, HASH_COUNT(pipelines->by_key));
}

static struct pipeline *find(struct pipelines *pipelines, const struct pipeline_key *key)
{
    struct pipeline *pipeline;
    HASH_FIND(hh, pipelines->by_key, key, sizeof *key, pipeline);
    return pipeline;
}

// A payer with fewer pipelines than the one that has this one uses it, too: so it stays for the
// first one's sake.
static void take_over(struct pipelines *pipelines, struct pipeline *pipeline, uint64_t number)
{
    struct payer *from = pipeline->payer;
    if (from->number == number || from->num_pipelines < 2)
        return;
    struct payer *to = payer_get(&pipelines->compiler, number);
    if (!to || to->num_pipelines + 1 >= from->num_pipelines) {
        payer_unref(&pipelines->compiler, to);
        return;
    }
    pipeline->payer = to;
    to->num_pipelines++;
    from->num_pipelines--;
    payer_unref(&pipelines->compiler, from);
}

// The submission that is being planned uses the pipeline.
static VkPipeline use(struct pipelines *pipelines, struct pipeline *pipeline, uint64_t payer)
{
    take_over(pipelines, pipeline, payer);
    LIST_DELETE(pipelines->by_use, pipeline);
    LIST_APPEND(pipelines->by_use, pipeline);
    pipeline->last_sequence = pipelines->sequence;
    return pipeline->handle;
}

static bool add(struct pipelines *pipelines, struct pipeline *pipeline, struct payer *payer)
{
    HASH_ADD(hh, pipelines->by_key, key, sizeof pipeline->key, pipeline);
    if (!pipeline->hh.tbl)
        return false;
    LIST_APPEND(pipelines->by_use, pipeline);
    pipeline->last_sequence = pipelines->sequence;
    pipeline->pins = 1;
    pipeline->payer = payer_ref(payer);
    payer->num_pipelines++;
    evict(pipelines);
    atomic_store(&pipelines->unsaved, pipelines->path != NULL);
    return true;
}

// ---- making; the compiler's thread, or the submitter ----

static enum status make_pipeline(struct pipelines *pipelines, const struct pipeline_key *key,
                                 struct payer *payer, struct pipeline **out, struct error *error)
{
    struct pipeline *pipeline = calloc(1, sizeof *pipeline);
    if (!pipeline)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a pipeline");
    pipeline->key = *key;
    enum status status = compile(pipelines, pipeline, error);
    if (status != STATUS_OK) {
        free(pipeline);
        return status;
    }
    pthread_mutex_lock(&pipelines->compiler.lock);
    bool added = add(pipelines, pipeline, payer);
    pthread_mutex_unlock(&pipelines->compiler.lock);
    *out = pipeline;
    if (added)
        return STATUS_OK;
    vkDestroyPipeline(pipelines->device->handle, pipeline->handle, NULL);
    free(pipeline);
    *out = NULL;
    return error_set(error, STATUS_NO_MEMORY, "no memory for a pipeline");
}

static enum status make(void *owner, const struct pipeline_key *key, struct payer *payer,
                        struct pipeline **out, struct error *error)
{
    struct pipelines *pipelines = owner;
    return key->kind == PIPELINE_NATIVE
               ? hopper_states_try(&pipelines->natives, key->geometry.kernel, error)
               : make_pipeline(pipelines, key, payer, out, error);
}

// ---- asking ----

// With the lock held. `key` does not exist. OK: now it does.
static enum status ask(struct pipelines *pipelines, const struct pipeline_key *key,
                       struct line_name line, struct error *error)
{
    struct compiler *compiler = &pipelines->compiler;
    if (line.number == PIPELINE_WAIT)
        return compiler_wait(compiler, key, error);
    if (line.number != PIPELINE_LATER)
        return compiler_ask(compiler, line, key, error);
    compiler_ask_early(compiler, line.payer, key);
    return error_set(error, STATUS_BUSY, "its pipeline is being compiled");
}

enum status pipeline_get(struct pipelines *pipelines, enum pipeline_kind kind,
                         const struct geometry *geometry, struct line_name line, VkPipeline *out,
                         struct error *error)
{
    const struct pipeline_key key = make_key(pipelines, kind, geometry);
    enum status status = STATUS_OK;
    struct pipeline *pipeline;
    pthread_mutex_lock(&pipelines->compiler.lock);
    while (!(pipeline = find(pipelines, &key)) && status == STATUS_OK)
        status = ask(pipelines, &key, line, error);
    if (pipeline)
        *out = use(pipelines, pipeline, line.payer);
    pthread_mutex_unlock(&pipelines->compiler.lock);
    return pipeline ? STATUS_OK : status;
}

bool pipeline_is_there(struct pipelines *pipelines, const struct geometry *geometry, bool wanted,
                       uint64_t payer)
{
    struct geometry redo = *geometry;
    redo.spec[AULE_SPEC_FEATURES] |= AULE_FEATURE_REDO;
    const struct pipeline_key keys[] = {make_key(pipelines, PIPELINE_ATTENTION, geometry),
                                        make_key(pipelines, PIPELINE_ATTENTION, &redo)};
    const int num_keys = pipelines->variant->kernels[geometry->kernel]->doubtful_keys ? 2 : 1;
    bool is_there = true;
    pthread_mutex_lock(&pipelines->compiler.lock);
    for (int i = 0; i < num_keys; i++) {
        if (find(pipelines, &keys[i]))
            continue;
        is_there = false;
        if (wanted)
            compiler_ask_early(&pipelines->compiler, payer, &keys[i]);
    }
    pthread_mutex_unlock(&pipelines->compiler.lock);
    return is_there;
}

enum status pipeline_native(struct pipelines *pipelines, const struct geometry *geometry,
                            struct line_name line, const struct native **out, struct error *error)
{
    const struct hopper_states *natives = &pipelines->natives;
    const uint32_t number = hopper_code(geometry);
    const struct pipeline_key key = {.kind = PIPELINE_NATIVE, .geometry.kernel = number};
    enum status status = STATUS_OK;
    pthread_mutex_lock(&pipelines->compiler.lock);
    while (natives->states[number] == NATIVE_UNTRIED && status == STATUS_OK)
        status = ask(pipelines, &key, line, error);
    if (natives->states[number] == NATIVE_REFUSED)
        status = error_set(error, STATUS_UNSUPPORTED, "%s", natives->refusals[number]);
    pthread_mutex_unlock(&pipelines->compiler.lock);
    *out = &natives->natives[number];
    return status;
}

bool pipeline_native_refused(const struct pipelines *pipelines, const struct geometry *geometry)
{
    const uint32_t number = hopper_code(geometry);
    return number < HOPPER_CODES && pipelines->natives.states[number] == NATIVE_REFUSED;
}

bool pipelines_unsaved(struct pipelines *pipelines)
{
    return atomic_load(&pipelines->unsaved);
}

void pipelines_save(struct pipelines *pipelines)
{
    VkDevice handle = pipelines->device->handle;
    size_t size = 0;
    atomic_store(&pipelines->unsaved, false);
    VkResult result = vkGetPipelineCacheData(handle, pipelines->cache, &size, NULL);
    void *data = result == VK_SUCCESS && size ? malloc(size) : NULL;
    if (data)
        result = vkGetPipelineCacheData(handle, pipelines->cache, &size, data);
    if (!data || result < VK_SUCCESS)
        device_log(pipelines->device, 1, "compiled pipelines are not kept: %s, %zu bytes",
                   vk_result_name(result), size);
    else
        pipeline_file_save(pipelines->device, pipelines->path, data, size);
    free(data);
}
