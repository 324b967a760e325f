// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine_export.c - arenas of device memory that another process imports.

#include "rigs/engine_world.h"
#include "rigs/importer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct engine_arena *exported;
static struct engine_export memory_of;

static void open_exported(void)
{
    struct error error = {0};
    ck_assert_msg(engine_arena_create_exported(engine, ARENA_BYTES, &exported, &error) == STATUS_OK,
                  "%s", error.text);
    ck_assert_msg(engine_arena_export(exported, &memory_of, &error) == STATUS_OK, "%s", error.text);
}

static bool can_export(void)
{
    if (engine_device(engine)->memory_export)
        return true;
    fprintf(stderr, "not tested: the device exports no memory\n");
    return false;
}

START_TEST(another_process_reads_and_writes_the_memory_of_a_run)
{
    struct importer importer;
    if (!can_export())
        return;
    open_exported();
    importer_start(&importer, memory_of.fd, memory_of.allocated, memory_of.dedicated);
    ck_assert_ptr_null(engine_arena_base(exported));
    ck_assert_uint_ge(memory_of.allocated, ARENA_BYTES);
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 0, true);
    struct engine_run run = plain_run(batch, 0, 0, 64, 128, 192);
    run.arena = exported;
    ck_assert(importer_has(&importer, 192, 0, 1)); // new memory is zeroed
    importer_put(&importer, 128, 11, 8);
    expect_done(submit_runs(&run, 1));
    ck_assert(importer_has(&importer, 192, 11, 8));
    ck_assert(!importer_has(&importer, 192, 12, 8));
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
    importer_end(&importer);
    close(memory_of.fd);
    ck_assert(engine_arena_destroy(exported));
}
END_TEST

START_TEST(memory_outlives_the_arena_in_its_importer_and_the_importer_in_the_arena)
{
    struct importer importer, second;
    if (!can_export())
        return;
    open_exported();
    importer_start(&importer, memory_of.fd, memory_of.allocated, memory_of.dedicated);
    importer_put(&importer, 4096, 3, 100);
    importer_kill(&importer);
    importer_start(&second, memory_of.fd, memory_of.allocated, memory_of.dedicated);
    close(memory_of.fd);
    ck_assert(engine_arena_destroy(exported));
    ck_assert(importer_has(&second, 4096, 3, 100));
    importer_end(&second);
}
END_TEST

static int open_descriptors(void)
{
    struct stat info;
    int count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fstat(fd, &info) == 0;
    return count;
}

START_TEST(exports_leave_no_descriptor_and_no_memory)
{
    struct error error = {0};
    if (!can_export())
        return;
    const int before = open_descriptors();
    const uint64_t bytes = atomic_load(&engine->device.buffer_bytes);
    for (int i = 0; i < 50; i++) {
        open_exported();
        struct engine_export again;
        ck_assert_int_eq(engine_arena_export(exported, &again, &error), STATUS_OK);
        ck_assert_int_ne(again.fd, memory_of.fd);
        close(again.fd);
        close(memory_of.fd);
        ck_assert(engine_arena_destroy(exported));
    }
    ck_assert_int_eq(open_descriptors(), before);
    ck_assert_uint_eq(atomic_load(&engine->device.buffer_bytes), bytes);
}
END_TEST

START_TEST(an_exported_arena_that_no_allocation_holds_is_refused)
{
    struct error error = {0};
    if (!can_export())
        return;
    const uint64_t most = engine_device(engine)->max_allocation_bytes;
    ck_assert_int_eq(engine_arena_create_exported(engine, most + 1, &exported, &error),
                     STATUS_LIMIT);
    ck_assert_ptr_nonnull(strstr(error.text, "largest allocation"));
    ck_assert_int_eq(engine_arena_create_exported(engine, 0, &exported, &error), STATUS_INVALID);
}
END_TEST

// The GPU has the fill, but does not start it.
START_TEST(an_arena_whose_zeroing_hangs_keeps_its_memory_until_the_gpu_rests)
{
    struct error error = {0};
    if (!can_export())
        return;
    VkSemaphore gate = close_gate();
    shorten_watchdog(20);
    const uint64_t bytes = atomic_load(&engine->device.buffer_bytes);
    ck_assert_int_eq(engine_arena_create_exported(engine, ARENA_BYTES, &exported, &error),
                     STATUS_DEVICE_LOST);
    expect_event(ENGINE_EVENT_LOST);
    ck_assert_ptr_null(exported);
    ck_assert_uint_eq(atomic_load(&engine->device.buffer_bytes), bytes + ARENA_BYTES);
    ck_assert(!engine_destroy_within(engine, 50));
    VkSemaphoreSignalInfo open = {
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, .semaphore = gate, .value = 1};
    ck_assert_int_eq(vkSignalSemaphore(engine->device.handle, &open), VK_SUCCESS);
    ck_assert(transfer_at_rest(&engine->transfer, DEADLINE_S * UINT64_C(1000000000)));
    vkDestroySemaphore(engine->device.handle, gate, NULL);
    ck_assert(engine_destroy_within(engine, DEADLINE_S * 1000));
    engine = open_engine((struct engine_params){0});
    arena = NULL;
}
END_TEST

