// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.c - the table of options, and what reads it.

#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { TEXT, NUMBER, DTYPE, FLAG, HELP };

struct row {
    const char *name, *argument;
    enum kind kind;
    size_t offset;
    const char *help;
};

#define FIELD(name) offsetof(struct options, name)

static const struct row rows[] = {
    {"device", "NAME", TEXT, FIELD(device), "index, UUID or part of the name (the best)"},
    {"variant", "NAME", TEXT, FIELD(variant), "of the attention shader ($AULE_VARIANT, else the best that fits)"},
    {"dtype", "TYPE", DTYPE, FIELD(dtype), "of q and out: f32, f16 or bf16 (f16)"},
    {"kv-dtype", "TYPE", DTYPE, FIELD(kv_dtype), "of K and V: those, fp8_e4m3, fp8_e5m2 or int8 (as --dtype)"},
    {"seconds", "S", NUMBER, FIELD(seconds), "for each workload, half of it to warm up (2)"},
    {"pool", "GIB", NUMBER, FIELD(pool_gib),
     "K and V to read in turns, more than any cache holds (1; 0.05 in software)"},
    {"check", NULL, FLAG, FIELD(check), "check, and do not measure"},
    {"json", NULL, FLAG, FIELD(json), "one line of JSON a workload; so too if standard output is no terminal"},
    {"help", NULL, HELP, 0, "this text"},
};
enum { NUM_ROWS = sizeof rows / sizeof *rows };

static void print_help(void)
{
    puts("usage: aule-bench list\n"
         "       aule-bench run NAME... [options]     ('all': every workload)\n"
         "Times attention on real workloads, each checked against float64 before and after, beside the device's "
         "ceiling.\n");
    for (int i = 0; i < NUM_ROWS; i++) {
        char left[40];
        snprintf(left, sizeof left, "--%s %s", rows[i].name, rows[i].argument ? rows[i].argument : "");
        printf("  %-18s %s\n", left, rows[i].help);
    }
    puts("\nExit code: 0 all is right, 1 a result was wrong or not to be had, 2 the command line is.");
}

static bool parse_number(const struct row *row, const char *text, double *number)
{
    char *end;
    errno = 0;
    *number = strtod(text, &end);
    if (!errno && !*end && end != text && *number > 0 && *number < 1e6)
        return true;
    fprintf(stderr, "aule-bench: --%s '%s' is not a number above 0\n", row->name, text);
    return false;
}

static bool parse_dtype(const struct row *row, const char *text, enum dtype *dtype)
{
    int last = row->offset == FIELD(dtype) ? DTYPE_BF16 : DTYPE_INT8;
    for (int i = DTYPE_F32; i <= last; i++) {
        if (strcmp(text, dtype_name(i)) == 0) {
            *dtype = (enum dtype)i;
            return true;
        }
    }
    fprintf(stderr, "aule-bench: --%s '%s' is no type that it takes\n", row->name, text);
    return false;
}

static enum options_result take(const struct row *row, const char *text, struct options *options)
{
    void *field = (char *)options + row->offset;
    bool ok = true;
    switch (row->kind) {
    case TEXT: *(const char **)field = text; break;
    case NUMBER: ok = parse_number(row, text, field); break;
    case DTYPE: ok = parse_dtype(row, text, field); break;
    case FLAG: *(bool *)field = true; break;
    case HELP: print_help(); return OPTIONS_DONE;
    }
    return ok ? OPTIONS_RUN : OPTIONS_BAD;
}

static enum options_result check_command(int argc, char **argv, struct options *options)
{
    options->command = optind < argc ? argv[optind] : NULL;
    options->names = argv + optind + 1;
    options->num_names = argc - optind - 1;
    bool list = options->command && strcmp(options->command, "list") == 0;
    bool run = options->command && strcmp(options->command, "run") == 0;
    if (options->command && !list && !run)
        fprintf(stderr, "aule-bench: '%s' is neither list nor run (--help says more)\n", options->command);
    else if (!options->command)
        fprintf(stderr, "aule-bench: list or run what? (--help says more)\n");
    else if (run && options->num_names < 1)
        fprintf(stderr, "aule-bench: run wants names; aule-bench list has them\n");
    else if (list && options->num_names)
        fprintf(stderr, "aule-bench: list takes no '%s'\n", options->names[0]);
    else
        return OPTIONS_RUN;
    return OPTIONS_BAD;
}

enum options_result options_parse(int argc, char **argv, struct options *options)
{
    struct option longs[NUM_ROWS + 1] = {0};
    for (int i = 0; i < NUM_ROWS; i++)
        longs[i] = (struct option){rows[i].name, rows[i].argument ? required_argument : no_argument, NULL, i};
    *options = (struct options){.variant = getenv("AULE_VARIANT"), .dtype = DTYPE_F16, .seconds = 2};
    for (;;) {
        int option = getopt_long(argc, argv, "", longs, NULL);
        if (option == -1)
            break;
        if (option < 0 || option >= NUM_ROWS)
            return OPTIONS_BAD;
        enum options_result result = take(&rows[option], optarg, options);
        if (result != OPTIONS_RUN)
            return result;
    }
    if (!options->kv_dtype)
        options->kv_dtype = options->dtype;
    return check_command(argc, argv, options);
}
