// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// text_world.h - sequences through the real daemon: a toy model whose q, k and v follow from a
// token, its position and the layer, and what attention over them must be, in float64. Asserts with
// check.

#ifndef AULE_TESTS_TEXT_WORLD_H
#define AULE_TESTS_TEXT_WORLD_H

#include "aule/sequence.h"
#include "client_rig.h"

enum {
    TEXT_BLOCK = 8,
    TEXT_LAYERS = 2,
    TEXT_HEADS = 2,
    TEXT_DIM = 16,
    TEXT_ROWS = 512, // tokens that one step takes
    TEXT_MOST = 512  // tokens of one text
};

extern const struct aule_cache_params text_cache; // the cache of every text world
extern enum aule_load text_load;                  // of texts that are made from now on

struct text_world {
    struct aule_session *session;
    struct aule_cache *cache;
    struct aule_step *step;
    struct aule_tensor q, k, v, out; // [TEXT_ROWS, heads, TEXT_DIM] f32; one KV head
};

// What a sequence should be.
struct text {
    struct aule_sequence *sequence;
    uint32_t num_tokens, num_computed;
    int32_t tokens[TEXT_MOST];
};

void text_open(struct text_world *world);
void text_close(struct text_world *world); // and nothing is held afterwards

void text_create(struct text_world *world, struct text *text, const int32_t *tokens, uint32_t count,
                 bool publish);
// With `claim` and `publish`.
void text_claim(struct text_world *world, struct text *text, const int32_t *tokens, uint32_t count);
// Waits for blocks of others; the status of aule_sequence_wait().
enum aule_status text_wait(struct text *text, int timeout_ms);
void text_append(struct text *text, const int32_t *tokens, uint32_t count);
void text_truncate(struct text *text, uint32_t num_tokens);
void text_fork(const struct text *from, struct text *to);
void text_destroy(struct text *text);

// Makes a step in which texts[i] computes counts[i] tokens (0: all that are left), runs all layers,
// and holds every row of `out` against float64. `outs`, if not NULL, gets the last layer's rows.
void text_step(struct text_world *world, struct text *const *texts, const uint32_t *counts,
               uint32_t num_texts, float *outs);

#endif
