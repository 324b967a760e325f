// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// sample.h - which rows of a large `out` are looked at. Knows no values.

#ifndef AULE_BENCH_SAMPLE_H
#define AULE_BENCH_SAMPLE_H

#include "shape.h"

// Draws `count` of the shape's pairs (token * KV heads + KV head), no more than there are and each
// once, into pairs[0..count): the last token of each sequence, or of as many as fit, and up to half
// of the draw the first ones; tokens on both sides of borders of 16, 32, 64 and 128; the rest, and
// the KV head of each, by a hash, the same in each run. False: no host memory.
bool sample_draw(const struct shape *shape, uint32_t count, uint32_t *pairs);

#endif
