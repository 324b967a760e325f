// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.c - the tables of aule-bench's commands and options, and which of them exclude each
// other. base/options.h says what an entry means.

#include "options.h"

#include "engine/measuring.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(KIND, member) OPTION_FIELD(KIND, struct options, member)

// Groups of commands that share options. CLIENT is the command that fleet.c starts.
enum { RUN = 1 << 0, PLOT = 1 << 1, CLIENT = 1 << 2, BOTH = RUN | CLIENT };

enum { MAX_COUNT = 4096, MAX_NUMBER = 1000000, POLL_AUTO = MAX_COUNT + 1 };

#define X(name, value, text, size) text,
static const char *const kv_dtype_words[] = {AULE_DTYPE_MAP(X) NULL}; // from DTYPE_F32
#undef X
static const char *const dtype_words[] = {"f32", "f16", "bf16", NULL};
static const char *const via_words[] = {
    [VIA_ENGINE] = "engine", [VIA_NNG] = "nng", [VIA_RING] = "ring", NULL};

static const struct option entries[] = {
    OPTION_SECTION("Where attention runs"),
    {"via", "LANE", FIELD(OPTION_CHOICE, via), VIA_ENGINE, .words = via_words, .groups = BOTH,
     .initial = "engine",
     .help = "the engine in this process, or a lane of a daemon that this program starts",
     .details = "With `engine`, q and out are in the device's memory. With `nng` and `ring`, "
                "client processes run the workload, and its time is wall time from a run's "
                "submission to its end."},
    {"clients", "N", FIELD(OPTION_COUNT, clients), 1, MAX_COUNT, .groups = BOTH, .initial = "1",
     .help = "processes that share a workload's sequences, with `--via nng` or `ring`",
     .details = "A shared prefix is written and published by the first process that claims it; "
                "the others wait for its blocks."},
    {"daemon", "FILE", FIELD(OPTION_TEXT, daemon), .groups = RUN,
     .otherwise = "the one beside this program", .help = "aule-daemon for `--via nng` and `ring`"},
    {"device", "NAME", FIELD(OPTION_TEXT, device), .groups = BOTH, .otherwise = "the best one",
     .help = "index, UUID or part of the name of the device"},
    {"variant", "NAME", FIELD(OPTION_TEXT, variant), .groups = BOTH,
     .otherwise = "`$AULE_VARIANT`, else the best that fits",
     .help = "attention shader, as `aule-ctl device` lists them"},
    {"completion-poll", "US", FIELD(OPTION_COUNT, completion_poll_us), 0, MAX_COUNT, .groups = BOTH,
     .word = "auto", .word_value = POLL_AUTO, .initial = "auto",
     .help = "poll the GPU for this long before a submission's waiter sleeps; 0: never",
     .details = "See the option of aule-daemon with this name."},

    OPTION_SECTION("Inputs"),
    {"dtype", "TYPE", FIELD(OPTION_CHOICE, dtype), DTYPE_F32, .words = dtype_words, .groups = BOTH,
     .initial = "f16", .help = "element type of q and out"},
    {"kv-dtype", "TYPE", FIELD(OPTION_CHOICE, kv_dtype), DTYPE_F32, .words = kv_dtype_words,
     .groups = BOTH, .otherwise = "as `--dtype`", .help = "element type of K and V"},
    {"token-scales", NULL, FIELD(OPTION_FLAG, token_scales), .groups = RUN,
     .otherwise = "one scale for the tensor (int8), or none",
     .help = "8-bit K and V have a scale for each token and head; only with `--via engine`",
     .details = "K and V must be in blocks."},
    {"head-dim", "N", FIELD(OPTION_COUNT, head_dim), 0, 512, .groups = BOTH, .initial = "0",
     .help = "head dim of Q, K and V, a multiple of 8 up to 512; 0: the workload's own, 128"},
    {"splits", "N", FIELD(OPTION_COUNT, splits), 0, MAX_COUNT, .groups = BOTH, .initial = "0",
     .help = "parts that a sequence's keys are cut into; 0: by the shader's rule"},
    {"contiguous", NULL, FIELD(OPTION_FLAG, contiguous), .groups = RUN,
     .help = "K and V in one piece for each head, without blocks"},
    {"no-cascade", NULL, FIELD(OPTION_FLAG, no_cascade), .groups = RUN,
     .help = "read shared keys once for each sequence, with the same bits"},
    {"pool", "GIB", FIELD(OPTION_NUMBER, pool_gib), 0, MAX_NUMBER, .groups = BOTH,
     .otherwise = "4 (E1: 8); on a software device 0.05 (E1: 0.25)",
     .help = "size of all sets of K and V, larger than any cache; for E1 the pool"},

    {"prompt", "N", FIELD(OPTION_COUNT, prompt), 0, MAX_NUMBER, .groups = BOTH, .initial = "0",
     .help = "study share: tokens that all prompts begin with; 0: 4096 with `--full`, else 512"},
    {"full", NULL, FIELD(OPTION_FLAG, full), .groups = BOTH,
     .help = "study share: 32 layers of D1's geometry, not the few of a software device"},

    OPTION_SECTION("Measuring"),
    {"seconds", "S", FIELD(OPTION_NUMBER, seconds), 0, MAX_NUMBER, .groups = BOTH, .initial = "2",
     .help = "time for each workload; the first half only warms up"},
    {"baseline", NULL, FIELD(OPTION_FLAG, baseline), .groups = RUN,
     .help = "also measure the same attention in plain C on all cores",
     .details = "It computes in f16, is compiled for the machine that aule was built on, and "
                "reports GFLOP/s."},
    {"check", NULL, FIELD(OPTION_FLAG, check), .groups = BOTH,
     .help = "check the results, and measure nothing",
     .details = "Prints a line for people for each workload, even if standard output is no "
                "terminal. `--json` prints lines for programs."},

    OPTION_SECTION("General"),
    {"json", NULL, FIELD(OPTION_FLAG, json), .groups = RUN,
     .otherwise = "if standard output is no terminal, except with `--check`",
     .help = "print one line of JSON for each workload",
     .details = "With `--check`, measurements are null."},
    {"verbose", NULL, FIELD(OPTION_FLAG, verbose), .groups = RUN,
     .help = "print on standard error the sizes of each workload, and which kernels serve it"},
    {"output", "FILE", FIELD(OPTION_TEXT, output), .groups = PLOT, .otherwise = "standard output",
     .help = "the file that `plot` writes"},

    // Options that fleet.c passes to a client.
    {"socket", "PATH", FIELD(OPTION_TEXT, socket), .groups = CLIENT},
    {"part", "N", FIELD(OPTION_COUNT, part), 0, MAX_COUNT, .groups = CLIENT},
    {"in-flight", "N", FIELD(OPTION_COUNT, in_flight), 0, MAX_COUNT, .groups = CLIENT,
     .initial = "1"},
    {"append", NULL, FIELD(OPTION_FLAG, append), .groups = CLIENT},
    {"cache", "NAME", FIELD(OPTION_TEXT, cache), .groups = CLIENT},
};

