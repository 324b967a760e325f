// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine_fault.c - failures. Failures that a healthy device does not have are produced through
// the engine's private structs, or by a gate that stops the GPU.

#include "engine/memory/cache.h"
#include "engine/plan/submission.h"
#include "rigs/engine_world.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

START_TEST(oversized_batch_is_refused_with_the_limit)
{
    struct engine_cache *cache = open_cache(shape(1, 1, 8, DTYPE_F32));
    struct engine_batch *batch = NULL;
    struct error error = {0};
    struct engine_batch_params params = {
        .engine = engine,
        .cache = cache,
        .num_seqs = 1u << 31,
        .max_blocks = 1u << 31,
        .cu_seqlens_q = (int32_t[]){0},
        .seq_lens_kv = (int32_t[]){0},
        .block_table = (int32_t[]){0},
    };
    ck_assert_int_eq(engine_batch_create(&params, &batch, &error), STATUS_LIMIT);
    ck_assert_ptr_nonnull(strstr(error.text, "2147483648 sequences"));
    ck_assert_ptr_null(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(oversized_arena_is_refused_with_the_limit)
{
    struct engine_arena *large = NULL;
    struct error error = {0};
    ck_assert_int_eq(engine_arena_create(engine, memory, UINT64_C(1) << 50, &large, &error),
                     STATUS_LIMIT);
    ck_assert_ptr_nonnull(strstr(error.text, "1125899906842624"));
    ck_assert_int_eq(engine_arena_create(engine, memory, 0, &large, &error), STATUS_INVALID);
    ck_assert_ptr_null(large);
}
END_TEST

START_TEST(run_that_no_dispatch_can_count_fails_alone)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *good = one_key(cache, 0, true);
    struct engine_batch *vast = open_batch((struct engine_batch_params){
        .cache = cache,
        .num_seqs = 1,
        .num_tokens = 1 << 16,
        .cu_seqlens_q = (int32_t[]){0, 1 << 16},
        .seq_lens_kv = (int32_t[]){0},
    });
    struct engine_run runs[2] = {plain_run(vast, 0, 0, 0, 0, 0),
                                 plain_run(good, 0, 0, 64, 128, 192)};
    runs[0].num_heads = 1 << 16;
    fill(128, 21);
    uint64_t sequence = submit_runs(runs, 2);
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_OK);
    struct engine_event event = expect_event(ENGINE_EVENT_DONE);
    ck_assert_int_eq(event.results[0].status, STATUS_LIMIT);
    ck_assert_int_eq(event.results[1].status, STATUS_OK);
    ck_assert_uint_eq(event.num_dispatches, 1);
    ck_assert_uint_ge(event.results[0].dispatch, 1);
    expect_floats(192, 21);
    engine_batch_destroy(vast);
    engine_batch_destroy(good);
    engine_cache_destroy(cache);
}
END_TEST

// More runs than the present metadata has room for, while the device allocates no more.
static struct engine_event starved_submission(struct engine_cache *cache,
                                              struct engine_batch *batch, bool zero)
{
    enum { RUNS = 500 };
    struct engine_run *runs = calloc(RUNS, sizeof *runs);
    for (int i = 0; i < RUNS; i++)
        runs[i] = plain_run(batch, 0, 0, 64, 128, 192);
    uint64_t most = engine->device.adapter.info.max_allocation_bytes;
    engine->device.adapter.info.max_allocation_bytes = 1;
    submit(&(struct engine_submission){.zeroes = &(struct engine_zero){cache, 0},
                                       .num_zeroes = zero,
                                       .runs = runs,
                                       .num_runs = RUNS,
                                       .wave_ends = (uint32_t[]){RUNS},
                                       .num_waves = 1});
    struct engine_event event = next_event();
    engine->device.adapter.info.max_allocation_bytes = most;
    free(runs);
    return event;
}

