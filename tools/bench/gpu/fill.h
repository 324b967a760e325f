// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fill.h - the elements of values.h made by the GPU where they are needed: gigabytes of them by the
// CPU would take longer than what is measured. Uses the engine's parts below engine.h.

#ifndef AULE_BENCH_FILL_H
#define AULE_BENCH_FILL_H

#include "engine/measuring.h"
#include "program.h"

struct fill {
    struct program program;
};

enum status fill_init(struct fill *fill, struct device *device, struct error *error);
void fill_finish(struct fill *fill); // takes a zeroed and a half-made one

// Elements of values.h to `address`: num_parts pieces of part_elements of stream k, from element
// `first` on; with v_stream not 0 each is followed by the same piece of that stream. part_elements
// and first are multiples of 4. With part_rows not 0 a piece is so many rows, each with a scale,
// which stand as f32 behind each pair, those of its first piece first; first is a multiple of
// part_elements then.
struct fill_params {
    enum dtype dtype;
    uint32_t part_rows;
    uint64_t k_stream, v_stream, first, part_elements, num_parts, address;
};
// Waits until they are there.
enum status fill_run(const struct fill *fill, struct transfer *transfer,
                     const struct fill_params *params, struct error *error);

#endif
