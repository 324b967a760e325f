// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_tier.c - a prompt that left the GPU comes back from the host tier of a real daemon,
// with the same bits as when it was computed, also if the worker that asked for it dies. The daemon
// copies with the runs, and beside them, as with a transfer queue.

#include "rigs/text_world.h"

#include <dirent.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 10, PROMPT = BLOCKS * TEXT_BLOCK + 3, POOL = 16, ROW = TEXT_HEADS * TEXT_DIM };

static struct text_world world;
static int32_t prompt[PROMPT], other[POOL * TEXT_BLOCK];

static void open_daemon(const char *transfer_queue)
{
    rig_launch((const char *const[]){"--host-tier", "16M", "--max-blocks", "16", "--tier-deadline",
                                     "60000", "--transfer-queue", transfer_queue, NULL});
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = 1000 + i * 7 % 97;
    for (int i = 0; i < POOL * TEXT_BLOCK; i++)
        other[i] = 5000 + i;
}

static void open_with_runs(void)
{
    open_daemon("off");
}

static void open_beside(void)
{
    open_daemon("on");
}

// Claims the prompt, and waits for what is promised.
static void claim(struct text *text)
{
    struct aule_sequence_info info;
    text_claim(&world, text, prompt, PROMPT);
    do
        ok(aule_sequence_info(text->sequence, &info));
    while (info.num_promised && text_wait(text, WAIT_MS) == AULE_OK);
}

// Computes what of the prompt is missing. `out` gets the rows of its last three tokens.
static void compute(float *out)
{
    static float outs[PROMPT * ROW];
    struct text text, *list = &text;
    claim(&text);
    const uint32_t rows = PROMPT - text.num_computed;
    text_step(&world, &list, NULL, 1, outs);
    memcpy(out, outs + (rows - 3) * ROW, 3 * ROW * sizeof *out);
    text_destroy(&text);
}

static void compute_other(uint32_t num_tokens)
{
    struct text text, *list = &text;
    text_create(&world, &text, other, num_tokens, false);
    text_step(&world, &list, NULL, 1, NULL);
    text_destroy(&text);
}

// Another prompt takes all blocks of the pool. The step names them until the next one, which needs
// one block.
static void evict(void)
{
    compute_other(POOL * TEXT_BLOCK);
    compute_other(1);
}

// Looks the prompt up until the tier brings it. The store ends beside the daemon's other work, so
// the first look-up may come too early.
static uint32_t find(void)
{
    struct text text;
    uint32_t found = 0;
    while (!found) {
        claim(&text);
        found = text.num_computed;
        text_destroy(&text);
    }
    return found;
}

START_TEST(a_prompt_comes_back_with_the_same_bits_as_computed)
{
    float computed[3 * ROW], loaded[3 * ROW];
    text_open(&world);
    compute(computed);
    evict();
    ck_assert_uint_eq(find(), BLOCKS * TEXT_BLOCK);
    compute(loaded);
    ck_assert_mem_eq(computed, loaded, sizeof computed);
    text_close(&world);
}
END_TEST

START_TEST(a_caller_can_forbid_and_force_a_load)
{
    float computed[3 * ROW];
    struct aule_claim claimed;
    int32_t ids[BLOCKS];
    struct aule_prefix prefix = {.tokens = prompt, .num_tokens = PROMPT};
    text_open(&world);
    compute(computed);
    evict();
    find();
    evict();
    prefix.load = (enum aule_load)3;
    expect(aule_prefix_claim(world.cache, &prefix, 0, ids, &claimed), AULE_UNSUPPORTED, "way 3");
    prefix.load = AULE_LOAD_NEVER;
    ok(aule_prefix_claim(world.cache, &prefix, 0, ids, &claimed));
    ck_assert_uint_eq(claimed.num_blocks + claimed.num_promised, 0);
    ok(aule_claim_release(world.cache, &claimed, 0));
    prefix.load = AULE_LOAD_ALWAYS;
    ok(aule_prefix_claim(world.cache, &prefix, 0, ids, &claimed));
    ck_assert_uint_eq(claimed.num_blocks + claimed.num_promised, BLOCKS);
    while (claimed.num_promised)
        ok(aule_claim_wait(world.cache, &claimed, WAIT_MS, ids));
    ck_assert_uint_eq(claimed.num_blocks, BLOCKS);
    ok(aule_blocks_release(world.cache, BLOCKS, ids));
    text_close(&world);
}
END_TEST

