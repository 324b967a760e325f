// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.c - the table of options and which command takes which, what does not go together, and what reads all that.

#include "options.h"

#include "aule/aule.h"
#include "engine.h"

#include <errno.h>
#include <getopt.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { TEXT, NUMBER, COUNT, POLL, DTYPE, VIA, FLAG, HELP, VERSION };

// The commands that take an option. A client is told by who starts it, and takes whatever may be told.
enum { LIST = 1 << 0, RUN = 1 << 1, PLOT = 1 << 2, CLIENT = 1 << 3, BOTH = RUN | CLIENT, ANY = LIST | PLOT | BOTH };

struct row {
    const char *name, *argument;
    enum kind kind;
    unsigned commands;
    size_t offset;
    const char *help; // NULL: for the bench itself
};

#define FIELD(name) offsetof(struct options, name)

static const struct row rows[] = {
    {"via", "LANE", VIA, BOTH, FIELD(via),
     "engine: in this process; nng, ring: by a lane of a daemon of its own (engine)"},
    {"clients", "N", COUNT, BOTH, FIELD(clients), "processes that share the sequences, with --via nng or ring (1)"},
    {"device", "NAME", TEXT, BOTH, FIELD(device), "index, UUID or part of the name (the best)"},
    {"variant", "NAME", TEXT, BOTH, FIELD(variant), "of the attention shader ($AULE_VARIANT, else the best that fits)"},
    {"dtype", "TYPE", DTYPE, BOTH, FIELD(dtype), "of q and out: f32, f16 or bf16 (f16)"},
    {"kv-dtype", "TYPE", DTYPE, BOTH, FIELD(kv_dtype), "of K and V: those, fp8_e4m3, fp8_e5m2 or int8 (as --dtype)"},
    {"token-scales", NULL, FLAG, RUN, FIELD(token_scales), "a scale for each token and head of K and V of 8 bits"},
    {"head-dim", "N", COUNT, BOTH, FIELD(head_dim),
     "of Q, K and V: a multiple of 8 up to 512 (0: the workload's own, 128)"},
    {"splits", "N", COUNT, BOTH, FIELD(splits), "parts that a sequence's keys are cut into (0: by the shader's rule)"},
    {"contiguous", NULL, FLAG, RUN, FIELD(contiguous), "K and V in one piece a head, without blocks"},
    {"no-cascade", NULL, FLAG, RUN, FIELD(no_cascade),
     "keys that sequences share are read for each of them: the same bits"},
    {"completion-poll", "US", POLL, BOTH, FIELD(completion_poll_us),
     "before it sleeps, a submission's waiter looks at the GPU for so long; auto (auto)"},
    {"seconds", "S", NUMBER, BOTH, FIELD(seconds), "for each workload, half of it to warm up (2)"},
    {"pool", "GIB", NUMBER, BOTH, FIELD(pool_gib),
     "K and V to read in turns, more than any cache holds (4; 0.05 in software); E1's pool (8; 0.25)"},
    {"baseline", NULL, FLAG, RUN, FIELD(baseline), "beside it, the same in plain C on all cores"},
    {"check", NULL, FLAG, BOTH, FIELD(check), "check, and do not measure"},
    {"json", NULL, FLAG, RUN, FIELD(json),
     "one line of JSON a workload; so too if standard output is no terminal, but for --check"},
    {"verbose", NULL, FLAG, RUN, FIELD(verbose),
     "say on standard error what each workload is made of, and which kernels serve it"},
    {"daemon", "FILE", TEXT, RUN, FIELD(daemon), "aule-daemon for --via nng and ring (the one beside this program)"},
    {"output", "FILE", TEXT, PLOT, FIELD(output), "where plot writes (standard output)"},
    {"socket", "PATH", TEXT, CLIENT, FIELD(socket), NULL},
    {"part", "N", COUNT, CLIENT, FIELD(part), NULL},
    {"in-flight", "N", COUNT, CLIENT, FIELD(in_flight), NULL},
    {"append", NULL, FLAG, CLIENT, FIELD(append), NULL},
    {"version", NULL, VERSION, ANY, 0, "the version"},
    {"help", NULL, HELP, ANY, 0, "this text"},
};
enum { NUM_ROWS = sizeof rows / sizeof *rows };
_Static_assert(NUM_ROWS <= 32, "struct options has a bit for each");

static const char *const vias[] = {[VIA_ENGINE] = "engine", [VIA_NNG] = "nng", [VIA_RING] = "ring"};
enum { NUM_VIAS = sizeof vias / sizeof *vias };

const char *via_name(enum via via)
{
    return vias[via];
}

