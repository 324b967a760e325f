// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// kernel.h - the attention shaders that there are: what each serves, how it wants its work cut,
// what it needs of a workgroup.

#ifndef AULE_ENGINE_KERNEL_H
#define AULE_ENGINE_KERNEL_H

#include "engine/vulkan/shader.h"
#include "geometry.h"

static inline uint64_t divide_up(uint64_t value, uint64_t by)
{
    return (value + by - 1) / by;
}

static inline uint64_t padded(uint64_t bytes) // to where the next tensor or array may begin
{
    return (bytes + 15) & ~UINT64_C(15);
}

// All that is decided here depends on the run's geometry and on one sequence's own lengths, so that
// a row's bits do; but for the local size, which no bit may depend on.
struct kernel {
    struct shader shader;
    uint32_t (*tile_rows)(const struct engine_kv *kv); // rows of one work item
    bool (*serves)(
        const struct geometry *geometry); // as geometry_of_run() makes it; NULL = every one
    uint32_t least_rows, most_rows;       // of queries of a sequence, for one KV head
    uint32_t long_rows, long_keys; // and so many if it has at least so many keys; 0 = no more
    uint64_t (*part_keys)(
        uint64_t rows,
        uint64_t kv_len); // num_splits 0: keys of one part, 0 = not cut; NULL = never cut
    uint32_t part_grain;  // num_splits n: keys of a part are a multiple of it
    bool merges;          // what its parts leave becomes rows in the same dispatch
    // Of a sequence with so many keys or more an item may be noted for a second pass: struct
    // gpu_redo; 0 = there is none.
    uint32_t doubtful_keys;
    uint32_t half_local_size; // with this local size an item is half a part; 0 = there is none such
    // What fits so many workgroups on a device of so many multiprocessors, at most
    // shader.local_size; NULL = that.
    uint32_t (*local_size)(const uint32_t *spec, uint64_t num_workgroups,
                           uint32_t num_multiprocessors);
    // Local sizes that give the same bits, of which tuning takes the fastest that shader.local_size
    // allows; what local_size() answers is among them; 0 is behind the last. NULL = there is but
    // one way.
    const uint32_t *candidates;
    // Not for sequences: it computes half parts that tiles of that kernel have in common, with the
    // same bits, so many rows in one work item, of which a tile takes a power of two. Parts are a
    // multiple of so many keys; fewer tiles are not worth the while.
    const struct kernel *helps;
    uint32_t crowd_rows, least_members, crowd_grain;
    uint32_t shared_memory; // bytes that its largest pipeline needs of a workgroup
};

// Of table.c. All others are reached by their variant.
extern const struct kernel kernel_plain, kernel_decode_emulated, kernel_prefill_emulated;

bool kernel_takes(const struct kernel *kernel, uint64_t rows, uint64_t kv_len); // such a sequence
uint64_t kernel_usual_parts(
    uint64_t kv_len); // that a decode of so many keys is cut into, at least 1
bool kernel_may_cut(const struct kernel *kernel, uint32_t num_splits); // some sequence
bool kernel_doubts(const struct kernel *kernel, uint64_t kv_len);      // items of such a sequence
bool kernel_cuts_halves(const struct kernel *kernel, uint32_t num_splits, uint32_t local_size);
// Keys of one part of a sequence of `rows` rows a KV head; 0 = it is not cut.
uint64_t kernel_part_keys(const struct kernel *kernel, uint64_t rows, uint64_t kv_len,
                          uint32_t num_splits);
uint32_t kernel_local_size(const struct kernel *kernel, const uint32_t spec[SPEC_CONSTANTS],
                           uint64_t num_workgroups, uint32_t num_multiprocessors);

#endif
