// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_tune.c - tuning without a device: the trial under a clock of the test's own, the table of
// what was measured, and its file: there and back, spoilt, another device's, empty, unreadable.

#include "engine/file.h"
#include "engine/state/state.h"
#include "engine/trial/trial.h"
#include "engine/tuning/tune_store.h"
#include "rigs/check_main.h"
#include "shaders/layout.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static struct tune_entry entry(uint32_t number)
{
    struct tune_entry out = {
        .key = {.shader = 0xfedcba9876543210u,
                .num_workgroups = 64,
                .num_keys = 1024,
                .num_splits = 4},
        .kernel = "attention_of_the_test",
        .local_size = 64,
        .rule_local_size = 128,
        .gpu_ns = 1000,
        .rule_gpu_ns = 2000,
        .num_candidates = 2,
        .num_samples = 12,
        .state = ENGINE_TUNE_MEASURED,
        .ours = true,
    };
    out.key.spec[AULE_SPEC_HEAD_DIM_K] = 64 + number;
    return out;
}

// ---- the trial ----

static const uint32_t candidates[] = {64, 128, 256, 0};

// All rounds, in which candidate i takes times[i]; in round `odd` ten times as long. The clock goes
// on by `step` each.
static struct trial run_trial(const uint64_t *times, int odd, uint64_t step, uint64_t budget,
                              uint64_t *end)
{
    struct trial trial;
    uint64_t now = 5000;
    uint32_t local_size;
    trial_begin(&trial, candidates, 256, now, budget);
    for (int count = 0; (local_size = trial_next(&trial, now)); count++) {
        int i = local_size == 64 ? 0 : local_size == 128 ? 1 : 2;
        ck_assert_int_eq(i, count % 3);
        ck_assert_int_lt(count, 1000);
        trial_add(&trial, times[i] * (count / 3 == odd ? 10 : 1));
        now += step;
    }
    *end = now;
    return trial;
}

START_TEST(the_fastest_candidate_wins_and_the_first_round_only_warms_up)
{
    static const uint64_t times[] = {900, 700, 800};
    uint64_t end;
    struct tune_entry won = entry(0);
    for (int odd = 0; odd < 3;
         odd++) { // the first, which counts nothing, or one that others disturb
        struct trial trial = run_trial(times, odd, 1, 1000000, &end);
        won.rule_local_size = 64;
        ck_assert(trial_end(&trial, &won));
        ck_assert_uint_eq(won.local_size, 128);
        ck_assert_uint_eq(won.gpu_ns, 700);
        ck_assert_uint_eq(won.rule_gpu_ns, 900);
        ck_assert_uint_eq(won.num_candidates, 3);
        ck_assert_uint_gt(won.num_samples, 3);
    }
}
END_TEST

START_TEST(the_rule_wins_unless_somebody_is_better_by_more_than_the_noise)
{
    static const uint64_t close[] = {10000, 9950, 9901}, better[] = {10000, 9950, 9899};
    uint64_t end;
    struct tune_entry won = entry(0);
    won.rule_local_size = 64;
    struct trial trial = run_trial(close, -1, 1, 1000000, &end);
    ck_assert(trial_end(&trial, &won));
    ck_assert_uint_eq(won.local_size, 64);
    trial = run_trial(better, -1, 1, 1000000, &end);
    ck_assert(trial_end(&trial, &won));
    ck_assert_uint_eq(won.local_size, 256);
}
END_TEST

START_TEST(no_measurement_begins_after_the_time_is_over)
{
    static const uint64_t times[] = {900, 700, 800};
    uint64_t end;
    struct tune_entry won = entry(0);
    won.rule_local_size = 64;
    struct trial trial = run_trial(times, -1, 100, 650, &end); // two rounds and one
    ck_assert_uint_eq(end, 5000 + 700);
    ck_assert(trial_end(&trial, &won));
    ck_assert_uint_eq(won.num_samples, 1);
    trial = run_trial(times, -1, 100, 450, &end); // the last of the second round is missing
    ck_assert_uint_eq(end, 5000 + 500);
    ck_assert(!trial_end(&trial, &won));
    trial = run_trial(times, -1, 1, 1u << 30, &end); // enough is enough
    ck_assert_uint_lt(end, 5000 + 100);
}
END_TEST

