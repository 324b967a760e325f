// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// cached.c - study "cached": what the daemon's core needs for a look-up, an append, a fork and an
// eviction, with 100 to 1,000,000 blocks in its cache. Chains of 20 blocks are cached, and each
// chain's blocks are scattered over the whole pool, as they are after long use. The engine is real,
// so that blocks are written, but only the calls of core.h are timed.

#include "core/audit.h"
#include "core/core.h"
#include "study.h"
#include "tools/bench/wrong.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    CHAIN = 20, // blocks of a prompt
    BLOCK_SIZE = 16,
    HEAD_DIM = 16,
    SPARE = 1024,  // blocks of the pool beside those that are cached
    COPIED = 8192, // blocks that are filled at once
    ROUNDS = 500,
    SLOW_ROUNDS = 100,   // of those that need the GPU in between
    INTERRUPTED_US = 20, // a longer call may have been interrupted
    POLL_US = 100,
    DEADLINE_US = 300000000,
};
static const uint32_t sizes[] = {100, 10000, 1000000};
static const uint64_t pool_bytes = UINT64_C(1) << 31;
#define ARENA_SIZE (UINT64_C(1) << 16)

enum cost { LOOKUP, APPEND, FORK, EVICTION, NUM_COSTS };
static const struct {
    const char *name;
    uint32_t units; // of one call that is timed
    double aim_ns;  // target for one unit
} costs[NUM_COSTS] = {
    [LOOKUP] = {"look-up of a cached block", CHAIN, 300},
    [APPEND] = {"append: a sequence leases a block", 1, 1000},
    [FORK] = {"fork: a lease, and the copy's order", 1, 2000},
    [EVICTION] = {"eviction and lease of a block", CHAIN, 500},
};

struct cached {
    const struct study *study;
    struct engine *engine;
    struct engine_arena *arena;
    void *memory;
    struct core *core;
    struct core_session *session;
    uint64_t cache;
    bool gone;
    uint32_t size;       // blocks that are cached
    uint32_t num_chains; // chains published so far; those of equal number have equal tokens
    uint32_t num_blocks; // in `blocks`
    int32_t source;      // a block that is written
    int32_t *blocks;     // [num_blocks] of the whole pool but the source; owned
    uint64_t random;
    struct samples samples[NUM_COSTS];
};

static bool failed(const struct error *error)
{
    fprintf(stderr, "aule-bench: %s\n", error->text);
    return false;
}

static uint32_t draw(struct cached *c, uint32_t end)
{
    c->random = c->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((c->random >> 33) % end);
}

// ---- the clock: see costs.c ----

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

static bool note(struct cached *c, enum cost cost, struct moment begin)
{
    double wall = now_us() - begin.wall_us;
    return samples_add(&c->samples[cost], 0,
                       wall < INTERRUPTED_US ? wall : fmin(wall, cpu_us() - begin.cpu_us));
}

// ---- a core with one session ----

static void session_gone(void *context, void *owner)
{
    struct cached *c = context;
    (void)owner;
    c->gone = true;
}

static bool open_core(struct cached *c, struct error *error)
{
    const struct core_params params = {
        .engine = c->engine,
        .pool_limit_bytes = pool_bytes,
        .max_blocks = c->size + SPARE,
        .max_sessions = 1,
        .max_caches = 1,
        .max_batches = 4,
        .max_tickets = 4,
        .max_offers = 4,
        .session_gone = session_gone,
        .context = c,
    };
    const struct core_session_params session = {.id = 1,
                                                .tenant = "",
                                                .name = "aule-bench",
                                                .arena = c->arena,
                                                .arena_size = ARENA_SIZE,
                                                .owner = c};
    const struct core_cache_identity cache = {.name = "cached",
                                              .num_layers = 1,
                                              .kv = {.num_kv_heads = 1,
                                                     .head_dim_k = HEAD_DIM,
                                                     .head_dim_v = HEAD_DIM,
                                                     .block_size = BLOCK_SIZE,
                                                     .k_dtype = DTYPE_F16,
                                                     .v_dtype = DTYPE_F16}};
    struct core_cache_info info;
    if (core_create(&params, &c->core, error) != STATUS_OK ||
        core_session_open(c->core, &session, &c->session, error) != STATUS_OK ||
        core_cache_open(c->session, &cache, &info, error) != STATUS_OK)
        return false;
    c->cache = info.cache;
    return true;
}

