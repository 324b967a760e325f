// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_pool.c - an attached pool through libaule-client and the real daemon. A fake libcuda
// maps the memory of a software device into this process; another process imports it with Vulkan.

#include "aule/sequence.h"
#include "cuda_rig.h"
#include "rigs/client_step.h"
#include "rigs/importer.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 64, HALF = KV_HEADS * BLOCK * DIM }; // floats of K in a block
static struct fake_libcuda *cuda;
static struct step step;
static struct aule_pool_info info;
static void *layers[LAYERS];

static void setup(void)
{
    launch((const char *const[]){"--export-pool", "64", NULL});
}

static void setup_two(void)
{
    launch((const char *const[]){"--export-pool", "64", "--max-sessions", "2", NULL});
}

static void setup_without(void)
{
    launch(NULL);
}

static void setup_group(void)
{
    launch((const char *const[]){"--export-pool", "64", "--tenant", "team=uid:64002", NULL});
}

static void load_cuda(void)
{
    struct aule_pool_part part;
    cuda = cuda_rig_load(info.device_uuid);
    if (cuda->begin)
        return;
    ok(aule_cache_export(step.cache, 0, &part));
    cuda->begin = cuda_rig_begin(part.fd, part.allocated, part.dedicated);
    close(part.fd);
}

// A session that is attached and has mapped the pool.
static void open_mapped(void)
{
    int device = -1;
    open_step(&step, NULL);
    ok(aule_cache_attach(step.cache, &info));
    load_cuda();
    ok(aule_cache_map_cuda(step.cache, -1, layers, &device));
    ck_assert_int_eq(device, 1);
}

static float *block_at(uint32_t layer, int32_t block)
{
    return (float *)((char *)layers[layer] + (uint64_t)block * info.block_stride);
}

static void report_block(int32_t block)
{
    int64_t slots[BLOCK];
    for (int i = 0; i < BLOCK; i++)
        slots[i] = (int64_t)block * BLOCK + i;
    const struct aule_report report = {.slots = slots, .num_slots = BLOCK};
    ok(aule_cache_report(step.cache, &report, NULL));
}

static void pass_all(void)
{
    const struct aule_report report = {.passed = AULE_PASSED_ALL};
    ok(aule_cache_report(step.cache, &report, NULL));
}

// Attends with one query over the eight keys of a block, in each layer.
static enum aule_status attend(struct step *own, int32_t block, float outs[LAYERS][HEADS * DIM])
{
    int32_t cu[] = {0, 1}, lens[] = {BLOCK}, table[] = {block};
    const struct aule_batch_params params = {.num_seqs = 1,
                                             .max_blocks = 1,
                                             .cu_seqlens_q = cu,
                                             .seq_lens_kv = lens,
                                             .block_table = table};
    struct aule_batch *batch;
    struct aule_run_params run = own->run;
    ok(aule_batch_create(own->cache, &params, &batch));
    enum aule_status status = AULE_OK;
    for (run.layer = 0; run.layer < LAYERS && status == AULE_OK; run.layer++) {
        status = aule_run(batch, &run, WAIT_MS, NULL);
        memcpy(outs[run.layer], aule_tensor_data(own->session, &own->out), sizeof outs[0]);
    }
    aule_batch_destroy(batch);
    return status;
}

// ---- both directions ----

START_TEST(the_layers_lie_as_the_info_says_and_have_what_runs_wrote)
{
    open_mapped();
    ck_assert_uint_eq(info.num_blocks, BLOCKS);
    ck_assert_uint_eq(info.num_layers, LAYERS);
    ck_assert_uint_eq(info.block_stride, 2 * HALF * sizeof(float));
    ck_assert_uint_eq(info.v_offset, HALF * sizeof(float));
    ck_assert_uint_eq(info.scales_offset, 0);
    run_once(&step); // 16 tokens into blocks 0 and 1
    const float *k = aule_tensor_data(step.session, &step.k),
                *v = aule_tensor_data(step.session, &step.v);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (int t = 0; t < 16; t++)
            for (int h = 0; h < KV_HEADS; h++) {
                const char *block = (char *)block_at(layer, step.blocks[t / BLOCK]);
                const uint64_t at =
                    (uint64_t)h * info.k_head_stride + (uint64_t)(t % BLOCK) * info.k_token_stride;
                const size_t row = ((size_t)t * KV_HEADS + (size_t)h) * DIM;
                ck_assert_mem_eq(block + at, k + row, DIM * sizeof(float));
                ck_assert_mem_eq(block + info.v_offset + at, v + row, DIM * sizeof(float));
            }
    close_step(&step);
    ck_assert_int_eq(cuda->maps + cuda->imports + cuda->contexts, 0);
}
END_TEST

