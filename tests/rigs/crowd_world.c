// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// crowd_world.c - see crowd_world.h.

#include "crowd_world.h"

#include "base/clock.h"

enum {
    PROMPT_BLOCKS = 64,
    PROMPT_TOKENS = PROMPT_BLOCKS * WORLD_BLOCK,
    TOKENS = PROMPT_TOKENS + WORLD_BLOCK,
    MOST_LAYERS = 32,
};

// ---- members ----

static void open_cache(struct member *member, uint32_t num_layers)
{
    struct core_cache_identity identity = world_identity("crowd");
    struct core_cache_info info;
    identity.num_layers = num_layers;
    ck_assert_status(core_cache_open(member->worker.session, &identity, &info, &error), STATUS_OK);
    member->worker.cache = info.cache;
}

static void write_keys(struct member *member, uint32_t num_layers, const int32_t *blocks,
                       uint32_t count, const int32_t *tokens)
{
    struct worker *worker = &member->worker;
    uint64_t batch = worker_batch(worker, blocks, count, count);
    for (uint32_t layer = 0; layer < num_layers; layer++) {
        uint64_t ticket = worker_run(worker, batch, layer, count, tokens);
        world_finish_all(worker->world);
        worker_reap(worker, ticket, STATUS_OK);
    }
    ck_assert_status(core_batch_destroy(worker->session, batch, &error), STATUS_OK);
}

// The prompt's blocks come from the cache, or the member leases and writes them.
static void open_member(struct crowd *crowd, struct member *member, bool hidden)
{
    static int32_t tokens[PROMPT_TOKENS];
    int32_t table[PROMPT_BLOCKS + 1];
    const int32_t cu[] = {0, 1}, lens[] = {TOKENS};
    worker_open(&member->worker, &crowd->world, 1 + member->tenant, "");
    open_cache(member, crowd->num_layers);
    count_tokens(tokens, PROMPT_TOKENS, 1 + (int32_t)member->prompt);
    if (hidden || worker_lookup(&member->worker, tokens, PROMPT_TOKENS, table) < PROMPT_BLOCKS) {
        worker_lease(&member->worker, PROMPT_BLOCKS, table);
        write_keys(member, crowd->num_layers, table, PROMPT_TOKENS, tokens);
        if (!hidden)
            worker_publish(&member->worker, tokens, PROMPT_TOKENS, table);
    }
    worker_lease(&member->worker, 1, table + PROMPT_BLOCKS);
    write_keys(member, crowd->num_layers, table + PROMPT_BLOCKS, WORLD_BLOCK, tokens);
    const struct core_batch_params params =
        sequences_over(member->worker.cache, 1, cu, lens, table, PROMPT_BLOCKS + 1);
    member->batch = worker_create(&member->worker, &params);
}

static void open_members(struct crowd *crowd, uint32_t count, uint32_t num_layers,
                         const uint32_t *prompts, const uint32_t *tenants, bool hidden)
{
    ck_assert_uint_le(count, CROWD_MOST);
    ck_assert_uint_le(num_layers, MOST_LAYERS);
    *crowd = (struct crowd){.count = count, .num_layers = num_layers, .dice = {1}};
    world_open(&crowd->world, &(struct core_params){.look_ns = CROWD_LOOK_NS, .max_blocks = 2048});
    for (uint32_t i = 0; i < count; i++) {
        crowd->members[i].prompt = prompts[i];
        crowd->members[i].tenant = tenants ? tenants[i] : 0;
        open_member(crowd, &crowd->members[i], hidden);
    }
    crowd->world.now_ns = crowd->free_ns = NS_PER_MS;
    for (uint32_t i = 0; i < count; i++)
        crowd->members[i].back_ns = crowd->world.now_ns;
}

void crowd_open(struct crowd *crowd, uint32_t count, uint32_t num_layers, const uint32_t *prompts,
                bool hidden)
{
    open_members(crowd, count, num_layers, prompts, NULL, hidden);
}

void crowd_open_tenants(struct crowd *crowd, uint32_t count, uint32_t num_layers,
                        const uint32_t *prompts, const uint32_t *tenants)
{
    open_members(crowd, count, num_layers, prompts, tenants, false);
}

static int64_t never(struct crowd *crowd, uint32_t member)
{
    (void)crowd;
    (void)member;
    return FOREVER;
}

void crowd_close(struct crowd *crowd)
{
    crowd->gap_ns = never;
    for (uint32_t i = 0; i < crowd->count; i++)
        crowd->members[i].back_ns = FOREVER;
    crowd_pass(crowd, FOREVER);
    world_finish_all(&crowd->world);
    world_close(&crowd->world);
}

uint64_t crowd_runs(const struct crowd *crowd)
{
    uint64_t runs = 0;
    for (uint32_t i = 0; i < crowd->count; i++)
        runs += crowd->members[i].runs;
    return runs;
}

// ---- the GPU ----

static const struct member *member_of(const struct crowd *crowd, const struct fake_run *run)
{
    for (uint32_t i = 0; i < crowd->count; i++)
        if (crowd->members[i].worker.arena == run->arena)
            return &crowd->members[i];
    ck_abort_msg("a run of no member");
}

static bool reads_first(const struct crowd *crowd, const struct fake_submission *s, uint32_t i)
{
    for (uint32_t j = 0; j < i; j++)
        if (s->runs[j].run.layer == s->runs[i].run.layer &&
            member_of(crowd, &s->runs[j])->prompt == member_of(crowd, &s->runs[i])->prompt)
            return false;
    return true;
}

