// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_file.c - files that are replaced as a whole (engine/file.c): left-overs of a killed process,
// what is no file, and another process that writes the same file.

#include "engine/file.h"
#include "rigs/check_main.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/aule-file-XXXXXX", path[64], beside[80];
static const struct iovec mine = {(void *)"mine", 4};

static void setup(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(beside, sizeof beside, "%s.new", path);
}

static void teardown(void)
{
    unlink(path);
    ck_assert_msg(rmdir(folder) == 0, "something was left in %s", folder);
}

static void write_raw(const char *at, const char *words)
{
    int fd = open(at, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, words, strlen(words)), (ssize_t)strlen(words));
    close(fd);
}

static void expect_contents(const char *words)
{
    char *data;
    size_t size;
    struct error error;
    ck_assert_int_eq(file_read(path, 1 << 10, &data, &size, &error), STATUS_OK);
    ck_assert_str_eq(data, words);
    free(data);
}

START_TEST(a_temporary_file_of_a_killed_process_is_reused_or_removed)
{
    struct error error;
    write_raw(beside, "more than what is to be written, and only a part of what it was to be");
    ck_assert_int_eq(file_replace(path, &mine, 1, &error), STATUS_OK);
    ck_assert_int_eq(access(beside, F_OK), -1);
    expect_contents("mine");
    write_raw(beside, "a part");
    file_sweep(path);
    ck_assert_int_eq(access(beside, F_OK), -1);
    ck_assert_int_eq(access(path, F_OK), 0);
}
END_TEST

START_TEST(what_is_no_file_is_not_replaced)
{
    struct stat there;
    struct error error;
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(file_replace(path, &mine, 1, &error), STATUS_LIMIT);
    ck_assert_str_eq(error.text, "it is no file");
    ck_assert_int_eq(lstat(path, &there), 0);
    ck_assert(S_ISFIFO(there.st_mode));
}
END_TEST

START_TEST(a_file_that_another_is_writing_is_left_alone)
{
    struct error error;
    write_raw(beside, "theirs");
    int theirs = open(beside, O_RDONLY);
    ck_assert_int_eq(flock(theirs, LOCK_EX), 0);
    ck_assert_int_ne(file_replace(path, &mine, 1, &error), STATUS_OK);
    file_sweep(path);
    ck_assert_int_eq(rename(beside, path), 0); // as the other one does at last
    close(theirs);
    expect_contents("theirs");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("file");
    TCase *tcase = tcase_create("replace");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, a_temporary_file_of_a_killed_process_is_reused_or_removed);
    tcase_add_test(tcase, what_is_no_file_is_not_replaced);
    tcase_add_test(tcase, a_file_that_another_is_writing_is_left_alone);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
