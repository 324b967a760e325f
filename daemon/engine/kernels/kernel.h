// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// kernel.h - an attention kernel: the runs that it serves, how its work is cut, and what it needs
// of a workgroup.

#ifndef AULE_ENGINE_KERNEL_H
#define AULE_ENGINE_KERNEL_H

#include "engine/vulkan/shader.h"
#include "geometry.h"

static inline uint64_t divide_up(uint64_t value, uint64_t by)
{
    return (value + by - 1) / by;
}

// Up to where the next tensor or array may begin.
static inline uint64_t padded(uint64_t bytes)
{
    return (bytes + 15) & ~UINT64_C(15);
}

// A row's bits may depend on the run's geometry and on the lengths of its own sequence only. So no
// function here gets anything else, except local_size(), on which no bit depends.
struct kernel {
    struct shader shader;
    uint32_t (*tile_rows)(const struct engine_kv *kv); // rows of one work item
    // `geometry` is as geometry_of_run() makes it. NULL: serves each.
    bool (*serves)(const struct geometry *geometry);
    // Rows of queries that a sequence has for one KV head. A sequence of at least long_keys keys
    // may have up to long_rows; 0: no more than others.
    uint32_t least_rows, most_rows;
    uint32_t long_rows, long_keys;
    // Keys of one part if num_splits is 0; 0: the sequence is not cut. NULL: none is ever cut.
    uint64_t (*part_keys)(uint64_t rows, uint64_t kv_len);
    uint32_t part_grain; // with num_splits n, the keys of a part are a multiple of it
    bool merges;         // merges its parts in the same dispatch
    // An item of a sequence with at least so many keys may need a second pass (struct gpu_redo). 0:
    // there is none.
    uint32_t doubtful_keys;
    uint32_t half_local_size; // with this local size an item is half a part; 0: with none
    // The local size for so many workgroups on so many multiprocessors, at most shader.local_size.
    // NULL: always that.
    uint32_t (*local_size)(const uint32_t *spec, uint64_t num_workgroups,
                           uint32_t num_multiprocessors);
    // Local sizes that give the same bits; ends with 0. Tuning takes the fastest. All that
    // local_size() returns are among them. NULL: there is one way only.
    const uint32_t *candidates;
    // Not NULL: this kernel takes no sequences. It computes half parts that tiles of the kernel
    // `helps` share, with the same bits. A work item has crowd_rows rows, of which each tile takes
    // a power of two. Its keys are a multiple of crowd_grain. It needs least_members tiles.
    const struct kernel *helps;
    uint32_t crowd_rows, least_members, crowd_grain;
    uint32_t shared_memory; // bytes a workgroup, in its largest pipeline
};

// Rows of table.c that others name. All other kernels are reached by a variant.
extern const struct kernel kernel_plain, kernel_decode_emulated, kernel_prefill_emulated;

bool kernel_takes(const struct kernel *kernel, uint64_t rows, uint64_t kv_len); // such a sequence
uint64_t kernel_usual_parts(uint64_t kv_len); // of a decode of so many keys, at least 1
bool kernel_may_cut(const struct kernel *kernel, uint32_t num_splits);
// Whether items of a sequence of so many keys may need a second pass.
bool kernel_doubts(const struct kernel *kernel, uint64_t kv_len);
bool kernel_cuts_halves(const struct kernel *kernel, uint32_t num_splits, uint32_t local_size);
// Keys of one part of a sequence of `rows` rows a KV head; 0: it is not cut.
uint64_t kernel_part_keys(const struct kernel *kernel, uint64_t rows, uint64_t kv_len,
                          uint32_t num_splits);
uint32_t kernel_local_size(const struct kernel *kernel, const uint32_t spec[SPEC_CONSTANTS],
                           uint64_t num_workgroups, uint32_t num_multiprocessors);

#endif