START_TEST(submission_that_cannot_be_recorded_fails_and_the_next_one_runs)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 0, true);
    struct engine_run run = plain_run(batch, 0, 0, 64, 128, 192);
    expect_done(submit_runs(&run, 1));
    struct engine_event event = starved_submission(cache, batch, false);
    ck_assert_int_eq(event.kind, ENGINE_EVENT_DONE);
    ck_assert_uint_eq(event.num_dispatches, 0);
    for (uint32_t i = 0; i < event.num_results; i++)
        ck_assert_int_eq(event.results[i].status, STATUS_LIMIT);
    fill(128, 31);
    expect_done(submit_runs(&run, 1));
    expect_floats(192, 31);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

static void expect_lost_everywhere(struct engine_cache *cache, struct engine_batch *batch)
{
    struct engine_event event;
    struct error error = {0};
    uint64_t sequence = 0;
    char bytes[512];
    struct engine_cache *no_cache = NULL;
    struct engine_batch *no_batch = NULL;
    struct engine_arena *no_arena = NULL;
    struct engine_cache_params params = shape(1, 1, 8, DTYPE_F32);
    struct engine_batch_params step = {
        .engine = engine, .cache = cache, .cu_seqlens_q = (int32_t[]){0}};
    struct engine_run run = plain_run(batch, 0, 0, 64, 128, 192);
    struct engine_submission submission = {
        .runs = &run, .num_runs = 1, .wave_ends = (uint32_t[]){1}, .num_waves = 1};
    ck_assert(!engine_poll(engine, &event)); // reported once
    ck_assert_int_eq(engine_submit(engine, &submission, &sequence, &error), STATUS_DEVICE_LOST);
    ck_assert_uint_eq(sequence, 0);
    ck_assert_int_eq(engine_cache_create(engine, &params, &no_cache, &error), STATUS_DEVICE_LOST);
    ck_assert_int_eq(engine_batch_create(&step, &no_batch, &error), STATUS_DEVICE_LOST);
    ck_assert_int_eq(engine_arena_create(engine, memory, 4096, &no_arena, &error),
                     STATUS_DEVICE_LOST);
    ck_assert_int_eq(engine_block_read(cache, 0, 0, bytes), STATUS_DEVICE_LOST);
    ck_assert_int_eq(engine_block_write(cache, 0, 0, bytes), STATUS_DEVICE_LOST);
    engine_cache_grow(cache, 1);
    nap();
    ck_assert(!engine_poll(engine, &event));
}

START_TEST(watchdog_loses_the_device_once_and_for_all)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 0, true);
    struct engine_run run = plain_run(batch, 0, 0, 64, 128, 192);
    expect_done(submit_runs(&run, 1));
    shorten_watchdog(20);
    VkSemaphore gate = close_gate();
    uint64_t sequence = submit_runs(&run, 1);
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_DEVICE_LOST);
    struct engine_event event = expect_event(ENGINE_EVENT_LOST);
    ck_assert_int_eq(event.error.status, STATUS_DEVICE_LOST);
    ck_assert_ptr_nonnull(strstr(event.error.text, "submission 2 did not end in 20 ms"));
    expect_lost_everywhere(cache, batch);
    ck_assert(!engine_arena_destroy(arena)); // the GPU will still write there
    ck_assert(!engine_destroy_within(engine, 50));
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
    open_gate(gate, sequence);
}
END_TEST

// Submits a run that copies a value, behind the gate. Returns its sequence number.
static uint64_t submit_behind(VkSemaphore *gate)
{
    struct engine_batch *batch = one_key(plain_cache(), 0, true);
    struct engine_run run = plain_run(batch, 0, 0, 64, 128, 192);
    fill(128, 5);
    *gate = close_gate();
    return submit_runs(&run, 1);
}

// The run behind the gate ends, and then the engine can be destroyed. Opens another engine.
static void open_and_destroy(VkSemaphore gate, uint64_t sequence)
{
    open_gate(gate, sequence);
    ck_assert(engine_destroy_within(engine, DEADLINE_S * 1000));
    expect_floats(192, 5);
    engine = open_engine((struct engine_params){0});
    arena = NULL;
}