static const struct command {
    struct options_command words;
    const char *wants; // name of the argument, for errors
} commands[] = {
    {{"list", NULL, "list the workloads", 0}, NULL},
    {{"run", "NAME...", "run workloads or studies, and print how long each takes", RUN},
     "names; aule-bench list has them"},
    {{"plot", "FILE...", "draw lines of JSON as SVG; `-` is standard input", PLOT}, "files"},
    {{"client", "NAME", NULL, CLIENT}, "a name"},
    {{.name = NULL}, NULL},
};

static const struct options_program program = {
    .name = "aule-bench",
    .usage = "aule-bench COMMAND [ARGUMENT]... [OPTION]...",
    .about =
        "Times attention on real workloads, and the device's ceilings. Compares each workload with "
        "float64 before\n"
        "and after. NAME is a workload of `aule-bench list`; all; sharing, which are the "
        "studies; lengths or batches,\n"
        "which are decodes to plot; decode:NxLENGTH, prefill:NxLENGTH or shared:NxPREFIX+OWN.",
    .epilogue = "Exit codes: 0 all is right, 1 a result is wrong, or could not be written or "
                "drawn, 2 the command line is\n"
                "wrong, 3 it could not measure (no such device or variant; its daemon or the "
                "GPU is gone).",
    .options = entries,
    .num_options = sizeof entries / sizeof *entries,
    .commands = commands,
    .command_size = sizeof *commands,
};

const char *via_name(enum via via)
{
    return via_words[via];
}

// ---- what goes with what ----

// Options of a run that exclude each other. `other` is an option, too.
static const struct {
    const char *one, *other, *why;
} apart[] = {
    {"baseline", "check", "a check measures nothing"},
    {"seconds", "check", "a check measures nothing"},
    {"no-cascade", "contiguous", "sequences without blocks share none"},
    {"token-scales", "contiguous", "these scales are in blocks"},
};
enum { NUM_APART = sizeof apart / sizeof *apart };

// Options for a run in this process only.
static const char *const engine_only[] = {"contiguous", "no-cascade", "token-scales", "verbose"};
enum { NUM_ENGINE_ONLY = sizeof engine_only / sizeof *engine_only };

bool options_gave(const struct options *options, const char *name)
{
    return options_given(&program, &options->line, name);
}

static bool check_names(const struct command *command, const struct options *options)
{
    if (command->wants && options->num_names < 1)
        fprintf(stderr, "aule-bench: %s needs %s\n", command->words.name, command->wants);
    else if (!command->wants && options->num_names)
        fprintf(stderr, "aule-bench: %s takes no '%s'\n", command->words.name, options->names[0]);
    else
        return true;
    return false;
}

static bool check_apart(const struct options *options)
{
    for (int i = 0; i < NUM_APART; i++) {
        if (!options_gave(options, apart[i].one) || !options_gave(options, apart[i].other))
            continue;
        fprintf(stderr, "aule-bench: --%s does not go with --%s: %s\n", apart[i].one,
                apart[i].other, apart[i].why);
        return false;
    }
    for (int i = 0; i < NUM_ENGINE_ONLY && options->via != VIA_ENGINE; i++) {
        if (!options_gave(options, engine_only[i]))
            continue;
        fprintf(stderr, "aule-bench: --%s goes with --via engine only, not with --via %s\n",
                engine_only[i], via_name(options->via));
        return false;
    }
    return true;
}

// As engine_params has it.
static uint32_t engine_poll_us(uint32_t asked)
{
    return asked == POLL_AUTO ? 0 : asked == 0 ? ENGINE_NO_POLL : asked;
}

enum options_result options_parse(int argc, char **argv, struct options *options)
{
    *options = (struct options){.variant = getenv("AULE_VARIANT")};
    enum options_result result = options_read(&program, argc, argv, options, &options->line);
    if (result == OPTIONS_BAD)
        fprintf(stderr, "aule-bench: %s\n", options->line.error);
    if (result != OPTIONS_RUN)
        return result;
    const struct command *command =
        // struct command begins with its options_command
        (const struct command *)(const void *)options->line.command;
    options->command = command->words.name;
    options->names = options->line.operands;
    options->num_names = options->line.num_operands;
    options->completion_poll_us = engine_poll_us(options->completion_poll_us);
    const bool run = command->words.groups == RUN;
    return check_names(command, options) && (!run || check_apart(options)) ? OPTIONS_RUN
                                                                           : OPTIONS_BAD;
}
