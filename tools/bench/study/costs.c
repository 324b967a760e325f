// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// costs.c - study "growth": the CPU time of the daemon's core as work grows. It calls core.h over a
// real engine, without the process border and without the GPU's time: leases and releases of 1 to
// 100,000 blocks, batches of 1 to 4096 sequences and of 1 to 100,000 table entries.

#include "core/audit.h"
#include "core/core.h"
#include "study.h"
#include "tools/bench/wrong.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_BLOCKS = 100000,
    MOST_SEQS = 4096,
    SOME_BLOCKS = 64, // blocks leased at a time from pools of growing size
    BLOCK_SIZE = 8,
    HEAD_DIM = 16,
    HEADS = 1,
    WINDOW = 31,
    ADVANCES = 4, // advances of each batch; the first is timed apart. An even number, so that the
                  // batch ends as it began
    LEAST_ROUNDS = 5,
    MOST_ROUNDS = 1000,
    INTERRUPTED_US = 20, // a longer call may have been interrupted
    POLL_US = 100,
    DEADLINE_US = 300000000,
};
static const uint64_t pool_bytes = UINT64_C(1) << 30;
static const double size_share = 0.02; // part of a study's seconds, for one size

// What is timed. `unit` names what `size` counts.
enum cost {
    LEASE,
    RELEASE,
    LEASE_SOME,
    RELEASE_SOME,
    CHECK_SEQS,
    RUN_SEQS,
    CHECK_ENTRIES,
    RUN_ENTRIES,
    FIRST_SEQS,
    FIRST_ENTRIES,
    ADVANCE_SEQS,
    ADVANCE_ENTRIES,
    NUM_COSTS
};
static const struct {
    const char *name, *unit;
    double aim_ns; // target for one unit
    bool fixed;    // the work does not depend on the size: unit_ns is that of one of SOME_BLOCKS
                   // blocks
} costs[NUM_COSTS] = {
    [LEASE] = {"lease", "blocks", 50, false},
    [RELEASE] = {"release", "blocks", 50, false},
    [LEASE_SOME] = {"lease of 64 from a pool", "blocks of the pool", 50, true},
    [RELEASE_SOME] = {"release of 64 to a pool", "blocks of the pool", 50, true},
    [CHECK_SEQS] = {"check of a batch by sequences", "sequences", 100, false},
    [RUN_SEQS] = {"submission of a run by sequences", "sequences", 100, false},
    [CHECK_ENTRIES] = {"check of a batch by table entries", "entries", 1, false},
    [RUN_ENTRIES] = {"submission of a run by table entries", "entries", 1, false},
    [FIRST_SEQS] = {"first advance of a batch by sequences", "sequences", 100, false},
    [FIRST_ENTRIES] = {"first advance of a batch by table entries", "entries", 1, false},
    [ADVANCE_SEQS] = {"later advance of a batch by sequences", "sequences", 100, false},
    [ADVANCE_ENTRIES] = {"later advance of a batch by table entries", "entries", 1, false},
};

static const uint32_t block_counts[] = {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, MOST_BLOCKS};
static const uint32_t seq_counts[] = {1, 4, 16, 64, 256, 1024, MOST_SEQS};
#define COUNT(list) (sizeof(list) / sizeof *(list))

struct ledger {
    const struct study *study;
    struct engine *engine;
    struct core *core;
    struct engine_arena *arena;
    void *memory;
    uint64_t arena_size, cache;
    struct core_session *session;
    bool gone;
    int32_t *blocks; // [MOST_BLOCKS]
    struct samples samples[NUM_COSTS];
};

static bool failed(const struct error *error)
{
    fprintf(stderr, "aule-bench: %s\n", error->text);
    return false;
}

// ---- a core with one session ----

static void session_gone(void *context, void *owner)
{
    struct ledger *ledger = context;
    (void)owner;
    ledger->gone = true;
}

