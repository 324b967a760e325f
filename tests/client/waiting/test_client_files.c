// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_files.c - a prompt comes back from a folder of files with the same bits as when it
// was computed: after the daemon has ended or was killed, and through a second daemon with the
// same folder. Harmed files are computed again.

#include "rigs/text_world.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 10, PROMPT = BLOCKS * TEXT_BLOCK + 3, ROW = TEXT_HEADS * TEXT_DIM };

static struct text_world world;
static int32_t prompt[PROMPT];
static char folder[64], url[80];
static const char *const options[] = {"--tier", url, "--tier-deadline", "60000", NULL};

static void open_daemon(void)
{
    snprintf(folder, sizeof folder, "/tmp/aule:files@here-XXXXXX"); // no login
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(url, sizeof url, "files://%s", folder);
    rig_launch(options);
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = 1000 + i * 7 % 97;
}

static void close_daemon(void)
{
    char command[96];
    rig_teardown();
    snprintf(command, sizeof command, "rm -rf %s", folder);
    ck_assert_int_eq(system(command), 0);
}

// A metric of the daemon's.
static uint64_t metric(const char *name)
{
    struct aule_monitor *monitor;
    struct aule_metric *metrics;
    uint32_t count;
    uint64_t value = UINT64_MAX;
    ok(aule_monitor_open(rig_daemon.socket, WAIT_MS, &monitor));
    ok(aule_monitor_metrics(monitor, &metrics, &count));
    for (uint32_t i = 0; i < count; i++)
        value = strcmp(metrics[i].name, name) ? value : metrics[i].value;
    free(metrics);
    aule_monitor_close(monitor);
    ck_assert_msg(value != UINT64_MAX, "there is no metric %s", name);
    return value;
}

// Stores end beside the daemon's other work.
static void await_stored(uint64_t blocks)
{
    while (metric("aule_tier_stored_blocks_total{tier=\"files\"}") < blocks)
        usleep(10000);
}

static uint32_t count_files(void)
{
    DIR *list = opendir(folder);
    uint32_t count = 0;
    for (const struct dirent *entry; (entry = readdir(list));)
        count += entry->d_name[0] != '.';
    closedir(list);
    return count;
}

// Claims the prompt, forces a load, and computes what is missing. `out` gets the rows of its last
// three tokens. Returns how many tokens were found.
static uint32_t compute(float *out)
{
    static float outs[PROMPT * ROW];
    struct text text, *list = &text;
    struct aule_sequence_info info;
    text_claim(&world, &text, prompt, PROMPT);
    do
        ok(aule_sequence_info(text.sequence, &info));
    while (info.num_promised && text_wait(&text, WAIT_MS) == AULE_OK);
    const uint32_t found = text.num_computed;
    text_step(&world, &list, NULL, 1, outs);
    memcpy(out, outs + (PROMPT - found - 3) * ROW, 3 * ROW * sizeof *out);
    text_destroy(&text);
    return found;
}

static void compute_and_store(float *out)
{
    text_open(&world);
    ck_assert_uint_eq(compute(out), 0);
    await_stored(BLOCKS);
    text_close(&world);
    ck_assert_uint_eq(count_files(), BLOCKS);
}

static void restart(bool kill)
{
    if (kill)
        daemon_kill(&rig_daemon);
    else
        ck_assert_int_eq(daemon_stop(&rig_daemon), 0);
    ck_assert(daemon_start(&rig_daemon, options));
}

START_TEST(the_path_of_a_folder_is_shown_as_it_was_given)
{
    char *lines, wanted[96];
    struct aule_monitor *monitor;
    ok(aule_monitor_open(rig_daemon.socket, WAIT_MS, &monitor));
    ok(aule_monitor_options(monitor, &lines));
    snprintf(wanted, sizeof wanted, "tier=%s\n", url);
    ck_assert_msg(strstr(lines, wanted) != NULL, "no %s in:\n%s", wanted, lines);
    free(lines);
    aule_monitor_close(monitor);
}
END_TEST

START_TEST(a_prompt_comes_back_after_a_restart_with_the_same_bits_as_computed)
{
    float computed[3 * ROW], loaded[3 * ROW];
    compute_and_store(computed);
    restart(_i);
    ck_assert_uint_eq(metric("aule_tier_blocks{tier=\"files\"}"), BLOCKS);
    text_open(&world);
    ck_assert_uint_eq(compute(loaded), BLOCKS * TEXT_BLOCK);
    ck_assert_mem_eq(computed, loaded, sizeof computed);
    ck_assert_uint_eq(metric("aule_tier_loaded_blocks_total{tier=\"files\"}"), BLOCKS);
    text_close(&world);
}
END_TEST

// Flips a byte of each file, cuts each, or fills it with another text.
static void harm_files(int how)
{
    DIR *list = opendir(folder);
    for (const struct dirent *entry; (entry = readdir(list));) {
        if (entry->d_name[0] == '.')
            continue;
        const int fd = openat(dirfd(list), entry->d_name, O_RDWR);
        uint8_t byte;
        ck_assert_int_eq(pread(fd, &byte, 1, 200), 1);
        byte ^= 1;
        ck_assert_int_eq(how == 0   ? (int)pwrite(fd, &byte, 1, 200)
                         : how == 1 ? ftruncate(fd, 150) + 1
                                    : (int)pwrite(fd, "?", 1, 0),
                         1);
        close(fd);
    }
    closedir(list);
}

