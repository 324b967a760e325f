// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.c - the table of aule-worker's options, and the checks across options. base/options.h
// says what an entry means.

#include "options.h"

#include "tools/complaint/complaint.h"

#include <limits.h>
#include <stddef.h>

#define FIELD(KIND, member) OPTION_FIELD(KIND, struct options, member)

static const char *const path_words[] = {[ATTENTION_PAGED] = "paged",
                                         [ATTENTION_CONTIGUOUS] = "contiguous",
                                         [ATTENTION_REFERENCE] = "reference",
                                         NULL};
static const char *const dtype_words[] = {"f32", "f16", "bf16", NULL}; // from AULE_F32
static const char *const kv_dtype_words[] = {"f32",      "f16",  "bf16", "fp8_e4m3",
                                             "fp8_e5m2", "int8", NULL};
static const char *const scale_words[] = {"none", "tensor", "token_head",
                                          NULL}; // from AULE_SCALE_NONE

static const struct option entries[] = {
    OPTION_SECTION("Text"),
    {"prompt", "FILE", FIELD(OPTION_TEXT, prompt),
     .help = "the text to continue (required); `-` reads standard input",
     .details = "It must not be empty."},
    {"append", "TEXT", FIELD(OPTION_TEXT, append), .otherwise = "none",
     .help = "a different ending: TEXT follows the prompt"},
    {"max-prompt", "BYTES", FIELD(OPTION_COUNT, max_prompt), 1, 1 << 30, .initial = "1048576",
     .help = "refuse a longer prompt"},
    {"tokens", "N", FIELD(OPTION_COUNT, num_tokens), 1, 1 << 20, .initial = "20",
     .help = "how many tokens to generate"},
    {"chunk", "N", FIELD(OPTION_COUNT, chunk), 1, 1 << 16, .initial = "512",
     .help = "prompt tokens computed in one step"},

    OPTION_SECTION("Attention and cache"),
    {"path", NULL, FIELD(OPTION_CHOICE, path), ATTENTION_PAGED, .words = path_words,
     .initial = "paged",
     .help = "`paged`: aule, over blocks that workers share; `contiguous`: aule, over rows in this "
             "worker's own arena; `reference`: this process, on the CPU, without a daemon"},
    {"reference", NULL, FIELD(OPTION_CONSTANT, path), ATTENTION_REFERENCE,
     .help = "the same as `--path reference`"},
    {"dtype", NULL, FIELD(OPTION_CHOICE, dtype), AULE_F32, .words = dtype_words, .initial = "f32",
     .help = "element type of q, k, v and out"},
    {"kv-dtype", NULL, FIELD(OPTION_CHOICE, kv_dtype), AULE_F32, .words = kv_dtype_words,
     .initial = "f16", .help = "element type in which keys and values are stored"},
    {"kv-scale", NULL, FIELD(OPTION_CHOICE, kv_scale), AULE_SCALE_NONE, .words = scale_words,
     .otherwise = "token_head for int8, else none",
     .help = "scales of keys and values in fp8 or int8",
     .details = "`tensor` is one number for all, `token_head` one for each token and head. With "
                "`--path contiguous` a scale needs `--dtype f32`, because no other type can hold "
                "scaled values."},
    {"block-size", "N", FIELD(OPTION_COUNT, block_size), 8, 256, .power_of_two = true,
     .initial = "32", .help = "tokens of a block of the cache, a power of two"},
    {"cache-name", "NAME", FIELD(OPTION_TEXT, cache_name), .initial = "aule-worker",
     .help = "workers that name the same cache share it",
     .details = "Other element types, scales or block sizes need a cache of another name."},
    {"tenant", "NAME", FIELD(OPTION_TEXT, tenant), .otherwise = "none",
     .help = "share prefixes with this tenant's workers only"},

    OPTION_SECTION("Daemon"),
    {"socket", "PATH", FIELD(OPTION_TEXT, socket),
     .otherwise = "`$AULE_SOCKET`, else the first device's in the runtime folder",
     .help = "the daemon's socket",
     .details = "The runtime folder is $AULE_RUNTIME_DIR, $XDG_RUNTIME_DIR/aule or /run/aule."},
    {"timeout", "MS", FIELD(OPTION_COUNT, timeout_ms), 1, INT_MAX, .initial = "60000",
     .help = "how many milliseconds each wait for the daemon may take"},
    {"name", "NAME", FIELD(OPTION_TEXT, name), .initial = "aule-worker",
     .help = "how `aule-ctl` shows this worker"},

    OPTION_SECTION("Output"),
    {"logits", "FILE", FIELD(OPTION_TEXT, logits_file),
     .help = "write each step's logits: raw f32 [tokens, 256]",
     .details = "The byte order is this machine's. An existing file keeps its contents until the "
                "run has succeeded. A file that `--prompt` or `--compare` reads is refused."},
    {"compare", "FILE", FIELD(OPTION_TEXT, compare_file),
     .help = "print the largest difference to the logits in FILE, which another run wrote by "
             "`--logits`",
     .details = "Both runs must have the same `--tokens`."},
    {"json", NULL, FIELD(OPTION_FLAG, json), .otherwise = "text",
     .help = "print one JSON document, also of a failure",
     .details = "Its key `schema_version` is 1; it is raised when a key is removed or changes its "
                "meaning, not when one is added. `token_ids` are the generated tokens. "
                "`hit_blocks` and `hit_tokens` say what the look-up found. `smallest_gap` is the "
                "smallest lead of the best logit over the second. `prefill_seconds` and "
                "`decode_seconds` are the times of the two parts. `session` is the daemon's id of "
                "this worker's session (0: none). `largest_logit_difference` exists only with "
                "`--compare`."},
};

