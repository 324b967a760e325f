// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.c - reads the command line by the table of options.h. Checks across options.

#include "options.h"

#include "tools/complaint/complaint.h"

#include <limits.h>
#include <stddef.h>

static const char *const scale_words[] = {"none", "tensor", "token_head",
                                          NULL}; // from AULE_SCALE_NONE

static const char *dtype_words[16]; // from AULE_F32; name_dtypes() fills it

#define ENTRY(...) OPTION_ENTRY(struct options, __VA_ARGS__)
#define ALSO(...)  ENTRY(, __VA_ARGS__)
static const struct option entries[] = {WORKER_OPTIONS(OPTION_HEADING, ENTRY, ALSO)};

static const struct options_program program = {
    .name = "aule-worker",
    .usage = "aule-worker --prompt FILE [OPTION]...",
    .about = "Continues a text with a small transformer that uses aule for attention and KV cache.",
    .epilogue = "Exit codes: 0 done, 1 failed, 2 the command line is wrong, 3 no daemon answers or "
                "the GPU was lost;\nstandard error says why.",
    .options = entries,
    .num_options = sizeof entries / sizeof *entries,
};

static void name_dtypes(void)
{
    const int most = sizeof dtype_words / sizeof *dtype_words - 1; // behind them is a NULL
    for (int i = 0; i < most && aule_dtype_size((enum aule_dtype)(AULE_F32 + i)); i++)
        dtype_words[i] = aule_dtype_name((enum aule_dtype)(AULE_F32 + i));
}

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
    name_dtypes();
    enum options_result result = options_read(&program, argc, argv, options, &line);
    if (result == OPTIONS_BAD)
        complain(EXIT_CODE_USAGE, "%s", line.error);
    if (result != OPTIONS_RUN)
        return result;
    complaint_settle(options->json);
    settle(options);
    return check(options, &line);
}