START_TEST(runs_read_what_the_process_wrote_as_if_a_run_had_written_it)
{
    float by_run[LAYERS][HEADS * DIM], by_process[LAYERS][HEADS * DIM];
    open_mapped();
    run_once(&step);
    ok(attend(&step, step.blocks[0], by_run));
    expect(attend(&step, step.blocks[3], by_process), AULE_UNWRITTEN, "has written it");
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        memcpy(block_at(layer, step.blocks[3]), block_at(layer, step.blocks[0]), info.block_stride);
    report_block(step.blocks[3]);
    ok(attend(&step, step.blocks[3], by_process));
    ck_assert_mem_eq(by_run, by_process, sizeof by_run);
    close_step(&step);
}
END_TEST

START_TEST(what_a_process_publishes_others_find_and_read)
{
    struct step other;
    float mine[LAYERS][HEADS * DIM], theirs[LAYERS][HEADS * DIM];
    int32_t published[2], found[2] = {-1, -1};
    uint32_t count;
    open_mapped();
    open_step(&other, NULL);
    run_once(&step);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (int i = 0; i < 2; i++)
            memcpy(block_at(layer, step.blocks[2 + i]), block_at(layer, step.blocks[i]),
                   info.block_stride);
    memcpy(published, step.blocks + 2, sizeof published);
    expect(aule_prefix_publish(step.cache, &prompt, published, NULL), AULE_UNWRITTEN,
           "slots written in layer 0");
    report_block(published[0]);
    report_block(published[1]);
    ok(aule_prefix_publish(step.cache, &prompt, published, NULL));
    ok(aule_prefix_lookup(other.cache, &prompt, 0, found, &count));
    ck_assert_uint_eq(count, 2);
    ck_assert_mem_eq(found, published, sizeof found);
    for (int i = 0; i < 2; i++) {
        ok(attend(&step, step.blocks[i], mine));
        ok(attend(&other, found[i], theirs));
        ck_assert_mem_eq(mine, theirs, sizeof mine);
    }
    close_step(&other);
    close_step(&step);
}
END_TEST

// Another process, which has only Vulkan, writes floats into a block.
START_TEST(another_vulkan_process_writes_and_reads_blocks)
{
    struct aule_pool_part part;
    struct importer importer;
    float by_run[LAYERS][HEADS * DIM], by_process[LAYERS][HEADS * DIM];
    open_step(&step, NULL);
    ok(aule_cache_attach(step.cache, &info));
    ok(aule_cache_export(step.cache, 0, &part));
    ck_assert_uint_eq(info.num_parts, 1);
    ck_assert_uint_eq(part.num_layers, LAYERS);
    importer_start(&importer, part.fd, part.allocated, part.dedicated);
    close(part.fd);
    float *k = aule_tensor_data(step.session, &step.k),
          *v = aule_tensor_data(step.session, &step.v);
    for (int t = 0; t < 16; t++) // as the other process numbers them
        for (int h = 0; h < KV_HEADS; h++)
            for (int d = 0; d < DIM; d++) {
                const int at = (h * BLOCK + t % BLOCK) * DIM + d;
                k[((size_t)t * KV_HEADS + (size_t)h) * DIM + (size_t)d] = (float)(at - 100);
                v[((size_t)t * KV_HEADS + (size_t)h) * DIM + (size_t)d] = (float)(at + HALF - 100);
            }
    run_once(&step);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const uint64_t at = layer * part.layer_stride;
        ck_assert(importer_has(&importer, at + (uint64_t)step.blocks[0] * info.block_stride, -100,
                               2 * HALF));
        importer_put(&importer, at + (uint64_t)step.blocks[3] * info.block_stride, -100, 2 * HALF);
    }
    report_block(step.blocks[3]);
    ok(attend(&step, step.blocks[0], by_run));
    ok(attend(&step, step.blocks[3], by_process));
    ck_assert_mem_eq(by_run, by_process, sizeof by_run);
    importer_end(&importer);
    close_step(&step);
}
END_TEST

