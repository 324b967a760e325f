// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tiered_world.c - see tiered_world.h.

#include "tiered_world.h"

#include "tier/files/files.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

struct engine *engine;
struct tier *tier, *further[2];
struct tier_backend *host, *fault;
uint64_t load_id, cached_of_all, area = AREA;
bool hauls;

static struct engine_arena *arena;
static uint8_t *memory;

struct tier_backend *make_files(char folder[64], uint64_t limit_bytes)
{
    struct tier_backend *files;
    strcpy(folder, "/tmp/aule-core-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    const struct files_params params = {.path = folder, .limit_bytes = limit_bytes};
    ck_assert_status(files_create(&params, &files, &error), STATUS_OK);
    return files;
}

void remove_folder(const char *folder)
{
    char command[80];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    ck_assert_int_eq(system(command), 0);
}

void open_world(uint64_t tenant_blocks)
{
    const struct tier_ops *ops;
    engine = fake_engine_create();
    fake_engine_have_hauls(engine, hauls);
    memory = aligned_alloc(4096, area);
    ck_assert_status(host_open(&(struct host_params){.base = memory, .size = area}, &host, &error),
                     STATUS_OK);
    fault = fault_open(&host_ops, host, &ops);
    ck_assert_status(tier_create(ops, fault, &tier, &error), STATUS_OK);
    ck_assert_status(engine_arena_create(engine, memory, area, &arena, &error), STATUS_OK);
    const struct core_params params = {
        .engine = engine,
        .max_blocks = POOL,
        .tenant_limits = {.blocks = tenant_blocks, .cached = cached_of_all},
        .tiers = {.host = tier,
                  .area = host,
                  .base = memory,
                  .arena = arena,
                  .more = {further[0], further[1]},
                  .num_more = (further[0] != NULL) + (further[1] != NULL),
                  .deadline_ns = FOREVER,
                  .abandon_ns = FOREVER,
                  .max_errands = 16},
    };
    world_open(&world, &params);
    worker_open(&a, &world, 1, "");
    worker_open(&b, &world, 1, "");
    count_tokens(tokens, 2048, 1000);
}

void open_free(void)
{
    open_world(0);
}

void close_world(void)
{
    world_check(&world);
    core_destroy(world.core);
    ck_assert(tier_close(tier, FOREVER));
    ck_assert(engine_arena_destroy(arena));
    engine_destroy(engine);
    free(memory);
}

void settle(void)
{
    world_step(&world);
    while (!core_idle(world.core)) {
        if (!fake_engine_finish(engine)) {
            struct pollfd news[3] = {
                {.fd = tier_fd(tier), .events = POLLIN},
                {.fd = further[0] ? tier_fd(further[0]) : -1, .events = POLLIN},
                {.fd = further[1] ? tier_fd(further[1]) : -1, .events = POLLIN},
            };
            if (tier_num_jobs(tier) && tier_num_jobs(tier) == fault_num_held(fault))
                break;
            poll(news, 3, 20); // the time only bounds the wait for a job that is then held
        }
        world_step(&world);
        world_check(&world);
    }
    world_step(&world);
    world_check(&world);
}

struct fake_submission *first_copy(void)
{
    return hauls ? fake_engine_oldest_haul(engine) : fake_engine_oldest(engine);
}

void order(enum fault_kind kind, enum tier_kind jobs, enum stored_reason reason, uint32_t times)
{
    const struct fault_order now = {kind, jobs, reason, 100, times};
    fault_order(fault, &now);
}

void compute(struct worker *worker, const int32_t *text, uint32_t count)
{
    int32_t ids[POOL];
    worker_lease(worker, count, ids);
    uint64_t last;
    worker_write_async(worker, ids, text, count * BLOCK, &last);
    settle();
    worker_reap(worker, last, STATUS_OK);
    const struct core_prefix prefix = {
        .tokens = text, .num_tokens = count * BLOCK, .releases = true};
    uint32_t existing;
    ck_assert_status(
        core_prefix_publish(worker->session, worker->cache, &prefix, ids, count, &existing, &error),
        STATUS_OK);
    settle();
    worker_release(worker, ids, count);
}

void evict_all(struct worker *worker)
{
    int32_t ids[POOL];
    worker_lease(worker, POOL, ids);
    worker_release(worker, ids, POOL);
    settle();
}

uint32_t load(struct worker *worker, const int32_t *text, uint32_t count, enum core_load rule)
{
    const struct core_prefix prefix = {.tokens = text, .num_tokens = count * BLOCK};
    const uint32_t begun =
        core_prefix_load(worker->session, worker->cache, &prefix, 0, rule, &load_id);
    world_check(&world);
    return begun;
}

struct core_claim claim(struct worker *worker, const int32_t *text, uint32_t count)
{
    const struct core_prefix prefix = {.tokens = text, .num_tokens = count * BLOCK};
    struct core_claim out;
    ck_assert_status(
        core_prefix_claim(worker->session, worker->cache, &prefix, 0, found, &out, &error),
        STATUS_OK);
    return out;
}

void expect_numbers(const struct worker *worker, const int32_t *text, uint32_t count)
{
    const struct engine_cache *cache = core_engine_cache(world.core, worker->cache);
    for (uint32_t i = 0; i < count * BLOCK; i++)
        for (uint32_t layer = 0; layer < WORLD_LAYERS; layer++)
            ck_assert_int_eq(fake_engine_slot(cache, layer, found[i / BLOCK], i % BLOCK), text[i]);
}

void expect_found(struct worker *worker, uint32_t asked, uint32_t count)
{
    ck_assert_uint_eq(worker_lookup(worker, tokens, asked * BLOCK, found), count);
    expect_numbers(worker, tokens, count);
    if (count)
        worker_release(worker, found, count);
}

void take(struct worker *worker, const struct core_claim *own, const int32_t *text, uint32_t count)
{
    struct core_claim out;
    uint32_t num_blocks;
    ck_assert_status(core_claim_take(worker->session, worker->cache, own->claim, found, &num_blocks,
                                     &out, &error),
                     STATUS_OK);
    ck_assert_uint_eq(num_blocks, count);
    expect_numbers(worker, text + own->num_found * BLOCK, count);
    worker_release(worker, found, count);
}

uint64_t metric(enum metric which)
{
    return core_metrics(world.core)[which];
}

void fetch(struct worker *worker, const int32_t *text, uint32_t count)
{
    load(worker, text, count, CORE_LOAD_ALWAYS);
    const struct core_claim own = claim(worker, text, count);
    if (own.num_found)
        worker_release(worker, found, own.num_found);
    settle();
    const uint32_t missing =
        own.claim ? core_claim_missing(worker->session, worker->cache, own.claim) : 0;
    struct core_claim out;
    uint32_t num_blocks = 0;
    if (missing && !core_claim_waits(worker->session, worker->cache, own.claim))
        core_claim_take(worker->session, worker->cache, own.claim, found, &num_blocks, &out, NULL);
    expect_numbers(worker, text + own.num_found * BLOCK, num_blocks);
    if (num_blocks)
        worker_release(worker, found, num_blocks);
    if (own.claim)
        core_claim_release(worker->session, worker->cache, own.claim, 0, NULL);
}

void close_hauling(void)
{
    world_check(&world);
    core_destroy(world.core); // the fake refuses an arena with hauls
    ck_assert(tier_close(tier, FOREVER));
    engine_arena_destroy(arena);
    engine_destroy(engine);
    free(memory);
}

static void with_hauls(void)
{
    hauls = true;
}

static void without_hauls(void)
{
    hauls = false;
}

static void add_case(Suite *suite, const char *name, SFun way, SFun open, SFun close,
                     const TTest *const *tests)
{
    TCase *tcase = check_new_case(suite, name, tests, 1);
    tcase_add_checked_fixture(tcase, way, NULL); // comes before `open`
    tcase_add_checked_fixture(tcase, open, close);
}

void add_ways(Suite *suite, const char *const names[2], SFun open, SFun close,
              const TTest *const *tests)
{
    add_case(suite, names[0], without_hauls, open, close, tests);
    add_hauls(suite, names[1], open, close, tests);
}

void add_hauls(Suite *suite, const char *name, SFun open, SFun close, const TTest *const *tests)
{
    add_case(suite, name, with_hauls, open, close, tests);
}
