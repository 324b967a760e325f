// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.c - the table of options, and what reads it.

#include "options.h"

#include "complaint.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { TEXT, COUNT, CHOICE, FLAG, REFERENCE, HELP, VERSION };

struct row {
    const char *name, *argument; // argument NULL = none; CHOICE: the choices, with | between
    enum kind kind;
    size_t offset;              // of its field in struct options
    uint32_t smallest, largest; // COUNT; CHOICE: what the first choice and the last stand for
    const char *help;
};

#define FIELD(name) offsetof(struct options, name)

static const struct row rows[] = {
    {"prompt", "FILE", TEXT, FIELD(prompt), 0, 0, "the text to continue; - reads standard input (needed)"},
    {"append", "TEXT", TEXT, FIELD(append), 0, 0, "a different ending: TEXT follows the prompt"},
    {"tokens", "N", COUNT, FIELD(num_tokens), 1, 1 << 20, "how many tokens to generate (20)"},
    {"chunk", "N", COUNT, FIELD(chunk), 1, 1 << 16, "prompt tokens computed in one step (512)"},
    {"path", "paged|contiguous|reference", CHOICE, FIELD(path), ATTENTION_PAGED, ATTENTION_REFERENCE,
     "attention over blocks that workers share, over rows of this worker's own in its arena, or without a daemon in "
     "this process, on the CPU (paged)"},
    {"reference", NULL, REFERENCE, 0, 0, 0, "the same as --path reference"},
    {"socket", "PATH", TEXT, FIELD(socket), 0, 0, "the daemon's socket ($AULE_SOCKET, else the default place)"},
    {"cache-name", "NAME", TEXT, FIELD(cache_name), 0, 0, "workers that name the same cache share it (aule-worker)"},
    {"name", "NAME", TEXT, FIELD(name), 0, 0, "how aule-ctl shows this worker (aule-worker)"},
    {"tenant", "NAME", TEXT, FIELD(tenant), 0, 0, "share prefixes with this tenant's workers only (none)"},
    {"dtype", "f32|f16|bf16", CHOICE, FIELD(dtype), AULE_F32, AULE_BF16, "of q, k, v and out (f32)"},
    {"kv-dtype", "f32|f16|bf16|fp8_e4m3|fp8_e5m2|int8", CHOICE, FIELD(kv_dtype), AULE_F32, AULE_INT8,
     "what keys and values are kept as (f16)"},
    {"kv-scale", "none|tensor|token_head", CHOICE, FIELD(kv_scale), AULE_SCALE_NONE, AULE_SCALE_PER_TOKEN_HEAD,
     "what fp8 and int8 are scaled by (int8: token_head, else none)"},
    {"block-size", "N", COUNT, FIELD(block_size), 8, 256, "tokens a block of the cache, a power of two (32)"},
    {"max-prompt", "BYTES", COUNT, FIELD(max_prompt), 1, 1 << 30, "refuse a longer prompt (1048576)"},
    {"timeout", "MS", COUNT, FIELD(timeout_ms), 1, INT_MAX, "for each wait for the daemon (60000)"},
    {"logits", "FILE", TEXT, FIELD(logits_file), 0, 0, "write each step's logits: raw f32 [tokens, 256]"},
    {"compare", "FILE", TEXT, FIELD(compare_file), 0, 0,
     "say how far the logits are from these, of another run's --logits"},
    {"json", NULL, FLAG, FIELD(json), 0, 0, "one JSON document instead of text, also of a failure"},
    {"help", NULL, HELP, 0, 0, 0, "this text"},
    {"version", NULL, VERSION, 0, 0, 0, "the version"},
};

enum { NUM_ROWS = sizeof rows / sizeof rows[0] };

static void print_help(void)
{
    puts("usage: aule-worker --prompt FILE [options]\n"
         "Continues a text with a small transformer whose attention and KV cache are aule's.\n");
    for (int i = 0; i < NUM_ROWS; i++) {
        const char *argument = rows[i].argument ? rows[i].argument : "";
        const int width = printf("  --%s %s", rows[i].name, argument);
        printf(width < 23 ? "%*s%s\n" : "\n%*s%s\n", width < 23 ? 23 - width : 23, "", rows[i].help);
    }
    puts("\nExit codes: 0 done, 1 failed, 2 the command line is wrong, 3 no daemon answers or the GPU was lost; "
         "standard "
         "error says why.");
}