static bool open_core(struct ledger *l, struct error *error)
{
    const struct core_params params = {
        .engine = l->engine,
        .pool_limit_bytes = pool_bytes,
        .max_sessions = 1,
        .max_caches = 1,
        .max_batches = 4,
        .max_tickets = 4,
        .max_offers = 4,
        .session_gone = session_gone,
        .context = l,
    };
    const struct core_session_params session = {.id = 1,
                                                .tenant = "",
                                                .name = "aule-bench",
                                                .arena = l->arena,
                                                .arena_size = l->arena_size,
                                                .owner = l};
    const struct core_cache_identity cache = {.name = "growth",
                                              .num_layers = 1,
                                              .kv = {.num_kv_heads = HEADS,
                                                     .head_dim_k = HEAD_DIM,
                                                     .head_dim_v = HEAD_DIM,
                                                     .block_size = BLOCK_SIZE,
                                                     .k_dtype = DTYPE_F16,
                                                     .v_dtype = DTYPE_F16}};
    struct core_cache_info info;
    if (core_create(&params, &l->core, error) != STATUS_OK ||
        core_session_open(l->core, &session, &l->session, error) != STATUS_OK ||
        core_cache_open(l->session, &cache, &info, error) != STATUS_OK)
        return false;
    l->cache = info.cache;
    return true;
}

static bool ledger_open(struct ledger *l)
{
    struct error error = {0};
    l->engine = world_engine(&l->study->options);
    if (!l->engine)
        return false;
    l->arena_size = 2 * (uint64_t)MOST_SEQS * HEADS * HEAD_DIM * sizeof(uint16_t);
    l->blocks = calloc(MOST_BLOCKS, sizeof *l->blocks);
    void *memory =
        mmap(NULL, l->arena_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || !l->blocks) {
        error_set(&error, STATUS_NO_MEMORY, "no host memory");
        return failed(&error);
    }
    l->memory = memory;
    return (engine_arena_create(l->engine, memory, l->arena_size, &l->arena, &error) == STATUS_OK &&
            open_core(l, &error)) ||
           failed(&error);
}

static void ledger_close(struct ledger *l)
{
    if (l->session) {
        core_session_close(l->session, false);
        for (int i = 0; !l->gone && i < DEADLINE_US / POLL_US; i++) {
            core_step(l->core, 0);
            usleep(POLL_US);
        }
    }
    core_destroy(l->core);
    engine_arena_destroy(l->arena);
    engine_destroy(l->engine);
    if (l->memory)
        munmap(l->memory, l->arena_size);
    free(l->blocks);
    for (int i = 0; i < NUM_COSTS; i++)
        samples_finish(&l->samples[i]);
}

static bool settle(struct ledger *l)
{
    struct error error = {0};
    double end = now_us() + DEADLINE_US;
    core_step(l->core, 0);
    while (!core_idle(l->core) && now_us() < end) {
        usleep(POLL_US);
        core_step(l->core, 0);
    }
    if (core_idle(l->core))
        return true;
    error_set(&error, STATUS_TIMEOUT, "the GPU was not done after %d s", DEADLINE_US / 1000000);
    return failed(&error);
}

// ---- what one size costs ----

// Measures by both clocks. A call longer than a few microseconds may be interrupted; for a shorter
// one, asking the kernel for CPU time takes as long as the call.
struct moment {
    double wall_us, cpu_us;
};

static double cpu_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static struct moment begin(void)
{
    double cpu = cpu_us();
    return (struct moment){now_us(), cpu};
}

static bool note(struct ledger *l, enum cost cost, struct moment begin)
{
    double wall = now_us() - begin.wall_us;
    return samples_add(&l->samples[cost], 0,
                       wall < INTERRUPTED_US ? wall : fmin(wall, cpu_us() - begin.cpu_us));
}

static bool say(struct ledger *l, enum cost cost, uint32_t size)
{
    struct samples *samples = &l->samples[cost];
    struct figure figure = study_figure(l->study, "core", NULL, 0);
    struct error error = {0};
    uint32_t units = costs[cost].fixed ? SOME_BLOCKS : size;
    if (!l->study->options.check)
        samples_times(samples, true, &figure.times);
    samples->count = 0;
    figure.checked = core_check(l->core, &error);
    if (!figure.checked)
        wrong_say("%s", error.text);
    snprintf(figure.name, sizeof figure.name, "%s", costs[cost].name);
    figure_add_given(&figure, "size", size, costs[cost].unit);
    figure_add(&figure, "unit_ns", 1e3 * figure.times.median_us / units, "ns each");
    figure_add_given(&figure, "aim_ns", costs[cost].aim_ns, "");
    figure_add_given(&figure, "units", units, "");
    return study_say(l->study, &figure);
}