static void close_core(struct cached *c)
{
    c->gone = false;
    if (c->session)
        core_session_close(c->session, false);
    for (int i = 0; c->session && !c->gone && i < DEADLINE_US / POLL_US; i++) {
        core_step(c->core, 0);
        usleep(POLL_US);
    }
    core_destroy(c->core);
    free(c->blocks);
    c->core = NULL;
    c->session = NULL;
    c->blocks = NULL;
    c->num_blocks = c->num_chains = 0;
}

static bool settle(struct cached *c)
{
    struct error error = {0};
    double end = now_us() + DEADLINE_US;
    core_step(c->core, 0);
    while (!core_idle(c->core) && now_us() < end) {
        usleep(POLL_US);
        core_step(c->core, 0);
    }
    if (core_idle(c->core))
        return true;
    error_set(&error, STATUS_TIMEOUT, "the GPU was not done after %d s", DEADLINE_US / 1000000);
    return failed(&error);
}

// ---- blocks ----

static bool lease(struct cached *c, uint32_t count, int32_t *blocks)
{
    struct error error = {0};
    double end = now_us() + DEADLINE_US;
    for (;;) {
        bool growing;
        if (core_blocks_lease(c->session, c->cache, count, blocks, &growing, &error) == STATUS_OK)
            return true;
        if (error.status != STATUS_NO_BLOCKS || !growing || now_us() > end)
            return failed(&error);
        usleep(POLL_US);
        core_step(c->core, 0);
    }
}

static bool release(struct cached *c, const int32_t *blocks, uint32_t count)
{
    struct error error = {0};
    return core_blocks_release(c->session, c->cache, blocks, count, &error) == STATUS_OK ||
           failed(&error);
}

static bool reap(struct cached *c, uint64_t ticket)
{
    struct error error = {0};
    struct core_ticket_result result;
    if (!settle(c))
        return false;
    return core_ticket_reap(c->session, ticket, &result, &error) == STATUS_OK || failed(&error);
}

static struct wire_tensor tensor(uint64_t part)
{
    return (struct wire_tensor){.dtype = DTYPE_F16,
                                .offset = part * BLOCK_SIZE * HEAD_DIM * sizeof(uint16_t),
                                .token_stride = HEAD_DIM * sizeof(uint16_t),
                                .head_stride = HEAD_DIM * sizeof(uint16_t)};
}

// Computes the source's tokens; the other blocks become copies of it.
static bool write_source(struct cached *c)
{
    struct error error = {0};
    const int32_t cu_seqlens_q[] = {0, BLOCK_SIZE}, seq_lens_kv[] = {BLOCK_SIZE};
    int64_t slots[BLOCK_SIZE];
    for (int i = 0; i < BLOCK_SIZE; i++)
        slots[i] = (int64_t)c->source * BLOCK_SIZE + i;
    const struct core_batch_params batch = {.cache = c->cache,
                                            .num_seqs = 1,
                                            .max_blocks = 1,
                                            .cu_seqlens_q = cu_seqlens_q,
                                            .num_cu_seqlens_q = 2,
                                            .seq_lens_kv = seq_lens_kv,
                                            .num_seq_lens_kv = 1,
                                            .block_table = &c->source,
                                            .num_block_table = 1,
                                            .slot_mapping = slots,
                                            .num_slot_mapping = BLOCK_SIZE};
    struct core_run_params run = {.entry = {.num_heads = 1,
                                            .q = tensor(0),
                                            .k = tensor(1),
                                            .v = tensor(2),
                                            .out = tensor(3),
                                            .window_left = -1,
                                            .window_right = -1,
                                            .flags = WIRE_RUN_CAUSAL}};
    uint32_t num_tokens;
    uint64_t ticket;
    if (core_batch_create(c->session, &batch, &run.entry.batch, &num_tokens, &error) != STATUS_OK ||
        core_run(c->session, &run, &ticket, &error) != STATUS_OK)
        return failed(&error);
    if (!reap(c, ticket))
        return false;
    return core_batch_destroy(c->session, run.entry.batch, &error) == STATUS_OK || failed(&error);
}