// ---- caches ----

static struct engine_cache_params exported_shape(void)
{
    struct engine_cache_params params = shape(3, 1, 8, DTYPE_F32);
    params.exported = true;
    return params;
}

START_TEST(another_process_reads_and_writes_each_allocation_of_a_cache)
{
    const struct engine_cache_params params = exported_shape();
    const uint64_t block = engine_layer_block_bytes(&params), layer = block * params.chunk_blocks;
    struct engine_cache_part part;
    struct error error = {0};
    if (!can_export())
        return;
    engine->device.adapter.info.max_allocation_bytes = 2 * layer;
    struct engine_cache *cache = open_cache(params);
    ck_assert_int_eq(engine_cache_export(cache, 0, &part, &error), STATUS_BUSY);
    grow_chunk(cache, 0);
    float *stored = calloc(1, block);
    for (uint32_t i = 0; i < 2; i++) {
        struct importer importer;
        ck_assert_int_eq(engine_cache_export(cache, i, &part, &error), STATUS_OK);
        ck_assert_uint_eq(part.num_parts, 2);
        ck_assert_uint_eq(part.first_layer, 2 * i);
        ck_assert_uint_eq(part.num_layers, 2 - i);
        ck_assert_uint_eq(part.layer_bytes, layer);
        ck_assert_uint_eq(part.block_bytes, block);
        importer_start(&importer, part.memory.fd, part.memory.allocated, part.memory.dedicated);
        close(part.memory.fd);
        const uint32_t last = part.num_layers - 1;
        importer_put(&importer, last * layer + block, 5, 8); // block 1 of the part's last layer
        ck_assert_int_eq(engine_block_read(cache, part.first_layer + last, 1, stored), STATUS_OK);
        for (int j = 0; j < 8; j++)
            ck_assert_float_eq(stored[j], (float)(5 + j));
        stored[0] = 77;
        ck_assert_int_eq(engine_block_write(cache, part.first_layer, 0, stored), STATUS_OK);
        ck_assert(importer_has(&importer, 0, 77, 1));
        importer_end(&importer);
    }
    free(stored);
    ck_assert_int_eq(engine_cache_export(cache, 2, &part, &error), STATUS_OUT_OF_RANGE);
    ck_assert_ptr_nonnull(strstr(error.text, "lies in 2 allocations; there is no allocation 2"));
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(a_device_that_exports_no_memory_and_a_cache_that_is_not_exported_say_so)
{
    const struct engine_cache_params params = exported_shape();
    struct engine_cache_part part;
    struct error error = {0};
    struct engine_cache *cache = plain_cache();
    ck_assert_int_eq(engine_cache_export(cache, 0, &part, &error), STATUS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(error.text, "is not exported"));
    engine_cache_destroy(cache);
    engine->device.adapter.info.memory_export = false;
    ck_assert_int_eq(engine_cache_create(engine, &params, &cache, &error), STATUS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(error.text, "exports no memory (VK_KHR_external_memory_fd)"));
}
END_TEST

void add_export_tests(Suite *suite)
{
    TCase *tcase = tcase_create("exported memory");
    tcase_add_checked_fixture(tcase, setup_import, teardown);
    tcase_add_test(tcase, another_process_reads_and_writes_the_memory_of_a_run);
    tcase_add_test(tcase, memory_outlives_the_arena_in_its_importer_and_the_importer_in_the_arena);
    tcase_add_test(tcase, exports_leave_no_descriptor_and_no_memory);
    tcase_add_test(tcase, an_exported_arena_that_no_allocation_holds_is_refused);
    tcase_add_test(tcase, another_process_reads_and_writes_each_allocation_of_a_cache);
    tcase_add_test(tcase, a_device_that_exports_no_memory_and_a_cache_that_is_not_exported_say_so);
    tcase_add_test(tcase, an_arena_whose_zeroing_hangs_keeps_its_memory_until_the_gpu_rests);
    suite_add_tcase(suite, tcase);
}
