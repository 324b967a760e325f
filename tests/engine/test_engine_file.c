// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine_file.c - the file of compiled pipelines: written, read again, damaged, impossible to
// write.

#include "base/uuid.h"
#include "rigs/engine_world.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/aule-engine-XXXXXX", new_folder[64];
static char key_path[128];
static char cache_path[128]; // known since the first engine

static void setup_folder(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(new_folder, sizeof new_folder, "%s/new", folder);
    snprintf(key_path, sizeof key_path, "%s/pipelines.key", new_folder);
}

static void teardown_folder(void)
{
    unlink(cache_path);
    unlink(key_path);
    rmdir(new_folder);
    ck_assert_msg(rmdir(folder) == 0, "something was left in %s", folder);
}

// An engine that computes something and ends. With `wait` it lives until the file exists.
static void live_once(const char *in_folder, bool wait)
{
    char uuid[UUID_TEXT_SIZE];
    engine = open_engine((struct engine_params){.cache_folder = in_folder});
    snprintf(cache_path, sizeof cache_path, "%s/pipelines-%s", in_folder,
             uuid_text(engine_device(engine)->uuid, uuid));
    open_arena();
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 0, true);
    struct engine_run run = plain_run(batch, 0, 0, 64, 128, 192);
    fill(128, 11);
    expect_done(submit_runs(&run, 1));
    expect_floats(192, 11);
    AWAIT(DEADLINE_S, !wait || access(cache_path, R_OK) == 0);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
    teardown();
}

static size_t read_file(char *bytes, size_t size)
{
    int fd = open(cache_path, O_RDONLY);
    ck_assert_int_ge(fd, 0);
    ssize_t got = read(fd, bytes, size);
    close(fd);
    ck_assert_int_gt(got, 0);
    return (size_t)got;
}

static void write_file(const char *bytes, size_t size)
{
    int fd = open(cache_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, bytes, size), (ssize_t)size);
    close(fd);
}

START_TEST(pipeline_cache_is_written_at_work_and_read_in_the_next_life)
{
    struct stat status;
    live_once(new_folder, true);
    ck_assert_int_eq(stat(cache_path, &status), 0);
    ck_assert_uint_eq(status.st_mode & 0777, 0600);
    ck_assert(!logged("is ignored"));
    ck_assert(!logged("pipeline cache "));
    char beside[160], read[160];
    snprintf(read, sizeof read, "pipeline cache %s: ", cache_path);
    snprintf(beside, sizeof beside, "%s.new", cache_path); // a file of a killed daemon
    close(open(beside, O_WRONLY | O_CREAT, 0600));
    live_once(new_folder, false);
    ck_assert_int_ne(access(beside, F_OK), 0);
    ck_assert(!logged("is ignored"));
    ck_assert_msg(logged(read), "not read:\n%s", log_text);
}
END_TEST

static char good_file[1 << 20];

// Whatever is wrong with the file, the engine ignores it, says so, and replaces it.
static void expect_ignored(const char *bytes, size_t size, const char *why)
{
    forget_log();
    write_file(bytes, size);
    live_once(new_folder, false);
    ck_assert_msg(logged("is ignored") && logged(why), "'%s' is not in:\n%s", why, log_text);
    forget_log();
    live_once(new_folder, false);
    ck_assert_msg(!logged("is ignored"), "not replaced:\n%s", log_text);
}

START_TEST(spoilt_pipeline_cache_is_ignored_and_replaced)
{
    live_once(new_folder, false);
    size_t size = read_file(good_file, sizeof good_file);
    ck_assert_uint_lt(size, sizeof good_file);
    char *spoilt = malloc(size);
    memcpy(spoilt, good_file, size);
    spoilt[size - 1] ^= 0x10;
    expect_ignored(spoilt, size, "it is corrupt");
    expect_ignored(good_file, size - 1, "cut short");
    expect_ignored(good_file, 7, "cut short");
    expect_ignored("this was never a pipeline cache, whatever its name may say", 50,
                   "it is no pipeline cache");
    free(spoilt);
}
END_TEST

static void expect_why(const char *why)
{
    forget_log();
    live_once(new_folder, false);
    ck_assert_msg(logged("is ignored") && logged(why), "'%s' is not in:\n%s", why, log_text);
}

START_TEST(pipeline_cache_that_another_user_may_have_written_is_ignored)
{
    char moved[160];
    live_once(new_folder, false);
    ck_assert_int_eq(chmod(cache_path, 0620), 0);
    expect_why("other users may write to it (mode 0620)");
    snprintf(moved, sizeof moved, "%s.moved", cache_path);
    ck_assert_int_eq(rename(cache_path, moved), 0);
    ck_assert_int_eq(symlink(moved, cache_path), 0);
    expect_why("it is a symbolic link");
    unlink(moved);
    if (geteuid() != 0) // only root can give a file away
        return;
    ck_assert_int_eq(chown(cache_path, 64001, 64001), 0);
    expect_why("it belongs to user 64001, not to 0 or root");
}
END_TEST

START_TEST(pipeline_cache_is_sealed_with_a_key_that_only_its_user_can_read)
{
    static const char other_key[32] = "thirty-two bytes of another key";
    struct stat status;
    live_once(new_folder, false);
    ck_assert_int_eq(stat(key_path, &status), 0);
    ck_assert_uint_eq(status.st_mode & 07777, 0600);
    ck_assert_int_eq(chmod(key_path, 0644), 0);
    expect_why("its key, pipelines.key, is not there, or not secret");
    ck_assert_int_eq(stat(key_path, &status), 0); // made anew
    ck_assert_uint_eq(status.st_mode & 07777, 0600);
    int fd = open(key_path, O_WRONLY);
    ck_assert_int_eq(write(fd, other_key, sizeof other_key), sizeof other_key);
    close(fd);
    expect_why("was not written with the key");
}
END_TEST

START_TEST(pipeline_cache_that_cannot_be_written_stops_nothing)
{
    live_once("/proc/no/such/place", false);
    ck_assert_msg(logged("pipeline cache /proc/no/such/place/pipelines-") &&
                      logged(" is not written"),
                  "silent:\n%s", log_text);
}
END_TEST

void add_file_tests(Suite *suite)
{
    TCase *tcase = tcase_create("pipeline file");
    tcase_add_checked_fixture(tcase, setup_folder, teardown_folder);
    tcase_add_test(tcase, pipeline_cache_is_written_at_work_and_read_in_the_next_life);
    tcase_add_test(tcase, spoilt_pipeline_cache_is_ignored_and_replaced);
    tcase_add_test(tcase, pipeline_cache_that_another_user_may_have_written_is_ignored);
    tcase_add_test(tcase, pipeline_cache_is_sealed_with_a_key_that_only_its_user_can_read);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("no pipeline file");
    tcase_add_test(tcase, pipeline_cache_that_cannot_be_written_stops_nothing);
    suite_add_tcase(suite, tcase);
}
