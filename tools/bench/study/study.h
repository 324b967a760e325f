// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// study.h - studies of sharing a GPU: several cases each, measured in one run, so that their ratios
// are meaningful. A study prints a figure (figure.h) for each case.

#ifndef AULE_BENCH_STUDY_H
#define AULE_BENCH_STUDY_H

#include "figure.h"
#include "tools/bench/rig/rig.h"
#include "tools/bench/rig/world.h"

struct study {
    const char *name;
    struct options options; // pool_gib is set
    struct figure_device device;
    bool software, people;
};

// False: a result was wrong, or the study could not be measured; standard error says what.
bool study_border(const struct study *study);    // border.c
bool study_clients(const struct study *study);   // crowd.c
bool study_growth(const struct study *study);    // growth.c
bool study_cached(const struct study *study);    // cached.c
bool study_isolation(const struct study *study); // isolation/isolation.c

// By name. False also if there is no such study.
bool study_run(const struct study *study);
// Whether the named workloads and studies take the given options, before anything starts. False:
// standard error says what does not fit.
bool all_heed(const struct selection *selection, const struct options *options);

// ---- what they share ----

// The workload that cases run, and their name. On a software device a smaller workload replaces it.
struct subject {
    struct selection selection; // owned
    const struct workload *workload;
    char name[2 * WORKLOAD_NAME_SIZE]; // "D1", or "D1 as decode:8x128"
};
// `smaller` NULL = the workload is small enough. False: standard error says why. End with
// subject_finish() in either case.
bool study_subject(const struct study *study, const char *name, const char *smaller,
                   struct subject *subject);
void subject_finish(struct subject *subject);

struct figure study_figure(const struct study *study, const char *via,
                           const struct workload *workload, double steps);
bool study_say(const struct study *study, const struct figure *figure);

#endif
