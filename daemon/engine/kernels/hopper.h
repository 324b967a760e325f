// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hopper.h - the native kernels of shaders/hopper: what they serve, what they need of a device, and
// how a planned group becomes a launch. Knows neither runs nor batches.
//
// The data's way is that of every kernel. items.c cuts sequences into struct gpu_item, encode.c
// writes struct gpu_run, and both lie where shaders read them. A native kernel reads the same
// structs by their addresses. Instead of push constants and specialisation constants it has
// parameters. In the slot's piece it has extras of its own: tensor maps, the tickets by which
// thread blocks take items, and notes of items that it computes twice.

#ifndef AULE_ENGINE_HOPPER_H
#define AULE_ENGINE_HOPPER_H

#include "engine/engine.h"
#include "engine/vulkan/native.h"
#include "engine/vulkan/transfer.h"
#include "geometry.h"
#include "shaders/layout.h"

// The build has one native kernel for each dtype of Q, pair of head dims, and whether scores are
// shaped.
enum { HOPPER_CODES = 16 };
const struct native_code *hopper_code_at(uint32_t number);
// Number of the kernel for a geometry; HOPPER_CODES: there is none.
uint32_t hopper_code(const struct geometry *geometry);
// The other way: dtypes, head dims and features of a geometry in the pool that it is for.
struct geometry hopper_geometry(uint32_t number);

// Whether a native kernel serves a geometry.
bool hopper_serves(const struct geometry *geometry);
// Whether Q and, outside the pool, K and V of `run` have strides that tensor maps can hold.
bool hopper_takes(const struct engine_run *run, enum engine_place place, uint32_t num_kv_heads);
uint32_t hopper_rows(const struct engine_kv *kv); // rows of an item

// True: `variant`, a name or NULL for the default, may be the one that has native kernels, and the
// build has them.
bool hopper_wanted(const char *variant);
// Writes what `adapter` lacks for native kernels, as words behind "lacks"; "" = nothing. Any
// thread.
void hopper_missing(const struct adapter *adapter, char *text, size_t size);
// Runs kernel `number`, which is loaded, on problems whose results are known. Each is a submission
// of its own with a time limit. UNSUPPORTED: wrong results. DEVICE_LOST: one did not end in time.
// The thread that compiles. hopper_test.c.
enum status hopper_test(struct device *device, struct transfer *transfer, uint32_t number,
                        const struct native *native, struct error *error);

// Sets *extras_at to where a group's extras begin, if the space before is used up to `at`. Returns
// where they end.
uint64_t hopper_measure(uint64_t at, const struct geometry *geometry, uint32_t num_runs,
                        uint32_t num_items, uint64_t *extras_at);
// Writes them; the notes stay undefined. `runs` are the group's.
void hopper_put(void *extras, const struct geometry *geometry, const struct gpu_run *runs,
                uint32_t num_runs);

struct hopper_launch {
    const struct gpu_dispatch *constants;
    const struct geometry *geometry;
    uint64_t extras;                     // shader address
    uint32_t first_blocks, later_blocks; // thread blocks
    bool is_later;
};
// Thread blocks that a group can use, of at most `most`.
uint32_t hopper_blocks(const struct geometry *geometry, uint32_t num_items, uint32_t most);
// Records the launch of first_blocks, or of later_blocks, which join the work of the first ones.
void hopper_record(const struct device *device, VkCommandBuffer commands,
                   const struct native *native, const struct hopper_launch *launch);

#endif