static bool copy(struct cached *c, const int32_t *to, uint32_t count, uint64_t *ticket)
{
    static int32_t from[COPIED];
    struct error error = {0};
    for (uint32_t i = 0; i < count; i++)
        from[i] = c->source;
    return core_blocks_copy(c->session, c->cache, from, to, count, false, ticket, &error) ==
               STATUS_OK ||
           failed(&error);
}

static bool fill(struct cached *c, const int32_t *blocks, uint32_t count)
{
    uint64_t ticket;
    bool ok = true;
    for (uint32_t i = 0; ok && i < count; i += COPIED) {
        uint32_t part = count - i < COPIED ? count - i : COPIED;
        ok = copy(c, blocks + i, part, &ticket) && reap(c, ticket);
    }
    return ok;
}

static struct core_prefix prompt_of(uint32_t chain)
{
    static int32_t tokens[CHAIN * BLOCK_SIZE];
    for (uint32_t i = 0; i < CHAIN * BLOCK_SIZE; i++)
        tokens[i] = (int32_t)((chain * UINT32_C(2654435761) ^ i * UINT32_C(40503)) >> 1);
    return (struct core_prefix){.tokens = tokens, .num_tokens = CHAIN * BLOCK_SIZE};
}

// Makes a cached chain of the blocks, which are filled and leased.
static bool cache_chain(struct cached *c, int32_t *blocks)
{
    struct error error = {0};
    const struct core_prefix prompt = prompt_of(c->num_chains++);
    uint32_t existing;
    if (core_prefix_publish(c->session, c->cache, &prompt, blocks, CHAIN, &existing, &error) !=
        STATUS_OK)
        return failed(&error);
    return release(c, blocks, CHAIN);
}

static void shuffle(struct cached *c)
{
    for (uint32_t i = c->num_blocks; i > 1; i--) {
        uint32_t other = draw(c, i);
        int32_t held = c->blocks[i - 1];
        c->blocks[i - 1] = c->blocks[other];
        c->blocks[other] = held;
    }
}

// Fills the cache and leaves the rest of the pool free.
static bool fill_cache(struct cached *c)
{
    struct error error = {0};
    struct core_counts counts;
    if (!lease(c, 1, &c->source) || !write_source(c))
        return false;
    if (core_cache_counts(c->session, c->cache, &counts, &error) != STATUS_OK)
        return failed(&error);
    c->num_blocks = (uint32_t)counts.limit - 1;
    c->blocks = calloc(c->num_blocks, sizeof *c->blocks);
    if (!c->blocks || c->num_blocks < c->size) {
        fprintf(stderr, "aule-bench: no memory for %" PRIu32 " blocks\n", c->size);
        return false;
    }
    if (!lease(c, c->num_blocks, c->blocks))
        return false;
    shuffle(c);
    bool ok = fill(c, c->blocks, c->size);
    for (uint32_t i = 0; ok && i < c->size; i += CHAIN)
        ok = cache_chain(c, c->blocks + i);
    return ok && release(c, c->blocks + c->size, c->num_blocks - c->size);
}

// ---- what is timed ----

static bool look_up(struct cached *c)
{
    struct error error = {0};
    const struct core_prefix prompt = prompt_of(draw(c, c->num_chains));
    int32_t found[CHAIN];
    uint32_t num_found;
    const struct moment before = begin();
    if (core_prefix_lookup(c->session, c->cache, &prompt, 0, found, &num_found, &error) !=
        STATUS_OK)
        return failed(&error);
    if (!note(c, LOOKUP, before))
        return false;
    if (num_found != CHAIN)
        wrong_say("a look-up found %" PRIu32 " of %d blocks", num_found, CHAIN);
    return num_found == CHAIN && release(c, found, CHAIN);
}