static const struct options_program program = {
    .name = "aule-worker",
    .usage = "aule-worker --prompt FILE [OPTION]...",
    .about = "Continues a text with a small transformer that uses aule for attention and KV cache.",
    .epilogue = "Exit codes: 0 done, 1 failed, 2 the command line is wrong, 3 no daemon answers or "
                "the GPU was lost;\nstandard error says why.",
    .options = entries,
    .num_options = sizeof entries / sizeof *entries,
};

enum { SCALE_UNSAID = AULE_SCALE_PER_TOKEN_HEAD + 1 };

// Without scales, int8 keeps too little of most models.
static void settle(struct options *options)
{
    if (options->kv_scale == (enum aule_scale_mode)SCALE_UNSAID)
        options->kv_scale =
            options->kv_dtype == AULE_INT8 ? AULE_SCALE_PER_TOKEN_HEAD : AULE_SCALE_NONE;
}

// Checks that concern more than one option.
static enum options_result check(const struct options *options, const struct options_line *line)
{
    if (line->num_operands)
        complain(EXIT_CODE_USAGE, "\"%s\" is no option; see aule-worker --help", line->operands[0]);
    else if (!options->prompt)
        complain(EXIT_CODE_USAGE, "--prompt FILE is needed; see aule-worker --help");
    else if (options->kv_scale != AULE_SCALE_NONE && aule_dtype_size(options->kv_dtype) > 1)
        complain(EXIT_CODE_USAGE, "--kv-scale %s is for fp8 and int8, but --kv-dtype is %s",
                 scale_words[options->kv_scale], aule_dtype_name(options->kv_dtype));
    else if (options->kv_scale != AULE_SCALE_NONE && options->path == ATTENTION_CONTIGUOUS &&
             options->dtype != AULE_F32)
        complain(EXIT_CODE_USAGE,
                 "--path contiguous keeps rows of --dtype %s, which cannot hold %s times a scale; "
                 "--dtype f32 can",
                 aule_dtype_name(options->dtype), aule_dtype_name(options->kv_dtype));
    else
        return OPTIONS_RUN;
    return OPTIONS_BAD;
}

enum options_result options_parse(struct options *options, int argc, char **argv)
{
    struct options_line line;
    *options = (struct options){.append = "", .kv_scale = (enum aule_scale_mode)SCALE_UNSAID};
    complaint_begin("aule-worker", argc, argv);
    enum options_result result = options_read(&program, argc, argv, options, &line);
    if (result == OPTIONS_BAD)
        complain(EXIT_CODE_USAGE, "%s", line.error);
    if (result != OPTIONS_RUN)
        return result;
    complaint_settle(options->json);
    settle(options);
    return check(options, &line);
}