START_TEST(candidates_that_the_shader_does_not_allow_are_left_out)
{
    struct trial trial;
    struct tune_entry won = entry(0);
    trial_begin(&trial, candidates, 128, 0, 100);
    ck_assert_uint_eq(trial.num_candidates, 2);
    for (uint64_t now = 0; trial_next(&trial, now); now++)
        trial_add(&trial, 5);
    won.rule_local_size = 256;
    ck_assert(!trial_end(&trial, &won)); // a rule that is no candidate cannot be compared
    trial_begin(&trial, NULL, 128, 0, 100);
    ck_assert_uint_eq(trial_next(&trial, 0), 0);
    ck_assert(!trial_end(&trial, &won));
}
END_TEST

START_TEST(sizes_are_powers_of_two_up_to_the_most)
{
    static const uint64_t cases[][2] = {
        {0, 1}, {1, 1}, {2, 2}, {3, 2}, {511, 256}, {512, 512}, {UINT64_MAX, 1024}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_assert_uint_eq(tune_size(cases[i][0], 1024), cases[i][1]);
}
END_TEST

// ---- the table ----

static struct tune tune;

static void setup_table(void)
{
    struct error error = {0};
    ck_assert_int_eq(tune_init(&tune, true, 3, &error), STATUS_OK);
}

static void teardown_table(void)
{
    tune_finish(&tune);
}

START_TEST(what_is_not_known_waits_and_is_chosen_once_it_is_measured)
{
    struct tune_entry wanted = entry(0);
    struct tune_task task;
    wanted.local_size = 0;
    ck_assert_uint_eq(tune_choice(&tune, &wanted.key), 0);
    ck_assert(tune_lacks(&tune, &wanted.key));
    ck_assert_uint_eq(tune_count(&tune).num_entries, 0); // asking alone wants nothing
    tune_want(&tune, &wanted);
    tune_want(&tune, &wanted);
    ck_assert_uint_eq(tune_count(&tune).num_entries, 1);
    ck_assert_uint_eq(tune_count(&tune).num_waiting, 1);
    ck_assert_uint_eq(tune_choice(&tune, &wanted.key), 0);
    ck_assert(tune_wait(&tune, &task));
    ck_assert(task.measure && !task.save);
    ck_assert(tune_goes_on(&tune, &task.entry.key));
    task.entry.local_size = 64;
    task.entry.state = ENGINE_TUNE_MEASURED;
    tune_done(&tune, &task.entry);
    ck_assert_uint_eq(tune_choice(&tune, &wanted.key), 64);
    ck_assert_uint_eq(tune_count(&tune).num_waiting, 0);
    ck_assert(tune_wait(&tune, &task));
    ck_assert(!task.measure && task.save);
    tune_stop(&tune);
    ck_assert(!tune_wait(&tune, &task));
}
END_TEST

START_TEST(a_rule_that_won_stays_in_use)
{
    struct tune_entry known = entry(0);
    known.local_size = known.rule_local_size;
    ck_assert_int_eq(tune_add(&tune, &known), TUNE_ADDED);
    ck_assert_int_eq(tune_add(&tune, &known), TUNE_UNUSED);
    ck_assert_uint_eq(tune_choice(&tune, &known.key), 0);
}
END_TEST

START_TEST(off_neither_measures_nor_chooses_and_on_goes_on)
{
    struct tune_entry known = entry(0), wanted = entry(1);
    ck_assert_int_eq(tune_add(&tune, &known), TUNE_ADDED);
    tune_enable(&tune, false);
    ck_assert_uint_eq(tune_choice(&tune, &known.key), 0);
    tune_want(&tune, &wanted);
    ck_assert_uint_eq(tune_count(&tune).num_entries, 1);
    ck_assert(!tune_count(&tune).enabled && !tune_lacks(&tune, &wanted.key));
    tune_enable(&tune, true);
    ck_assert_uint_eq(tune_choice(&tune, &known.key), 64);
}
END_TEST

START_TEST(renewed_entries_wait_while_the_old_choice_holds)
{
    struct tune_entry ours = entry(0), others = entry(1), at;
    others.ours = false;
    ck_assert_int_eq(tune_add(&tune, &ours), TUNE_ADDED);
    ck_assert_int_eq(tune_add(&tune, &others), TUNE_ADDED);
    tune_renew(&tune);
    ck_assert_uint_eq(tune_count(&tune).num_waiting, 1);
    ck_assert_uint_eq(tune_choice(&tune, &ours.key), 64);
    ck_assert(tune_at(&tune, 0, &at) && at.state == ENGINE_TUNE_WAITING);
    ck_assert(tune_at(&tune, 1, &at) && at.state == ENGINE_TUNE_MEASURED); // of another variant
    ck_assert(!tune_at(&tune, 2, &at));
}
END_TEST

START_TEST(cleared_entries_are_gone_even_while_they_are_measured)
{
    struct tune_entry wanted = entry(0);
    struct tune_task task;
    tune_want(&tune, &wanted);
    ck_assert(tune_wait(&tune, &task) && task.measure);
    tune_clear(&tune);
    ck_assert(!tune_goes_on(&tune, &task.entry.key));
    tune_done(&tune, &task.entry);
    ck_assert_uint_eq(tune_count(&tune).num_entries, 0);
    ck_assert(tune_wait(&tune, &task) && task.save && !task.measure);
}
END_TEST

START_TEST(a_failed_save_is_repeated_after_the_next_measurement_and_at_the_end)
{
    struct tune_entry wanted = entry(0);
    struct tune_task task;
    tune_clear(&tune);
    ck_assert(tune_wait(&tune, &task) && task.save);
    tune_not_saved(&tune);
    tune_want(&tune, &wanted);
    ck_assert(tune_wait(&tune, &task));
    ck_assert(task.measure && !task.save); // not at once
    task.entry.state = ENGINE_TUNE_FAILED;
    tune_done(&tune, &task.entry);
    ck_assert(tune_wait(&tune, &task) && task.save);
    tune_not_saved(&tune);
    tune_stop(&tune);
    ck_assert(tune_wait(&tune, &task) && task.save);
    tune_not_saved(&tune);
    ck_assert(!tune_wait(&tune, &task));
}
END_TEST

START_TEST(a_large_table_keeps_the_order_of_arrival)
{
    enum { MANY = 500 };
    tune.max_entries = MANY;
    for (uint32_t i = 0; i < MANY; i++) {
        struct tune_entry one = entry(i);
        ck_assert_int_eq(tune_add(&tune, &one), TUNE_ADDED);
    }
    for (uint32_t i = 0; i < MANY; i++) {
        struct tune_entry one = entry(i), at;
        ck_assert(tune_at(&tune, i, &at));
        ck_assert_int_eq(memcmp(&at.key, &one.key, sizeof one.key), 0);
    }
}
END_TEST

START_TEST(a_copy_has_all_entries_in_the_order_of_arrival)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < 3; i++) {
        struct tune_entry one = entry(i);
        ck_assert_int_eq(tune_add(&tune, &one), TUNE_ADDED);
    }
    struct tune_entry *copy = tune_copy(&tune, &count);
    ck_assert_uint_eq(count, 3);
    for (uint32_t i = 0; i < count; i++) {
        struct tune_entry one = entry(i);
        ck_assert_int_eq(memcmp(&copy[i].key, &one.key, sizeof one.key), 0);
    }
    free(copy);
}
END_TEST