static bool append(struct cached *c)
{
    int32_t block;
    const struct moment before = begin();
    return lease(c, 1, &block) && note(c, APPEND, before) && release(c, &block, 1);
}

static bool fork_one(struct cached *c)
{
    int32_t block;
    uint64_t ticket;
    const struct moment before = begin();
    return lease(c, 1, &block) && copy(c, &block, 1, &ticket) && note(c, FORK, before) &&
           reap(c, ticket) && release(c, &block, 1);
}

// The pool has no free block. Evicts the chain that was used longest ago, and caches another one.
static bool evict(struct cached *c)
{
    int32_t blocks[CHAIN];
    const struct moment before = begin();
    return lease(c, CHAIN, blocks) && note(c, EVICTION, before) && fill(c, blocks, CHAIN) &&
           cache_chain(c, blocks);
}

static bool say(struct cached *c, enum cost cost)
{
    struct figure figure = study_figure(c->study, "core", NULL, 0);
    if (!c->study->options.check)
        samples_times(&c->samples[cost], true, &figure.times);
    c->samples[cost].count = 0;
    figure.checked = true;
    snprintf(figure.name, sizeof figure.name, "%s", costs[cost].name);
    figure_add_given(&figure, "size", c->size, "blocks cached");
    figure_add(&figure, "unit_ns", 1e3 * figure.times.median_us / costs[cost].units, "ns each");
    figure_add_given(&figure, "aim_ns", costs[cost].aim_ns, "");
    figure_add_given(&figure, "units", costs[cost].units, "");
    return study_say(c->study, &figure);
}

static bool time_calls(struct cached *c, enum cost cost, bool (*call)(struct cached *), int rounds)
{
    bool ok = true;
    for (int i = 0; ok && i < (c->study->options.check ? 2 : rounds); i++)
        ok = call(c);
    return ok && say(c, cost);
}

static bool check(struct cached *c)
{
    struct error error = {0};
    if (core_check(c->core, &error))
        return true;
    wrong_say("%s", error.text);
    return false;
}

static bool measure_size(struct cached *c)
{
    struct error error = {0};
    bool ok = open_core(c, &error) || failed(&error);
    ok = ok && fill_cache(c) && time_calls(c, LOOKUP, look_up, ROUNDS) &&
         time_calls(c, APPEND, append, ROUNDS) && time_calls(c, FORK, fork_one, SLOW_ROUNDS) &&
         lease(c, c->num_blocks - c->size, c->blocks + c->size) &&
         time_calls(c, EVICTION, evict, SLOW_ROUNDS) && check(c);
    close_core(c);
    return ok;
}

bool study_cached(const struct study *study)
{
    struct cached c = {.study = study, .random = 20};
    struct error error = {0};
    bool ok = false;
    c.engine = world_engine(&study->options);
    void *memory =
        mmap(NULL, ARENA_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (c.engine && memory != MAP_FAILED) {
        ok = engine_arena_create(c.engine, memory, ARENA_SIZE, &c.arena, &error) == STATUS_OK ||
             failed(&error);
    }
    // The whole of a million blocks is no check's affair: it takes a gigabyte.
    const size_t count = sizeof sizes / sizeof *sizes - (study->options.check ? 1 : 0);
    for (size_t i = 0; ok && i < count; i++) {
        c.size = sizes[i];
        ok = measure_size(&c);
    }
    engine_arena_destroy(c.arena);
    engine_destroy(c.engine);
    if (memory != MAP_FAILED)
        munmap(memory, ARENA_SIZE);
    for (int i = 0; i < NUM_COSTS; i++)
        samples_finish(&c.samples[i]);
    return ok;
}
