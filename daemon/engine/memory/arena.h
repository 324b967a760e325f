// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// arena.h - memory that a client writes, as the GPU sees it: in place, or a mirror that is copied
// around each submission.

#ifndef AULE_ENGINE_ARENA_H
#define AULE_ENGINE_ARENA_H

#include "engine/vulkan/buffer.h"

struct engine_arena {
    struct engine *engine;
    char *base;    // the client's memory, which may be written, or vanish, at any moment; or the
                   // buffer's own
    uint64_t size; // bytes
    struct buffer buffer;   // `base` itself, or its mirror
    bool imported;          // the buffer is `base` itself
    uint64_t last_sequence; // of a submission that was staged into the mirror; submitter only
    struct engine_arena *prev, *next;
};

// What is done with each tensor. To measure, which touches no memory: `bytes` is what ARENA_IN
// would copy, `begin` to `end` where they lie.
struct arena_pass {
    enum { ARENA_IN, ARENA_OUT, ARENA_MEASURE } what;
    uint64_t begin, end; // begin: UINT64_MAX at first
    unsigned __int128 bytes;
};

// Between the client's memory and the mirror: the rows of [num_tokens, num_heads, row_bytes] at
// `tensor`, and no other byte; bytes that follow rows share are copied once. Nothing to do for an
// imported arena. Submitter (in), completer (out); no lock may be held: a vanished segment faults
// here.
void arena_stage(const struct engine_arena *arena, struct arena_pass *pass,
                 const struct wire_tensor *tensor, uint32_t num_tokens, uint32_t num_heads,
                 uint64_t row_bytes);
// In: all from `begin` to `end`.
void arena_stage_span(const struct engine_arena *arena, uint64_t begin, uint64_t end);

#endif