static bool more(const struct ledger *l, double start_us, uint32_t rounds)
{
    if (l->study->options.check)
        return rounds < 1;
    return rounds < LEAST_ROUNDS ||
           (rounds < MOST_ROUNDS &&
            now_us() - start_us < size_share * 1e6 * l->study->options.seconds);
}

// ---- blocks ----

static bool lease(struct ledger *l, uint32_t count)
{
    struct error error = {0};
    double end = now_us() + DEADLINE_US;
    for (;;) {
        bool growing;
        if (core_blocks_lease(l->session, l->cache, count, l->blocks, &growing, &error) ==
            STATUS_OK)
            return true;
        if (error.status != STATUS_NO_BLOCKS || !growing || now_us() > end)
            return failed(&error);
        usleep(POLL_US);
        core_step(l->core, 0);
    }
}

static bool release(struct ledger *l, uint32_t count)
{
    struct error error = {0};
    return core_blocks_release(l->session, l->cache, l->blocks, count, &error) == STATUS_OK ||
           failed(&error);
}

// Scatters the free blocks as use does: the blocks of one lease come back in another order.
static void shuffle(struct ledger *l, uint32_t count)
{
    uint64_t state = 0x1234567 + count;
    for (uint32_t i = count; i > 1; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t other = (uint32_t)((state >> 33) % i);
        int32_t held = l->blocks[i - 1];
        l->blocks[i - 1] = l->blocks[other];
        l->blocks[other] = held;
    }
}

static bool turn_over(struct ledger *l, uint32_t count, enum cost leasing, enum cost releasing)
{
    double start = now_us();
    bool ok = true;
    for (uint32_t i = 0; ok && more(l, start, i); i++) {
        struct moment before = begin();
        ok = lease(l, count) && note(l, leasing, before);
        shuffle(l, count);
        before = begin();
        ok = ok && release(l, count) && note(l, releasing, before);
    }
    return ok;
}

static bool measure_blocks(struct ledger *l, uint32_t count)
{
    if (!lease(l, count)) // the pool grows here
        return false;
    shuffle(l, count);
    if (!release(l, count) || !turn_over(l, count, LEASE, RELEASE) || !say(l, LEASE, count) ||
        !say(l, RELEASE, count))
        return false;
    if (count < SOME_BLOCKS)
        return true;
    return turn_over(l, SOME_BLOCKS, LEASE_SOME, RELEASE_SOME) && say(l, LEASE_SOME, count) &&
           say(l, RELEASE_SOME, count);
}

// ---- batches and runs ----

// num_seqs sequences of one query each, with this many blocks each.
struct step {
    uint32_t num_seqs, max_blocks;
    int32_t *cu_seqlens_q, *seq_lens_kv;
    int64_t *slots;
    int by; // -1 or 1, alternating
};

static bool step_init(struct step *step, const struct ledger *l, uint32_t num_seqs,
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
        step->slots[s] = (int64_t)l->blocks[(s + 1) * max_blocks - 1] * BLOCK_SIZE + BLOCK_SIZE - 1;
    }
    return true;
}

static void step_finish(struct step *step)
{
    free(step->cu_seqlens_q);
    free(step->seq_lens_kv);
    free(step->slots);
}

// Moves each sequence to the token before its last one, or back.
static void step_move(struct step *step)
{
    step->by = -step->by;
    for (uint32_t s = 0; s < step->num_seqs; s++) {
        step->seq_lens_kv[s] += step->by;
        step->slots[s] += step->by;
    }
}

static enum status create(struct ledger *l, const struct step *step, uint64_t *batch,
                          struct error *error)
{
    const struct core_batch_params params = {
        .cache = l->cache,
        .num_seqs = step->num_seqs,
        .max_blocks = step->max_blocks,
        .cu_seqlens_q = step->cu_seqlens_q,
        .num_cu_seqlens_q = step->num_seqs + 1,
        .seq_lens_kv = step->seq_lens_kv,
        .num_seq_lens_kv = step->num_seqs,
        .block_table = l->blocks,
        .num_block_table = (uint64_t)step->num_seqs * step->max_blocks,
        .slot_mapping = step->slots,
        .num_slot_mapping = step->num_seqs,
    };
    uint32_t num_tokens;
    return core_batch_create(l->session, &params, batch, &num_tokens, error);
}

static struct wire_tensor tensor(uint64_t offset)
{
    return (struct wire_tensor){.dtype = DTYPE_F16,
                                .offset = offset,
                                .token_stride = HEADS * HEAD_DIM * sizeof(uint16_t),
                                .head_stride = HEAD_DIM * sizeof(uint16_t)};
}