START_TEST(harmed_files_are_counted_and_computed_again)
{
    static const char *const reasons[] = {"checksum", "length", "version"};
    float computed[3 * ROW], again[3 * ROW];
    char name[96];
    compute_and_store(computed);
    ck_assert_int_eq(daemon_stop(&rig_daemon), 0);
    harm_files(_i);
    ck_assert(daemon_start(&rig_daemon, options));
    text_open(&world);
    ck_assert_uint_eq(compute(again), 0);
    ck_assert_mem_eq(computed, again, sizeof computed);
    snprintf(name, sizeof name, "aule_tier_failed_blocks_total{tier=\"files\",reason=\"%s\"}",
             reasons[_i]);
    ck_assert_uint_eq(metric(name), BLOCKS);
    await_stored(BLOCKS); // and kept again
    text_close(&world);
}
END_TEST

START_TEST(a_second_daemon_with_the_same_folder_finds_what_the_first_stores)
{
    float computed[3 * ROW], loaded[3 * ROW];
    const struct daemon first = rig_daemon;
    struct daemon second;
    ck_assert(daemon_launch(&second, options));
    compute_and_store(computed);
    rig_daemon = second;
    while (metric("aule_tier_blocks{tier=\"files\"}") < BLOCKS)
        usleep(10000);
    text_open(&world);
    ck_assert_uint_eq(compute(loaded), BLOCKS * TEXT_BLOCK);
    ck_assert_mem_eq(computed, loaded, sizeof computed);
    text_close(&world);
    ck_assert_int_eq(daemon_end(&rig_daemon), 0);
    rig_daemon = first;
}
END_TEST

START_TEST(a_folder_that_cannot_be_used_ends_the_start_with_a_sentence)
{
    const char *const bad[] = {"--tier", "files://relative", NULL};
    ck_assert_int_eq(daemon_stop(&rig_daemon), 0);
    ck_assert(!daemon_start(&rig_daemon, bad));
    ck_assert(daemon_log_contains(&rig_daemon, "files://relative"));
    ck_assert(daemon_log_contains(&rig_daemon, "must begin with /"));
    ck_assert(daemon_start(&rig_daemon, options));
}
END_TEST

#ifdef HANGING_DISK
// The name of a file that is not complete begins with a dot.
static bool has_begun_a_file(void)
{
    DIR *list = opendir(folder);
    bool begun = false;
    for (const struct dirent *entry; (entry = readdir(list));)
        begun |= strncmp(entry->d_name, ".aule-part-", 11) == 0;
    closedir(list);
    return begun;
}

START_TEST(a_store_that_hangs_delays_the_end_no_longer_than_the_drain_timeout)
{
    static float out[3 * ROW];
    const char *const hanging[] = {"--tier", url, "--tier-deadline", "60000", "--drain-timeout",
                                   "3000",   NULL};
    ck_assert_int_eq(daemon_stop(&rig_daemon), 0);
    unsetenv("AULE_TEST_VALIDATION"); // the device is left behind, so the layer says nothing
    setenv("LD_PRELOAD", HANGING_DISK, 1);
    ck_assert(daemon_start(&rig_daemon, hanging));
    unsetenv("LD_PRELOAD");
    text_open(&world);
    compute(out);
    text_close(&world);
    while (!has_begun_a_file())
        usleep(10000);
    ck_assert_int_eq(daemon_stop(&rig_daemon), 0);
    ck_assert(daemon_log_contains(&rig_daemon, "what tiers have not stored yet is given up"));
    ck_assert(daemon_log_contains(&rig_daemon, "a tier's disk or server does not answer"));
    ck_assert(!daemon_log_contains(&rig_daemon, "has passed with work in flight"));
    ck_assert(daemon_start(&rig_daemon, options));
}
END_TEST
#endif

int main(void)
{
    Suite *suite = suite_create("client files");
    check_case(
        suite, "files", open_daemon, close_daemon,
        (const TTest *const[]){the_path_of_a_folder_is_shown_as_it_was_given,
                               a_second_daemon_with_the_same_folder_finds_what_the_first_stores,
                               a_folder_that_cannot_be_used_ends_the_start_with_a_sentence, NULL},
        1);
#ifdef HANGING_DISK
    check_case(suite, "hanging", open_daemon, close_daemon,
               (const TTest *const[]){
                   a_store_that_hangs_delays_the_end_no_longer_than_the_drain_timeout, NULL},
               1);
#endif
    check_case(suite, "restart", open_daemon, close_daemon,
               (const TTest *const[]){
                   a_prompt_comes_back_after_a_restart_with_the_same_bits_as_computed, NULL},
               2);
    check_case(suite, "harm", open_daemon, close_daemon,
               (const TTest *const[]){harmed_files_are_counted_and_computed_again, NULL}, 3);
    return check_main(suite);
}
