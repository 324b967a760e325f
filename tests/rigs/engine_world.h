// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// engine_world.h - what the engine's tests share: one engine on a real device, one arena, and
// short functions for caches, batches and runs. With AULE_TEST_VALIDATION=1 every second test runs
// under the validation layer.
// Most tests use the plain cache: 2 layers, one KV head of 8 f32, blocks 0..3. A run over one key
// returns that key's value bit for bit. Each test is forked, so it has its own globals.

#ifndef AULE_ENGINE_WORLD_H
#define AULE_ENGINE_WORLD_H

#include "check_main.h"
#include "engine/memory/cache.h"
#include "engine/memory/slot.h"
#include "engine/plan/items.h"

enum { BLOCK = 8, ARENA_BYTES = 1 << 20, DEADLINE_S = 200, LOG_BYTES = 1 << 16 };

extern struct engine *engine;
extern struct engine_arena *arena;
extern char *memory;             // of the arena, ARENA_BYTES
extern atomic_uint wakes;        // calls of engine_params.wake
extern char log_text[LOG_BYTES]; // the engine's log so far; read it in assertion messages only,
                                 // else use logged()
extern const char zero_block[1 << 14];

// ---- the world ----

struct engine *open_engine(struct engine_params params); // fails the test if it cannot
void close_engine(struct engine *old); // fails the test if the validation layer reported anything
void open_arena(void);
void setup_import(void);  // checked fixtures: `engine` and `arena`, imported if the device supports
                          // it
void setup_staging(void); // always mirrored
void teardown(void);
bool logged(const char *text);
void forget_log(void);
double now_s(void);
void nap(void);                       // half a millisecond
uint32_t num_pieces(void);            // pieces of metadata that the engine's slabs have handed out
struct engine_event next_event(void); // within DEADLINE_S
struct engine_event expect_event(enum engine_event_kind kind); // the next one is of this kind
struct engine_event expect_done(uint64_t sequence);            // waits; every run of it succeeded

// Evaluates the condition again and again until it is true. After this many seconds the test fails.
#define AWAIT(seconds, condition)                                                                  \
    do {                                                                                           \
        for (double deadline_ = now_s() + (seconds); !(condition); nap())                          \
            ck_assert_msg(now_s() < deadline_, "%s is not so after %d s; the log:\n%s",            \
                          #condition, (int)(seconds), log_text);                                   \
    } while (0)

// ---- short functions ----

struct engine_cache_params shape(uint32_t num_layers, uint32_t num_kv_heads, uint32_t head_dim,
                                 enum dtype dtype);
struct engine_cache *open_cache(struct engine_cache_params params);
void grow_chunk(struct engine_cache *cache, uint32_t chunk); // and waits for it
struct engine_cache *plain_cache(void);
struct engine_batch *open_batch(struct engine_batch_params params);
// One sequence of one query that sees the one key in `block`, offset 0. With `write` the run writes
// it first.
struct engine_batch *one_key(struct engine_cache *cache, int32_t block, bool write);
// A dense [tokens, heads, dim] tensor at `offset` of the arena.
struct wire_tensor dense(uint64_t offset, uint32_t heads, uint32_t dim, enum dtype dtype);
// For the plain cache: one head; q, k, v and out at the given offsets.
struct engine_run plain_run(struct engine_batch *batch, uint32_t layer, uint64_t q, uint64_t k,
                            uint64_t v, uint64_t out);
uint64_t submit(const struct engine_submission *submission);
uint64_t submit_runs(const struct engine_run *runs, uint32_t count); // as one wave

// ---- eight floats at an offset of the arena: first, first + 1, ... ----

float *floats(uint64_t offset);
void fill(uint64_t offset, float first);
void expect_floats(uint64_t offset, float first);
void expect_bytes(const void *got, const void *wanted, size_t size, const char *what);

// ---- blocks: engine_layer_block_bytes() at `wanted`, `bytes` ----

void expect_block(struct engine_cache *cache, uint32_t layer, int32_t block, const void *wanted);
void write_pattern(struct engine_cache *cache, uint32_t layer, int32_t block, unsigned char *bytes);

// As on a GPU, with another watchdog.
void shorten_watchdog(unsigned ms);

// ---- the gate: submissions after close_gate() wait on the GPU until open_gate() ----

VkSemaphore close_gate(void);
void open_gate(VkSemaphore gate,
               uint64_t sequence); // returns when the GPU has finished submission `sequence`

// ---- compiles: called before each, on the engine's thread; another result than OK fails it ----

VkResult before_compile(void);
extern atomic_uint compile_naps; // each compile first takes up to so many naps, at random

// ---- the suite ----

// The return value for main(): 77 if Vulkan finds no device.
int run_on_device(Suite *(*make)(void));

// ---- the tests, file by file ----

void add_device_tests(Suite *suite);
void add_cache_tests(Suite *suite);
void add_run_tests(Suite *suite);
void add_kind_tests(Suite *suite);
void add_cascade_tests(Suite *suite);
void add_company_tests(Suite *suite);
void add_step_tests(Suite *suite);
void add_check_tests(Suite *suite);
void add_split_tests(Suite *suite);
void add_kernel_tests(Suite *suite);
void add_warp_tests(Suite *suite);
void add_fault_tests(Suite *suite);
void add_file_tests(Suite *suite);
void add_export_tests(Suite *suite);
void add_haul_tests(Suite *suite);
void add_compile_tests(Suite *suite);

#endif
