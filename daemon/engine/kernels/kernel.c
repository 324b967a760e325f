// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// kernel.c - asks a kernel's row of the table: does it take a sequence, and how is its work cut?
// Any thread; no state.

#include "kernel.h"

bool kernel_takes(const struct kernel *kernel, uint64_t rows, uint64_t kv_len)
{
    if (rows < kernel->least_rows)
        return false;
    return rows <= kernel->most_rows || (rows <= kernel->long_rows && kv_len >= kernel->long_keys);
}

uint64_t kernel_usual_parts(const struct engine_kv *kv, uint64_t kv_len)
{
    return kv_len ? divide_up(kv_len, kernel_decode_emulated.part_keys(kv, 1, kv_len)) : 1;
}

bool kernel_may_cut(const struct kernel *kernel, uint32_t num_splits)
{
    return kernel->part_keys && num_splits != 1;
}

bool kernel_doubts(const struct kernel *kernel, uint64_t kv_len)
{
    return kernel->doubtful_keys && kv_len >= kernel->doubtful_keys;
}

bool kernel_cuts_halves(const struct kernel *kernel, uint32_t num_splits, uint32_t local_size)
{
    return kernel->half_local_size == local_size && kernel_may_cut(kernel, num_splits);
}

// With more parts a multiprocessor, tiles of two parts fill the device by themselves: 3 of 2 warps
// each.
enum { WHOLE_PARTS = 6 };

bool kernel_keeps_whole(const struct kernel *kernel, uint32_t num_splits, uint32_t local_size,
                        uint64_t num_workgroups, uint32_t num_multiprocessors)
{
    return num_splits == 0 && kernel->whole_local_size == local_size &&
           num_workgroups > (uint64_t)WHOLE_PARTS * num_multiprocessors;
}

uint64_t kernel_part_keys(const struct kernel *kernel, const struct engine_kv *kv, uint64_t rows,
                          uint64_t kv_len, uint32_t num_splits)
{
    if (!kernel_may_cut(kernel, num_splits) || kv_len == 0)
        return 0;
    if (num_splits == 0)
        return kernel->part_keys(kv, rows, kv_len);
    return divide_up(divide_up(kv_len, num_splits), kernel->part_grain) * kernel->part_grain;
}

uint32_t kernel_local_size(const struct kernel *kernel, const uint32_t spec[SPEC_CONSTANTS],
                           uint64_t num_workgroups, uint32_t num_multiprocessors)
{
    uint32_t most = kernel->shader.local_size;
    uint32_t wanted =
        kernel->local_size ? kernel->local_size(spec, num_workgroups, num_multiprocessors) : most;
    return wanted < most ? wanted : most;
}
