// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hopper.c - see hopper.h. Any thread unless it says otherwise; no state.

#include "hopper.h"

#include "shaders/hopper/index.h"

#include <stdio.h>
#include <string.h>

#ifdef AULE_HAVE_HOPPER
#include "attention_hopper_bf16_ptx.h"
#include "attention_hopper_f16_ptx.h"

#define CODE(NAME)                                                                                 \
    {                                                                                              \
#NAME, NAME##_ptx, sizeof NAME##_ptx, "attention_hopper", HOPPER_THREADS,                  \
            HOPPER_SHARED_BYTES                                                                    \
    }

const struct native_code hopper_f16 = CODE(attention_hopper_f16);
const struct native_code hopper_bf16 = CODE(attention_hopper_bf16);
#endif

// ---- what it serves ----

uint32_t hopper_rows(const struct engine_kv *kv)
{
    (void)kv;
    return HOPPER_ROWS;
}

// Copies bring rows of 256 bytes that follow each other, as in the pool.
bool hopper_serves(const struct geometry *geometry, enum dtype element)
{
    const uint32_t *spec = geometry->spec;
    const uint32_t features = AULE_FEATURE_LSE;
    return spec[AULE_SPEC_PLACE] == AULE_PLACE_POOL && !spec[AULE_SPEC_V_IN_K] &&
           spec[AULE_SPEC_HEAD_DIM_K] == HOPPER_DIM && spec[AULE_SPEC_HEAD_DIM_V] == HOPPER_DIM &&
           spec[AULE_SPEC_IO_DTYPE] == element && spec[AULE_SPEC_K_DTYPE] == element &&
           spec[AULE_SPEC_V_DTYPE] == element &&
           spec[AULE_SPEC_SCALE_MODE] == AULE_SCALE_NONE_MODE &&
           spec[AULE_SPEC_BLOCK_SIZE] >= HOPPER_LEAST_BLOCK &&
           spec[AULE_SPEC_BLOCK_SIZE] <= HOPPER_MOST_BLOCK &&
           !(spec[AULE_SPEC_FEATURES] & ~features);
}

// ---- what it needs ----

bool hopper_wanted(const char *variant)
{
    return variant && strcmp(variant, "hopper") == 0;
}

void hopper_missing(const struct adapter *adapter, char *text, size_t size)
{
#ifdef AULE_HAVE_HOPPER
    native_missing(adapter, text, size);
#else
    (void)adapter;
    snprintf(text, size, "support in this build: aule was built without clang 19");
#endif
}

enum status hopper_look(struct device *device, struct transfer *transfer, const char *variant,
                        struct error *error)
{
    enum status status = STATUS_OK;
#ifdef AULE_HAVE_HOPPER
    const struct {
        const struct native_code *code;
        enum dtype dtype;
    } kernels[] = {{&hopper_f16, DTYPE_F16}, {&hopper_bf16, DTYPE_BF16}};
    char missing[256];
    hopper_missing(&device->adapter, missing, sizeof missing);
    bool wanted = hopper_wanted(variant);
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels && wanted && !missing[0]; i++) {
        struct error why = {0};
        status = hopper_test(device, transfer, kernels[i].code, kernels[i].dtype, &why);
        if (status == STATUS_DEVICE_LOST)
            return error_set(
                error, status,
                "native kernel %s: %.120s; without AULE_VARIANT=hopper none is started",
                kernels[i].code->name, why.text);
        if (status == STATUS_OK)
            continue;
        snprintf(device->adapter.natives.failure, sizeof device->adapter.natives.failure, "%.120s",
                 why.text);
        device_log(device, 1, "native kernels are not used: %s", why.text);
        return STATUS_OK;
    }
#else
    (void)device;
    (void)transfer;
    (void)variant;
    (void)error;
#endif
    return status;
}

// ---- launching ----

// Extras: tensor maps, struct gpu_tickets, notes.
enum {
    EXTRAS_ALIGNMENT = 128,
    MAP_BYTES = HOPPER_MAP_WORDS * 4,
    TICKETS_AT = HOPPER_NUM_MAPS * MAP_BYTES,
    NOTES_AT = TICKETS_AT + sizeof(struct gpu_tickets),
};

uint64_t hopper_measure(uint64_t at, uint32_t num_items, uint32_t num_kv_heads, uint64_t *extras_at)
{
    const uint64_t mask = EXTRAS_ALIGNMENT - 1;
    *extras_at = (at + mask) & ~mask;
    return *extras_at + NOTES_AT +
           (((uint64_t)num_items * num_kv_heads * AULE_TICKET_NOTES + 15) & ~UINT64_C(15));
}

void hopper_put(void *extras)
{
    for (uint32_t i = 0; i < HOPPER_NUM_MAPS; i++) {
        uint32_t map[HOPPER_MAP_WORDS];
        hopper_map(map, (uint32_t)HOPPER_LEAST_BLOCK << i);
        memcpy((char *)extras + i * MAP_BYTES, map, sizeof map);
    }
    memset((char *)extras + TICKETS_AT, 0, sizeof(struct gpu_tickets));
}

void hopper_record(const struct device *device, VkCommandBuffer commands,
                   const struct native *native, const struct hopper_launch *launch)
{
    const struct gpu_dispatch *constants = launch->constants;
    uint64_t work = launch->extras + TICKETS_AT, maps = launch->extras;
    // The parameters of attention_hopper(), in their order.
    const void *params[] = {
        &constants->runs,
        &constants->items,
        &work,
        &maps,
        &constants->num_runs,
        &constants->num_items,
        &launch->spec[AULE_SPEC_NUM_KV_HEADS],
        &launch->spec[AULE_SPEC_BLOCK_SIZE],
        &launch->spec[AULE_SPEC_FEATURES],
    };
    uint64_t units = (uint64_t)constants->num_items * launch->spec[AULE_SPEC_NUM_KV_HEADS];
    uint32_t blocks = units < launch->most_blocks ? (uint32_t)units : launch->most_blocks;
    native_launch(device, commands, native, blocks, params, sizeof params / sizeof *params);
}