START_TEST(plans_need_no_batch_and_their_sequences_publish_what_is_reported)
{
    struct aule_sequence *sequence, *again;
    struct aule_sequence_info about;
    struct aule_step_tables tables;
    struct aule_step *plan;
    open_mapped();
    const struct aule_sequence_params params = {
        .tokens = prompt.tokens, .num_tokens = 20, .publish = true};
    ok(aule_sequence_create(step.cache, &params, &sequence));
    ok(aule_step_create(step.cache, &plan));
    expect(aule_step_tables(plan, &tables), AULE_INVALID, "not made");
    struct aule_step_entry entry = {.sequence = sequence};
    ok(aule_step_plan(plan, &entry, 1, 0));
    ck_assert_ptr_null(aule_step_batch(plan));
    ok(aule_step_tables(plan, &tables));
    ck_assert_uint_eq(tables.num_seqs, 1);
    ck_assert_uint_eq(tables.num_tokens, 20);
    ck_assert_int_eq(tables.seq_lens_kv[0], 20);
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(tables.slot_mapping[i],
                         (int64_t)tables.block_table[i / BLOCK] * BLOCK + i % BLOCK);
    const struct aule_report report = {.slots = tables.slot_mapping, .num_slots = 20};
    ok(aule_cache_report(step.cache, &report, NULL));
    ok(aule_sequence_append(sequence, (const int32_t[]){99}, 1));
    entry.num_tokens = 0;
    ok(aule_step_plan(plan, &entry, 1, 0)); // publishes
    ok(aule_step_tables(plan, &tables));
    ck_assert_uint_eq(tables.num_tokens, 1);
    ck_assert_int_eq(tables.seq_lens_kv[0], 21);
    ok(aule_sequence_info(sequence, &about));
    ck_assert_uint_eq(about.num_published, 2);
    ok(aule_sequence_create(step.cache, &params, &again));
    ok(aule_sequence_info(again, &about));
    ck_assert_uint_eq(about.num_found, 16);
    aule_sequence_destroy(again);
    aule_sequence_destroy(sequence);
    aule_step_destroy(plan);
    close_step(&step);
}
END_TEST

START_TEST(a_sequence_is_reported_and_published_by_one_message)
{
    struct aule_sequence *sequence;
    struct aule_sequence_info about;
    struct aule_step *plan;
    uint64_t mark = 0, later = 0;
    int32_t found[2];
    uint32_t count;
    open_mapped();
    const uint64_t before = state_of(step.cache).free_blocks;
    ok(aule_blocks_release(step.cache, 1, step.blocks));
    const struct aule_sequence_params params = {.tokens = prompt.tokens, .num_tokens = 20};
    ok(aule_sequence_create(step.cache, &params, &sequence));
    ok(aule_step_create(step.cache, &plan));
    struct aule_step_entry entry = {.sequence = sequence};
    ok(aule_step_plan(plan, &entry, 1, 0));
    ok(aule_sequence_publish(sequence)); // nothing is written yet
    ok(aule_sequence_info(sequence, &about));
    ck_assert_uint_eq(about.num_published, 0);
    expect(aule_sequence_publish_written(sequence, 70, &mark), AULE_INVALID,
           "passed = 70; the last mark was 0");
    ok(aule_sequence_publish_written(sequence, AULE_PASSED_ALL, &mark));
    ck_assert_uint_gt(mark, 0);
    ok(aule_sequence_info(sequence, &about));
    ck_assert_uint_eq(about.num_published, 2);
    ok(aule_prefix_lookup(step.cache, &prompt, 0, found, &count));
    ck_assert_uint_eq(count, 2);
    ck_assert_uint_eq(state_of(step.cache).free_blocks, before + 1 - 3);
    ok(aule_sequence_publish_written(sequence, mark, &later)); // all blocks are published
    ck_assert_uint_gt(later, mark);
    const struct aule_sequence_params whole = {.tokens = prompt.tokens, .num_tokens = 16};
    struct aule_sequence *again; // of two blocks that are cached: its last token is yet to compute
    ok(aule_sequence_create(step.cache, &whole, &again));
    ok(aule_sequence_info(again, &about));
    ck_assert_uint_eq(about.num_computed, 15);
    ok(aule_sequence_publish_written(again, later, &mark));
    ck_assert_uint_gt(mark, later);
    aule_sequence_destroy(again);
    aule_sequence_destroy(sequence);
    aule_step_destroy(plan);
    close_step(&step);
}
END_TEST

