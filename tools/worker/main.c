// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// main.c - aule-worker: takes a prompt and generates tokens. Joins the parts: options, prompt,
// attention, generation, report.

#include "base/process.h"
#include "files.h"
#include "generate.h"
#include "options.h"
#include "report.h"
#include "tools/complaint/complaint.h"
#include "tools/complaint/same_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LINE_WIDTH = 40 }; // columns of the line that shows the progress

static enum exit_code complain_of(const struct failure *failure)
{
    complaint_say(failure->text, failure->status, NULL);
    return failure->code;
}

static void show_progress(const char *what, uint32_t done, uint32_t all)
{
    char line[LINE_WIDTH + 1];
    snprintf(line, sizeof line, "%s: %u of %u tokens", what, done, all);
    fprintf(stderr, "\r%-*s", LINE_WIDTH, line);
}

static void hide_progress(void)
{
    fprintf(stderr, "\r%*s\r", LINE_WIDTH, "");
}

static struct attention_params params_of(const struct options *options, uint32_t num_prompt)
{
    return (struct attention_params){
        .path = options->path,
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

// The files that --compare and --logits name; NULL if not given.
struct logit_files {
    float *reference;
    FILE *out;
    const char *made; // the path of `out`, if the file did not exist before
};

// --logits must not overwrite a file that this run reads.
static bool is_input(const struct options *options, const char *file, const char *option)
{
    if (!same_file(options->logits_file, file))
        return false;
    complain(EXIT_CODE_FAILED, "--logits %s would replace what %s reads", options->logits_file,
             option);
    return true;
}

// Files are opened before the run, so that a wrong path fails at once.
static bool logit_files_open(struct logit_files *files, const struct options *options)
{
    const size_t count = (size_t)options->num_tokens * MODEL_VOCABULARY;
    bool made = false;
    if (is_input(options, options->prompt, "--prompt") ||
        is_input(options, options->compare_file, "--compare"))
        return false;
    if (options->compare_file &&
        !(files->reference = files_read_logits(options->compare_file, count)))
        return false;
    if (options->logits_file && !(files->out = files_open_logits(options->logits_file, &made)))
        return false;
    files->made = made ? options->logits_file : NULL;
    return true;
}

// Deletes a file that was made for a run that failed.
static void logit_files_close(struct logit_files *files)
{
    free(files->reference);
    if (!files->out)
        return;
    fclose(files->out);
    if (files->made)
        unlink(files->made);
}

static bool write_logits(struct logit_files *files, const char *path, const float *logits,
                         size_t count)
{
    FILE *out = files->out;
    files->out = NULL;
    return !out || files_write_logits(out, path, logits, count);
}

static bool tell(const struct options *options, struct logit_files *files,
                 const struct attention_params *params, const struct attention *attention,
                 const struct generation *generation, uint32_t num_prompt)
{
    const size_t count = (size_t)generation->num_tokens * MODEL_VOCABULARY;
    struct report report = {.params = params,
                            .name = options->name,
                            .attention = attention,
                            .generation = generation,
                            .prompt_tokens = num_prompt};
    if (files->reference) {
        report.compared = true;
        report.largest_difference =
            generation_largest_difference(generation->logits, files->reference, count);
    }
    return write_logits(files, options->logits_file, generation->logits, count) &&
           report_print(&report, options->json);
}

static enum exit_code work(const struct options *options, struct logit_files *files,
                           const struct model *model, const int32_t *prompt, uint32_t num_prompt)
{
    struct failure failure;
    const bool watched = isatty(STDERR_FILENO);
    const struct attention_params params = params_of(options, num_prompt);
    struct attention *attention = attention_create(&params, &failure);
    if (!attention)
        return complain_of(&failure);
    const struct generate_params generate_params = {.model = model,
                                                    .attention = attention,
                                                    .prompt = prompt,
                                                    .num_prompt = num_prompt,
                                                    .num_tokens = options->num_tokens,
                                                    .chunk = options->chunk,
                                                    .progress = watched ? show_progress : NULL};
    struct generation generation;
    enum exit_code code = EXIT_CODE_FAILED;
    const bool done = generate(&generate_params, &generation, &failure);
    if (watched)
        hide_progress();
    if (!done)
        code = complain_of(&failure);
    else if (tell(options, files, &params, attention, &generation, num_prompt))
        code = EXIT_CODE_DONE;
    generation_finish(&generation);
    attention_destroy(attention);
    return code;
}

int main(int argc, char **argv)
{
    struct options options;
    process_begin();
    switch (options_parse(&options, argc, argv)) {
    case OPTIONS_DONE: return EXIT_CODE_DONE;
    case OPTIONS_BAD: return EXIT_CODE_USAGE;
    case OPTIONS_RUN: break;
    }
    int32_t *prompt;
    uint32_t num_prompt;
    if (!files_read_prompt(options.prompt, options.append, options.max_prompt, &prompt,
                           &num_prompt))
        return EXIT_CODE_FAILED;
    struct logit_files files = {.reference = NULL};
    struct model *model = model_create();
    enum exit_code code = EXIT_CODE_FAILED;
    if (!model)
        complain(EXIT_CODE_FAILED, "out of memory for the model");
    else if (logit_files_open(&files, &options))
        code = work(&options, &files, model, prompt, num_prompt);
    logit_files_close(&files);
    model_destroy(model);
    free(prompt);
    return code;
}
