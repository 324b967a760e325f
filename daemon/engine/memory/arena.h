// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// arena.h - memory that a client writes, as the GPU sees it. It is the memory itself, or a mirror;
// the engine copies a mirror's rows before and after each submission. Knows offsets and strides,
// not what they mean.

#ifndef AULE_ENGINE_ARENA_H
#define AULE_ENGINE_ARENA_H

#include "engine/vulkan/buffer.h"

struct engine_arena {
    struct engine *engine;
    // The client's memory, which may change or vanish at any moment; or the buffer's own memory.
    char *base;
    uint64_t size;        // bytes
    struct buffer buffer; // imports `base`, or is its mirror
    bool imported;        // the buffer is `base` itself, so nothing is copied
    // Of engine_arena_create_parts(): part i of `base` begins at i * part_bytes, and has a buffer.
    uint64_t part_bytes;  // 0: `buffer` has all
    struct buffer *parts; // [num_parts]; owned; then `buffer` is not used
    uint32_t num_parts;
    uint64_t last_sequence; // of the last submission that was staged into the mirror; submitter
                            // only
    struct engine_arena *prev, *next;
};

// The buffer that has byte `offset`, which becomes the byte's offset there.
const struct buffer *arena_buffer(const struct engine_arena *arena, uint64_t *offset);
// Frees the arena, which is in no list, and its memory on the GPU.
void arena_free(struct engine_arena *arena);

// One pass of arena_stage() over a run's tensors. ARENA_IN and ARENA_OUT copy its rows.
// ARENA_MEASURE copies nothing: it adds up in `bytes` what ARENA_IN would copy, and widens [begin,
// end) to where it lies.
struct arena_pass {
    enum { ARENA_IN, ARENA_OUT, ARENA_MEASURE } what;
    uint64_t begin, end; // offsets in the arena; set begin to UINT64_MAX first
    unsigned __int128 bytes;
};

// Copies the rows [num_tokens, num_heads, row_bytes] of `tensor` between client and mirror, and no
// other byte. Bytes that successive rows share are copied once. Does nothing if the arena is
// imported. The submitter copies in, the completer out. No lock may be held: client memory that
// vanished faults here.
void arena_stage(const struct engine_arena *arena, struct arena_pass *pass,
                 const struct wire_tensor *tensor, uint32_t num_tokens, uint32_t num_heads,
                 uint64_t row_bytes);
// Copies all bytes [begin, end) in.
void arena_stage_span(const struct engine_arena *arena, uint64_t begin, uint64_t end);

#endif
