// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention.h - one sequence: where its keys and values are kept, and who computes its attention. A
// step covers the tokens [first, first + count): begin, run once for each layer, end. One thread.
// Each function returns false on failure; `failure` then says why.

#ifndef WORKER_ATTENTION_H
#define WORKER_ATTENTION_H

#include "aule/aule.h"
#include "base/exit_code.h"
#include "element.h"

struct failure {
    enum exit_code code; // FAILED, or GONE: the daemon or its GPU is gone
    const char *status;  // the library's, as "LIMIT"; NULL = none
    char text[1024];     // one sentence
};
// Sets `failure` without a status. Returns false.
bool failure_set(struct failure *failure, enum exit_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

struct attention;

struct attention_ops {
    // Returns how many of these tokens need no computing because their keys and values exist
    // already: a number of whole blocks.
    bool (*lookup)(struct attention *attention, const int32_t *tokens, uint32_t num_tokens,
                   uint32_t *hit_tokens);
    // `write` false: the keys and values of these tokens exist already; only their attention is
    // computed.
    bool (*begin)(struct attention *attention, uint32_t first, uint32_t count, bool write);
    // As model_attend() in model.h.
    bool (*run)(struct attention *attention, uint32_t layer, const float *qkv, float *out);
    void (*end)(struct attention *attention);
    // Offers the whole blocks of these first tokens to other workers. All of them must be written.
    bool (*publish)(struct attention *attention, const int32_t *tokens, uint32_t num_tokens);
    void (*destroy)(struct attention *attention);
};

struct attention {
    const struct attention_ops *ops;
    uint64_t session;    // the daemon's id of this worker's session; 0 = none
    char device[256];    // name of the device that computes
    uint32_t hit_blocks; // of the last look-up
    struct failure failure;
};

enum attention_path {
    ATTENTION_PAGED,      // by aule, over blocks of the cache that workers share
    ATTENTION_CONTIGUOUS, // by aule, over rows of keys and values in this worker's own arena
    ATTENTION_REFERENCE,  // in this process, on the CPU: the other paths must equal it
};

struct attention_params {
    enum attention_path path;
    enum aule_dtype dtype;                           // of q, k, v and out: f32, f16 or bf16
    struct element_kv kv;                            // how keys and values are kept
    uint32_t block_size;                             // tokens; paged only
    uint32_t max_tokens;                             // of the sequence
    uint32_t max_count;                              // of a step
    const char *socket, *name, *tenant, *cache_name; // for aule only; all except cache_name may be
                                                     // NULL
    int timeout_ms;                                  // for aule only; the limit of each wait
};

// NULL: failed, and `failure` says why. End with attention_destroy().
struct attention *attention_create(const struct attention_params *params, struct failure *failure);

const char *attention_path_name(enum attention_path path); // "paged"

// The paths behind attention_create().
struct attention *attention_paged_create(const struct attention_params *params,
                                         struct failure *failure);
struct attention *attention_contiguous_create(const struct attention_params *params,
                                              struct failure *failure);
struct attention *attention_reference_create(const struct attention_params *params,
                                             struct failure *failure);

static inline void attention_destroy(struct attention *attention)
{
    if (attention)
        attention->ops->destroy(attention);
}

// For a path that shares nothing with other workers.
bool attention_finds_nothing(struct attention *attention, const int32_t *tokens,
                             uint32_t num_tokens, uint32_t *hit_tokens);
bool attention_offers_nothing(struct attention *attention, const int32_t *tokens,
                              uint32_t num_tokens);

#endif
