// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// sample.h - chooses the rows of a large `out` that are checked. It knows no values.

#ifndef AULE_BENCH_SAMPLE_H
#define AULE_BENCH_SAMPLE_H

#include "shape.h"

// Draws `count` of the shape's pairs (token * KV heads + KV head), each once, into pairs[0..count);
// `count` is at most the number of pairs. It draws the last token of each sequence, or of as many
// sequences as fit; with up to half of the draws first tokens; tokens on both sides of borders of
// 16, 32, 64 and 128; the rest, and the KV head of each, by a hash, the same in each run. False: no
// host memory.
bool sample_draw(const struct shape *shape, uint32_t count, uint32_t *pairs);

#endif