START_TEST(destroy_of_a_busy_engine_gives_up_at_its_deadline_and_frees_nothing)
{
    VkSemaphore gate;
    uint64_t sequence = submit_behind(&gate);
    double start = now_s();
    ck_assert(!engine_destroy_within(engine, 50));
    ck_assert_double_lt(now_s() - start, DEADLINE_S);
    ck_assert(!engine_destroy_within(engine, 0));
    open_and_destroy(gate, sequence);
}
END_TEST

static bool on_the_gpu(uint64_t sequence)
{
    bool found = false;
    pthread_mutex_lock(&engine->lock);
    for (const struct submission *s = engine->flying; s; s = s->next)
        found |= s->sequence == sequence && s->sent;
    pthread_mutex_unlock(&engine->lock);
    return found;
}

// The device is lost while the GPU still works: memory stays until the work has ended.
START_TEST(destroy_of_a_lost_engine_waits_for_what_the_gpu_has)
{
    VkSemaphore gate;
    uint64_t sequence = submit_behind(&gate);
    AWAIT(DEADLINE_S, on_the_gpu(sequence));
    device_lose(&engine->device, "a test");
    ck_assert(!engine_arena_destroy(arena));
    ck_assert(!engine_destroy_within(engine, 50));
    open_and_destroy(gate, sequence);
}
END_TEST

static uint32_t jobs_behind(uint64_t sequence)
{
    uint32_t count = 0;
    pthread_mutex_lock(&engine->lock);
    for (const struct job *job = engine->jobs; job; job = job->next)
        count += job->after == sequence;
    pthread_mutex_unlock(&engine->lock);
    return count;
}

// Two threads report them, in either order.
static void expect_done_and_grown(void)
{
    bool done = false, grown = false;
    while (!done || !grown) {
        struct engine_event event = next_event();
        ck_assert_int_ne(event.kind, ENGINE_EVENT_LOST);
        ck_assert_int_eq(event.error.status, STATUS_OK);
        done |= event.kind == ENGINE_EVENT_DONE;
        grown |= event.kind == ENGINE_EVENT_CHUNK;
    }
}

START_TEST(nothing_that_the_gpu_may_read_ends_before_it_is_done)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 2, true);
    struct engine_run run = plain_run(batch, 1, 0, 64, 128, 192);
    fill(128, 17);
    VkSemaphore gate = close_gate();
    uint64_t sequence = submit_runs(&run, 1);
    engine_batch_destroy(batch);
    engine_cache_shrink(cache, 0);
    engine_cache_destroy(cache);
    for (int i = 0; i < 20; i++)
        nap();                                   // time for the maker to make a mistake
    ck_assert_uint_eq(jobs_behind(sequence), 3); // the batch, the chunk, the cache
    open_gate(gate, sequence);
    expect_done(sequence);
    expect_floats(192, 17);
}
END_TEST

static bool has_room_for(const struct engine_cache *cache, uint32_t num_chunks)
{
    pthread_mutex_lock(&engine->lock);
    bool has = cache->capacity >= num_chunks;
    pthread_mutex_unlock(&engine->lock);
    return has;
}

// The last submission has no slot yet, so it is planned with the longer table.
START_TEST(chunk_that_was_given_back_serves_what_was_queued_although_the_table_grows)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 2, true);
    fill(128, 23);
    VkSemaphore gate = close_gate();
    uint64_t sequence = 0;
    for (uint32_t i = 0; i <= ENGINE_SLOTS; i++) {
        struct engine_run run = plain_run(batch, 1, 0, 64, 128, 192 + i * 64);
        sequence = submit_runs(&run, 1);
    }
    engine_cache_shrink(cache, 0);
    pthread_mutex_lock(&engine->lock);
    engine->freed_after = 0; // as if the growth had been asked for first
    pthread_mutex_unlock(&engine->lock);
    engine_cache_grow(cache, 4);
    AWAIT(DEADLINE_S, has_room_for(cache, 5));
    open_gate(gate, sequence);
    bool grown = false;
    for (uint64_t done = 0; done < sequence || !grown;) {
        struct engine_event event = next_event();
        ck_assert_int_ne(event.kind, ENGINE_EVENT_LOST);
        if (event.kind == ENGINE_EVENT_CHUNK)
            grown = true;
        else
            done = event.sequence;
    }
    for (uint32_t i = 0; i <= ENGINE_SLOTS; i++)
        expect_floats(192 + i * 64, 23);
    AWAIT(DEADLINE_S, cache_block_address(cache, 0, 0) == 0);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