START_TEST(a_full_table_takes_no_more_and_says_so)
{
    for (uint32_t i = 0; i < 3; i++) {
        struct tune_entry one = entry(i);
        ck_assert(!tune_count(&tune).full);
        tune_want(&tune, &one);
    }
    struct tune_entry fourth = entry(3);
    tune_want(&tune, &fourth);
    ck_assert_int_ne(tune_add(&tune, &fourth), TUNE_ADDED);
    ck_assert_uint_eq(tune_count(&tune).num_entries, 3);
    ck_assert(tune_count(&tune).full);
    tune_clear(&tune);
    ck_assert(!tune_count(&tune).full);
}
END_TEST

START_TEST(entries_of_the_file_beyond_the_tables_size_go_back_into_the_file)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < 5; i++) {
        struct tune_entry one = entry(i);
        ck_assert_int_eq(tune_add(&tune, &one), i < 3 ? TUNE_ADDED : TUNE_SPARE);
        ck_assert_int_eq(tune_add(&tune, &one), TUNE_UNUSED); // it is there already
        ck_assert_uint_eq(tune_choice(&tune, &one.key), i < 3 ? one.local_size : 0);
    }
    ck_assert_uint_eq(tune_count(&tune).num_entries, 3);
    struct tune_entry *copy = tune_copy(&tune, &count);
    ck_assert_uint_eq(count, 5);
    for (uint32_t i = 0; i < count; i++) {
        struct tune_entry one = entry(i);
        ck_assert_int_eq(memcmp(&copy[i].key, &one.key, sizeof one.key), 0);
    }
    free(copy);
    tune_clear(&tune);
    free(tune_copy(&tune, &count));
    ck_assert_uint_eq(count, 0);
}
END_TEST

