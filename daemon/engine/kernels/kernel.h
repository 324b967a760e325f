// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// kernel.h - the attention kernels: what each kernel serves, how its work is cut, and what its
// workgroups need. Knows neither runs nor batches. Any thread; no state.

#ifndef AULE_ENGINE_KERNEL_H
#define AULE_ENGINE_KERNEL_H

#include "engine/vulkan/native.h"
#include "engine/vulkan/shader.h"
#include "geometry.h"

static inline uint64_t divide_up(uint64_t value, uint64_t by)
{
    return (value + by - 1) / by;
}

// Where the next tensor or array may begin: a multiple of 16 bytes.
static inline uint64_t padded(uint64_t bytes)
{
    return (bytes + 15) & ~UINT64_C(15);
}

// One attention kernel: a shader and its rules. The rules use only the run's geometry and one
// sequence's own lengths, so a row's bits do not depend on the batch. The local size may depend on
// more, because it changes no bit. A row is one query head of one token. Rows are counted for one
// KV head: a sequence has q_len * num_heads / num_kv_heads.
struct kernel {
    struct shader shader; // of a native kernel only name and local size
    // A native kernel: launched where others are dispatched, with the same lists (hopper.h). It
    // splits nothing and has no second pass. NULL = a shader.
    bool is_native;
    uint32_t (*tile_rows)(const struct engine_kv *kv); // rows of one tile
    // Whether the kernel serves a geometry of geometry_of_run(). NULL = it serves all.
    bool (*serves)(const struct geometry *geometry);
    uint32_t least_rows, most_rows; // rows of the sequences that the kernel takes
    uint32_t long_rows, long_keys;  // long_keys keys or more: also up to long_rows rows; 0 = no
    // num_splits 0: keys of one part, for a sequence with `rows` rows and `kv_len` keys; 0 = not
    // split. NULL = the kernel never splits.
    uint64_t (*part_keys)(uint64_t rows, uint64_t kv_len);
    uint32_t part_grain; // num_splits n: the keys of a part are a multiple of this number
    // Most keys of a part that a software device's loops get through, never 0; see docs/kernels.md.
    uint32_t (*loop_keys)(const struct engine_kv *kv);
    bool merges; // merges its own splits in the same dispatch
    // A sequence with this many keys or more may have items that need a second pass (struct
    // gpu_redo). 0 = there is no second pass.
    uint32_t doubtful_keys;
    uint32_t half_local_size; // the local size whose items are half parts; 0 = none
    // The rule for the local size, given the number of workgroups and of multiprocessors. At most
    // shader.local_size is used. NULL = always shader.local_size.
    uint32_t (*local_size)(const uint32_t *spec, uint64_t num_workgroups,
                           uint32_t num_multiprocessors);
    // Set in a cascade kernel. At least `least_members` tiles of kernel `helps` read the same keys;
    // one work item of this kernel computes half a part for all these tiles. The bits are the same.
    // A work item has up to crowd_rows() rows, and a tile takes a power of two of them. Parts are
    // multiples of crowd_grain keys. NULL = no cascade kernel.
    const struct kernel *helps;
    uint32_t (*crowd_rows)(const struct engine_kv *kv);
    uint32_t least_members, crowd_grain;
    uint32_t shared_memory; // bytes that a workgroup of its largest pipeline needs
};

// Kernels that other files name. All other kernels of table.c are reached through a variant.
extern const struct kernel kernel_plain, kernel_decode_emulated, kernel_prefill_emulated;

// Whether the kernel takes a sequence with `rows` rows and `kv_len` keys.
bool kernel_takes(const struct kernel *kernel, uint64_t rows, uint64_t kv_len);
// Parts of a decode with `kv_len` keys in the usual kernel; at least 1.
uint64_t kernel_usual_parts(uint64_t kv_len);
// Whether the kernel may split a sequence.
bool kernel_may_cut(const struct kernel *kernel, uint32_t num_splits);
// Whether items of a sequence with `kv_len` keys may need a second pass.
bool kernel_doubts(const struct kernel *kernel, uint64_t kv_len);
// Whether the kernel's items are half parts.
bool kernel_cuts_halves(const struct kernel *kernel, uint32_t num_splits, uint32_t local_size);
// Keys of one part of a sequence with `rows` rows; 0 = it is not split.
uint64_t kernel_part_keys(const struct kernel *kernel, uint64_t rows, uint64_t kv_len,
                          uint32_t num_splits);
uint32_t kernel_local_size(const struct kernel *kernel, const uint32_t spec[SPEC_CONSTANTS],
                           uint64_t num_workgroups, uint32_t num_multiprocessors);

#endif
