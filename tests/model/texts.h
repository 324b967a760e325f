// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// texts.h - what the library of a worker makes of sequences: which messages an operation sends, by
// plain_model.h's rules for each, and what aule_sequence_info() then says. After each message a
// command of another worker that waits may go on.

#ifndef AULE_TESTS_TEXTS_H
#define AULE_TESTS_TEXTS_H

#include "plain_model.h"

// What the other worker's command waits for may have come. Sets waiter.over.
void texts_wake(struct model *m);

enum outcome text_create(struct model *m, int worker, int sequence, const int32_t *tokens,
                         uint32_t num_tokens, bool publish, bool claim);
// `waits`: TIMEOUT leaves the worker waiting, and texts_wake() ends the operation.
enum outcome text_wait(struct model *m, int worker, int sequence, bool waits);
// Appends and computes all that is left. `waits`: likewise for NO_BLOCKS.
bool text_would_copy(const struct model *m, int worker, int sequence, uint32_t num_new);
enum outcome text_step(struct model *m, int worker, int sequence, const int32_t *tokens,
                       uint32_t count, bool waits);
void text_truncate(struct model *m, int worker, int sequence, uint32_t num_tokens);
void text_fork(struct model *m, int worker, int from, int to);
enum outcome text_publish(struct model *m, int worker, int sequence);
void text_destroy(struct model *m, int worker, int sequence);
enum outcome text_offer(struct model *m, int worker, int sequence, int offer);
enum outcome text_take(struct model *m, int worker, int sequence, int offer, bool waits);
void text_accept(struct model *m, int worker, int sequence);
// Blocks of the sequence that a step names.
uint32_t text_blocks(const struct model *m, int worker, int sequence, int *blocks);
uint32_t text_promised(const struct model *m, int worker, int sequence); // tokens

#endif
