// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// view_device.c - the daemon's device, and its attention shaders with why each is used or not.

#include "output.h"

#include <stdio.h>
#include <stdlib.h>

#define SHOWN(heading, kind, member)                                                               \
    {                                                                                              \
#member, heading, COLUMN_##kind, offsetof(struct aule_device_state, member)                \
    }
static const struct column device_columns[] = {
    SHOWN("device", TEXT, name),
    SHOWN("driver", TEXT, driver),
    SHOWN("type", TEXT, type),
    SHOWN("software", BOOL, software),
    SHOWN("index", U32, index),
    SHOWN("uuid", UUID, uuid),
    SHOWN("Vulkan", API_VERSION, api_version),
    SHOWN("heap", BYTES, heap_bytes),
    SHOWN("budget", BYTES, budget_bytes),
    SHOWN("largest allocation", BYTES, max_allocation_bytes),
    SHOWN("subgroup size", U32, subgroup_size),
    SHOWN("shared memory", BYTES_U32, shared_memory_bytes),
    SHOWN("arenas in place", BOOL, host_import),
    SHOWN("import alignment", BYTES, import_alignment),
    SHOWN("attention shader", TEXT, variant),
    SHOWN("pipelines", U32, pipelines),
    {.key = NULL},
};

struct variant_row {
    struct aule_variant_state variant;
    char why[340];
};
#define VARIANT(heading, kind, member)                                                             \
    {                                                                                              \
#member, heading, COLUMN_##kind, offsetof(struct variant_row, variant.member)              \
    }
static const struct column variant_columns[] = {
    VARIANT("shader", TEXT, name),
    VARIANT("used", BOOL, used),
    {"why", "why", COLUMN_TEXT, offsetof(struct variant_row, why)},
    VARIANT("needs", TEXT, needs),
    VARIANT(NULL, TEXT, missing),
    {.key = NULL},
};

// Rows come best first. The first that the device can run is used, unless one is forced.
static const char *reason(const struct aule_variant_state *variant, bool is_first, bool after_used)
{
    if (variant->used)
        return is_first ? "the best that this device can run" : "forced";
    return after_used ? "a better one is used" : "another one is forced";
}

static void explain(struct variant_row *rows, uint32_t count)
{
    bool is_first = true, after_used = false;
    for (uint32_t i = 0; i < count; i++) {
        const struct aule_variant_state *variant = &rows[i].variant;
        if (variant->missing[0] && !variant->used) {
            snprintf(rows[i].why, sizeof rows[i].why, "the device lacks %s", variant->missing);
            continue;
        }
        const bool replaced = variant->missing[0]; // some of its kernels are
        snprintf(rows[i].why, sizeof rows[i].why, "%s%s%s", reason(variant, is_first, after_used),
                 replaced ? "; GLSL replaces native kernels: " : "", variant->missing);
        is_first = false;
        after_used |= variant->used;
    }
}

static enum exit_code print_device(const struct ctl *ctl, const struct aule_device_state *state,
                                   const struct output_list *variants)
{
    if (ctl->json) {
        cJSON *array = output_entries(variants);
        return array ? output_json(device_columns, state, variants->name, array)
                     : complain(EXIT_CODE_FAILED, "no memory for the JSON document");
    }
    enum exit_code code = output_object(ctl, device_columns, state);
    putchar('\n');
    return code == EXIT_CODE_DONE ? output_list(ctl, variants) : code;
}

static enum exit_code show_device(struct ctl *ctl)
{
    struct aule_device_state state;
    struct aule_variant_state *variants = NULL;
    uint32_t count = 0;
    enum aule_status status = aule_monitor_device(ctl->monitor, &state);
    if (status == AULE_OK)
        status = aule_monitor_variants(ctl->monitor, &variants, &count);
    if (status != AULE_OK)
        return report(ctl, status);
    struct variant_row *rows = calloc(count + (size_t)1, sizeof *rows);
    enum exit_code code;
    if (rows) {
        for (uint32_t i = 0; i < count; i++)
            rows[i].variant = variants[i];
        explain(rows, count);
        const struct output_list list = {"variants", variant_columns, rows, count, sizeof *rows, 2};
        code = print_device(ctl, &state, &list);
    } else {
        code = complain(EXIT_CODE_FAILED, "no memory for %u shaders", count);
    }
    free(rows);
    free(variants);
    return code;
}

const struct command device_command = {
    .words = {.name = "device",
              .help = "show the device that the daemon owns, and its attention shaders",
              .groups = COMMAND_ASKS | COMMAND_LOOKS},
    .run = show_device,
};
