// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// study.c - the table of studies, what they share, and which options go with what is measured.

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
    {"clients", study_clients, {"dtype", "daemon", "splits", "pool"}},
    {"growth", study_growth, {NULL}},
    {"cached", study_cached, {NULL}},
    {"isolation", study_isolation, {"daemon", "dtype", "full"}},
};
enum { NUM_STUDIES = sizeof studies / sizeof *studies };

// Options of a run that some or all studies do not take, because their cases determine them.
static const char *const particular[] = {"via",  "clients", "kv-dtype", "no-cascade", "splits",
                                         "pool", "dtype",   "head-dim", "full"};
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

static bool study_heeds(const char *name, const struct options *options)
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

static bool workload_heeds(const struct workload *w, const struct options *o)
{
    const enum dtype asked = o->kv_dtype;
    if (w->kv_dtype && asked && asked != w->kv_dtype)
        fprintf(stderr, "aule-bench: %s has K and V in %s and cannot take --kv-dtype %s\n", w->name,
                dtype_name((int)w->kv_dtype), dtype_name((int)asked));
    else if (o->head_dim % 8 != 0) // the check reads elements in groups of eight
        fprintf(stderr, "aule-bench: --head-dim %u is no multiple of 8 up to 512\n", o->head_dim);
    else if (o->via != VIA_ENGINE && workload_num_seqs(w) < o->clients)
        fprintf(stderr, "aule-bench: %s has %u sequences, too few for %u clients\n", w->name,
                workload_num_seqs(w), o->clients);
    else if (o->full)
        fprintf(stderr, "aule-bench: --full goes with the study isolation only, not with %s\n",
                w->name);
    else
        return true;
    return false;
}

bool all_heed(const struct selection *selection, const struct options *options)
{
    bool daemon = options->via != VIA_ENGINE;
    for (uint32_t i = 0; i < selection->count; i++) {
        const struct workload *w = &selection->list[i];
        const struct known *known = w->is_study ? find(w->name) : NULL;
        if (!(w->is_study ? study_heeds(w->name, options) : workload_heeds(w, options)))
            return false;
        daemon |= known && takes(known, "daemon");
    }
    if (options->clients > 1 && options->via == VIA_ENGINE)
        fprintf(stderr,
                "aule-bench: --clients %u needs --via nng or ring: an engine serves one process\n",
                options->clients);
    else if (options->daemon && !daemon)
        fprintf(stderr,
                "aule-bench: --daemon does not go with --via engine, which starts no daemon\n");
    else
        return true;
    return false;
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
    struct figure figure = {.study = study->name, .via = via, .measured = !study->options.check};
    snprintf(figure.dtype, sizeof figure.dtype, "%s", dtype_name((int)dtype));
    if (!workload)
        return figure;
    figure.bytes = steps * workload_bytes(workload, dtype);
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
