// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tier_world.c - see tier_world.h.

#include "tier_world.h"

#include "base/clock.h"

#include <poll.h>
#include <string.h>

struct stored_space tier_space(uint64_t block_bytes, const char *salt)
{
    struct stored_space space = {.block_bytes = block_bytes};
    stored_fingerprint("model", 5, space.fingerprint);
    stored_salt("key", 3, salt, strlen(salt), space.salt);
    return space;
}

struct stored_chain tier_chain(uint32_t number)
{
    const struct stored_chain root = stored_chain_begin("", 0);
    const int32_t token = (int32_t)number;
    return stored_chain_next(&root, &token, 1);
}

struct tier_job *tier_world_job(enum tier_kind kind, const struct stored_space *space,
                                uint32_t first, uint32_t count)
{
    struct tier_job *job = tier_job_create(kind, count);
    ck_assert_ptr_nonnull(job);
    job->space = *space;
    job->deadline_ns = job->abandon_ns = FOREVER;
    for (uint32_t i = 0; i < count; i++)
        job->blocks[i].chain = tier_chain(first + i);
    return job;
}

struct tier_event tier_world_wait(struct tier *tier)
{
    struct tier_event event;
    while (!tier_poll(tier, 0, &event)) {
        struct pollfd news = {.fd = tier_fd(tier), .events = POLLIN};
        poll(&news, 1, -1);
    }
    return event;
}

void tier_world_do(struct tier *tier, struct tier_job *job)
{
    tier_start(tier, job);
    const struct tier_event event = tier_world_wait(tier);
    ck_assert_int_eq(event.kind, TIER_DONE);
    ck_assert_ptr_eq(event.job, job);
}

// Word `i` of the block. Sizes are multiples of 8.
static uint64_t word_of(uint64_t i, uint32_t number)
{
    return (i + 1) * UINT64_C(0x9e3779b97f4a7c15) + number;
}

void tier_world_fill(uint8_t *data, uint64_t bytes, uint32_t number)
{
    for (uint64_t i = 0; i < bytes / 8; i++) {
        const uint64_t word = word_of(i, number);
        memcpy(data + 8 * i, &word, 8);
    }
}

bool tier_world_holds(const uint8_t *data, uint64_t bytes, uint32_t number)
{
    for (uint64_t i = 0; i < bytes / 8; i++) {
        const uint64_t word = word_of(i, number);
        if (memcmp(data + 8 * i, &word, 8))
            return false;
    }
    return true;
}
