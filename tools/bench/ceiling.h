// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ceiling.h - what the device can do at most, measured in the same run as the workloads: reading and copying memory.

#ifndef AULE_BENCH_CEILING_H
#define AULE_BENCH_CEILING_H

#include "engine.h"

struct ceiling {
    double read_gb_per_s; // a shader that reads `bytes` once, in 16-byte pieces
    double copy_gb_per_s; // vkCmdCopyBuffer, read and written bytes together
    uint64_t bytes;
};

// Medians. `device` as in engine_params; `bytes` for each of two buffers, less where the device has less. False: standard error says why.
bool ceiling_measure(const char *device, uint64_t bytes, struct ceiling *ceiling);

#endif