static bool parse_count(const struct row *row, const char *text, uint32_t *count)
{
    char *end;
    errno = 0;
    const unsigned long value = strtoul(text, &end, 10);
    if (errno || *end || end == text || *text == '-' || value < row->smallest || value > row->largest) {
        complain(EXIT_CODE_USAGE, "--%s '%s' is not a number from %u to %u", row->name, text, row->smallest,
                 row->largest);
        return false;
    }
    *count = (uint32_t)value;
    return true;
}

static bool parse_choice(const struct row *row, const char *text, int *choice)
{
    const char *name = row->argument;
    for (uint32_t value = row->smallest; value <= row->largest; value++) {
        const size_t length = strcspn(name, "|");
        if (strlen(text) == length && strncmp(text, name, length) == 0) {
            *choice = (int)value;
            return true;
        }
        name += length + (value < row->largest);
    }
    complain(EXIT_CODE_USAGE, "--%s '%s' is none of %s", row->name, text, row->argument);
    return false;
}

static enum options_result parse_row(struct options *options, const struct row *row, const char *argument)
{
    void *field = (char *)options + row->offset;
    bool good = true;
    switch (row->kind) {
    case TEXT: *(const char **)field = argument; break;
    case COUNT: good = parse_count(row, argument, field); break;
    case CHOICE: good = parse_choice(row, argument, field); break;
    case FLAG: *(bool *)field = true; break;
    case REFERENCE: options->path = ATTENTION_REFERENCE; break;
    case HELP: print_help(); return OPTIONS_DONE;
    case VERSION: printf("aule-worker %s\n", aule_version()); return OPTIONS_DONE;
    }
    return good ? OPTIONS_RUN : OPTIONS_BAD;
}

static const char *const scale_names[] = {"none", "tensor", "token_head"};

enum { SCALE_UNSAID = AULE_SCALE_PER_TOKEN_HEAD + 1 };

// Whole numbers alone would keep too little of most models.
static void settle(struct options *options)
{
    if (options->kv_scale == (enum aule_scale_mode)SCALE_UNSAID)
        options->kv_scale = options->kv_dtype == AULE_INT8 ? AULE_SCALE_PER_TOKEN_HEAD : AULE_SCALE_NONE;
}

// What concerns more than one option, or what an option does not bring itself.
static enum options_result check(const struct options *options, int argc, char **argv)
{
    if (optind < argc)
        complain(EXIT_CODE_USAGE, "'%s' is no option; see --help", argv[optind]);
    else if (!options->prompt)
        complain(EXIT_CODE_USAGE, "--prompt FILE is needed; see --help");
    else if (options->block_size & (options->block_size - 1))
        complain(EXIT_CODE_USAGE, "--block-size %u is not a power of two", options->block_size);
    else if (options->kv_scale != AULE_SCALE_NONE && aule_dtype_size(options->kv_dtype) > 1)
        complain(EXIT_CODE_USAGE, "--kv-scale %s is for fp8 and int8, but --kv-dtype is %s",
                 scale_names[options->kv_scale], aule_dtype_name(options->kv_dtype));
    else if (options->kv_scale != AULE_SCALE_NONE && options->path == ATTENTION_CONTIGUOUS &&
             options->dtype != AULE_F32)
        complain(EXIT_CODE_USAGE,
                 "--path contiguous keeps rows of --dtype %s, which cannot hold %s times a scale; --dtype f32 can",
                 aule_dtype_name(options->dtype), aule_dtype_name(options->kv_dtype));
    else
        return OPTIONS_RUN;
    return OPTIONS_BAD;
}

// What getopt_long() did not take. Of a short option it tells the letter, of a long one nothing.
static enum options_result wrong_option(int letter, const char *word)
{
    const char cluster[] = {'-', (char)optopt, '\0'};
    complain(EXIT_CODE_USAGE, "%s %s; see --help", optopt > ' ' ? cluster : word,
             letter == ':' ? "lacks its value" : "is no option, or one that takes no value");
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
                                .kv_dtype = AULE_F16,
                                .kv_scale = (enum aule_scale_mode)SCALE_UNSAID};
    struct option table[NUM_ROWS + 1] = {0};
    for (int i = 0; i < NUM_ROWS; i++)
        table[i] = (struct option){rows[i].name, rows[i].argument ? required_argument : no_argument, NULL, i};
    complaint_begin("aule-worker", argc, argv);
    optind = 1;
    for (int i; (i = getopt_long(argc, argv, ":", table, NULL)) != -1;) {
        if (i == '?' || i == ':')
            return wrong_option(i, argv[optind - 1]);
        enum options_result result = parse_row(options, &rows[i], optarg);
        if (result != OPTIONS_RUN)
            return result;
    }
    complaint_settle(options->json);
    settle(options);
    return check(options, argc, argv);
}