// Otherwise one session would be refused because of what another one got.
START_TEST(cache_grows_when_what_another_gave_back_is_free)
{
    struct engine_cache *cache = plain_cache(), *other = plain_cache();
    struct engine_batch *batch = one_key(cache, 2, true);
    struct engine_run run = plain_run(batch, 1, 0, 64, 128, 192);
    for (uint32_t chunk = 1; chunk <= 2; chunk++) {
        VkSemaphore gate = close_gate();
        uint64_t sequence = submit_runs(&run, 1);
        if (chunk == 1)
            engine_cache_shrink(other, 0);
        else
            engine_cache_destroy(other);
        engine_cache_grow(cache, chunk);
        for (int i = 0; i < 20; i++)
            nap();                                   // time for the maker to make a mistake
        ck_assert_uint_eq(jobs_behind(sequence), 2); // the first of them first
        open_gate(gate, sequence);
        expect_done_and_grown();
    }
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

static uint32_t count_jobs(void)
{
    uint32_t count = 0;
    pthread_mutex_lock(&engine->lock);
    for (const struct job *job = engine->jobs; job; job = job->next)
        count++;
    pthread_mutex_unlock(&engine->lock);
    return count;
}

START_TEST(batch_that_no_submission_names_ends_while_another_runs)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 2, true);
    struct engine_run run = plain_run(batch, 1, 0, 64, 128, 192);
    VkSemaphore gate = close_gate();
    uint64_t sequence = submit_runs(&run, 1);
    for (int i = 0; i < 100; i++)
        engine_batch_destroy(one_key(cache, 1, true));
    AWAIT(DEADLINE_S, count_jobs() == 0);
    open_gate(gate, sequence);
    expect_done(sequence);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(batch_keeps_few_work_lists_however_many_head_counts_run)
{
    enum { HEADS = 64 };
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 2, true);
    struct engine_run run = plain_run(batch, 1, 0, 8192, 8256, 16384);
    fill(8256, 9);
    uint32_t before = num_pieces();
    for (run.num_heads = 1; run.num_heads <= HEADS; run.num_heads++) {
        expect_done(submit_runs(&run, 1));
        expect_floats(16384 + (run.num_heads - 1) * 32, 9);
    }
    AWAIT(DEADLINE_S, num_pieces() <= before + 4); // the maker may still free the last one
    ck_assert_uint_eq(num_pieces(), before + 4);
    // A pipeline that was dropped is compiled again. One submission may need many, and each of them
    // works.
    struct engine_run runs[8];
    for (uint32_t i = 0; i < 8; i++) {
        runs[i] = plain_run(batch, 0, 0, 8192, 8256, 16384 + i * 1024);
        runs[i].num_heads = i + 1;
    }
    expect_done(submit_runs(runs, 8));
    for (uint32_t i = 0; i < 8; i++)
        expect_floats(16384 + i * 1024 + i * 32, 9);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

// The linker replaces the engine's waits with this function, so that the test decides when a
// deadline passes.
static atomic_uint semaphore_waits;
static _Atomic uint64_t fence_waits_ns;
static atomic_bool first_is_passed, wait_reports_loss;

VkResult __real_vkWaitSemaphores(VkDevice device, const VkSemaphoreWaitInfo *info,
                                 uint64_t timeout);
VkResult __wrap_vkWaitSemaphores(VkDevice device, const VkSemaphoreWaitInfo *info,
                                 uint64_t timeout);
VkResult __real_vkWaitForFences(VkDevice device, uint32_t count, const VkFence *fences,
                                VkBool32 all, uint64_t timeout);