// ---- the file ----

static char folder[] = "/tmp/aule-tune-XXXXXX";
static char *path;
static struct tune_device device;

static void setup_folder(void)
{
    struct engine_device own = {.driver = "Some Driver  1.2.3 (x)", .uuid = {0xab, 1, 2}};
    ck_assert_ptr_nonnull(mkdtemp(folder));
    device = tune_device_of(&own);
    path = tune_file_path(folder, &device);
    ck_assert_ptr_nonnull(path);
}

static void teardown_folder(void)
{
    unlink(path);
    free(path);
    ck_assert_msg(rmdir(folder) == 0, "something was left in %s", folder);
}

static void write_entries(struct tune_entry *entries, uint32_t count)
{
    struct tune_list list = {.entries = entries, .count = count};
    struct error error = {0};
    enum status status = tune_file_write(path, &device, &list, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static char text[1 << 16];

static void read_text(void)
{
    int fd = open(path, O_RDONLY);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    ck_assert_int_gt(size, 0);
    text[size] = '\0';
    close(fd);
}

static void write_text(const char *what)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, what, strlen(what)), (ssize_t)strlen(what));
    close(fd);
}

START_TEST(the_file_is_named_after_device_and_driver_and_is_the_users_alone)
{
    struct stat status;
    struct tune_entry one = entry(0);
    ck_assert_str_eq(path + strlen(folder),
                     "/tuning-ab010200-0000-0000-0000-000000000000-some-driver-1.2.3-x.json");
    write_entries(&one, 1);
    ck_assert_int_eq(stat(path, &status), 0);
    ck_assert_uint_eq(status.st_mode & 0777, 0600);
}
END_TEST

START_TEST(entries_come_back_as_they_were)
{
    struct tune_entry entries[3] = {entry(0), entry(1), entry(2)};
    struct tune_list list;
    struct error error = {0};
    entries[1].gpu_ns = UINT64_C(123456789012345);
    entries[1].key.spec[AULE_SPEC_FEATURES] = UINT32_MAX;
    entries[2].local_size = 0; // nobody measured it
    write_entries(entries, 3);
    ck_assert_int_eq(tune_file_read(path, &device, &list, &error), STATUS_OK);
    ck_assert_uint_eq(list.count, 2);
    ck_assert_uint_eq(list.num_damaged, 0);
    for (uint32_t i = 0; i < 2; i++) {
        ck_assert_int_eq(memcmp(&list.entries[i].key, &entries[i].key, sizeof entries[i].key), 0);
        ck_assert_str_eq(list.entries[i].kernel, entries[i].kernel);
        ck_assert_uint_eq(list.entries[i].local_size, 64);
        ck_assert_uint_eq(list.entries[i].gpu_ns, entries[i].gpu_ns);
        ck_assert_int_eq(list.entries[i].state, ENGINE_TUNE_MEASURED);
    }
    tune_list_finish(&list);
}
END_TEST

START_TEST(a_file_without_entries_goes)
{
    struct tune_entry one = entry(0);
    struct tune_list list;
    struct error error = {0};
    write_entries(&one, 1);
    write_entries(NULL, 0);
    ck_assert_int_eq(access(path, F_OK), -1);
    write_entries(NULL, 0); // and there need not be one
    ck_assert_int_eq(tune_file_read(path, &device, &list, &error), STATUS_NOT_FOUND);
}
END_TEST

