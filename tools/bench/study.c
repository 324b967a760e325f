// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// study.c - the table of studies, and what they have in common.

#include "study.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    bool (*run)(const struct study *study);
    bool splits; // takes --splits
} studies[] = {
    {"border", study_border, false},    {"step", study_step, false},     {"clients", study_clients, true},
    {"fairness", study_fairness, true}, {"copies", study_copies, false}, {"growth", study_growth, false},
};

bool study_run(const struct study *study)
{
    for (size_t i = 0; i < sizeof studies / sizeof *studies; i++) {
        if (strcmp(studies[i].name, study->name) == 0)
            return studies[i].run(study);
    }
    return false;
}

// A study's cases say themselves where and how they run.
bool study_takes(const char *name, const struct options *o)
{
    bool splits = false;
    for (size_t i = 0; i < sizeof studies / sizeof *studies; i++)
        splits |= studies[i].splits && strcmp(studies[i].name, name) == 0;
    const struct {
        const char *option;
        bool given;
    } refused[] = {
        {"via", o->via != VIA_ENGINE},    {"clients", o->clients > 1},   {"kv-dtype", o->kv_dtype != 0},
        {"splits", o->splits && !splits}, {"contiguous", o->contiguous}, {"no-cascade", o->no_cascade},
        {"baseline", o->baseline},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (!refused[i].given)
            continue;
        fprintf(stderr, "aule-bench: study %s takes no --%s: its cases say that themselves\n", name, refused[i].option);
        return false;
    }
    return true;
}

bool study_fleet(const struct study *study, struct fleet *fleet)
{
    return fleet_open(fleet, &study->options, false);
}

bool study_workload(const char *name, struct selection *selection)
{
    *selection = (struct selection){0};
    return selection_add(selection, name);
}

struct figure study_figure(const struct study *study, const char *via, const struct workload *workload, double steps)
{
    enum dtype dtype = study->options.dtype;
    struct figure figure = {.study = study->name, .via = via, .dtype = dtype_name((int)dtype)};
    if (!workload)
        return figure;
    figure.bytes = steps * workload_bytes(workload, dtype, dtype);
    figure.flops = steps * workload_flops(workload);
    return figure;
}

bool study_say(const struct study *study, const struct figure *figure)
{
    if (!study->options.check)
        return figure_print(figure, &study->device, study->people) && figure->checked;
    printf("%-8s %s: %u rows %s to %.1e\n", study->name, figure->name, figure->verdict.num_rows,
           figure->checked ? "right" : "WRONG", figure->verdict.worst);
    fflush(stdout);
    return figure->checked;
}