VkResult __wrap_vkWaitForFences(VkDevice device, uint32_t count, const VkFence *fences,
                                VkBool32 all, uint64_t timeout);

VkResult __wrap_vkWaitSemaphores(VkDevice device, const VkSemaphoreWaitInfo *info, uint64_t timeout)
{
    atomic_fetch_add(&semaphore_waits, 1);
    const VkResult result = __real_vkWaitSemaphores(device, info, timeout);
    return result == VK_TIMEOUT && atomic_load(&wait_reports_loss) ? VK_ERROR_DEVICE_LOST : result;
}

// A submission passes when the first deadline is over; the second one never is.
VkResult __wrap_vkWaitForFences(VkDevice device, uint32_t count, const VkFence *fences,
                                VkBool32 all, uint64_t timeout)
{
    if (!atomic_load(&first_is_passed))
        return __real_vkWaitForFences(device, count, fences, all, timeout);
    const uint64_t before_ns = atomic_fetch_add(&fence_waits_ns, timeout),
                   limit_ns = engine->device.watchdog_ns;
    if (before_ns >= limit_ns)
        return __real_vkWaitForFences(device, count, fences, all, UINT64_MAX);
    if (before_ns + timeout >= limit_ns)
        atomic_fetch_add(&engine->device.num_passed, 1);
    return __real_vkWaitForFences(device, count, fences, all, timeout);
}

// The transfer waits longer than the watchdog allows, but a submission before it ends meanwhile.
START_TEST(transfer_behind_slow_submissions_is_no_hang)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 2, true);
    struct engine_run run = plain_run(batch, 1, 0, 64, 128, 192);
    VkSemaphore gate = close_gate();
    uint32_t before = atomic_load(&semaphore_waits);
    uint64_t sequence = submit_runs(&run, 1);
    AWAIT(DEADLINE_S, atomic_load(&semaphore_waits) > before); // its own watchdog is set
    atomic_store(&first_is_passed, true);
    shorten_watchdog(100);
    engine_cache_grow(cache, 1);
    AWAIT(DEADLINE_S, atomic_load(&fence_waits_ns) > engine->device.watchdog_ns);
    engine->device.watchdog_ns = DEVICE_WATCHDOG_NS;
    open_gate(gate, sequence);
    expect_done_and_grown();
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

static void await_slice_of(uint32_t before)
{
    AWAIT(DEADLINE_S, atomic_load(&semaphore_waits) > before);
}

// Waits in many slices, far more than a GPU would get.
static void await_slices(uint32_t before)
{
    AWAIT(DEADLINE_S, atomic_load(&semaphore_waits) > before + 100);
}

START_TEST(slow_software_device_is_not_lost)
{
    VkSemaphore gate;
    struct engine_event event;
    if (!engine_device(engine)->software)
        return;
    engine->device.watchdog_ns = 20 * NS_PER_MS;
    const uint32_t before = atomic_load(&semaphore_waits);
    const uint64_t sequence = submit_behind(&gate);
    await_slices(before);
    ck_assert(!engine_poll(engine, &event));
    open_and_destroy(gate, sequence);
}
END_TEST

// The engine's end has its own deadline.
START_TEST(engine_of_a_slow_software_device_ends_at_its_deadline)
{
    VkSemaphore gate;
    if (!engine_device(engine)->software)
        return;
    engine->device.watchdog_ns = 20 * NS_PER_MS;
    const uint32_t before = atomic_load(&semaphore_waits);
    const uint64_t sequence = submit_behind(&gate);
    await_slices(before);
    ck_assert(!engine_destroy_within(engine, 50));
    open_and_destroy(gate, sequence);
}
END_TEST

START_TEST(software_device_whose_driver_reports_the_loss_is_lost)
{
    VkSemaphore gate;
    const uint32_t before = atomic_load(&semaphore_waits);
    const uint64_t sequence = submit_behind(&gate);
    await_slice_of(before);
    atomic_store(&wait_reports_loss, true);
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_DEVICE_LOST);
    expect_event(ENGINE_EVENT_LOST);
    atomic_store(&wait_reports_loss, false);
    open_gate(gate, sequence);
}
END_TEST

