// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// toy_model.h - a language model of one attention layer with made-up weights, for the examples:
// what a worker does around sequences, and nothing else. A failure prints its sentence and exits.

#ifndef AULE_EXAMPLES_TOY_MODEL_H
#define AULE_EXAMPLES_TOY_MODEL_H

#include <aule/sequence.h>

enum { VOCABULARY = 50, HEADS = 2, DIM = 32, MAX_ROWS = 256 };

struct toy_model {
    struct aule_session *session;
    struct aule_cache *cache;
    struct aule_step *step;
    struct aule_tensor q, k, v, out; // [MAX_ROWS, ...]
    float logits[MAX_ROWS][VOCABULARY];
};

void check(enum aule_status status, const char *what);

// Connects to the daemon of $AULE_SOCKET.
void toy_open(struct toy_model *model);
void toy_close(struct toy_model *model);

struct aule_sequence *toy_sequence(struct toy_model *model, const int32_t *tokens, uint32_t count);

// One model step; fills model->logits[row] for every row of the entries, see aule_step_make().
void toy_step(struct toy_model *model, struct aule_step_entry *entries, uint32_t num_entries);

int32_t toy_best(const float *logits); // the likeliest token
double toy_log_probability(const float *logits, int32_t token);

#endif
