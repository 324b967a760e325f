// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.c - the table of aule-bench's commands, the words of its options (options.h), and which
// of them exclude each other.

#include "options.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_COUNT = 4096, MAX_NUMBER = 1000000 };

#define X(name, value, text, size, largest) #text,
static const char *const kv_dtype_words[] = {AULE_DTYPE_MAP(X) NULL}; // from DTYPE_F32
#undef X
static const char *const via_words[] = {
    [VIA_ENGINE] = "engine", [VIA_NNG] = "nng", [VIA_RING] = "ring", NULL};

#define ENTRY(...) OPTION_ENTRY(struct options, __VA_ARGS__)
static const struct option entries[] = {BENCH_OPTIONS(OPTION_HEADING, ENTRY)};

static const struct command {
    struct options_command words;
    const char *wants; // name of the argument, for errors
} list = {{.name = "list", .help = "list the workloads"}, NULL},
  run = {{.name = "run",
          .argument = "NAME...",
          .help = "run workloads or studies, and print how long each takes",
          .groups = COMMAND_RUN},
         "names; aule-bench list has them"},
  client = {{.name = "client", .argument = "NAME", .groups = COMMAND_CLIENT}, "a name"};
static const struct options_command *const commands[] = {&list.words, &run.words, &client.words,
                                                         NULL};

static const struct options_program program = {
    .name = "aule-bench",
    .usage = "aule-bench COMMAND [ARGUMENT]... [OPTION]...",
    .about =
        "Times attention on real workloads, and the device's ceilings. Compares each workload with "
        "float64 before\n"
        "and after. NAME is a workload of `aule-bench list`; all; sharing, which are the "
        "studies;\n"
        "decode:NxLENGTH, prefill:NxLENGTH or shared:NxPREFIX+OWN.",
    .epilogue = "Exit codes: 0 all is right, 1 a result is wrong, or could not be written, "
                "2 the command line is\n"
                "wrong, 3 it could not measure (no such device or variant; its daemon or the "
                "GPU is gone).",
    .options = entries,
    .num_options = sizeof entries / sizeof *entries,
    .commands = commands,
};

const char *via_name(enum via via)
{
    return via_words[via];
}

// ---- what goes with what ----

// Options for a run in this process only.
static const char *const engine_only[] = {"no-cascade", "verbose"};
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
    if (options->check && options_gave(options, "seconds")) {
        fprintf(stderr,
                "aule-bench: --seconds does not go with --check: a check measures nothing\n");
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
    if (!check_names(command, options))
        return OPTIONS_BAD;
    return command != &run || check_apart(options) ? OPTIONS_RUN : OPTIONS_BAD;
}