START_TEST(only_an_attached_session_says_what_it_has_written)
{
    struct aule_sequence *sequence;
    struct aule_step *plan;
    open_step(&step, NULL);
    const struct aule_sequence_params params = {.tokens = prompt.tokens, .num_tokens = 16};
    ok(aule_sequence_create(step.cache, &params, &sequence));
    ok(aule_step_create(step.cache, &plan));
    struct aule_step_entry entry = {.sequence = sequence};
    ok(aule_step_plan(plan, &entry, 1, 0));
    expect(aule_sequence_publish_written(sequence, 0, NULL), AULE_INVALID, "is not attached");
    expect(aule_sequence_publish(sequence), AULE_OK, "");
    aule_sequence_destroy(sequence);
    aule_step_destroy(plan);
    close_step(&step);
}
END_TEST

// ---- lifetimes ----

START_TEST(released_blocks_are_free_once_the_process_says_that_its_kernels_have_passed)
{
    uint64_t mark;
    open_mapped();
    const uint64_t before = state_of(step.cache).free_blocks;
    ok(aule_blocks_release(step.cache, 2, step.blocks));
    ck_assert_uint_eq(state_of(step.cache).free_blocks, before);
    ok(aule_cache_report(step.cache, &(struct aule_report){.passed = 0}, &mark));
    ok(aule_blocks_release(step.cache, 1, step.blocks + 2));
    ok(aule_cache_report(step.cache, &(struct aule_report){.passed = mark}, NULL));
    ck_assert_uint_eq(state_of(step.cache).free_blocks, before + 2);
    pass_all();
    ck_assert_uint_eq(state_of(step.cache).free_blocks, before + 3);
    expect(aule_cache_report(step.cache, &(struct aule_report){.passed = 70}, NULL), AULE_INVALID,
           "passed = 70; the last mark was");
    close_step(&step);
}
END_TEST

static void attach_and_lease(void)
{
    int32_t leased[10];
    struct aule_pool_part part;
    step.session = open_session(NULL);
    step.cache = open_cache(step.session);
    ok(aule_cache_export(step.cache, 0, &part));
    ok(aule_blocks_lease(step.cache, 10, WAIT_MS, leased));
    ok(aule_blocks_release(step.cache, 4, leased));
}

static void await_free(uint64_t blocks)
{
    for (int i = 0; i < DEADLINE_S * 200 && state_of(step.cache).free_blocks != blocks; i++)
        pause_briefly();
    ck_assert_uint_eq(state_of(step.cache).free_blocks, blocks);
}

START_TEST(a_killed_process_gives_its_blocks_back)
{
    pid_t worker = fork_worker(attach_and_lease);
    open_step(&step, NULL);
    ck_assert_uint_eq(state_of(step.cache).free_blocks, BLOCKS - 14);
    kill_worker(worker);
    await_free(BLOCKS - 4);
    still_works(&step);
    close_step(&step);
}
END_TEST

static int last_step;

