// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.c - the table of options, and what reads it.

#include "options.h"

#include "element.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { TEXT, COUNT, DTYPE, PATH, FLAG, HELP, VERSION };

struct row {
    const char *name, *argument; // argument NULL = none
    enum kind kind;
    size_t offset;              // of its field in struct options
    uint32_t smallest, largest; // COUNT only
    const char *help;
};

#define FIELD(name) offsetof(struct options, name)

static const struct row rows[] = {
    {"prompt", "FILE", TEXT, FIELD(prompt), 0, 0, "the text to continue; - reads standard input (needed)"},
    {"append", "TEXT", TEXT, FIELD(append), 0, 0, "a different ending: TEXT follows the prompt"},
    {"tokens", "N", COUNT, FIELD(num_tokens), 1, 1 << 20, "how many tokens to generate (20)"},
    {"chunk", "N", COUNT, FIELD(chunk), 1, 1 << 16, "prompt tokens computed in one step (512)"},
    {"reference", NULL, FLAG, FIELD(reference), 0, 0, "no daemon: attention in this process, on the CPU"},
    {"path", "PATH", PATH, FIELD(contiguous), 0, 0, "paged (the default); contiguous comes with a later version"},
    {"socket", "PATH", TEXT, FIELD(socket), 0, 0, "the daemon's socket ($AULE_SOCKET, else the default place)"},
    {"cache-name", "NAME", TEXT, FIELD(cache_name), 0, 0, "workers that name the same cache share it (aule-worker)"},
    {"name", "NAME", TEXT, FIELD(name), 0, 0, "how aule-ctl shows this worker (aule-worker)"},
    {"tenant", "NAME", TEXT, FIELD(tenant), 0, 0, "share prefixes with this tenant's workers only (none)"},
    {"dtype", "TYPE", DTYPE, FIELD(dtype), 0, 0, "of q, k, v and out: f32 or f16 (f32)"},
    {"kv-dtype", "TYPE", DTYPE, FIELD(kv_dtype), 0, 0, "of the cache: f32 or f16 (f16)"},
    {"block-size", "N", COUNT, FIELD(block_size), 8, 256, "tokens a block of the cache, a power of two (32)"},
    {"max-prompt", "BYTES", COUNT, FIELD(max_prompt), 1, 1 << 30, "refuse a longer prompt (1048576)"},
    {"timeout", "MS", COUNT, FIELD(timeout_ms), 1, INT_MAX, "for each wait for the daemon (60000)"},
    {"logits", "FILE", TEXT, FIELD(logits_file), 0, 0, "write each step's logits: raw f32 [tokens, 256]"},
    {"compare", "FILE", TEXT, FIELD(compare_file), 0, 0,
     "say how far the logits are from these, of another run's --logits"},
    {"json", NULL, FLAG, FIELD(json), 0, 0, "one JSON document instead of text"},
    {"help", NULL, HELP, 0, 0, 0, "this text"},
    {"version", NULL, VERSION, 0, 0, 0, "the version"},
};

enum { NUM_ROWS = sizeof rows / sizeof rows[0] };

static void print_help(void)
{
    puts("usage: aule-worker --prompt FILE [options]\n"
         "Continues a text with a small transformer whose attention and KV cache are aule's.\n");
    for (int i = 0; i < NUM_ROWS; i++) {
        char left[40];
        snprintf(left, sizeof left, "--%s %s", rows[i].name, rows[i].argument ? rows[i].argument : "");
        printf("  %-20s %s\n", left, rows[i].help);
    }
    puts("\nExit code: 0 done, 1 not done; standard error says why.");
}

static bool parse_count(const struct row *row, const char *text, uint32_t *count)
{
    char *end;
    errno = 0;
    const unsigned long value = strtoul(text, &end, 10);
    if (errno || *end || end == text || *text == '-' || value < row->smallest || value > row->largest) {
        fprintf(stderr, "aule-worker: --%s '%s' is not a number from %u to %u\n", row->name, text, row->smallest,
                row->largest);
        return false;
    }
    *count = (uint32_t)value;
    return true;
}

static bool parse_dtype(const struct row *row, const char *text, enum aule_dtype *dtype)
{
    for (enum aule_dtype i = AULE_F32; i <= AULE_INT8; i++) {
        if (strcmp(text, aule_dtype_name(i)) == 0 && element_usable(i)) {
            *dtype = i;
            return true;
        }
    }
    fprintf(stderr, "aule-worker: --%s '%s' is neither f32 nor f16\n", row->name, text);
    return false;
}

static bool parse_path(const char *text, bool *contiguous)
{
    *contiguous = strcmp(text, "contiguous") == 0;
    if (*contiguous)
        fprintf(stderr, "aule-worker: --path contiguous comes with a later version; this one has --path paged\n");
    else if (strcmp(text, "paged") != 0)
        fprintf(stderr, "aule-worker: --path '%s' is neither paged nor contiguous\n", text);
    else
        return true;
    return false;
}

static enum options_result parse_row(struct options *options, const struct row *row, const char *argument)
{
    void *field = (char *)options + row->offset;
    bool good = true;
    switch (row->kind) {
    case TEXT: *(const char **)field = argument; break;
    case COUNT: good = parse_count(row, argument, field); break;
    case DTYPE: good = parse_dtype(row, argument, field); break;
    case PATH: good = parse_path(argument, field); break;
    case FLAG: *(bool *)field = true; break;
    case HELP: print_help(); return OPTIONS_DONE;
    case VERSION: printf("aule-worker %s\n", aule_version()); return OPTIONS_DONE;
    }
    return good ? OPTIONS_RUN : OPTIONS_BAD;
}

// What concerns more than one option, or what an option does not bring itself.
static enum options_result check(const struct options *options, int argc, char **argv)
{
    if (optind < argc)
        fprintf(stderr, "aule-worker: '%s' is no option; see --help\n", argv[optind]);
    else if (!options->prompt)
        fprintf(stderr, "aule-worker: --prompt FILE is needed; see --help\n");
    else if (options->block_size & (options->block_size - 1))
        fprintf(stderr, "aule-worker: --block-size %u is not a power of two\n", options->block_size);
    else
        return OPTIONS_RUN;
    return OPTIONS_BAD;
}

enum options_result options_parse(struct options *options, int argc, char **argv)
{
    *options = (struct options){.append = "",
                                .name = "aule-worker",
                                .cache_name = "aule-worker",
                                .num_tokens = 20,
                                .chunk = 512,
                                .block_size = 32,
                                .max_prompt = 1 << 20,
                                .timeout_ms = 60000,
                                .dtype = AULE_F32,
                                .kv_dtype = AULE_F16};
    struct option table[NUM_ROWS + 1] = {0};
    for (int i = 0; i < NUM_ROWS; i++)
        table[i] = (struct option){rows[i].name, rows[i].argument ? required_argument : no_argument, NULL, i};
    optind = 1;
    for (int i; (i = getopt_long(argc, argv, "", table, NULL)) != -1;) {
        if (i == '?')
            return OPTIONS_BAD; // getopt has said which
        enum options_result result = parse_row(options, &rows[i], optarg);
        if (result != OPTIONS_RUN)
            return result;
    }
    return check(options, argc, argv);
}