static void print_help(void)
{
    puts("usage: aule-bench list\n"
         "       aule-bench run NAME... [options]\n"
         "       aule-bench plot FILE... [--output FILE]    ('-' is standard input)\n"
         "Times attention on real workloads, each checked against float64 before and after, beside the device's "
         "ceilings.\nNames: those that list has; all; sharing, the studies of several cases side by side; lengths and "
         "batches, "
         "decodes to plot;\ndecode:NxLENGTH and prefill:NxLENGTH. plot draws lines of JSON as SVG.\n");
    for (int i = 0; i < NUM_ROWS; i++) {
        char left[40];
        snprintf(left, sizeof left, "--%s %s", rows[i].name, rows[i].argument ? rows[i].argument : "");
        if (rows[i].help)
            printf("  %-20s %s\n", left, rows[i].help);
    }
    puts("\nExit codes: 0 all is right, 1 a result is wrong, or not to be written or drawn, 2 the command line is "
         "wrong,\n3 it could not be measured (no such device or variant; its daemon or the GPU is gone).");
}

static bool parse_number(const struct row *row, const char *text, double *number)
{
    char *end;
    errno = 0;
    *number = strtod(text, &end);
    if (!errno && !*end && end != text && *number > 0 && *number < 1e6)
        return true;
    fprintf(stderr, "aule-bench: --%s '%s' is not a number above 0 and below 1e6\n", row->name, text);
    return false;
}

static bool parse_count(const struct row *row, const char *text, uint32_t *count)
{
    char *end;
    errno = 0;
    unsigned long number = strtoul(text, &end, 10);
    if (!errno && !*end && end != text && *text != '-' && number <= 4096) {
        *count = (uint32_t)number;
        return true;
    }
    fprintf(stderr, "aule-bench: --%s '%s' is not a number from 0 to 4096\n", row->name, text);
    return false;
}

static bool parse_poll(const struct row *row, const char *text, uint32_t *poll_us)
{
    uint32_t count = 0;
    bool ok = strcmp(text, "auto") == 0 || parse_count(row, text, &count);
    *poll_us = strcmp(text, "0") == 0 ? ENGINE_NO_POLL : count;
    return ok;
}

static bool parse_via(const char *text, enum via *via)
{
    for (int i = 0; i < NUM_VIAS; i++) {
        if (strcmp(text, vias[i]) == 0) {
            *via = (enum via)i;
            return true;
        }
    }
    fprintf(stderr, "aule-bench: --via '%s' is none of engine, nng and ring\n", text);
    return false;
}

static bool parse_dtype(const struct row *row, const char *text, enum dtype *dtype)
{
    const int last = row->offset == FIELD(dtype) ? DTYPE_BF16 : DTYPE_INT8;
    for (int i = DTYPE_F32; i <= last; i++) {
        if (strcmp(text, dtype_name(i)) == 0) {
            *dtype = (enum dtype)i;
            return true;
        }
    }
    fprintf(stderr, "aule-bench: --%s '%s' is none of", row->name, text);
    for (int i = DTYPE_F32; i <= last; i++)
        fprintf(stderr, "%s %s", i == DTYPE_F32 ? "" : i == last ? " and" : ",", dtype_name(i));
    fprintf(stderr, "\n");
    return false;
}

static enum options_result take(const struct row *row, const char *text, struct options *options)
{
    void *field = (char *)options + row->offset;
    bool ok = true;
    switch (row->kind) {
    case TEXT: *(const char **)field = text; break;
    case NUMBER: ok = parse_number(row, text, field); break;
    case COUNT: ok = parse_count(row, text, field); break;
    case POLL: ok = parse_poll(row, text, field); break;
    case VIA: ok = parse_via(text, field); break;
    case DTYPE: ok = parse_dtype(row, text, field); break;
    case FLAG: *(bool *)field = true; break;
    case HELP: print_help(); return OPTIONS_DONE;
    case VERSION: puts("aule-bench " AULE_VERSION_STRING); return OPTIONS_DONE;
    }
    return ok ? OPTIONS_RUN : OPTIONS_BAD;
}

// ---- what goes with what ----

static const struct command {
    const char *name, *wants; // wants: names behind it; NULL: none
    unsigned bit;
} commands[] = {{"list", NULL, LIST},
                {"run", "names; aule-bench list has them", RUN},
                {"plot", "files", PLOT},
                {"client", "a name", CLIENT}};
enum { NUM_COMMANDS = sizeof commands / sizeof *commands };

// Of a run. `other` is an option as well.
static const struct {
    const char *one, *other, *why;
} apart[] = {
    {"baseline", "check", "a check measures nothing"},
    {"seconds", "check", "a check measures nothing"},
    {"no-cascade", "contiguous", "without blocks no sequence shares any"},
    {"token-scales", "contiguous", "such scales lie in blocks"},
};
enum { NUM_APART = sizeof apart / sizeof *apart };