// What a worker does one after the other; it is killed after `last_step`.
static void live_a_while(void)
{
    enum { COUNT = 2 };
    int32_t leased[COUNT + 2];
    int64_t slots[COUNT * BLOCK];
    struct aule_pool_part part;
    struct importer importer;
    step.session = open_session(NULL);
    step.cache = open_cache(step.session);
    if (last_step >= 1)
        ok(aule_cache_export(step.cache, 0, &part));
    if (last_step >= 2)
        ok(aule_blocks_lease(step.cache, COUNT + 2, WAIT_MS, leased));
    if (last_step >=
        3) { // another process of this worker has the memory and outlives it for a while
        importer_start(&importer, part.fd, part.allocated, part.dedicated);
        importer_put(&importer, (uint64_t)leased[0] * 2 * HALF * sizeof(float), 1, 2 * HALF);
    }
    for (int i = 0; i < COUNT * BLOCK && last_step >= 4; i++)
        slots[i] = (int64_t)leased[i / BLOCK] * BLOCK + i % BLOCK;
    if (last_step >= 4)
        ok(aule_cache_report(
            step.cache, &(struct aule_report){.slots = slots, .num_slots = COUNT * BLOCK}, NULL));
    if (last_step >= 5)
        ok(aule_prefix_publish(step.cache, &prompt, leased, NULL));
    if (last_step >= 6)
        ok(aule_blocks_release(step.cache, COUNT + 1, leased));
    if (last_step >= 7)
        aule_cache_close(step.cache);
}

START_TEST(a_process_may_die_at_any_step_and_harms_nobody)
{
    for (last_step = 0; last_step <= 7; last_step++) {
        pid_t worker = fork_worker(live_a_while);
        kill_worker(worker);
        open_step(&step, NULL);
        const uint64_t cached = last_step >= 5 ? 2 : 0; // published, and then nobody's
        await_free(BLOCKS - 4 - cached);
        ck_assert_uint_eq(state_of(step.cache).evictable_blocks, cached);
        still_works(&step);
        close_step(&step);
    }
}
END_TEST

static void attach_and_lose_the_connection(void)
{
    struct stat about;
    attach_and_lease();
    for (int fd = 3; fd < 256; fd++) // all its sockets
        if (fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode))
            shutdown(fd, SHUT_RDWR); // a thread reads from it, so close() would not do
}

START_TEST(a_process_that_only_loses_its_connection_keeps_its_blocks_until_it_is_gone)
{
    pid_t worker = fork_worker(attach_and_lose_the_connection);
    open_step(&step, NULL);
    for (int i = 0; i < DEADLINE_S * 200 && state_of(step.cache).quarantined_blocks != 10; i++)
        pause_briefly();
    for (int i = 0; i < 20; i++, pause_briefly())
        ck_assert_uint_eq(state_of(step.cache).quarantined_blocks, 10);
    kill_worker(worker);
    await_free(BLOCKS - 4);
    ck_assert_uint_eq(state_of(step.cache).quarantined_blocks, 0);
    close_step(&step);
}
END_TEST

START_TEST(a_lost_connection_counts_as_a_session_while_its_attached_process_lives)
{
    struct aule_session *third = NULL;
    const struct aule_session_params params = {.socket = daemon_.socket, .timeout_ms = WAIT_MS};
    pid_t worker = fork_worker(attach_and_lose_the_connection);
    open_step(&step, NULL);
    for (int i = 0; i < DEADLINE_S * 200 && state_of(step.cache).quarantined_blocks != 10; i++)
        pause_briefly();
    expect(aule_session_open(&params, &third), AULE_LIMIT,
           "1 sessions are open, and the attached processes of 1 more still run");
    kill_worker(worker);
    await_free(BLOCKS - 4);
    ok(aule_session_open(&params, &third));
    aule_session_close(third);
    close_step(&step);
}
END_TEST

START_TEST(the_daemon_stops_while_blocks_wait_for_the_end_of_a_process)
{
    pid_t worker = fork_worker(attach_and_lose_the_connection);
    open_step(&step, NULL);
    for (int i = 0; i < DEADLINE_S * 200 && state_of(step.cache).quarantined_blocks != 10; i++)
        pause_briefly();
    close_step(&step);
    ck_assert_int_eq(daemon_stop(&daemon_), 0);
    kill_worker(worker);
}
END_TEST

