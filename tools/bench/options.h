// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.h - the command line.

#ifndef AULE_BENCH_OPTIONS_H
#define AULE_BENCH_OPTIONS_H

#include "base/options.h"
#include "schema/status.h"

enum via { VIA_ENGINE, VIA_NNG, VIA_RING }; // the last two: lanes of a daemon

// Groups of commands that share options. COMMAND_CLIENT is the command that rig/clients.c starts.
enum {
    COMMAND_RUN = 1 << 0,
    COMMAND_CLIENT = 1 << 1,
    COMMAND_BOTH = COMMAND_RUN | COMMAND_CLIENT,
};

// The options, a line for each; base/options.h explains it. options.c has the names of limits.
#define BENCH_OPTIONS(SECTION, OPTION)                                                             \
    SECTION("Where attention runs")                                                                \
    OPTION(enum via, via, "via", "LANE", OPTION_CHOICE, VIA_ENGINE, .words = via_words,            \
           .groups = COMMAND_BOTH, .initial = "engine",                                            \
           .help = "the engine in this process, or a lane of a daemon that this program starts",   \
           .details = "With `engine`, q and out are in the device's memory. With `nng` and "       \
                      "`ring`, client processes run the workload, and its time is wall time from " \
                      "a run's submission to its end.")                                            \
    OPTION(uint32_t, clients, "clients", "N", OPTION_COUNT, 1, MAX_COUNT, .groups = COMMAND_BOTH,  \
           .initial = "1",                                                                         \
           .help = "processes that share a workload's sequences, with `--via nng` or `ring`",      \
           .details = "A shared prefix is written and published by the first process that claims " \
                      "it; the others wait for its blocks.")                                       \
    OPTION(const char *, daemon, "daemon", "FILE", OPTION_TEXT, .groups = COMMAND_RUN,             \
           .otherwise = "the one beside this program",                                             \
           .help = "aule-daemon for `--via nng` and `ring`")                                       \
    OPTION(const char *, device, "device", "NAME", OPTION_TEXT, .groups = COMMAND_BOTH,            \
           .otherwise = "the best one", .help = "index, UUID or part of the name of the device")   \
    OPTION(const char *, variant, "variant", "NAME", OPTION_TEXT, .groups = COMMAND_BOTH,          \
           .otherwise = "`$AULE_VARIANT`, else the best that fits",                                \
           .help = "attention shader, as `aule-ctl device` lists them")                            \
    SECTION("Inputs")                                                                              \
    OPTION(enum dtype, dtype, "dtype", "TYPE", OPTION_CHOICE, DTYPE_F32,                           \
           OPTION_WORDS("f32", "f16", "bf16"), .groups = COMMAND_BOTH, .initial = "f16",           \
           .help = "element type of q and out")                                                    \
    OPTION(enum dtype, kv_dtype, "kv-dtype", "TYPE", OPTION_CHOICE, DTYPE_F32,                     \
           .words = kv_dtype_words, .groups = COMMAND_BOTH, .otherwise = "as `--dtype`",           \
           .help = "element type of K and V")                                                      \
    OPTION(uint32_t, head_dim, "head-dim", "N", OPTION_COUNT, 0, 512, .groups = COMMAND_BOTH,      \
           .initial = "0",                                                                         \
           .help =                                                                                 \
               "head dim of Q, K and V, a multiple of 8 up to 512; 0: the workload's own, 128")    \
    OPTION(uint32_t, splits, "splits", "N", OPTION_COUNT, 0, MAX_COUNT, .groups = COMMAND_BOTH,    \
           .initial = "0",                                                                         \
           .help = "parts that a sequence's keys are cut into; 0: by the shader's rule")           \
    OPTION(bool, no_cascade, "no-cascade", NULL, OPTION_FLAG, .groups = COMMAND_RUN,               \
           .help = "read shared keys once for each sequence, with the same bits")                  \
    OPTION(double, pool_gib, "pool", "GIB", OPTION_NUMBER, 0, MAX_NUMBER, .groups = COMMAND_BOTH,  \
           .otherwise = "4; on a software device 0.05",                                            \
           .help = "size of all sets of K and V, larger than any cache")                           \
    OPTION(bool, full, "full", NULL, OPTION_FLAG, .groups = COMMAND_BOTH,                          \
           .help = "study isolation: a GPU's sizes, also on a software device")                    \
    SECTION("Measuring")                                                                           \
    OPTION(double, seconds, "seconds", "S", OPTION_NUMBER, 0, MAX_NUMBER, .groups = COMMAND_BOTH,  \
           .initial = "2", .help = "time for each workload; the first half only warms up")         \
    OPTION(bool, check, "check", NULL, OPTION_FLAG, .groups = COMMAND_BOTH,                        \
           .help = "check the results, and measure nothing",                                       \
           .details = "Prints a line for people for each workload, even if standard output is no " \
                      "terminal. `--json` prints lines for programs.")                             \
    SECTION("General")                                                                             \
    OPTION(bool, json, "json", NULL, OPTION_FLAG, .groups = COMMAND_RUN,                           \
           .otherwise = "if standard output is no terminal, except with `--check`",                \
           .help = "print one line of JSON for each workload",                                     \
           .details = "With `--check`, measurements are null.")                                    \
    OPTION(bool, verbose, "verbose", NULL, OPTION_FLAG, .groups = COMMAND_RUN,                     \
           .help =                                                                                 \
               "print on standard error the sizes of each workload, and which kernels serve it")   \
    /* Options that rig/clients.c passes to a client. */                                           \
    OPTION(const char *, socket, "socket", "PATH", OPTION_TEXT, .groups = COMMAND_CLIENT)          \
    OPTION(uint32_t, part, "part", "N", OPTION_COUNT, 0, MAX_COUNT, .groups = COMMAND_CLIENT)      \
    OPTION(uint32_t, in_flight, "in-flight", "N", OPTION_COUNT, 0, MAX_COUNT,                      \
           .groups = COMMAND_CLIENT, .initial = "1")                                               \
    OPTION(bool, append, "append", NULL, OPTION_FLAG, .groups = COMMAND_CLIENT)

struct options {
    BENCH_OPTIONS(OPTION_NO_MEMBER, OPTION_MEMBER) // kv_dtype 0: as dtype; NULL: as --help says
    const char *command; // "list", "run" or "client" (started by `run --via nng`)
    char **names;        // [num_names] names of workloads; they point into argv
    int num_names;
    struct options_line line; // which options were given: options_gave()
};

// Strings point into argv. OPTIONS_BAD: standard error says why.
enum options_result options_parse(int argc, char **argv, struct options *options);
bool options_gave(const struct options *options, const char *name); // "pool": --pool was given
const char *via_name(enum via via);

#endif