// Stops this process for `ms`. Another process lets it go on.
static void stand_still(unsigned ms)
{
    const pid_t stopped = getpid(), other = fork();
    if (other == 0) {
        usleep(ms * 1000);
        kill(stopped, SIGCONT);
        _exit(0);
    }
    ck_assert_int_gt(other, 0);
    kill(stopped, SIGSTOP);
    ck_assert_int_eq(waitpid(other, NULL, 0), other);
}

// The stop alone takes longer than the watchdog allows.
START_TEST(time_in_which_the_process_is_stopped_does_not_count)
{
    enum { WATCHDOG_MS = 2000 };
    VkSemaphore gate;
    shorten_watchdog(WATCHDOG_MS);
    const uint32_t before = atomic_load(&semaphore_waits);
    const uint64_t sequence = submit_behind(&gate);
    await_slice_of(before);
    stand_still(WATCHDOG_MS + 200);
    await_slice_of(atomic_load(&semaphore_waits) + 1);
    open_and_destroy(gate, sequence);
}
END_TEST

// The GPU has the fill, but does not start it.
START_TEST(chunk_whose_zeroing_hangs_keeps_its_memory_until_the_gpu_rests)
{
    struct engine_cache *cache = plain_cache();
    VkSemaphore gate = close_gate();
    shorten_watchdog(20);
    engine_cache_grow(cache, 1);
    struct engine_event event = expect_event(ENGINE_EVENT_LOST);
    ck_assert_ptr_nonnull(strstr(event.error.text, "a transfer did not end in 20 ms"));
    AWAIT(DEADLINE_S, jobs_behind(UINT64_MAX) == 1);
    engine_cache_destroy(cache);
    ck_assert(!engine_destroy_within(engine, 50));
    ck_assert_uint_eq(jobs_behind(UINT64_MAX), 1);
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

static bool threads_that_wait_are_gone(void)
{
    pthread_mutex_lock(&engine->lock);
    bool gone = engine->submitter_gone && engine->completer_gone;
    pthread_mutex_unlock(&engine->lock);
    return gone;
}

// As if engine_create() ended a device that its first transfer lost: there was no submission.
START_TEST(engine_that_is_lost_while_it_opens_waits_for_its_transfer_alone)
{
    device_lose(&engine->device, "a test");
    expect_event(ENGINE_EVENT_LOST);
    AWAIT(DEADLINE_S, threads_that_wait_are_gone());
    ck_assert(engine_destroy_within(engine, DEADLINE_S * 1000));
    engine = open_engine((struct engine_params){0});
    arena = NULL;
}
END_TEST

START_TEST(no_more_than_the_slots_are_on_the_gpu_and_the_rest_follows)
{
    enum { MANY = 3 * ENGINE_SLOTS };
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 2, true);
    struct engine_run run = plain_run(batch, 1, 0, 64, 128, 192);
    VkSemaphore gate = close_gate();
    for (int i = 0; i < MANY; i++)
        submit_runs(&run, 1);
    for (int i = 0; i < 20; i++)
        nap();
    pthread_mutex_lock(&engine->lock);
    uint32_t waiting = 0;
    for (const struct submission *s = engine->waiting; s; s = s->next)
        waiting++;
    pthread_mutex_unlock(&engine->lock);
    ck_assert_uint_ge(waiting, MANY - ENGINE_SLOTS);
    open_gate(gate, 1);
    for (uint64_t i = 1; i <= MANY; i++)
        expect_done(i);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

// As on a machine with spare cores.
START_TEST(threads_that_look_before_they_sleep_miss_nothing)
{
    teardown();
    engine = open_engine((struct engine_params){.completion_poll_us = 300});
    open_arena();
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 2, true);
    struct engine_run run = plain_run(batch, 1, 0, 64, 128, 192);
    for (int i = 0; i < 60; i++) {
        fill(128, (float)i);
        for (int j = 0; j < i % 4; j++)
            submit_runs(&run, 1);
        uint64_t last = submit_runs(&run, 1);
        for (uint64_t sequence = last - (uint64_t)(i % 4); sequence <= last; sequence++)
            expect_done(sequence);
        expect_floats(192, (float)i);
        if (i % 10 == 0)
            nap(); // longer than they poll
    }
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(zeroes_that_cannot_be_done_lose_the_device)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 0, true);
    struct engine_event event = starved_submission(cache, batch, true);
    ck_assert_int_eq(event.kind, ENGINE_EVENT_LOST);
    ck_assert_ptr_nonnull(strstr(event.error.text, "could not be zeroed"));
    expect_lost_everywhere(cache, batch);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(wait_has_a_deadline_and_knows_what_was_submitted)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 0, true);
    struct engine_run run = plain_run(batch, 0, 0, 64, 128, 192);
    ck_assert_int_eq(engine_wait(engine, 1, 1000), STATUS_NOT_FOUND);
    pthread_mutex_lock(&engine->device.queues[0].lock); // the submitter cannot reach the GPU
    uint64_t sequence = submit_runs(&run, 1);
    enum status early = engine_wait(engine, sequence, 20);
    enum status now = engine_wait(engine, sequence, 0);
    pthread_mutex_unlock(&engine->device.queues[0].lock);
    ck_assert_int_eq(early, STATUS_TIMEOUT);
    ck_assert_int_eq(now, STATUS_TIMEOUT);
    expect_done(sequence);
    ck_assert_int_eq(engine_wait(engine, sequence, 0), STATUS_OK);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

