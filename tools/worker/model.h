// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// model.h - a small transformer over bytes, shaped like Llama: RMSNorm, RoPE, grouped-query
// attention, SwiGLU. Its weights are noise from a fixed seed, so its text is noise, but always the
// same noise. It knows nothing of aule: the caller's `attend` decides where keys and values are
// kept and how attention is computed. One thread.

#ifndef WORKER_MODEL_H
#define WORKER_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MODEL_VOCABULARY = 256, // a token is a byte
    MODEL_LAYERS = 4,
    MODEL_WIDTH = 128,
    MODEL_HEADS = 4,
    MODEL_KV_HEADS = 2,
    MODEL_HEAD_DIM = 32,
    MODEL_INNER = 384, // inner width of SwiGLU
    // One token's row has Q, then K, then V: [MODEL_HEADS + 2 * MODEL_KV_HEADS, MODEL_HEAD_DIM].
    MODEL_QKV_WIDTH = (MODEL_HEADS + 2 * MODEL_KV_HEADS) * MODEL_HEAD_DIM,
    MODEL_KV_WIDTH = 2 * MODEL_KV_HEADS * MODEL_HEAD_DIM, // the part of a row that is K and V
    MODEL_OUT_WIDTH = MODEL_HEADS * MODEL_HEAD_DIM,
};

// Bounds of keys and values for any text, as the file of a quantised model has them. A test checks
// them.
#define MODEL_LARGEST_KEY   8.0f
#define MODEL_LARGEST_VALUE 8.0f

// Models share keys and values only if this is equal; at most 64 characters.
#define MODEL_FINGERPRINT "aule-worker bytes 1, 4x128, rope 1e4"

struct model;

// NULL: out of memory.
struct model *model_create(void);
void model_destroy(struct model *model); // takes NULL

// Attention of one layer for the tokens of the forward pass: qkv is [num_tokens, MODEL_QKV_WIDTH]
// after RoPE, out is [num_tokens, MODEL_OUT_WIDTH]. False ends the pass; `context` then knows the
// reason.
typedef bool model_attend(void *context, uint32_t layer, const float *qkv, float *out);

enum model_result { MODEL_OK, MODEL_NO_MEMORY, MODEL_ATTEND_FAILED };

// Computes tokens (each below MODEL_VOCABULARY) at the positions first_position and up of their
// sequence, num_tokens > 0. Writes the logits [MODEL_VOCABULARY] of the last one.
enum model_result model_forward(const struct model *model, const int32_t *tokens,
                                uint32_t num_tokens, uint32_t first_position, model_attend *attend,
                                void *context, float *logits);

#endif
