// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// study.h - studies of sharing a GPU: several cases each, measured in one run, so that their ratios
// are meaningful. A study prints a figure (figure.h) for each case.

#ifndef AULE_BENCH_STUDY_H
#define AULE_BENCH_STUDY_H

#include "figure.h"
#include "tools/bench/fleet/fleet.h"
#include "tools/bench/world.h"

struct study {
    const char *name;
    struct options options; // pool_gib is set
    struct figure_device device;
    uint64_t heap_bytes;
    bool software, people;
};

// False: a result was wrong, or the study could not be measured; standard error says what.
bool study_border(const struct study *study); // border.c
bool study_step(const struct study *study);
bool study_clients(const struct study *study); // crowd.c
bool study_fairness(const struct study *study);
bool study_copies(const struct study *study);    // copies.c
bool study_growth(const struct study *study);    // costs.c
bool study_cached(const struct study *study);    // cached.c
bool study_share(const struct study *study);     // share/share.c
bool study_tiers(const struct study *study);     // tier/tiers.c
bool study_isolation(const struct study *study); // isolation/isolation.c

// By name. False also if there is no such study.
bool study_run(const struct study *study);
// False: the study does not take an option that was given; standard error says which.
bool study_takes(const char *name, const struct options *options);
bool study_starts_daemon(const char *name);

// ---- what they share ----

// Starts a private daemon with these options and without tuning, so that both sides use the
// kernels' default rules.
bool study_fleet(const struct study *study, struct fleet *fleet);
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