static void write_raw(const char *at, const char *words)
{
    int fd = open(at, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, words, strlen(words)), (ssize_t)strlen(words));
    close(fd);
}

START_TEST(a_temporary_file_of_a_killed_process_is_reused_or_removed)
{
    char beside[256], *data;
    size_t size;
    struct error error = {0};
    const struct iovec piece = {(void *)"whole", 5};
    snprintf(beside, sizeof beside, "%s.new", path);
    write_raw(beside, "more than what is to be written, and only a part of what it was to be");
    ck_assert_int_eq(file_replace(path, &piece, 1, &error), STATUS_OK);
    ck_assert_int_eq(access(beside, F_OK), -1);
    ck_assert_int_eq(file_read(path, 1 << 10, &data, &size, &error), STATUS_OK);
    ck_assert_str_eq(data, "whole");
    free(data);
    file_sweep(path);
    write_raw(beside, "a part");
    file_sweep(path);
    ck_assert_int_eq(access(beside, F_OK), -1);
    ck_assert_int_eq(access(path, F_OK), 0);
}
END_TEST

START_TEST(what_is_no_file_is_not_replaced)
{
    struct stat there;
    struct error error = {0};
    const struct iovec piece = {(void *)"mine", 4};
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_ne(file_replace(path, &piece, 1, &error), STATUS_OK);
    ck_assert_str_eq(error.text, "it is no file");
    ck_assert_int_eq(lstat(path, &there), 0);
    ck_assert(S_ISFIFO(there.st_mode));
    ck_assert_int_eq(unlink(path), 0);
}
END_TEST

START_TEST(a_file_that_another_is_writing_is_left_alone)
{
    char beside[256];
    struct error error = {0};
    const struct iovec piece = {(void *)"mine", 4};
    snprintf(beside, sizeof beside, "%s.new", path);
    write_raw(beside, "his");
    int his = open(beside, O_RDONLY);
    ck_assert_int_eq(flock(his, LOCK_EX), 0);
    ck_assert_int_ne(file_replace(path, &piece, 1, &error), STATUS_OK);
    file_sweep(path);
    ck_assert_int_eq(rename(beside, path), 0); // as he does at last
    close(his);
    char *data;
    size_t size;
    ck_assert_int_eq(file_read(path, 1 << 10, &data, &size, &error), STATUS_OK);
    ck_assert_str_eq(data, "his");
    free(data);
}
END_TEST

static void expect_ignored(enum status status, const char *why)
{
    struct tune_list list;
    struct error error = {0};
    ck_assert_int_eq(tune_file_read(path, &device, &list, &error), status);
    ck_assert_msg(strstr(error.text, why) != NULL, "\"%s\" lacks \"%s\"", error.text, why);
    ck_assert_ptr_null(list.entries);
}

START_TEST(a_spoilt_file_or_another_devices_is_ignored_with_the_reason)
{
    struct tune_entry one = entry(0);
    struct tune_device other = device;
    write_entries(&one, 1);
    read_text();
    text[strlen(text) / 2] = '\0';
    write_text(text);
    expect_ignored(STATUS_MALFORMED, "no JSON document");
    write_text("");
    expect_ignored(STATUS_MALFORMED, "no JSON document");
    write_text("{\"format\": \"aule tuning 3\", \"entries\": []}");
    expect_ignored(STATUS_MALFORMED, "\"aule tuning 2\"");
    write_text("{\"format\": \"aule tuning 1\", \"entries\": []}");
    expect_ignored(STATUS_VERSION, "older format \"aule tuning 1\"");
    write_entries(&one, 1);
    snprintf(device.driver, sizeof device.driver, "another");
    expect_ignored(STATUS_MISMATCH, "its driver is \"Some Driver  1.2.3 (x)\", not \"another\"");
    device = other;
    device.uuid[0] = 'x';
    expect_ignored(STATUS_MISMATCH, "its device is");
    device = other;
    ck_assert_int_eq(truncate(path, 65 << 20), 0);
    expect_ignored(STATUS_LIMIT, "it has 68157440 bytes, and no more than 67108864 are read");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkfifo(path, 0600), 0); // nobody writes there
    expect_ignored(STATUS_LIMIT, "no file");
}
END_TEST

