// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// growth.c - study "growth": what the daemon's core needs as work grows: leases and releases of 1
// to 100,000 blocks, batches of 1 to 4096 sequences and of 1 to 100,000 table entries.

#include "cost.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    MOST_BLOCKS = 100000,
    MOST_SEQS = 4096,
    SOME_BLOCKS = 64, // blocks leased at a time from pools of growing size
    BLOCK_SIZE = 8,
    HEAD_DIM = 16,
    WINDOW = 31,
    ADVANCES = 4, // advances of each batch; the first is timed apart. An even number, so that the
                  // batch ends as it began
    LEAST_ROUNDS = 5,
    MOST_ROUNDS = 1000,
};
static const double size_share = 0.02; // part of a study's seconds, for one size

static const uint32_t block_counts[] = {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, MOST_BLOCKS};
static const uint32_t seq_counts[] = {1, 4, 16, 64, 256, 1024, MOST_SEQS};
#define COUNT(list) (sizeof(list) / sizeof *(list))

struct growth {
    const struct study *study;
    struct bare_core core;
    int32_t *blocks; // [MOST_BLOCKS], owned
};

static bool more(const struct growth *g, double start_us, uint32_t rounds)
{
    if (g->study->options.check)
        return rounds < 1;
    return rounds < LEAST_ROUNDS ||
           (rounds < MOST_ROUNDS &&
            now_us() - start_us < size_share * 1e6 * g->study->options.seconds);
}

// Prints costs [0, count), or drops them.
static bool say(struct growth *g, bool ok, struct cost *costs, uint32_t count, uint32_t size)
{
    for (uint32_t i = 0; i < count; i++) {
        ok = ok && cost_say(&costs[i], g->study, &g->core, size);
        samples_finish(&costs[i].samples);
    }
    return ok;
}

// ---- blocks ----

static bool turn_over(struct growth *g, uint32_t count, struct cost *costs)
{
    double start = now_us();
    bool ok = true;
    for (uint32_t i = 0; ok && more(g, start, i); i++) {
        struct moment before = cost_begin();
        ok = bare_core_lease(&g->core, count, g->blocks) && cost_note(&costs[0], before);
        blocks_shuffle(g->blocks, count);
        before = cost_begin();
        ok = ok && bare_core_release(&g->core, g->blocks, count) && cost_note(&costs[1], before);
    }
    return ok;
}

static bool measure_blocks(struct growth *g, uint32_t count)
{
    struct cost all[] = {{"lease", "blocks", 50, 0, {0}}, {"release", "blocks", 50, 0, {0}}};
    struct cost some[] = {
        {"lease of 64 from a pool", "blocks of the pool", 50, SOME_BLOCKS, {0}},
        {"release of 64 to a pool", "blocks of the pool", 50, SOME_BLOCKS, {0}},
    };
    if (!bare_core_lease(&g->core, count, g->blocks)) // the pool grows here
        return false;
    blocks_shuffle(g->blocks, count);
    if (!bare_core_release(&g->core, g->blocks, count) ||
        !say(g, turn_over(g, count, all), all, COUNT(all), count))
        return false;
    return count < SOME_BLOCKS || say(g, turn_over(g, SOME_BLOCKS, some), some, COUNT(some), count);
}

// ---- batches and runs ----

// num_seqs sequences of one query each, with this many blocks each.
struct step {
    uint32_t num_seqs, max_blocks;
    int32_t *cu_seqlens_q, *seq_lens_kv; // owned
    int64_t *slots;                      // owned
    int by;                              // -1 or 1, alternating
};

static bool step_init(struct step *step, const struct growth *g, uint32_t num_seqs,
                      uint32_t max_blocks)
{
    *step = (struct step){
        .num_seqs = num_seqs,
        .max_blocks = max_blocks,
        .cu_seqlens_q = calloc(num_seqs + 1, sizeof(int32_t)),
        .seq_lens_kv = calloc(num_seqs, sizeof(int32_t)),
        .slots = calloc(num_seqs, sizeof(int64_t)),
        .by = 1,
    };
    if (!step->cu_seqlens_q || !step->seq_lens_kv || !step->slots) {
        fprintf(stderr, "aule-bench: no host memory\n");
        return false;
    }
    for (uint32_t s = 0; s < num_seqs; s++) {
        step->cu_seqlens_q[s + 1] = (int32_t)s + 1;
        step->seq_lens_kv[s] = (int32_t)(max_blocks * BLOCK_SIZE);
        step->slots[s] = (int64_t)g->blocks[(s + 1) * max_blocks - 1] * BLOCK_SIZE + BLOCK_SIZE - 1;
    }
    return true;
}

static void step_finish(struct step *step)
{
    free(step->cu_seqlens_q);
    free(step->seq_lens_kv);
    free(step->slots);
}

static enum status create(struct growth *g, const struct step *step, uint64_t *batch,
                          struct error *error)
{
    const struct core_batch_params params = {
        .cache = g->core.cache,
        .num_seqs = step->num_seqs,
        .max_blocks = step->max_blocks,
        .cu_seqlens_q = step->cu_seqlens_q,
        .num_cu_seqlens_q = step->num_seqs + 1,
        .seq_lens_kv = step->seq_lens_kv,
        .num_seq_lens_kv = step->num_seqs,
        .block_table = g->blocks,
        .num_block_table = (uint64_t)step->num_seqs * step->max_blocks,
        .slot_mapping = step->slots,
        .num_slot_mapping = step->num_seqs,
    };
    uint32_t num_tokens;
    return core_batch_create(g->core.session, &params, batch, &num_tokens, error);
}

