// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// main.c - aule-worker: a prompt in, tokens out. Puts the parts together: options, prompt, attention, generation, report.

#include "files.h"
#include "generate.h"
#include "options.h"
#include "report.h"

#include <stdio.h>
#include <stdlib.h>

static bool complain(const char *sentence)
{
    fprintf(stderr, "aule-worker: %s\n", sentence);
    return false;
}

static struct attention_params params_of(const struct options *options, uint32_t num_prompt)
{
    return (struct attention_params){.path = options->path,
                                     .dtype = options->dtype,
                                     .kv = {.dtype = options->kv_dtype, .scale_mode = options->kv_scale},
                                     .block_size = options->block_size,
                                     .max_tokens = num_prompt + options->num_tokens,
                                     .max_count = options->chunk < num_prompt ? options->chunk : num_prompt,
                                     .socket = options->socket,
                                     .name = options->name,
                                     .tenant = options->tenant,
                                     .cache_name = options->cache_name,
                                     .timeout_ms = (int)options->timeout_ms};
}

static bool compare(const struct options *options, const struct generation *generation, struct report *report)
{
    if (!options->compare_file)
        return true;
    const size_t count = (size_t)generation->num_tokens * MODEL_VOCABULARY;
    float *other = files_read_logits(options->compare_file, count);
    if (!other)
        return false;
    report->compared = true;
    report->largest_difference = generation_largest_difference(generation->logits, other, count);
    free(other);
    return true;
}

static bool tell(const struct options *options, const struct attention_params *params,
                 const struct attention *attention, const struct generation *generation, uint32_t num_prompt)
{
    struct report report = {.params = params,
                            .name = options->name,
                            .attention = attention,
                            .generation = generation,
                            .prompt_tokens = num_prompt};
    const size_t count = (size_t)generation->num_tokens * MODEL_VOCABULARY;
    if (options->logits_file && !files_write_logits(options->logits_file, generation->logits, count))
        return false;
    return compare(options, generation, &report) && report_print(&report, options->json);
}

static bool work(const struct options *options, const struct model *model, const int32_t *prompt, uint32_t num_prompt)
{
    char error[640];
    const struct attention_params params = params_of(options, num_prompt);
    struct attention *attention = attention_create(&params, error, sizeof error);
    if (!attention)
        return complain(error);
    const struct generate_params generate_params = {.model = model,
                                                    .attention = attention,
                                                    .prompt = prompt,
                                                    .num_prompt = num_prompt,
                                                    .num_tokens = options->num_tokens,
                                                    .chunk = options->chunk};
    struct generation generation;
    bool done = generate(&generate_params, &generation, error, sizeof error);
    if (done)
        done = tell(options, &params, attention, &generation, num_prompt);
    else
        complain(error);
    generation_finish(&generation);
    attention_destroy(attention);
    return done;
}

int main(int argc, char **argv)
{
    struct options options;
    switch (options_parse(&options, argc, argv)) {
    case OPTIONS_DONE: return EXIT_SUCCESS;
    case OPTIONS_BAD: return EXIT_FAILURE;
    case OPTIONS_RUN: break;
    }
    int32_t *prompt;
    uint32_t num_prompt;
    if (!files_read_prompt(options.prompt, options.append, options.max_prompt, &prompt, &num_prompt))
        return EXIT_FAILURE;
    struct model *model = model_create();
    const bool done = model ? work(&options, model, prompt, num_prompt) : complain("out of memory for the model");
    model_destroy(model);
    free(prompt);
    return done ? EXIT_SUCCESS : EXIT_FAILURE;
}
