// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_savefile.c - the file of `aule-ctl save` without a daemon: which things at its path are
// replaced, and that a process that ends while it writes leaves nothing.

#include "rigs/check_main.h"
#include "tools/ctl/savefile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/aule-savefile-XXXXXX";
static const struct savefile_identity identity = {
    .num_layers = 1, .block_size = 4, .block_bytes = 64, .name = "c"};

// savefile.c's open(), by the linker.
static bool has_nameless = true;
int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, mode_t mode);
int __wrap_open(const char *path, int flags, mode_t mode)
{
    if (has_nameless || (flags & O_TMPFILE) != O_TMPFILE)
        return __real_open(path, flags, mode);
    errno = EOPNOTSUPP;
    return -1;
}

static void begin(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
}

static int count_files(void)
{
    int count = 0;
    DIR *entries = opendir(".");
    for (struct dirent *entry; (entry = readdir(entries));)
        count += entry->d_name[0] != '.';
    closedir(entries);
    return count;
}

static void end(void)
{
    DIR *entries = opendir(".");
    for (struct dirent *entry; (entry = readdir(entries));)
        unlinkat(dirfd(entries), entry->d_name, 0);
    closedir(entries);
    rmdir(folder);
}

static bool write_file(struct savefile *file, const char *path)
{
    static const uint8_t bytes[64];
    const struct savefile_block block = {.parent = SAVEFILE_NO_PARENT, .key.num_tokens = 4};
    return savefile_create(file, path, &identity, 1) && savefile_write(file, &block, bytes);
}

static void expect_saved(const char *path, const char *target)
{
    struct savefile file;
    ck_assert_msg(write_file(&file, path) && savefile_finish(&file), "%s", file.error);
    savefile_close(&file);
    ck_assert_msg(savefile_open(&file, target), "%s", file.error);
    savefile_close(&file);
}

static void expect_refused(const char *path, mode_t type, const char *words)
{
    struct savefile file;
    struct stat there;
    ck_assert(!write_file(&file, path));
    ck_assert_msg(strstr(file.error, words), "%s", file.error);
    savefile_close(&file);
    ck_assert_int_eq(lstat(path, &there), 0);
    ck_assert_uint_eq(there.st_mode & S_IFMT, type);
    ck_assert_int_eq(count_files(), 1);
}

START_TEST(nothing_and_a_regular_file_are_replaced)
{
    expect_saved("new", "new");
    expect_saved("new", "new");
    ck_assert_int_eq(count_files(), 1);
}
END_TEST

START_TEST(a_fifo_is_not_replaced)
{
    ck_assert_int_eq(mkfifo("there", 0600), 0);
    expect_refused("there", S_IFIFO, "there is no regular file");
}
END_TEST

START_TEST(a_socket_is_not_replaced)
{
    const struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "there"};
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    expect_refused("there", S_IFSOCK, "there is no regular file");
}
END_TEST

START_TEST(a_symlink_stays_and_its_target_is_replaced)
{
    struct stat there;
    expect_saved("target", "target");
    ck_assert_int_eq(truncate("target", 0), 0);
    ck_assert_int_eq(symlink("target", "link"), 0);
    expect_saved("link", "target");
    ck_assert_int_eq(lstat("link", &there), 0);
    ck_assert(S_ISLNK(there.st_mode));
    ck_assert_int_eq(count_files(), 2);
}
END_TEST

START_TEST(a_symlink_to_nothing_or_to_a_device_is_refused)
{
    ck_assert_int_eq(symlink("nowhere", "link"), 0);
    expect_refused("link", S_IFLNK, "is a symlink to a file that does not exist");
    ck_assert_int_eq(unlink("link"), 0);
    ck_assert_int_eq(mkdir("folder", 0700), 0);
    ck_assert_int_eq(symlink("folder", "link"), 0);
    struct savefile file;
    ck_assert(!write_file(&file, "link"));
    savefile_close(&file);
    ck_assert_int_eq(rmdir("folder"), 0);
}
END_TEST

// A process that writes a file and ends by signal `number`.
static void expect_nothing_left(int number)
{
    int status;
    fflush(NULL);
    const pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct savefile file;
        signal(number, SIG_DFL); // Check's own would end the parent, too
        if (write_file(&file, "new"))
            raise(number);
        _exit(1);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status));
    ck_assert_int_eq(WTERMSIG(status), number);
    ck_assert_int_eq(count_files(), 0);
}

START_TEST(an_interrupted_save_leaves_nothing)
{
    static const int numbers[] = {SIGHUP, SIGINT, SIGPIPE, SIGTERM, SIGKILL};
    const int nameless = open(".", O_TMPFILE | O_WRONLY, 0600); // else SIGKILL leaves the part
    for (int i = 0; i < (nameless < 0 ? 4 : 5); i++)
        expect_nothing_left(numbers[i]);
}
END_TEST

START_TEST(an_interrupted_save_leaves_nothing_on_a_file_system_without_nameless_files)
{
    has_nameless = false;
    expect_nothing_left(SIGINT);
    expect_nothing_left(SIGTERM);
    expect_saved("new", "new");
    ck_assert_int_eq(count_files(), 1);
}
END_TEST

// Such as that of another process, in a container with the same folder, or one that it left.
static void make_file_of_other(int pid)
{
    char name[64];
    snprintf(name, sizeof name, "new.part-%d", pid);
    close(open(name, O_CREAT | O_EXCL | O_WRONLY, 0600));
    snprintf(name, sizeof name, "new.part-%d-0", pid);
    close(open(name, O_CREAT | O_EXCL | O_WRONLY, 0600));
    ck_assert_int_ge(count_files(), 2);
}

START_TEST(a_file_that_has_the_unfinished_name_already_stays)
{
    struct savefile file;
    has_nameless = _i == 0;
    make_file_of_other(getpid());
    ck_assert_msg(write_file(&file, "new"), "%s", file.error);
    savefile_close(&file); // as after a failure
    ck_assert_int_eq(count_files(), 2);
    expect_saved("new", "new");
    ck_assert_int_eq(count_files(), 3);
}
END_TEST

START_TEST(an_interrupted_save_leaves_the_file_of_another_process)
{
    int status;
    has_nameless = _i == 0;
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        struct savefile file;
        signal(SIGTERM, SIG_DFL);
        make_file_of_other(getpid());
        if (write_file(&file, "new"))
            raise(SIGTERM);
        _exit(1);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status));
    ck_assert_int_eq(count_files(), 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("savefile");
    check_case(
        suite, "savefile", begin, end,
        (const TTest *const[]){
            nothing_and_a_regular_file_are_replaced, a_fifo_is_not_replaced,
            a_socket_is_not_replaced, a_symlink_stays_and_its_target_is_replaced,
            a_symlink_to_nothing_or_to_a_device_is_refused, an_interrupted_save_leaves_nothing,
            an_interrupted_save_leaves_nothing_on_a_file_system_without_nameless_files, NULL},
        1);
    check_case(suite, "another process", begin, end,
               (const TTest *const[]){a_file_that_has_the_unfinished_name_already_stays,
                                      an_interrupted_save_leaves_the_file_of_another_process, NULL},
               2);
    return check_main(suite);
}