START_TEST(a_damaged_entry_is_left_out_and_counted_and_the_others_stay)
{
    static const char *const spoilt[][2] = {
        {"\"shader\":\t\"fedc", "\"shader\":\t\"fexc"},
        {"\"gpu_ns\":\t1000", "\"gpu_ns\":\t-1"},
        {"\"num_keys\":\t1024", "\"num_keys\":\t1.5"},
        {"\"num_splits\":\t4", "\"splits\":\t4"},
        {"\"local_size\":\t64", "\"local_size\":\t\"64\""},
        {"\"kernel\":\t\"attention", "\"cernel\":\t\"a"},
        {"\"spec\":\t[0, 64", "\"spec\":\t[0, 64, 1"},
    };
    struct tune_entry entries[2] = {entry(0), entry(1)};
    for (size_t i = 0; i < sizeof spoilt / sizeof *spoilt; i++) {
        char changed[sizeof text + 64];
        struct tune_list list;
        struct error error = {0};
        write_entries(entries, 2);
        read_text();
        char *at = strstr(text, spoilt[i][0]);
        ck_assert_msg(at != NULL, "%s is not in %s", spoilt[i][0], text);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, spoilt[i][1],
                 at + strlen(spoilt[i][0]));
        write_text(changed);
        ck_assert_int_eq(tune_file_read(path, &device, &list, &error), STATUS_OK);
        ck_assert_uint_eq(list.count, 1);
        ck_assert_uint_eq(list.num_damaged, 1);
        ck_assert_msg(strstr(list.damage, "of entry 0") != NULL, "%s", list.damage);
        ck_assert_int_eq(memcmp(&list.entries[0].key, &entries[1].key, sizeof entries[1].key), 0);
        tune_list_finish(&list);
    }
}
END_TEST

// ---- the file of a table: no GPU, only an engine's variant and log ----

static struct engine engine;
static struct tune_store store;
static char log_text[1 << 12];

static void keep_log(void *context, int level, const char *format, const char *line)
{
    const size_t used = strlen(log_text);
    (void)context;
    (void)format;
    snprintf(log_text + used, sizeof log_text - used, "%d %s\n", level, line);
}

// How many lines of the log have these words.
static int num_logged(const char *words)
{
    int count = 0;
    for (const char *at = log_text; (at = strstr(at, words)); at++)
        count++;
    return count;
}

static void setup_store(void)
{
    struct engine_device *info = &engine.device.adapter.info;
    struct error error = {0};
    setup_table();
    engine.pipelines.variant = variant_at(0);
    engine.device.instance.log = keep_log;
    *info = (struct engine_device){.uuid = {0xab, 1, 2}};
    snprintf(info->driver, sizeof info->driver, "driver");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    device = tune_device_of(info);
    path = tune_file_path(folder, &device);
    ck_assert_ptr_nonnull(path);
    ck_assert_int_eq(tune_store_init(&store, &engine, &tune, folder, &error), STATUS_OK);
    ck_assert_str_eq(store.path, path);
}

static void teardown_store(void)
{
    tune_store_finish(&store);
    teardown_table();
    teardown_folder();
}

// As the next daemon does.
static void begin_again(void)
{
    struct error error = {0};
    tune_store_finish(&store);
    ck_assert_int_eq(tune_store_init(&store, &engine, &tune, folder, &error), STATUS_OK);
}

static void measure_one(uint32_t number)
{
    struct tune_entry one = entry(number);
    struct tune_task task;
    tune_want(&tune, &one);
    ck_assert(tune_wait(&tune, &task) && task.measure);
    task.entry.state = ENGINE_TUNE_MEASURED;
    tune_done(&tune, &task.entry);
}

static void save(void)
{
    struct tune_task task;
    ck_assert(tune_wait(&tune, &task) && task.save);
    tune_store_save(&store, task.clear);
}

static uint32_t num_in_file(void)
{
    struct tune_list list;
    struct error error = {0};
    enum status status = tune_file_read(path, &device, &list, &error);
    const uint32_t count = list.count;
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    tune_list_finish(&list);
    return count;
}

static void expect_text(const char *expected)
{
    read_text();
    ck_assert_str_eq(text, expected);
}

