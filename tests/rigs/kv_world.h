// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// kv_world.h - what the tests of K/V writes, gathers, copies and merges share, in addition to
// engine_world.h: numbers at the borders of every type, caches with some blocks, elements of a
// block by their place.

#ifndef AULE_KV_WORLD_H
#define AULE_KV_WORLD_H

#include "dice.h"
#include "engine_world.h"
#include "oracle/numbers.h"

// Fills `count` f32 with values that are hard to round to `dtype`: each number, the middle of two
// numbers, the floats beside both; NaNs, infinities, subnormal numbers and random bits.
void border_floats(enum dtype dtype, float *out, uint32_t count);

uint32_t float_word(float value);
float word_float(uint32_t bits);

// One layer, chunks of `num_blocks` (a power of two); the first chunk has memory.
struct engine_cache *kv_cache(struct engine_kv kv, uint32_t num_blocks);
// All blocks of layer 0, one after the other; malloc'd.
uint8_t *kv_blocks(struct engine_cache *cache, uint32_t num_blocks);
// The bits of element `dim` of slot `slot`, KV head `head`, of K or V; and the scale of its row.
uint32_t kv_element(const uint8_t *blocks, const struct engine_kv *kv, int64_t slot, uint32_t head,
                    uint32_t dim, bool v);
float kv_scale(const uint8_t *blocks, const struct engine_kv *kv, int64_t slot, uint32_t head,
               bool v);

// A fixture: setup_import(), and kv_run() cuts runs into slices, if the arena is imported.
void setup_slices(void);
bool kv_slices(void); // kv_run() does so
// Submits one run as one wave, and waits; with setup_slices() as so many waves.
void kv_run(const struct engine_run *run);
// The bits of element (token, head, dim) of a tensor of the arena without an outer stride.
uint32_t tensor_bits(const struct wire_tensor *tensor, uint32_t token, uint32_t head, uint32_t dim);

// ---- the tests, file by file ----

void add_rope_tests(Suite *suite);
void add_gather_tests(Suite *suite);
void add_merge_tests(Suite *suite);

// For loops over elements. Each of Check's assertions is a message to the parent process, and a
// build with a sanitizer reads them slowly.
#define expect_equal_uint(got, wanted)                                                             \
    do {                                                                                           \
        uintmax_t got_ = (got), wanted_ = (wanted);                                                \
        if (got_ != wanted_)                                                                       \
            ck_abort_msg("%s is %ju, not %ju", #got, got_, wanted_);                               \
    } while (0)

#endif
