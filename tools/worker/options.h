// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.h - aule-worker's command line as one struct.

#ifndef WORKER_OPTIONS_H
#define WORKER_OPTIONS_H

#include "attention.h"
#include "base/options.h"

// The options, a line for each; base/options.h explains it. ALSO() is an option that sets the field
// of another; it has no type.
#define WORKER_OPTIONS(SECTION, OPTION, ALSO)                                                      \
    SECTION("Text")                                                                                \
    OPTION(const char *, prompt, "prompt", "FILE", OPTION_TEXT,                                    \
           .help = "the text to continue (required); `-` reads standard input",                    \
           .details = "It must not be empty.")                                                     \
    OPTION(const char *, append, "append", "TEXT", OPTION_TEXT, .otherwise = "none",               \
           .help = "a different ending: TEXT follows the prompt")                                  \
    OPTION(uint32_t, max_prompt, "max-prompt", "BYTES", OPTION_COUNT, 1, 1 << 30,                  \
           .initial = "1048576", .help = "refuse a longer prompt")                                 \
    OPTION(uint32_t, num_tokens, "tokens", "N", OPTION_COUNT, 1, 1 << 20, .initial = "20",         \
           .help = "how many tokens to generate")                                                  \
    OPTION(uint32_t, chunk, "chunk", "N", OPTION_COUNT, 1, 1 << 16, .initial = "512",              \
           .help = "prompt tokens computed in one step")                                           \
    SECTION("Attention and cache")                                                                 \
    OPTION(enum attention_path, path, "path", NULL, OPTION_CHOICE, ATTENTION_PAGED,                \
           OPTION_WORDS([ATTENTION_PAGED] = "paged", [ATTENTION_CONTIGUOUS] = "contiguous",        \
                        [ATTENTION_REFERENCE] = "reference"),                                      \
           .initial = "paged",                                                                     \
           .help =                                                                                 \
               "`paged`: aule, over blocks that workers share; `contiguous`: aule, over rows in "  \
               "this worker's own arena; `reference`: this process, on the CPU, without a daemon") \
    ALSO(path, "reference", NULL, OPTION_CONSTANT, ATTENTION_REFERENCE,                            \
         .help = "the same as `--path reference`")                                                 \
    OPTION(enum aule_dtype, dtype, "dtype", NULL, OPTION_CHOICE, AULE_F32,                         \
           OPTION_WORDS("f32", "f16", "bf16"), .initial = "f32",                                   \
           .help = "element type of q, k, v and out")                                              \
    OPTION(enum aule_dtype, kv_dtype, "kv-dtype", NULL, OPTION_CHOICE, AULE_F32,                   \
           .words = dtype_words, .initial = "f16",                                                 \
           .help = "element type in which keys and values are stored")                             \
    OPTION(enum aule_scale_mode, kv_scale, "kv-scale", NULL, OPTION_CHOICE, AULE_SCALE_NONE,       \
           .words = scale_words, .otherwise = "token_head for int8, else none",                    \
           .help = "scales of keys and values in fp8 or int8",                                     \
           .details = "`tensor` is one number for all, `token_head` one for each token and head. " \
                      "With `--path contiguous` a scale needs `--dtype f32`, because no other "    \
                      "type can hold scaled values.")                                              \
    OPTION(uint32_t, block_size, "block-size", "N", OPTION_COUNT, 8, 256, .power_of_two = true,    \
           .initial = "32", .help = "tokens of a block of the cache, a power of two")              \
    OPTION(const char *, cache_name, "cache-name", "NAME", OPTION_TEXT, .initial = "aule-worker",  \
           .help = "workers that name the same cache share it",                                    \
           .details = "Other element types, scales or block sizes need a cache of another name.")  \
    OPTION(const char *, tenant, "tenant", "NAME", OPTION_TEXT, .otherwise = "none",               \
           .help = "share prefixes with this tenant's workers only")                               \
    SECTION("Daemon")                                                                              \
    OPTION(const char *, socket, "socket", "PATH", OPTION_TEXT,                                    \
           .otherwise = "`$AULE_SOCKET`, else the first device's in the runtime folder",           \
           .help = "the daemon's socket",                                                          \
           .details =                                                                              \
               "The runtime folder is $AULE_RUNTIME_DIR, $XDG_RUNTIME_DIR/aule or /run/aule.")     \
    OPTION(uint32_t, timeout_ms, "timeout", "MS", OPTION_COUNT, 1, INT_MAX, .initial = "60000",    \
           .help = "how many milliseconds each wait for the daemon may take")                      \
    OPTION(const char *, name, "name", "NAME", OPTION_TEXT, .initial = "aule-worker",              \
           .help = "how `aule-ctl` shows this worker")                                             \
    SECTION("Output")                                                                              \
    OPTION(const char *, logits_file, "logits", "FILE", OPTION_TEXT,                               \
           .help = "write each step's logits: raw f32 [tokens, 256]",                              \
           .details =                                                                              \
               "The byte order is this machine's. An existing file keeps its contents until the "  \
               "run has succeeded. A file that `--prompt` or `--compare` reads is refused.")       \
    OPTION(const char *, compare_file, "compare", "FILE", OPTION_TEXT,                             \
           .help = "print the largest difference to the logits in FILE, which another run wrote "  \
                   "by `--logits`",                                                                \
           .details = "Both runs must have the same `--tokens`.")                                  \
    OPTION(                                                                                        \
        bool, json, "json", NULL, OPTION_FLAG, .otherwise = "text",                                \
        .help = "print one JSON document, also of a failure",                                      \
        .details =                                                                                 \
            "Its key `schema_version` is 1; it is raised when a key is removed or changes its "    \
            "meaning, not when one is added. `token_ids` are the generated tokens. `hit_blocks` "  \
            "and `hit_tokens` say what the look-up found. `smallest_gap` is the smallest lead of " \
            "the best logit over the second. `prefill_seconds` and `decode_seconds` are the "      \
            "times of the two parts. `session` is the daemon's id of this worker's session (0: "   \
            "none). `largest_logit_difference` exists only with `--compare`.")

struct options {
    WORKER_OPTIONS(OPTION_NO_MEMBER, OPTION_MEMBER, OPTION_NO_MEMBER)
};

// OPTIONS_DONE: --help or --version was answered. OPTIONS_BAD: there was a complaint. Strings point
// into argv.
enum options_result options_parse(struct options *options, int argc, char **argv);

#endif
