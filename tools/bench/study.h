// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// study.h - what sharing a GPU costs and gives: several cases each, measured in one run, so that
// their ratios mean something. A study prints a figure (figure.h) a case.

#ifndef AULE_BENCH_STUDY_H
#define AULE_BENCH_STUDY_H

#include "figure.h"
#include "fleet.h"
#include "world.h"

struct study {
    const char *name;
    struct options options; // pool_gib set
    struct figure_device device;
    uint64_t heap_bytes;
    bool software, people;
};

// False: something was wrong or not to be had; standard error says what.
bool study_border(const struct study *study); // border.c
bool study_step(const struct study *study);
bool study_clients(const struct study *study); // crowd.c
bool study_fairness(const struct study *study);
bool study_copies(const struct study *study); // copies.c
bool study_growth(const struct study *study); // costs.c

// By its name; false also where there is none.
bool study_run(const struct study *study);
// False: the study does not take one of the options that were given, and standard error says which.
bool study_takes(const char *name, const struct options *options);
bool study_starts_daemon(const char *name);

// ---- what they have in common ----

// Of the options, with a daemon of its own that measures no tuning meanwhile: both sides take the
// kernels' rules.
bool study_fleet(const struct study *study, struct fleet *fleet);
// What cases run, and what they are called after: a workload, or on a software device a smaller one
// in its place.
struct subject {
    struct selection selection; // owned
    const struct workload *workload;
    char name[2 * WORKLOAD_NAME_SIZE]; // "D1", or "D1 as decode:8x128"
};
// `smaller` NULL = none is needed. False: standard error says why. Ends with subject_finish() in
// either case.
bool study_subject(const struct study *study, const char *name, const char *smaller,
                   struct subject *subject);
void subject_finish(struct subject *subject);

struct figure study_figure(const struct study *study, const char *via,
                           const struct workload *workload, double steps);
bool study_say(const struct study *study, const struct figure *figure);

#endif
