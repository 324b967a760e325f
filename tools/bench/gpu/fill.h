// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fill.h - the GPU computes elements of values.h in place, because gigabytes by the CPU would take
// longer than the measurement. It uses the engine's parts below engine.h.

#ifndef AULE_BENCH_FILL_H
#define AULE_BENCH_FILL_H

#include "engine/measuring.h"
#include "program.h"

struct fill {
    struct program program;
};

enum status fill_init(struct fill *fill, struct device *device, struct error *error);
void fill_finish(struct fill *fill); // takes a zeroed or half-made one

// Writes elements of values.h to `address`: num_parts pieces of part_elements of stream k, from
// element `first` on. If v_stream is not 0, each piece is followed by the same piece of that
// stream. part_elements and first are multiples of 4.
struct fill_params {
    enum dtype dtype;
    uint64_t k_stream, v_stream, first, part_elements, num_parts, address;
};
// Waits until they are written.
enum status fill_run(const struct fill *fill, struct transfer *transfer,
                     const struct fill_params *params, struct error *error);

#endif