START_TEST(a_file_that_cannot_be_read_is_not_replaced_until_it_can)
{
    static const char newer[] = "{\"format\": \"aule tuning 3\", \"entries\": []}";
    write_text(newer);
    begin_again();
    ck_assert_int_eq(num_logged("1 tuning file "), 1);
    ck_assert_int_eq(num_logged("is not written until it can be read"), 1);
    measure_one(0);
    save();
    measure_one(1);
    save();
    expect_text(newer);
    ck_assert_int_eq(num_logged("tuning file "), 1); // once
    ck_assert_int_eq(unlink(path), 0);
    measure_one(2);
    save();
    ck_assert_uint_eq(num_in_file(), 3);
    write_text("neither is this"); // of another program, while the daemon runs
    struct tune_entry again = entry(0);
    tune_done(&tune, &again);
    save();
    expect_text("neither is this");
    ck_assert_int_eq(num_logged("is not written until it can be read"), 2);
}
END_TEST

START_TEST(clearing_drops_a_file_that_cannot_be_read_too)
{
    write_text("not ours");
    begin_again();
    tune_clear(&tune);
    save();
    ck_assert_int_eq(access(path, F_OK), -1);
}
END_TEST

START_TEST(a_file_of_an_older_format_is_replaced)
{
    write_text("{\"format\": \"aule tuning 1\", \"entries\": []}");
    begin_again();
    ck_assert_int_eq(num_logged("is ignored: it is of the older format"), 1);
    measure_one(0);
    save();
    ck_assert_uint_eq(num_in_file(), 1);
    ck_assert_int_eq(num_logged("is not written"), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tune");
    TCase *tcase = tcase_create("trial");
    tcase_add_test(tcase, the_fastest_candidate_wins_and_the_first_round_only_warms_up);
    tcase_add_test(tcase, the_rule_wins_unless_somebody_is_better_by_more_than_the_noise);
    tcase_add_test(tcase, no_measurement_begins_after_the_time_is_over);
    tcase_add_test(tcase, candidates_that_the_shader_does_not_allow_are_left_out);
    tcase_add_test(tcase, sizes_are_powers_of_two_up_to_the_most);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("table");
    tcase_add_checked_fixture(tcase, setup_table, teardown_table);
    tcase_add_test(tcase, what_is_not_known_waits_and_is_chosen_once_it_is_measured);
    tcase_add_test(tcase, a_rule_that_won_stays_in_use);
    tcase_add_test(tcase, off_neither_measures_nor_chooses_and_on_goes_on);
    tcase_add_test(tcase, renewed_entries_wait_while_the_old_choice_holds);
    tcase_add_test(tcase, cleared_entries_are_gone_even_while_they_are_measured);
    tcase_add_test(tcase, a_failed_save_is_repeated_after_the_next_measurement_and_at_the_end);
    tcase_add_test(tcase, a_large_table_keeps_the_order_of_arrival);
    tcase_add_test(tcase, a_copy_has_all_entries_in_the_order_of_arrival);
    tcase_add_test(tcase, a_full_table_takes_no_more_and_says_so);
    tcase_add_test(tcase, entries_of_the_file_beyond_the_tables_size_go_back_into_the_file);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("file");
    tcase_add_checked_fixture(tcase, setup_folder, teardown_folder);
    tcase_add_test(tcase, the_file_is_named_after_device_and_driver_and_is_the_users_alone);
    tcase_add_test(tcase, entries_come_back_as_they_were);
    tcase_add_test(tcase, a_file_without_entries_goes);
    tcase_add_test(tcase, a_temporary_file_of_a_killed_process_is_reused_or_removed);
    tcase_add_test(tcase, what_is_no_file_is_not_replaced);
    tcase_add_test(tcase, a_file_that_another_is_writing_is_left_alone);
    tcase_add_test(tcase, a_spoilt_file_or_another_devices_is_ignored_with_the_reason);
    tcase_add_test(tcase, a_damaged_entry_is_left_out_and_counted_and_the_others_stay);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("store");
    tcase_add_checked_fixture(tcase, setup_store, teardown_store);
    tcase_add_test(tcase, a_file_that_cannot_be_read_is_not_replaced_until_it_can);
    tcase_add_test(tcase, clearing_drops_a_file_that_cannot_be_read_too);
    tcase_add_test(tcase, a_file_of_an_older_format_is_replaced);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
