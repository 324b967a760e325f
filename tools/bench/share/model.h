// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// model.h - what stands for a model in studies: it computes prompts and decodes through the client
// library's sequences. Q, K and V depend only on token and position, so any process writes the same
// for a common prompt.

#ifndef AULE_BENCH_SHARE_MODEL_H
#define AULE_BENCH_SHARE_MODEL_H

#include <aule/sequence.h>

struct model_shape {
    uint32_t layers, num_heads, num_kv_heads, head_dim, block_size;
};

// `full`: 32 layers of D1's geometry, else a few of a small one.
struct model_shape model_shape_of(bool full);

enum {
    MODEL_CHUNK = 512, // most tokens of a step
    MODEL_WAIT_MS = 120000,
    MODEL_ARENA = 64 << 20, // bytes
};

struct model_params {
    const char *socket, *cache;
    struct model_shape shape;
    bool whole_steps; // all layers of a step are submitted at once
};

// Runs that it waited for: a layer each, or with whole steps the last of each step. Their GPU time,
// and the sessions of their dispatches. The time to make steps.
struct model_spent {
    uint64_t gpu_ns, num_sessions, num_runs;
    double making_us;
};

// What a step reads: [MODEL_CHUNK, heads, head_dim] of f16 each.
struct model_inputs {
    struct aule_tensor q, k, v;
};

// Tokens of the prompt's next step. While the GPU computes a step, they are filled into the inputs
// that it does not use.
struct model_ahead {
    const struct aule_sequence *sequence;
    uint32_t first, count, filled;
};

struct model {
    struct model_params params; // lent
    struct aule_session *session;
    struct aule_cache *cache;
    struct aule_step *step;
    struct model_inputs inputs[2], *now; // `now`: the last step's
    struct model_ahead ahead;
    struct aule_ticket last; // of a prompt's last step: its last run
    bool waits;              // `last` is not reaped
    struct aule_tensor out;  // [MODEL_CHUNK, heads, head_dim] of f16
    uint64_t computed;       // tokens so far
    double filled_us; // time spent on Q, K and V so far, while the GPU had no step to compute
    bool stale;       // Q, K and V stay as they are, where only the time counts
    struct model_spent spent; // so far; the user may clear it
    uint32_t last_row;        // of `out`, that of the last token of the last step
    uint16_t *numbers;        // owned
};

// False, here and below: standard error says why.
bool model_open(struct model *model, const struct model_params *params);
void model_close(struct model *model); // takes a zeroed or half-made one
bool model_fine(enum aule_status status, const char *what);

// `count` tokens of text `text`, then `own` tokens that only number `number` has.
struct model_prompt {
    uint32_t text, count, number, own;
    bool publish; // and claim, so that it is found elsewhere and is found by others
    enum aule_load load;
};
// The first tokens of a text, malloc'd; NULL: no memory.
int32_t *model_tokens(uint32_t text, uint32_t count);
bool model_sequence(struct model *model, const struct model_prompt *prompt,
                    struct aule_sequence **out);
// Waits for what others compute or tiers bring.
bool model_await(struct aule_sequence *sequence);
// model_await(), then computes the rest and publishes it. The last token is a step of its own, as
// if the others had been found, so its output has the same bits. While the GPU computes a step, the
// next one's inputs are filled, and its first run is submitted before the step has ended.
bool model_prefill(struct model *model, struct aule_sequence *sequence);
// Computes the rest and publishes nothing.
bool model_compute(struct model *model, struct aule_sequence *sequence);
// Makes and runs a step of MODEL_CHUNK tokens at most.
bool model_step(struct model *model, struct aule_step_entry *entries, uint32_t num_entries);
// Lets go of the blocks that the last step names.
bool model_let_go(struct model *model);
// Goes on with a hash of row `row` of `out`; 0 begins one.
uint64_t model_hash(const struct model *model, uint32_t row, uint64_t hash);
// One more token of each sequence. `entries`: scratch; their rows are set.
bool model_decode(struct model *model, struct aule_sequence *const *sequences, uint32_t count,
                  int32_t token, struct aule_step_entry *entries);

#endif
