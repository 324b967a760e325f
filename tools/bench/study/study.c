// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// study.c - the table of studies, and what they share.

#include "study.h"

#include <stdio.h>
#include <string.h>

// `takes`: the options of `particular` that it takes, and "daemon" if it starts one.
static const struct known {
    const char *name;
    bool (*run)(const struct study *study);
    const char *takes[4];
} studies[] = {
    {"border", study_border, {"dtype", "daemon"}},
    {"step", study_step, {"dtype", "daemon"}},
    {"clients", study_clients, {"dtype", "daemon", "splits", "pool"}},
    {"fairness", study_fairness, {"dtype", "daemon", "splits", "pool"}},
    {"copies", study_copies, {"dtype"}},
    {"growth", study_growth, {NULL}},
    {"cached", study_cached, {NULL}},
    {"share", study_share, {"daemon", "prompt", "full", "whole-steps"}},
    {"tiers", study_tiers, {"daemon", "prompt", "full", "second-device"}},
    {"isolation", study_isolation, {"daemon", "dtype", "full"}},
};
enum { NUM_STUDIES = sizeof studies / sizeof *studies };

// Options of a run that some or all studies do not take, because their cases determine them.
static const char *const particular[] = {"via",        "clients",     "kv-dtype",     "contiguous",
                                         "no-cascade", "baseline",    "splits",       "pool",
                                         "dtype",      "head-dim",    "token-scales", "prompt",
                                         "full",       "whole-steps", "second-device"};
enum { NUM_PARTICULAR = sizeof particular / sizeof *particular };

static const struct known *find(const char *name)
{
    for (int i = 0; i < NUM_STUDIES; i++) {
        if (strcmp(studies[i].name, name) == 0)
            return &studies[i];
    }
    return NULL;
}

static bool takes(const struct known *study, const char *option)
{
    for (size_t i = 0; i < sizeof study->takes / sizeof *study->takes && study->takes[i]; i++) {
        if (strcmp(study->takes[i], option) == 0)
            return true;
    }
    return false;
}

bool study_run(const struct study *study)
{
    const struct known *known = find(study->name);
    return known && known->run(study);
}

bool study_starts_daemon(const char *name)
{
    const struct known *known = find(name);
    return known && takes(known, "daemon");
}

bool study_takes(const char *name, const struct options *options)
{
    const struct known *known = find(name);
    for (int i = 0; known && i < NUM_PARTICULAR; i++) {
        if (!options_gave(options, particular[i]) || takes(known, particular[i]))
            continue;
        fprintf(stderr, "aule-bench: study %s takes no --%s: its cases determine that\n", name,
                particular[i]);
        return false;
    }
    return known != NULL;
}

bool study_fleet(const struct study *study, struct fleet *fleet)
{
    return fleet_open(fleet, &study->options, false);
}

bool study_subject(const struct study *study, const char *name, const char *smaller,
                   struct subject *subject)
{
    const bool instead = smaller && study->software;
    *subject = (struct subject){.workload = NULL};
    snprintf(subject->name, sizeof subject->name, "%s%s%s", name, instead ? " as " : "",
             instead ? smaller : "");
    if (!selection_add(&subject->selection, instead ? smaller : name))
        return false;
    subject->workload = subject->selection.list;
    return true;
}

void subject_finish(struct subject *subject)
{
    selection_finish(&subject->selection);
}

struct figure study_figure(const struct study *study, const char *via,
                           const struct workload *workload, double steps)
{
    enum dtype dtype = study->options.dtype;
    struct figure figure = {.study = study->name,
                            .via = via,
                            .dtype = dtype_name((int)dtype),
                            .measured = !study->options.check};
    if (!workload)
        return figure;
    figure.bytes = steps * workload_bytes(workload, dtype, dtype);
    figure.flops = steps * workload_flops(workload);
    return figure;
}

bool study_say(const struct study *study, const struct figure *figure)
{
    if (!study->options.check || study->options.json)
        return figure_print(figure, &study->device, study->people) && figure->checked;
    figure_print_check(figure);
    return figure->checked;
}