// Of a run in this process only.
static const char *const engine_only[] = {"contiguous", "no-cascade", "token-scales", "verbose"};
enum { NUM_ENGINE_ONLY = sizeof engine_only / sizeof *engine_only };

bool options_given(const struct options *options, const char *name)
{
    for (int i = 0; i < NUM_ROWS; i++) {
        if (strcmp(rows[i].name, name) == 0)
            return options->given >> i & 1;
    }
    return false;
}

static bool check_names(const struct command *command, const struct options *options)
{
    if (command->wants && options->num_names < 1)
        fprintf(stderr, "aule-bench: %s wants %s\n", command->name, command->wants);
    else if (!command->wants && options->num_names)
        fprintf(stderr, "aule-bench: %s takes no '%s'\n", command->name, options->names[0]);
    else
        return true;
    return false;
}

static bool check_taken(const struct command *command, const struct options *options)
{
    for (int i = 0; i < NUM_ROWS; i++) {
        if (!(options->given >> i & 1) || rows[i].commands & command->bit)
            continue;
        const char *taker = rows[i].commands & RUN ? "run" : rows[i].commands & PLOT ? "plot" : NULL;
        fprintf(stderr, "aule-bench: %s takes no --%s%s%s%s\n", command->name, rows[i].name, taker ? "; " : "",
                taker ? taker : "", taker ? " does" : "");
        return false;
    }
    return true;
}

static bool check_apart(const struct options *options)
{
    for (int i = 0; i < NUM_APART; i++) {
        if (!options_given(options, apart[i].one) || !options_given(options, apart[i].other))
            continue;
        fprintf(stderr, "aule-bench: --%s does not go with --%s: %s\n", apart[i].one, apart[i].other, apart[i].why);
        return false;
    }
    for (int i = 0; i < NUM_ENGINE_ONLY && options->via != VIA_ENGINE; i++) {
        if (!options_given(options, engine_only[i]))
            continue;
        fprintf(stderr, "aule-bench: --%s goes with --via engine only, not with --via %s\n", engine_only[i],
                via_name(options->via));
        return false;
    }
    return true;
}

static bool check_together(const struct command *command, const struct options *options)
{
    if (options->clients < 1)
        fprintf(stderr, "aule-bench: --clients 0: somebody has to do the work\n");
    else if (command->bit != RUN)
        return true;
    else
        return check_apart(options);
    return false;
}

static enum options_result check_all(int argc, char **argv, struct options *options)
{
    int command = 0;
    options->command = optind < argc ? argv[optind] : NULL;
    options->names = argv + optind + 1;
    options->num_names = argc - optind - 1;
    while (options->command && command < NUM_COMMANDS && strcmp(options->command, commands[command].name) != 0)
        command++;
    if (!options->command)
        fprintf(stderr, "aule-bench: list, run or plot what? (--help says more)\n");
    else if (command == NUM_COMMANDS)
        fprintf(stderr, "aule-bench: '%s' is none of list, run and plot (--help says more)\n", options->command);
    else if (check_names(&commands[command], options) && check_taken(&commands[command], options) &&
             check_together(&commands[command], options))
        return OPTIONS_RUN;
    return OPTIONS_BAD;
}

// What getopt_long() did not take. Of a short option it tells the letter, of a long one nothing.
static enum options_result wrong_option(int letter, const char *word)
{
    const char cluster[] = {'-', (char)optopt, '\0'};
    fprintf(stderr, "aule-bench: %s %s (--help says more)\n", optopt > ' ' ? cluster : word,
            letter == ':' ? "lacks its value" : "is no option, or one that takes no value");
    return OPTIONS_BAD;
}

enum options_result options_parse(int argc, char **argv, struct options *options)
{
    struct option longs[NUM_ROWS + 1] = {0};
    for (int i = 0; i < NUM_ROWS; i++)
        longs[i] = (struct option){rows[i].name, rows[i].argument ? required_argument : no_argument, NULL, i};
    *options = (struct options){
        .variant = getenv("AULE_VARIANT"), .dtype = DTYPE_F16, .seconds = 2, .clients = 1, .in_flight = 1};
    for (;;) {
        int option = getopt_long(argc, argv, ":", longs, NULL);
        if (option == -1)
            break;
        if (option == '?' || option == ':')
            return wrong_option(option, argv[optind - 1]);
        enum options_result result = take(&rows[option], optarg, options);
        if (result != OPTIONS_RUN)
            return result;
        options->given |= UINT32_C(1) << option;
    }
    return check_all(argc, argv, options);
}