// Does as much work as advancing to the next token.
static bool advance(struct ledger *l, struct step *step, uint64_t batch, enum cost cost)
{
    struct error error = {0};
    step_move(step);
    const struct core_advance params = {
        .batch = batch,
        .seq_lens_kv = step->seq_lens_kv,
        .num_seq_lens_kv = step->num_seqs,
        .slot_mapping = step->slots,
        .num_slot_mapping = step->num_seqs,
    };
    const struct moment before = begin();
    return (core_batch_advance(l->session, &params, &error) == STATUS_OK &&
            note(l, cost, before)) ||
           failed(&error);
}

// Queues the run and hands it to the engine: the dispatcher's part. Not timed are the plan, which
// the engine's submitter makes on its own thread, and the GPU's work.
static bool run(struct ledger *l, uint64_t batch, enum cost cost)
{
    struct error error = {0};
    struct core_ticket_result result;
    uint64_t ticket;
    const struct core_run_params params = {
        .entry =
            {
                .batch = batch,
                .num_heads = HEADS,
                .q = tensor(0),
                .k = tensor(0),
                .v = tensor(0),
                .out = tensor(l->arena_size / 2),
                // Keeps the GPU's work small, because its time is not measured.
                .window_left = WINDOW,
                .window_right = -1,
                .flags = WIRE_RUN_CAUSAL,
            },
    };
    const struct moment before = begin();
    if (core_run(l->session, &params, &ticket, &error) != STATUS_OK)
        return failed(&error);
    core_step(l->core, 0);
    if (!note(l, cost, before) || !settle(l))
        return false;
    return core_ticket_reap(l->session, ticket, &result, &error) == STATUS_OK || failed(&error);
}

// The costs that are timed of a batch.
struct batch_costs {
    enum cost checking, running, first, later; // the last two are advances
};

static bool check_and_run(struct ledger *l, struct step *step, const struct batch_costs *cost)
{
    double start = now_us();
    for (uint32_t i = 0; more(l, start, i); i++) {
        struct error error = {0};
        uint64_t batch;
        const struct moment before = begin();
        if (create(l, step, &batch, &error) != STATUS_OK)
            return failed(&error);
        if (!note(l, cost->checking, before) || !run(l, batch, cost->running))
            return false;
        for (int j = 0; j < ADVANCES; j++)
            if (!advance(l, step, batch, j ? cost->later : cost->first) ||
                !run(l, batch, cost->running))
                return false;
        if (core_batch_destroy(l->session, batch, &error) != STATUS_OK)
            return failed(&error);
    }
    return true;
}

static bool measure_batch(struct ledger *l, uint32_t num_seqs, uint32_t max_blocks, bool by_seqs)
{
    static const struct batch_costs costs_by_seqs = {CHECK_SEQS, RUN_SEQS, FIRST_SEQS,
                                                     ADVANCE_SEQS},
                                    costs_by_entries = {CHECK_ENTRIES, RUN_ENTRIES, FIRST_ENTRIES,
                                                        ADVANCE_ENTRIES};
    const struct batch_costs *cost = by_seqs ? &costs_by_seqs : &costs_by_entries;
    struct step step;
    bool ok = step_init(&step, l, num_seqs, max_blocks) && check_and_run(l, &step, cost);
    uint32_t size = by_seqs ? num_seqs : num_seqs * max_blocks;
    step_finish(&step);
    return ok && say(l, cost->checking, size) && say(l, cost->running, size) &&
           say(l, cost->first, size) && say(l, cost->later, size);
}

bool study_growth(const struct study *study)
{
    struct ledger ledger = {.study = study};
    bool ok = ledger_open(&ledger);
    for (size_t i = 0; ok && i < COUNT(block_counts); i++)
        ok = measure_blocks(&ledger, block_counts[i]);
    ok = ok && lease(&ledger, MOST_BLOCKS);
    shuffle(&ledger, MOST_BLOCKS);
    for (size_t i = 0; ok && i < COUNT(seq_counts); i++)
        ok = measure_batch(&ledger, seq_counts[i], 1, true);
    for (size_t i = 0; ok && i < COUNT(block_counts); i++)
        ok = measure_batch(&ledger, 1, block_counts[i], false);
    ledger_close(&ledger);
    return ok;
}