START_TEST(sessions_that_attach_come_and_go_without_a_trace)
{
    open_mapped();
    close_step(&step);
    int before = cuda_rig_count_fds();
    for (int i = 0; i < 40; i++) {
        open_mapped();
        if (i % 3 == 0)
            ok(aule_blocks_release(step.cache, 2, step.blocks));
        close_step(&step);
        ck_assert_int_eq(cuda->maps + cuda->imports + cuda->contexts, 0);
    }
    ck_assert_int_eq(cuda_rig_count_fds(), before);
    open_step(&step, NULL);
    ck_assert_uint_eq(state_of(step.cache).free_blocks, BLOCKS - 4);
    close_step(&step);
}
END_TEST

// ---- bad input ----

START_TEST(without_the_option_there_is_a_sentence)
{
    struct aule_pool_part part = {.fd = 77};
    open_step(&step, NULL);
    expect(aule_cache_attach(step.cache, &info), AULE_UNSUPPORTED, "without --export-pool");
    expect(aule_cache_export(step.cache, 0, &part), AULE_UNSUPPORTED, "without --export-pool");
    expect(aule_cache_map_cuda(step.cache, -1, layers, NULL), AULE_UNSUPPORTED,
           "without --export-pool");
    expect(aule_cache_report(step.cache, &(struct aule_report){.passed = 0}, NULL), AULE_INVALID,
           "is not attached");
    ck_assert_int_eq(part.fd, 77);
    still_works(&step);
    close_step(&step);
}
END_TEST

START_TEST(what_a_session_may_not_report_has_a_sentence)
{
    struct aule_pool_part part;
    int64_t slot = (int64_t)BLOCKS * BLOCK;
    struct aule_report report = {.slots = &slot, .num_slots = 1};
    open_mapped();
    expect(aule_cache_report(step.cache, &report, NULL), AULE_OUT_OF_RANGE,
           "slots[0] = 512 is outside");
    slot = (int64_t)(BLOCKS - 1) * BLOCK;
    expect(aule_cache_report(step.cache, &report, NULL), AULE_NOT_HELD, "is not leased by this");
    report = (struct aule_report){.first_layer = 7};
    expect(aule_cache_report(step.cache, &report, NULL), AULE_OUT_OF_RANGE, "has 2");
    report = (struct aule_report){.num_slots = 1};
    expect(aule_cache_report(step.cache, &report, NULL), AULE_INVALID, "slots is NULL");
    report = (struct aule_report){.slots = &slot, .num_slots = 1 << 20};
    expect(aule_cache_report(step.cache, &report, NULL), AULE_LIMIT, "a report of 1048576 slots");
    expect(aule_cache_export(step.cache, 9, &part), AULE_OUT_OF_RANGE, "there is no allocation 9");
    expect(aule_cache_map_cuda(step.cache, 0, layers, NULL), AULE_MISMATCH,
           "is mapped on CUDA device 1, not on 0");
    still_works(&step);
    close_step(&step);
}
END_TEST

START_TEST(a_pool_does_not_grow)
{
    int32_t leased[BLOCKS + 1];
    open_step(&step, NULL);
    expect(aule_blocks_lease(step.cache, BLOCKS + 1, 0, leased), AULE_LIMIT, "--export-pool");
    expect(aule_blocks_lease(step.cache, BLOCKS, 0, leased), AULE_NO_BLOCKS, "60 free of 64");
    close_step(&step);
}
END_TEST

START_TEST(a_closed_session_cannot_attach_or_report)
{
    open_mapped();
    aule_session_close(step.session);
    expect(aule_cache_attach(step.cache, &info), AULE_NO_SESSION, "closed");
    expect(aule_cache_report(step.cache, &(struct aule_report){.passed = 0}, NULL), AULE_NO_SESSION,
           "closed");
    ck_assert_int_eq(cuda->maps, 1); // until the cache's own end
    aule_cache_close(step.cache);
    ck_assert_int_eq(cuda->maps, 0);
}
END_TEST

static int result; // of the other user's process, by its exit code

