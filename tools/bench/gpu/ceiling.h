// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ceiling.h - the most that the device can do, measured in the same run as the workloads: reading
// and copying memory, matrix products. One thread.

#ifndef AULE_BENCH_CEILING_H
#define AULE_BENCH_CEILING_H

#include <stdbool.h>
#include <stdint.h>

struct ceiling;

struct ceilings {
    double read_gb_per_s; // a shader that reads gigabytes once, in 16-byte pieces; the best of
                          // several grid sizes
    double copy_gb_per_s; // the better of a shader and vkCmdCopyBuffer; read and written bytes
                          // together
    double matrix_tflops; // coopMatMulAdd of f16 into f32 in registers; 0: the device or this build
                          // has no tensor cores
};

// Medians. `device` as in engine_params. NULL: standard error says why. ceiling_close() takes NULL.
struct ceiling *ceiling_open(const char *device, bool software);
void ceiling_close(struct ceiling *ceiling);
const struct ceilings *ceiling_values(const struct ceiling *ceiling);

// Microseconds of a linear read of `bytes`, including launch and barrier, in a row of such reads:
// the least time of a workload that reads as much. 0: standard error says why.
double ceiling_floor_us(struct ceiling *ceiling, double bytes);

#endif
