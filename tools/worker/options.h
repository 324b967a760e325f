// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.h - aule-worker's command line as one struct.

#ifndef WORKER_OPTIONS_H
#define WORKER_OPTIONS_H

#include "attention.h"
#include "base/options.h"

struct options {
    const char *prompt; // path; "-" = standard input
    const char *append; // text behind the prompt; "" = none
    const char *socket, *name, *tenant, *cache_name;
    const char *logits_file, *compare_file; // paths or NULL
    uint32_t num_tokens, chunk, block_size, max_prompt, timeout_ms;
    enum aule_dtype dtype, kv_dtype;
    enum aule_scale_mode kv_scale;
    enum attention_path path;
    bool json;
};

// OPTIONS_DONE: --help or --version was answered. OPTIONS_BAD: there was a complaint. Strings point
// into argv.
enum options_result options_parse(struct options *options, int argc, char **argv);

#endif