// Moves each sequence to the token before its last one, or back: as much work as the next token.
static bool advance(struct growth *g, struct step *step, uint64_t batch, struct cost *cost)
{
    struct error error = {0};
    step->by = -step->by;
    for (uint32_t s = 0; s < step->num_seqs; s++) {
        step->seq_lens_kv[s] += step->by;
        step->slots[s] += step->by;
    }
    const struct core_advance params = {
        .batch = batch,
        .seq_lens_kv = step->seq_lens_kv,
        .num_seq_lens_kv = step->num_seqs,
        .slot_mapping = step->slots,
        .num_slot_mapping = step->num_seqs,
    };
    const struct moment before = cost_begin();
    return (core_batch_advance(g->core.session, &params, &error) == STATUS_OK &&
            cost_note(cost, before)) ||
           bare_core_failed(&error);
}

// Queues the run and hands it to the engine: the dispatcher's part. Not timed are the plan, which
// the engine's submitter makes on its own thread, and the GPU's work, which the window keeps small.
static bool run(struct growth *g, uint64_t batch, struct cost *cost)
{
    struct error error = {0};
    uint64_t ticket;
    const struct core_run_params params = {
        .entry =
            {
                .batch = batch,
                .num_heads = 1,
                .q = bare_core_tensor(&g->core, 0),
                .k = bare_core_tensor(&g->core, 0),
                .v = bare_core_tensor(&g->core, 0),
                .out = bare_core_tensor(&g->core, g->core.arena_size / 2),
                .window_left = WINDOW,
                .window_right = -1,
                .flags = WIRE_RUN_CAUSAL,
            },
    };
    const struct moment before = cost_begin();
    if (core_run(g->core.session, &params, &ticket, &error) != STATUS_OK)
        return bare_core_failed(&error);
    core_step(g->core.core, 0);
    return cost_note(cost, before) && bare_core_reap(&g->core, ticket);
}

enum { CHECK, RUN, FIRST, LATER, NUM_COSTS };

static bool check_and_run(struct growth *g, struct step *step, struct cost *costs)
{
    double start = now_us();
    for (uint32_t i = 0; more(g, start, i); i++) {
        struct error error = {0};
        uint64_t batch;
        const struct moment before = cost_begin();
        if (create(g, step, &batch, &error) != STATUS_OK)
            return bare_core_failed(&error);
        if (!cost_note(&costs[CHECK], before) || !run(g, batch, &costs[RUN]))
            return false;
        for (int j = 0; j < ADVANCES; j++)
            if (!advance(g, step, batch, &costs[j ? LATER : FIRST]) || !run(g, batch, &costs[RUN]))
                return false;
        if (core_batch_destroy(g->core.session, batch, &error) != STATUS_OK)
            return bare_core_failed(&error);
    }
    return true;
}

static bool measure_batch(struct growth *g, uint32_t num_seqs, uint32_t max_blocks, bool by_seqs)
{
    static const char *const names[2][NUM_COSTS] = {
        {"check of a batch by table entries", "submission of a run by table entries",
         "first advance of a batch by table entries", "later advance of a batch by table entries"},
        {"check of a batch by sequences", "submission of a run by sequences",
         "first advance of a batch by sequences", "later advance of a batch by sequences"}};
    struct cost costs[NUM_COSTS];
    struct step step;
    for (int i = 0; i < NUM_COSTS; i++)
        costs[i] = (struct cost){
            names[by_seqs][i], by_seqs ? "sequences" : "entries", by_seqs ? 100 : 1, 0, {0}};
    bool ok = step_init(&step, g, num_seqs, max_blocks) && check_and_run(g, &step, costs);
    step_finish(&step);
    return say(g, ok, costs, NUM_COSTS, by_seqs ? num_seqs : num_seqs * max_blocks);
}

static bool measure_all(struct growth *g)
{
    bool ok = true;
    for (size_t i = 0; ok && i < COUNT(block_counts); i++)
        ok = measure_blocks(g, block_counts[i]);
    ok = ok && bare_core_lease(&g->core, MOST_BLOCKS, g->blocks);
    blocks_shuffle(g->blocks, MOST_BLOCKS);
    ok = ok && bare_core_write(&g->core, g->blocks[0]) && // runs read all of them
         bare_core_fill(&g->core, g->blocks[0], g->blocks + 1, MOST_BLOCKS - 1);
    for (size_t i = 0; ok && i < COUNT(seq_counts); i++)
        ok = measure_batch(g, seq_counts[i], 1, true);
    for (size_t i = 0; ok && i < COUNT(block_counts); i++)
        ok = measure_batch(g, 1, block_counts[i], false);
    return ok;
}

bool study_growth(const struct study *study)
{
    const struct bare_core_params params = {.pool_bytes = UINT64_C(1) << 30,
                                            .arena_size = 2 * (uint64_t)MOST_SEQS * HEAD_DIM *
                                                          sizeof(uint16_t),
                                            .block_size = BLOCK_SIZE,
                                            .head_dim = HEAD_DIM};
    struct growth g = {.study = study, .blocks = calloc(MOST_BLOCKS, sizeof *g.blocks)};
    struct rig rig;
    const bool ok = rig_engine(&rig, &study->options) && g.blocks &&
                    bare_core_open(&g.core, rig.engine, &params) && measure_all(&g);
    bare_core_close(&g.core);
    rig_close(&rig);
    free(g.blocks);
    return ok;
}
