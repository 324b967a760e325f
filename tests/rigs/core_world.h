// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// core_world.h - a core over the fake engine, and workers with arenas, for the suites of
// daemon/core. If a helper that must succeed fails, the test fails with core's error. world_check()
// counts all of core anew.

#ifndef AULE_TESTS_CORE_WORLD_H
#define AULE_TESTS_CORE_WORLD_H

#include "core/core.h"
#include "fakes/fake_engine.h"

#include <check.h>

enum { WORLD_LAYERS = 2, WORLD_BLOCK = 8, WORLD_ARENA = 1 << 20, WORLD_BLOCK_BYTES = 512 };

struct world {
    struct engine *engine;
    struct core *core;
    int64_t now_ns; // the time that core gets
    uint64_t last_session;
    uint32_t gone; // sessions whose last GPU work has ended
    char last_warning[256];
};

struct worker {
    struct world *world;
    struct core_session *session; // NULL after it is closed
    struct engine_arena *arena;   // NULL after it has ended
    uint8_t *memory;
    uint64_t id, cache;
    uint64_t cursor; // in the arena's ring of tensors
    bool gone;
    struct core_wait wait; // of the session
};

// Zero fields of `params` become: 64 blocks at most, 1 GiB, 16 sessions, 4 caches, 64 batches, 64
// tickets, 64 offers, 4096 claimed blocks, no quota.
void world_open(struct world *world, const struct core_params *params);
void world_close(struct world *world); // also checks that the engine has no objects left
void world_check(struct world *world);
bool world_step(struct world *world); // core_step()
void world_finish_all(
    struct world *world); // steps and finishes submissions until nothing is queued or in flight

struct core_cache_identity world_identity(const char *name);
void worker_open(struct worker *worker, struct world *world, uint32_t uid,
                 const char *tenant); // and opens the cache "kv"
// The same as a member of a group; NULL = of none.
void worker_join(struct worker *worker, struct world *world, uint32_t uid, const char *group,
                 const char *tenant);
void worker_close(struct worker *worker, bool died);
uint64_t worker_open_cache(struct worker *worker, const char *name);
struct core_counts worker_counts(struct worker *worker);

// Leases; steps while chunks are being made.
enum status worker_try_lease(struct worker *worker, uint32_t count, int32_t *blocks,
                             struct error *error);
void worker_lease(struct worker *worker, uint32_t count, int32_t *blocks);
void worker_release(struct worker *worker, const int32_t *blocks, uint32_t count);

// The parameters of a batch of sequences with `max_blocks` entries each in the block table (0: the
// keys are in no blocks). It writes nothing. The arrays stay the caller's. Cache 0: the caller sets
// the layout.
struct core_batch_params sequences_over(uint64_t cache, uint32_t num_seqs,
                                        const int32_t *cu_seqlens_q, const int32_t *seq_lens_kv,
                                        const int32_t *block_table, uint32_t max_blocks);
uint64_t worker_create(struct worker *worker, const struct core_batch_params *params);
// One sequence of `num_tokens` tokens; the batch writes the last `num_new` of them.
uint64_t worker_batch(struct worker *worker, const int32_t *blocks, uint32_t num_tokens,
                      uint32_t num_new);
// A run of `layer`. The arena's k rows have `tokens` (num_new of them), which the fake engine keeps
// as the slots' numbers.
struct core_run_params worker_run_params(struct worker *worker, uint64_t batch, uint32_t layer,
                                         uint32_t num_new, const int32_t *tokens);
uint64_t worker_queue(struct worker *worker, const struct core_run_params *params);
uint64_t worker_run(struct worker *worker, uint64_t batch, uint32_t layer, uint32_t num_new,
                    const int32_t *tokens);
struct core_ticket_result worker_result(struct worker *worker, uint64_t ticket); // reaps it
void worker_reap(struct worker *worker, uint64_t ticket, enum status expected);
// Writes all tokens into the blocks, in every layer, and waits. Then nothing else is in flight.
void worker_write(struct worker *worker, const int32_t *blocks, const int32_t *tokens,
                  uint32_t num_tokens);
// Imports any keys into all slots of the blocks, in every layer, and waits.
void worker_fill(struct worker *worker, const int32_t *blocks, uint32_t count);
// Queues the first without waiting, and destroys the batch at once. *last is the last ticket.
void worker_write_async(struct worker *worker, const int32_t *blocks, const int32_t *tokens,
                        uint32_t num_tokens, uint64_t *last);
uint32_t worker_lookup(struct worker *worker, const int32_t *tokens, uint32_t num_tokens,
                       int32_t *blocks);
enum status worker_try_publish(struct worker *worker, const int32_t *tokens, uint32_t num_tokens,
                               int32_t *blocks, uint32_t *existing, struct error *error);
uint32_t worker_publish(struct worker *worker, const int32_t *tokens, uint32_t num_tokens,
                        int32_t *blocks);

// core_batch_create() and core_batch_advance(). They try the way by another thread, too, which must
// have the same outcome; every other step that succeeds is made in that way.
enum status world_create(struct core_session *session, const struct core_batch_params *params,
                         uint64_t *batch, uint32_t *num_tokens, struct error *error);
enum status world_advance(struct core_session *session, const struct core_advance *advance,
                          struct error *error);
// The parts of that way; on failure the draft is gone. `next` NULL: by `params`.
enum status world_fill(struct core_draft *draft, const struct core_batch_params *params,
                       const struct core_advance *next, struct error *error);

struct core_block_view worker_block(struct worker *worker, int32_t block);
void count_tokens(int32_t *tokens, uint32_t count, int32_t first); // first, first + 1, ...

#define ck_assert_status(call, expected)                                                           \
    do {                                                                                           \
        struct error error = {0};                                                                  \
        enum status status_ = (call);                                                              \
        ck_assert_msg(status_ == (expected), "%s gives %s, not %s: %s", #call,                     \
                      status_name((int)status_), status_name((int)(expected)), error.text);        \
    } while (0)

// The call fails with this status, and its error contains this text. `call` passes &error.
#define ck_assert_refused(call, expected, text_part)                                               \
    do {                                                                                           \
        struct error error = {0};                                                                  \
        enum status status_ = (call);                                                              \
        ck_assert_msg(status_ == (expected), "%s gives %s, not %s: %s", #call,                     \
                      status_name((int)status_), status_name((int)(expected)), error.text);        \
        ck_assert_int_eq((int)error.status, (int)(expected));                                      \
        ck_assert_msg(strstr(error.text, (text_part)) != NULL, "\"%s\" lacks \"%s\"", error.text,  \
                      (text_part));                                                                \
    } while (0)

#endif
