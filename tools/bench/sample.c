// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// sample.c - see sample.h.

#include "sample.h"

#include <stdlib.h>

static const uint32_t borders[] = {16, 32, 64, 128};
enum { NUM_BORDERS = sizeof borders / sizeof *borders };

struct draw {
    const struct shape *shape;
    uint32_t num_tokens, num_kv_heads;
    uint32_t *pairs;
    uint32_t count, drawn;
    bool *taken; // [tokens * KV heads]
    uint64_t state;
};

// A number below `end` (SplitMix64: Steele, Lea, Flood 2014).
static uint32_t below(struct draw *draw, uint32_t end)
{
    uint64_t x = draw->state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((x ^ x >> 31) % end);
}

// Takes this pair, or the next free one.
static void take(struct draw *draw, uint64_t pair)
{
    uint64_t all = (uint64_t)draw->num_tokens * draw->num_kv_heads;
    while (draw->taken[pair])
        pair = (pair + 1) % all;
    draw->taken[pair] = true;
    draw->pairs[draw->drawn++] = (uint32_t)pair;
}

// Takes a free KV head of the token, if there is one.
static void take_token(struct draw *draw, uint32_t token)
{
    uint64_t first = (uint64_t)token * draw->num_kv_heads;
    uint32_t head = below(draw, draw->num_kv_heads);
    for (uint32_t i = 0; i < draw->num_kv_heads && draw->drawn < draw->count; i++) {
        uint64_t pair = first + (head + i) % draw->num_kv_heads;
        if (draw->taken[pair])
            continue;
        take(draw, pair);
        return;
    }
}

static uint32_t begin_of(const struct draw *draw, uint32_t seq)
{
    return (uint32_t)draw->shape->cu_seqlens_q[seq];
}

// If there are more sequences than draws, takes evenly spaced ones.
static void take_ends(struct draw *draw)
{
    uint32_t num_seqs = draw->shape->num_seqs,
             count = num_seqs < draw->count ? num_seqs : draw->count;
    for (uint32_t i = 0; i < count; i++)
        take_token(draw, begin_of(draw, (uint32_t)((uint64_t)i * num_seqs / count) + 1) - 1);
    uint32_t half = draw->count / 2, left = draw->drawn < half ? half - draw->drawn : 0;
    count = num_seqs < left ? num_seqs : left;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t seq = (uint32_t)((uint64_t)i * num_seqs / count), first = begin_of(draw, seq);
        if (begin_of(draw, seq + 1) - first > 1)
            take_token(draw, first);
    }
}

// Takes both sides of a border in a random token's sequence, if the sequence has a border of this
// size.
static void take_border(struct draw *draw, uint32_t size)
{
    uint32_t seq = shape_seq_of(draw->shape, below(draw, draw->num_tokens)),
             first = begin_of(draw, seq);
    uint32_t inner =
        (begin_of(draw, seq + 1) - first - 1) / size; // borders with a token after them
    if (!inner)
        return;
    uint32_t token = first + (1 + below(draw, inner)) * size;
    take_token(draw, token - 1);
    take_token(draw, token);
}

static void take_borders(struct draw *draw)
{
    // half of the remaining draws
    uint32_t rounds = (draw->count - draw->drawn) / (4 * NUM_BORDERS);
    for (uint32_t i = 0; i < rounds; i++)
        for (uint32_t b = 0; b < NUM_BORDERS; b++)
            take_border(draw, borders[b]);
}

bool sample_draw(const struct shape *shape, uint32_t count, uint32_t *pairs)
{
    struct draw draw = {.shape = shape,
                        .num_tokens = shape->num_tokens,
                        .num_kv_heads = shape->workload->num_kv_heads,
                        .pairs = pairs,
                        .count = count};
    draw.taken = calloc((size_t)draw.num_tokens * draw.num_kv_heads, sizeof *draw.taken);
    if (!draw.taken)
        return false;
    take_ends(&draw);
    take_borders(&draw);
    while (draw.drawn < count)
        take(&draw, (uint64_t)below(&draw, draw.num_tokens) * draw.num_kv_heads +
                        below(&draw, draw.num_kv_heads));
    free(draw.taken);
    return true;
}