static void attach_as_another_user(void)
{
    char text[256];
    if (setgid(64002) != 0 || setuid(64002) != 0)
        _exit(3);
    struct aule_session *session = NULL;
    const struct aule_session_params params = {.socket = daemon_.socket};
    if (aule_session_open(&params, &session) != AULE_OK) {
        fprintf(stderr, "%s\n", aule_error());
        _exit(4);
    }
    struct aule_cache *cache = open_cache(session);
    enum aule_status status = aule_cache_attach(cache, &info);
    snprintf(text, sizeof text, "%s", aule_error());
    fprintf(stderr, "%s\n", text);
    _exit(status == AULE_DENIED && strstr(text, "the caller has uid 64002") ? 0 : 5);
}

START_TEST(another_user_may_use_the_cache_but_not_attach)
{
    if (geteuid() != 0) {
        fprintf(stderr, "not tested: only root can become another user\n");
        return;
    }
    char folder[sizeof daemon_.socket];
    snprintf(folder, sizeof folder, "%s", daemon_.socket);
    *strrchr(folder, '/') = '\0';
    ck_assert_int_eq(chmod(folder, 0711), 0);
    pid_t child = fork();
    if (child == 0)
        attach_as_another_user();
    ck_assert_int_eq(waitpid(child, &result, 0), child);
    ck_assert_int_eq(result, 0);
}
END_TEST

START_TEST(without_libcuda_attaching_still_works_and_mapping_has_a_sentence)
{
    if (dlopen("libcuda.so.1", RTLD_NOW)) {
        fprintf(stderr, "not tested: this machine has a libcuda\n");
        return;
    }
    open_step(&step, NULL);
    ok(aule_cache_attach(step.cache, &info));
    expect(aule_cache_map_cuda(step.cache, -1, layers, NULL), AULE_UNSUPPORTED,
           "libcuda cannot be loaded");
    close_step(&step);
}
END_TEST

int main(void)
{
    const struct entry use[] = {
        {the_layers_lie_as_the_info_says_and_have_what_runs_wrote, 0},
        {runs_read_what_the_process_wrote_as_if_a_run_had_written_it, 0},
        {what_a_process_publishes_others_find_and_read, 0},
        {another_vulkan_process_writes_and_reads_blocks, 0},
        {plans_need_no_batch_and_their_sequences_publish_what_is_reported, 0},
        {a_sequence_is_reported_and_published_by_one_message, 0},
        {only_an_attached_session_says_what_it_has_written, 0},
        {NULL, 0}};
    const struct entry lives[] = {
        {released_blocks_are_free_once_the_process_says_that_its_kernels_have_passed, 0},
        {a_killed_process_gives_its_blocks_back, 0},
        {a_process_may_die_at_any_step_and_harms_nobody, 0},
        {a_process_that_only_loses_its_connection_keeps_its_blocks_until_it_is_gone, 0},
        {the_daemon_stops_while_blocks_wait_for_the_end_of_a_process, 0},
        {sessions_that_attach_come_and_go_without_a_trace, 0},
        {NULL, 0}};
    const struct entry two[] = {
        {a_lost_connection_counts_as_a_session_while_its_attached_process_lives, 0}, {NULL, 0}};
    const struct entry bad[] = {
        {what_a_session_may_not_report_has_a_sentence, 0},
        {a_pool_does_not_grow, 0},
        {a_closed_session_cannot_attach_or_report, 0},
        {without_libcuda_attaching_still_works_and_mapping_has_a_sentence, 0},
        {NULL, 0}};
    const struct entry without[] = {{without_the_option_there_is_a_sentence, 0}, {NULL, 0}};
    const struct entry group[] = {{another_user_may_use_the_cache_but_not_attach, 0}, {NULL, 0}};
    Suite *suite = suite_create("client pool");
    add(suite, "use", setup, use);
    add(suite, "lifetimes", setup, lives);
    add(suite, "two sessions", setup_two, two);
    add(suite, "bad input", setup, bad);
    add(suite, "no option", setup_without, without);
    add(suite, "another user", setup_group, group);
    return check_main(suite);
}