START_TEST(a_load_outlives_the_worker_that_asked_for_it)
{
    float computed[3 * ROW], loaded[3 * ROW];
    text_open(&world);
    compute(computed);
    evict();
    find();
    evict();
    const pid_t child = fork();
    if (!child) {
        struct text_world own;
        struct text text;
        text_open(&own);
        text_claim(&own, &text, prompt, PROMPT);
        _exit(0); // without closing anything
    }
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    ck_assert_uint_eq(find(), BLOCKS * TEXT_BLOCK);
    compute(loaded);
    ck_assert_mem_eq(computed, loaded, sizeof computed);
    text_close(&world);
    rig_expect_nothing_held();
}
END_TEST

static uint64_t hauled_bytes(void)
{
    struct aule_monitor *monitor;
    struct aule_metric *metrics;
    uint32_t count;
    uint64_t bytes = 0;
    ok(aule_monitor_open(rig_daemon.socket, WAIT_MS, &monitor));
    ok(aule_monitor_metrics(monitor, &metrics, &count));
    for (uint32_t i = 0; i < count; i++)
        if (!strcmp(metrics[i].name, "aule_hauled_bytes_total"))
            bytes = metrics[i].value;
    free(metrics);
    aule_monitor_close(monitor);
    return bytes;
}

START_TEST(only_a_daemon_that_moves_blocks_beside_the_runs_counts_their_bytes)
{
    float computed[3 * ROW];
    text_open(&world);
    compute(computed);
    evict();
    find();
    ck_assert((hauled_bytes() > 0) == _i);
    text_close(&world);
}
END_TEST

// Returns how many threads a daemon with this --tier-threads has in all.
static int num_threads(const char *wanted)
{
    char path[64];
    int count = 0;
    rig_launch((const char *const[]){"--host-tier", "16M", "--tier-threads", wanted, NULL});
    snprintf(path, sizeof path, "/proc/%d/task", (int)rig_daemon.pid);
    DIR *tasks = opendir(path);
    ck_assert_ptr_nonnull(tasks);
    for (const struct dirent *entry; (entry = readdir(tasks));)
        count += entry->d_name[0] != '.';
    closedir(tasks);
    rig_teardown();
    return count;
}

// A driver may start a thread of its own at any time.
START_TEST(an_option_says_how_many_threads_check_blocks)
{
    const int more = num_threads("60") - num_threads("10");
    ck_assert_int_ge(more, 40);
    ck_assert_int_le(more, 60);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {a_prompt_comes_back_with_the_same_bits_as_computed,
                                  a_caller_can_forbid_and_force_a_load,
                                  a_load_outlives_the_worker_that_asked_for_it, NULL};
    Suite *suite = suite_create("client tier");
    TCase *with_runs = check_new_case(suite, "host", tests, 1),
          *beside = check_new_case(suite, "host, transfer queue", tests, 1);
    tcase_add_checked_fixture(with_runs, open_with_runs, rig_teardown);
    tcase_add_checked_fixture(beside, open_beside, rig_teardown);
    tcase_add_loop_test(with_runs,
                        only_a_daemon_that_moves_blocks_beside_the_runs_counts_their_bytes, 0, 1);
    tcase_add_loop_test(beside, only_a_daemon_that_moves_blocks_beside_the_runs_counts_their_bytes,
                        1, 2);
    const TTest *const threads[] = {an_option_says_how_many_threads_check_blocks, NULL};
    check_new_case(suite, "threads", threads, 1);
    return check_main(suite);
}
