// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// bare_core.c - see bare_core.h.

#include "bare_core.h"

#include "tools/bench/measure.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { POLL_US = 100, DEADLINE_US = 300000000, MOST_BLOCK_SIZE = 32 };

bool bare_core_failed(const struct error *error)
{
    fprintf(stderr, "aule-bench: %s\n", error->text);
    return false;
}

// ---- its life ----

static void session_gone(void *context, void *owner)
{
    struct bare_core *c = context;
    (void)owner;
    c->gone = true;
}

static enum status open_core(struct bare_core *c, const struct bare_core_params *p,
                             struct error *error)
{
    const struct core_params params = {
        .engine = c->engine,
        .pool_limit_bytes = p->pool_bytes,
        .max_blocks = p->max_blocks,
        .max_sessions = 1,
        .max_caches = 1,
        .max_batches = 4,
        .max_tickets = 4,
        .session_gone = session_gone,
        .context = c,
    };
    const struct core_session_params session = {.id = 1,
                                                .tenant = "",
                                                .name = "aule-bench",
                                                .arena = c->arena,
                                                .arena_size = c->arena_size,
                                                .owner = c};
    const struct core_cache_identity cache = {.name = "bench",
                                              .num_layers = 1,
                                              .kv = {.num_kv_heads = 1,
                                                     .head_dim_k = p->head_dim,
                                                     .head_dim_v = p->head_dim,
                                                     .block_size = p->block_size,
                                                     .k_dtype = DTYPE_F16,
                                                     .v_dtype = DTYPE_F16}};
    struct core_cache_info info = {.cache = 0};
    enum status status = core_create(&params, &c->core, error);
    if (status == STATUS_OK)
        status = core_session_open(c->core, &session, &c->session, error);
    if (status == STATUS_OK)
        status = core_cache_open(c->session, &cache, &info, error);
    c->cache = info.cache;
    return status;
}

bool bare_core_open(struct bare_core *c, struct engine *engine,
                    const struct bare_core_params *params)
{
    struct error error = {0};
    *c = (struct bare_core){.engine = engine,
                            .arena_size = params->arena_size,
                            .block_size = params->block_size,
                            .head_dim = params->head_dim};
    void *memory =
        mmap(NULL, c->arena_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        error_set(&error, STATUS_NO_MEMORY, "no host memory");
        return bare_core_failed(&error);
    }
    c->memory = memory;
    return (engine_arena_create(engine, memory, c->arena_size, &c->arena, &error) == STATUS_OK &&
            open_core(c, params, &error) == STATUS_OK) ||
           bare_core_failed(&error);
}

void bare_core_close(struct bare_core *c)
{
    if (c->session)
        core_session_close(c->session, false);
    for (int i = 0; c->session && !c->gone && i < DEADLINE_US / POLL_US; i++) {
        core_step(c->core, 0);
        usleep(POLL_US);
    }
    core_destroy(c->core);
    engine_arena_destroy(c->arena);
    if (c->memory)
        munmap(c->memory, c->arena_size);
    *c = (struct bare_core){0};
}

// ---- what it does ----

bool bare_core_settle(struct bare_core *c)
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
    return bare_core_failed(&error);
}

bool bare_core_reap(struct bare_core *c, uint64_t ticket)
{
    struct error error = {0};
    struct core_ticket_result result;
    if (!bare_core_settle(c))
        return false;
    if (core_ticket_reap(c->session, ticket, &result, &error) == STATUS_OK &&
        result.status == STATUS_OK)
        return true;
    if (error.status == STATUS_OK)
        error_set(&error, result.status, "a run of the core failed");
    return bare_core_failed(&error);
}

bool bare_core_lease(struct bare_core *c, uint32_t count, int32_t *blocks)
{
    struct error error = {0};
    double end = now_us() + DEADLINE_US;
    for (;;) {
        bool growing;
        if (core_blocks_lease(c->session, NULL, c->cache, count, blocks, &growing, &error) ==
            STATUS_OK)
            return true;
        if (error.status != STATUS_NO_BLOCKS || !growing || now_us() > end)
            return bare_core_failed(&error);
        usleep(POLL_US);
        core_step(c->core, 0);
    }
}

bool bare_core_release(struct bare_core *c, const int32_t *blocks, uint32_t count)
{
    struct error error = {0};
    return core_blocks_release(c->session, c->cache, blocks, count, &error) == STATUS_OK ||
           bare_core_failed(&error);
}

struct wire_tensor bare_core_tensor(const struct bare_core *c, uint64_t offset)
{
    const uint64_t row = c->head_dim * sizeof(uint16_t);
    return (struct wire_tensor){
        .dtype = DTYPE_F16, .offset = offset, .token_stride = row, .head_stride = row};
}

bool bare_core_write(struct bare_core *c, int32_t block)
{
    struct error error = {0};
    int64_t slots[MOST_BLOCK_SIZE];
    uint64_t batch, ticket;
    uint32_t num_tokens;
    for (uint32_t i = 0; i < c->block_size; i++)
        slots[i] = (int64_t)block * c->block_size + i;
    const struct core_batch_params params = {
        .cache = c->cache, .slot_mapping = slots, .num_slot_mapping = c->block_size};
    if (core_batch_create(c->session, &params, &batch, &num_tokens, &error) != STATUS_OK)
        return bare_core_failed(&error);
    const struct core_run_params import = {.entry = {.kind = ENGINE_WRITE,
                                                     .batch = batch,
                                                     .k = bare_core_tensor(c, 0),
                                                     .v = bare_core_tensor(c, 0)}};
    if (core_run(c->session, &import, &ticket, &error) != STATUS_OK)
        return bare_core_failed(&error);
    return bare_core_reap(c, ticket) &&
           (core_batch_destroy(c->session, batch, &error) == STATUS_OK || bare_core_failed(&error));
}

bool bare_core_copy(struct bare_core *c, int32_t from, const int32_t *to, uint32_t count,
                    uint64_t *ticket)
{
    static int32_t sources[BARE_CORE_COPIED];
    struct error error = {0};
    for (uint32_t i = 0; i < count; i++)
        sources[i] = from;
    return core_blocks_copy(c->session, c->cache, sources, to, count, false, ticket, &error) ==
               STATUS_OK ||
           bare_core_failed(&error);
}

bool bare_core_fill(struct bare_core *c, int32_t from, const int32_t *to, uint32_t count)
{
    uint64_t ticket;
    bool ok = true;
    for (uint32_t i = 0; ok && i < count; i += BARE_CORE_COPIED) {
        uint32_t part = count - i < BARE_CORE_COPIED ? count - i : BARE_CORE_COPIED;
        ok = bare_core_copy(c, from, to + i, part, &ticket) && bare_core_reap(c, ticket);
    }
    return ok;
}