void add_fault_tests(Suite *suite)
{
    TCase *tcase = tcase_create("faults");
    tcase_add_checked_fixture(tcase, setup_import, teardown);
    tcase_add_test(tcase, oversized_batch_is_refused_with_the_limit);
    tcase_add_test(tcase, oversized_arena_is_refused_with_the_limit);
    tcase_add_test(tcase, run_that_no_dispatch_can_count_fails_alone);
    tcase_add_test(tcase, submission_that_cannot_be_recorded_fails_and_the_next_one_runs);
    tcase_add_test(tcase, watchdog_loses_the_device_once_and_for_all);
    tcase_add_test(tcase, slow_software_device_is_not_lost);
    tcase_add_test(tcase, engine_of_a_slow_software_device_ends_at_its_deadline);
    tcase_add_test(tcase, software_device_whose_driver_reports_the_loss_is_lost);
    tcase_add_test(tcase, time_in_which_the_process_is_stopped_does_not_count);
    tcase_add_test(tcase, destroy_of_a_busy_engine_gives_up_at_its_deadline_and_frees_nothing);
    tcase_add_test(tcase, destroy_of_a_lost_engine_waits_for_what_the_gpu_has);
    tcase_add_test(tcase, nothing_that_the_gpu_may_read_ends_before_it_is_done);
    tcase_add_test(tcase,
                   chunk_that_was_given_back_serves_what_was_queued_although_the_table_grows);
    tcase_add_test(tcase, cache_grows_when_what_another_gave_back_is_free);
    tcase_add_test(tcase, batch_that_no_submission_names_ends_while_another_runs);
    tcase_add_test(tcase, batch_keeps_few_work_lists_however_many_head_counts_run);
    tcase_add_test(tcase, transfer_behind_slow_submissions_is_no_hang);
    tcase_add_test(tcase, chunk_whose_zeroing_hangs_keeps_its_memory_until_the_gpu_rests);
    tcase_add_test(tcase, engine_that_is_lost_while_it_opens_waits_for_its_transfer_alone);
    tcase_add_test(tcase, no_more_than_the_slots_are_on_the_gpu_and_the_rest_follows);
    tcase_add_test(tcase, threads_that_look_before_they_sleep_miss_nothing);
    tcase_add_test(tcase, zeroes_that_cannot_be_done_lose_the_device);
    tcase_add_test(tcase, wait_has_a_deadline_and_knows_what_was_submitted);
    suite_add_tcase(suite, tcase);
}