// The GPU is idle, and core has the first run of the submission already.
static void count_idle(struct crowd *crowd, const struct fake_submission *s)
{
    int64_t since_ns = crowd->world.now_ns;
    for (uint32_t i = 0; i < s->num_runs; i++) {
        const int64_t queued_ns = member_of(crowd, &s->runs[i])->queued_ns;
        since_ns = queued_ns < since_ns ? queued_ns : since_ns;
    }
    since_ns = since_ns > crowd->free_ns ? since_ns : crowd->free_ns;
    const int64_t idle_ns = crowd->world.now_ns > since_ns ? crowd->world.now_ns - since_ns : 0;
    crowd->idle_ns += idle_ns;
    crowd->longest_idle_ns = idle_ns > crowd->longest_idle_ns ? idle_ns : crowd->longest_idle_ns;
}

static void begin(struct crowd *crowd, struct fake_submission *s)
{
    count_idle(crowd, s);
    const int64_t now_ns = crowd->world.now_ns;
    const uint32_t before = crowd->prompts;
    for (uint32_t i = 0; i < s->num_runs; i++)
        crowd->prompts += reads_first(crowd, s, i);
    const int64_t takes_ns = (int64_t)(crowd->prompts - before) * CROWD_PROMPT_NS +
                             (int64_t)s->num_runs * CROWD_OWN_NS,
                  start_ns = now_ns + CROWD_START_NS;
    for (uint32_t i = 0; i < s->num_runs; i++)
        s->runs[i].own_ns = (uint64_t)takes_ns / s->num_runs;
    crowd->free_ns = (start_ns > crowd->free_ns ? start_ns : crowd->free_ns) + takes_ns;
    ck_assert_uint_lt(crowd->num_in_flight, 2);
    crowd->in_flight[crowd->num_in_flight].sequence = s->sequence;
    crowd->in_flight[crowd->num_in_flight++].end_ns = crowd->free_ns;
    crowd->busy_ns += takes_ns;
    crowd->submissions++;
    crowd->last_runs = s->num_runs;
}

static void step(struct crowd *crowd)
{
    world_step(&crowd->world);
    for (struct fake_submission *s = fake_engine_oldest(crowd->world.engine); s; s = s->next) {
        if (s->sequence <= crowd->seen)
            continue;
        crowd->seen = s->sequence;
        begin(crowd, s);
    }
}

static void leave(struct crowd *crowd, uint32_t i)
{
    struct member *member = &crowd->members[i];
    const int64_t now_ns = crowd->world.now_ns, took_ns = now_ns - member->queued_ns;
    worker_reap(&member->worker, member->ticket, STATUS_OK);
    member->ticket = 0;
    member->runs++;
    member->longest_ns = took_ns > member->longest_ns ? took_ns : member->longest_ns;
    const int64_t gap_ns = crowd->gap_ns(crowd, i);
    member->back_ns = gap_ns == FOREVER ? FOREVER : now_ns + gap_ns;
    member->layer = crowd->whole ? 0 : (member->layer + 1) % crowd->num_layers;
}

static void end_first(struct crowd *crowd)
{
    ck_assert(fake_engine_finish(crowd->world.engine));
    crowd->in_flight[0] = crowd->in_flight[1];
    crowd->num_in_flight--;
    step(crowd);
    for (uint32_t i = 0; i < crowd->count; i++) {
        struct member *member = &crowd->members[i];
        if (member->ticket && member->worker.session &&
            core_tickets_ended(member->worker.session) >= member->ticket)
            leave(crowd, i);
    }
}

// ---- events ----

static struct member *first_back(struct crowd *crowd)
{
    struct member *first = &crowd->members[0];
    for (uint32_t i = 1; i < crowd->count; i++)
        if (crowd->members[i].back_ns < first->back_ns)
            first = &crowd->members[i];
    return first;
}

static void come_back(struct crowd *crowd, struct member *member)
{
    struct core_run_params params =
        worker_run_params(&member->worker, member->batch, member->layer, 1, NULL);
    if (crowd->whole)
        params.layers.num_layers = crowd->num_layers;
    member->queued_ns = crowd->world.now_ns;
    member->ticket = worker_queue(&member->worker, &params);
    member->back_ns = FOREVER;
    step(crowd);
}

bool crowd_next(struct crowd *crowd, int64_t until_ns)
{
    struct member *back = first_back(crowd);
    const int64_t wake_ns = core_wake_ns(crowd->world.core),
                  end_ns = crowd->num_in_flight ? crowd->in_flight[0].end_ns : FOREVER;
    int64_t next_ns = back->back_ns < end_ns ? back->back_ns : end_ns;
    const bool own = wake_ns > crowd->world.now_ns && wake_ns < next_ns;
    next_ns = own ? wake_ns : next_ns;
    if (next_ns >= until_ns)
        return false;
    crowd->world.now_ns = next_ns > crowd->world.now_ns ? next_ns : crowd->world.now_ns;
    if (own)
        step(crowd);
    else if (end_ns <= back->back_ns)
        end_first(crowd);
    else
        come_back(crowd, back);
    return true;
}

void crowd_pass(struct crowd *crowd, int64_t until_ns)
{
    while (crowd_next(crowd, until_ns))
        ;
}
