// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// arena.h - memory that a client writes, as the GPU sees it: in place, or a mirror that is copied around each submission.

#ifndef AULE_ENGINE_ARENA_H
#define AULE_ENGINE_ARENA_H

#include "state.h"

struct engine_arena {
    struct engine *engine;
    char *base;             // the client's memory, which may be written, or vanish, at any moment; or the buffer's own
    uint64_t size;          // bytes
    struct buffer buffer;   // `base` itself, or its mirror
    bool imported;          // the buffer is `base` itself
    uint64_t last_sequence; // of a submission that was staged into the mirror; submitter only
    struct engine_arena *prev, *next;
};

enum arena_direction { ARENA_IN, ARENA_OUT };

// Between the client's memory and the mirror: the rows of [num_tokens, num_heads, row_bytes] at `tensor`, and no other byte.
// Nothing to do for an imported arena. Submitter (in), completer (out); no lock may be held: a vanished segment faults here.
void arena_stage(const struct engine_arena *arena, enum arena_direction direction, const struct engine_tensor *tensor,
                 uint32_t num_tokens, uint32_t num_heads, uint64_t row_bytes);

#endif
