// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_arenas.c - runs of a session with two arenas, of shared memory and of device memory.

#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/run_world.h"

#include <string.h>

enum { DEVICE_ARENA = 65536 };
static struct engine_arena *device;
static uint8_t *device_memory; // the fake engine's, which a process that imports it would write

static void open_device(void)
{
    open_one();
    ck_assert_status(engine_arena_create_exported(world.engine, DEVICE_ARENA, &device, &error),
                     STATUS_OK);
    device_memory = fake_engine_arena_memory(device);
    a.session->device_arena = device;
    a.session->device_arena_size = DEVICE_ARENA;
}

static void close_device(void)
{
    world_finish_all(&world);
    ck_assert(engine_arena_destroy(device));
    close_one();
}

static struct core_run_params on_device(struct core_run_params p)
{
    p.entry.q.memory = p.entry.k.memory = p.entry.v.memory = p.entry.out.memory = TENSOR_DEVICE;
    p.entry.keys.memory = p.entry.values.memory = TENSOR_DEVICE;
    return p;
}

START_TEST(a_run_reads_and_writes_the_arena_that_its_tensors_name)
{
    const uint64_t batch = writer(0);
    const struct engine_cache *cache = core_engine_cache(world.core, a.cache);
    put_numbers(AT_K, 5, 100);
    for (int32_t i = 0; i < 5; i++)
        memcpy(device_memory + AT_K + 16 * i, &(int32_t){200 + i}, sizeof(int32_t));
    ACCEPTED(on_device(run_of(batch, ENGINE_WRITE)), (void)0);
    ck_assert_int_eq(fake_engine_slot(cache, 0, blocks[0], 0), 200);
    ACCEPTED(run_of(batch, ENGINE_WRITE), (void)0);
    ck_assert_int_eq(fake_engine_slot(cache, 0, blocks[0], 0), 100);
}
END_TEST

START_TEST(tensors_of_a_run_lie_in_one_arena_and_inside_it)
{
    const uint64_t batch = writer(0);
    REFUSED(run_of(batch, ENGINE_WRITE), p.entry.v.memory = TENSOR_DEVICE, STATUS_MISMATCH,
            "v lies in the device arena, but k in the arena; all tensors of a run lie in one");
    REFUSED(on_device(run_of(batch, ENGINE_WRITE)), p.entry.v.offset = DEVICE_ARENA - 64,
            STATUS_OUT_OF_RANGE, "ends past the device arena's 65536 bytes");
    REFUSED(on_device(run_of(batch, ENGINE_WRITE)), p.entry.v.offset = UINT64_MAX - 15,
            STATUS_OUT_OF_RANGE, "v at 18446744073709551600");
    REFUSED(run_of(batch, ENGINE_WRITE), p.entry.k.memory = TENSOR_MEMORIES, STATUS_UNSUPPORTED,
            "k lies in memory kind 2; there are 0, the arena, and 1, the device arena");
    a.session->device_arena_size = 0;
    REFUSED(on_device(run_of(batch, ENGINE_WRITE)), (void)0, STATUS_INVALID,
            "k lies in the device arena, but the session has none");
}
END_TEST

// How many waves two runs of the session take that are submitted together.
static uint32_t waves_of(struct core_run_params first, struct core_run_params second)
{
    uint64_t tickets[2];
    ck_assert_status(core_run(a.session, &first, &tickets[0], &error), STATUS_OK);
    ck_assert_status(core_run(a.session, &second, &tickets[1], &error), STATUS_OK);
    world_step(&world);
    const struct fake_submission *both = fake_engine_oldest(world.engine);
    ck_assert_uint_eq(both->num_runs, 2);
    const uint32_t num_waves = both->num_waves;
    world_finish_all(&world);
    worker_reap(&a, tickets[0], STATUS_OK);
    worker_reap(&a, tickets[1], STATUS_OK);
    return num_waves;
}

START_TEST(equal_offsets_of_two_arenas_are_different_places)
{
    const struct core_layout layout = layout_of(8);
    const uint64_t reads = local_blocks(&layout, false);
    struct core_run_params host = over_blocks(reads, ENGINE_ATTEND);
    host.entry.values.offset = AT_KEYS;
    ck_assert_uint_eq(waves_of(host, host), 2); // both write `out`
    ck_assert_uint_eq(waves_of(host, on_device(host)), 1);
    ck_assert_uint_eq(waves_of(on_device(host), on_device(host)), 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core arenas");
    check_case(suite, "two arenas", open_device, close_device,
               (const TTest *const[]){a_run_reads_and_writes_the_arena_that_its_tensors_name,
                                      tensors_of_a_run_lie_in_one_arena_and_inside_it,
                                      equal_offsets_of_two_arenas_are_different_places, NULL},
               1);
    return check_main(suite);
}
