// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// view_tune.c - what tuning measured. The command's action comes first: measure again, forget, stop
// or go on.

#include "output.h"

#include <stdio.h>
#include <stdlib.h>

#define SHOWN(heading, kind, member)                                                               \
    {                                                                                              \
#member, heading, COLUMN_##kind, offsetof(struct aule_tuning_state, member)                \
    }
static const struct column tuning_columns[] = {
    SHOWN("tuning", BOOL, enabled),
    SHOWN("software", BOOL, software),
    SHOWN("waiting", U32, num_waiting),
    SHOWN("time a kind, ms", U32, time_ms),
    SHOWN("most kinds", U32, max_entries),
    SHOWN("file", TEXT, path),
    SHOWN("note", TEXT, note),
    {.key = NULL},
};

struct tuned_row {
    struct aule_tuned_state tuned;
    const char *state;
};
#define TUNED(heading, kind, member)                                                               \
    {                                                                                              \
#member, heading, COLUMN_##kind, offsetof(struct tuned_row, tuned.member)                  \
    }
static const struct column tuned_columns[] = {
    TUNED("kernel", TEXT, kernel),
    TUNED("workgroups", U32, num_workgroups),
    TUNED("keys", U32, num_keys),
    {"state", "state", COLUMN_POINTER, offsetof(struct tuned_row, state)},
    TUNED("invocations", U32, local_size),
    TUNED("by rule", U32, rule_local_size),
    TUNED("time", NS, gpu_ns),
    TUNED("rule's time", NS, rule_gpu_ns),
    TUNED("ways", U32, num_ways),
    TUNED(NULL, U32, num_samples),
    TUNED("geometry", TEXT, geometry),
    {.key = NULL},
};

static const char *state_name(enum aule_tuned state)
{
    static const char *const names[] = {[AULE_TUNED_WAITING] = "waiting",
                                        [AULE_TUNED_MEASURED] = "measured",
                                        [AULE_TUNED_FAILED] = "failed"};
    return (size_t)state < sizeof names / sizeof *names ? names[state] : "unknown";
}

static enum exit_code print_tuning(const struct ctl *ctl, const struct aule_tuning_state *state,
                                   const struct output_list *list)
{
    if (ctl->json) {
        cJSON *array = output_entries(list);
        return array ? output_json(tuning_columns, state, list->name, array)
                     : complain(EXIT_CODE_FAILED, "no memory for the JSON document");
    }
    enum exit_code code = output_object(ctl, tuning_columns, state);
    putchar('\n');
    return code == EXIT_CODE_DONE ? output_list(ctl, list) : code;
}

static const char *const tune_actions[] = {
    [AULE_TUNE_SHOW] = "show", [AULE_TUNE_RENEW] = "renew", [AULE_TUNE_CLEAR] = "clear",
    [AULE_TUNE_OFF] = "off",   [AULE_TUNE_ON] = "on",       NULL,
};

static enum exit_code tune(struct ctl *ctl)
{
    struct aule_tuning_state state;
    struct aule_tuned_state *tuned = NULL;
    uint32_t count = 0;
    enum aule_status status =
        aule_monitor_tune(ctl->monitor, (enum aule_tune_action)ctl->choice, &state, &tuned, &count);
    if (status != AULE_OK)
        return report(ctl, status);
    struct tuned_row *rows = calloc(count + (size_t)1, sizeof *rows);
    enum exit_code code;
    if (rows) {
        for (uint32_t i = 0; i < count; i++)
            rows[i] = (struct tuned_row){tuned[i], state_name(tuned[i].state)};
        const struct output_list list = {"tuned", tuned_columns, rows, count, sizeof *rows, 3};
        code = print_tuning(ctl, &state, &list);
    } else {
        code = complain(EXIT_CODE_FAILED, "no memory for %u entries", count);
    }
    free(rows);
    free(tuned);
    return code;
}

const struct command tune_command = {
    .words = {.name = "tune",
              .argument = "[ACTION]",
              .help = "what was measured of kernels' ways: show, renew, clear, on, off",
              .groups = COMMAND_ASKS},
    .run = tune,
    .choices = tune_actions,
};
