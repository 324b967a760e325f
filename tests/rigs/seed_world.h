// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// seed_world.h - what the worked examples of the seeds share: a daemon for each test case, numbers
// that depend on their place, the tensors of one step, block tensors in the arena, and the
// comparison with float64. All examples have the same heads, so that they share pipelines. It knows
// no seed in particular. The value of an element depends on (Q, K or V; sequence; position; index
// in the row). So a sequence has the same numbers in each step, in each form, and wherever they are
// stored. The oracle gets them ragged, one sequence after the other, and never sees a block.

#ifndef AULE_TESTS_SEED_WORLD_H
#define AULE_TESTS_SEED_WORLD_H

#include "aule/aule.h"
#include "check_main.h"
#include "client_expect.h"
#include "daemon_harness.h"

enum { SEED_HEADS = 4, SEED_KV_HEADS = 2, SEED_DIM = 32, SEED_WAIT_MS = 60000 };
enum seed_what { SEED_Q, SEED_K, SEED_V };

// ---- the daemon of a test case ----

// For unchecked fixtures: the tests of a case run as child processes beside one daemon.
void seed_launch(const char *const *options);
void seed_setup(void); // without options
void seed_teardown(void);
// A case of `tests` (NULL-terminated) beside a daemon that `setup` starts.
void seed_add(Suite *suite, const char *name, void (*setup)(void), const TTest *const *tests);

// ---- sessions and caches ----

struct aule_session *seed_open(uint32_t paged_threshold); // 0: the default
struct aule_cache *seed_cache(struct aule_session *session, enum aule_dtype dtype,
                              uint32_t block_size);
struct aule_cache_state seed_state(struct aule_cache *cache);
// No block of the cache is leased, held or quarantined.
void seed_expect_all_free(struct aule_cache *cache);
// The same for all caches of the daemon, including the library's own. Waits until runs in flight
// have released their blocks.
void seed_expect_nothing_leased(void);

// ---- numbers ----

float seed_value(enum seed_what what, int32_t seq, int32_t position, uint32_t index);
// One row, [num_heads, SEED_DIM]; head_stride in bytes.
void seed_put_row(void *row, uint64_t head_stride, enum aule_dtype dtype, uint32_t num_heads,
                  enum seed_what what, int32_t seq, int32_t position);
int64_t seed_slot(const int32_t *table_row, uint32_t block_size, int32_t position);

// ---- one step: the tensors of its queries ----

struct seed_step {
    struct aule_session *session;
    enum aule_dtype dtype;
    uint32_t num_seqs;
    const int32_t *cu_q; // [num_seqs + 1]
    const int32_t *lens; // [num_seqs] keys, including those of this step
    const int32_t *rows; // [T] the row of a token; NULL: the token
    int32_t first_seq;   // sequence s has the numbers of sequence first_seq + s
    struct aule_tensor q, k, v, out, lse;
};

// Creates the tensors for the fields above. k and v have the values of the queries' positions.
void seed_step_open(struct seed_step *step);
void seed_step_close(struct seed_step *step);
uint32_t seed_step_tokens(const struct seed_step *step);
struct aule_batch_params seed_step_batch(const struct seed_step *step); // no table, no slots
struct aule_run_params seed_step_run(const struct seed_step *step);     // causal
// Fills out and lse with NaN.
void seed_step_clear(struct seed_step *step);
// Clears the outputs, runs the batch and destroys it.
void seed_step_finish(struct seed_step *step, struct aule_batch *batch,
                      const struct aule_run_params *run);
// Compares all rows of out, and lse, with float64. Uses mask, positions and q_lens of `batch`.
void seed_step_expect(const struct seed_step *step, const struct aule_batch_params *batch,
                      const struct aule_run_params *run, const char *name);
// The bytes of token t's rows in out, [SEED_HEADS, SEED_DIM].
const void *seed_step_out(const struct seed_step *step, uint32_t token);
size_t seed_row_size(enum aule_dtype dtype, uint32_t num_heads); // bytes

// Compares a row of SEED_DIM with float64, by the bound of its type relative to its largest
// magnitude.
void seed_expect_row(const void *got, enum aule_dtype dtype, const double *wanted, const char *name,
                     uint32_t token, uint32_t head);

// ---- K and V in blocks ----

// Leases `count` blocks and fills them with NaN, so that a read of an unwritten element shows.
void seed_lease(struct aule_session *session, struct aule_cache *cache, enum aule_dtype dtype,
                uint32_t block_size, uint32_t count, int32_t *block_ids);

// Imports rows of positions from..to - 1 of a sequence to their slots, by aule_kv_import().
void seed_import(struct aule_session *session, struct aule_cache *cache, enum aule_dtype dtype,
                 const int32_t *table_row, uint32_t block_size, int32_t seq, int32_t from,
                 int32_t to);

// K and V block tensors in the arena, NaN where no row was written.
struct seed_blocks {
    struct aule_session *session;
    enum aule_dtype dtype;
    uint32_t num_blocks, block_size;
    bool heads_first; // [blocks, heads, block_size, dim], else [blocks, block_size, heads, dim]
    struct aule_tensor keys, values;
};
void seed_blocks_open(struct seed_blocks *blocks);
void seed_blocks_close(struct seed_blocks *blocks);
struct aule_kv_layout seed_blocks_layout(const struct seed_blocks *blocks);
uint8_t *seed_blocks_row(const struct seed_blocks *blocks, enum seed_what what, int64_t slot);
void seed_blocks_put(const struct seed_blocks *blocks, const int32_t *table_row, int32_t seq,
                     int32_t from, int32_t to);
size_t seed_blocks_size(const struct seed_blocks *blocks); // bytes of K, and of V

#endif
