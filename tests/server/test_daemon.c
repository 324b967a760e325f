// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_daemon.c - the life of a real aule-daemon from outside: how it starts, listens and ends, the
// options that it accepts and refuses, and that it sleeps when idle. Other suites:
// test_daemon_work.c, _leases, _ends, _limits, _commands, _refused, _connections, _hostile, _ring.

#include "base/exit_code.h"
#include "rigs/check_main.h"
#include "rigs/daemon_step.h"
#include "rigs/daemon_suite.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

START_TEST(starts_serves_and_leaves_nothing_behind)
{
    start(NULL);
    struct raw_client *raw = raw_open(daemon_.socket);
    struct wire_reply reply;
    raw_call(raw, &(struct wire_request){.command = WIRE_COMMAND_PING, .ping = {42}}, &reply);
    ck_assert_int_eq(reply.status, STATUS_OK);
    ck_assert_uint_eq(reply.ping.payload, 42);
    ck_assert_uint_ne(reply.ping.epoch, 0);
    ck_assert_str_eq(reply.ping.version, AULE_VERSION_STRING);
    raw_attach(raw, ARENA);
    ck_assert_uint_eq(raw->epoch, reply.ping.epoch ? raw->epoch : 0);
    ck_assert_int_eq(daemon_count_segments(&daemon_), 0); // mapped, so its name is gone
    stop_clean();
    raw_close(raw);
    char lock[128];
    snprintf(lock, sizeof lock, "%s.lock", daemon_.socket);
    ck_assert_int_eq(access(lock, F_OK), -1);
    ck_assert(daemon_log_contains(&daemon_, "ready: "));
    ck_assert(daemon_log_contains(&daemon_, daemon_.socket));
}
END_TEST

START_TEST(the_socket_is_private)
{
    struct stat info;
    start(NULL);
    ck_assert_int_eq(stat(daemon_.socket, &info), 0);
    ck_assert(S_ISSOCK(info.st_mode));
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
    stop_clean();
}
END_TEST

START_TEST(without_options_the_best_device_listens_where_clients_look)
{
    ck_assert(daemon_init(&daemon_));
    daemon_.by_rule = true;
    ck_assert(daemon_start(&daemon_, NULL));
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(a_second_daemon_on_the_same_socket_is_refused_with_a_sentence)
{
    struct daemon second;
    char pid[32];
    start(NULL);
    ck_assert(daemon_init(&second));
    ck_assert(!daemon_start(&second, (const char *const[]){"--socket", daemon_.socket, NULL}));
    ck_assert_int_eq(second.exit_code, 1);
    snprintf(pid, sizeof pid, "(pid %d)", (int)daemon_.pid);
    ck_assert(daemon_log_contains(&second, "another aule-daemon"));
    ck_assert(daemon_log_contains(&second, pid));
    daemon_finish(&second);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA); // the first one did not notice
    raw_close(raw);
    stop_clean();
}
END_TEST

// A start script that clears the folder although the daemon runs.
static void clear_place(void)
{
    static const char *const suffixes[] = {"", ".bell", ".control", ".export", ".lock"};
    char path[128];
    for (int i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s%s", daemon_.socket, suffixes[i]);
        unlink(path);
    }
}

static bool is_there(const char *suffix)
{
    char path[128];
    snprintf(path, sizeof path, "%s%s", daemon_.socket, suffix);
    return access(path, F_OK) == 0;
}

// `_i` 1: by two signals, the second of which ends it at once.
START_TEST(the_end_of_a_daemon_leaves_the_files_of_the_next_one)
{
    struct daemon next;
    struct wire_reply reply;
    start(NULL);
    clear_place();
    ck_assert(daemon_init(&next));
    memcpy(next.socket, daemon_.socket, sizeof next.socket);
    ck_assert(daemon_start(&next, NULL));
    const bool exports = is_there(".export");
    struct raw_client *waiting = raw_open(next.socket);
    raw_hello(waiting, ARENA, &reply); // its segment keeps its name
    ck_assert_int_eq(reply.status, STATUS_OK);
    for (int i = 0; i < 1 + _i; i++)
        kill(daemon_.pid, SIGTERM);
    ck_assert(daemon_wait(&daemon_, DEADLINE_S));
    ck_assert_int_eq(daemon_count_segments(&next), 1);
    ck_assert(is_there("") && is_there(".bell") && is_there(".control") && is_there(".lock"));
    ck_assert_int_eq(is_there(".export"), exports);
    raw_close(waiting);
    raw_close(raw_session(next.socket, ARENA));
    ck_assert_int_eq(daemon_stop(&next), 0);
    ck_assert(!is_there("") && !is_there(".bell") && !is_there(".lock"));
    ck_assert(!is_there(".control") && !is_there(".export"));
    ck_assert_int_eq(daemon_count_segments(&next), 0);
    daemon_finish(&next);
}
END_TEST

START_TEST(the_next_daemon_removes_the_files_of_a_killed_one)
{
    struct wire_reply reply;
    start(NULL);
    struct raw_client *raw = raw_open(daemon_.socket);
    raw_hello(raw, ARENA, &reply); // it never sends Mapped, so its segment keeps its name
    ck_assert_int_eq(reply.status, STATUS_OK);
    uint64_t epoch = raw->epoch;
    ck_assert_int_eq(daemon_count_segments(&daemon_), 1);
    daemon_kill(&daemon_);
    raw_close(raw);
    ck_assert_int_eq(access(daemon_.socket, F_OK), 0);
    struct daemon other; // at another socket; daemons of other tests sweep, too
    ck_assert(daemon_launch(&other, NULL));
    ck_assert_int_eq(daemon_count_segments(&daemon_), 0);
    ck_assert_int_eq(daemon_end(&other), 0);
    ck_assert(daemon_start(&daemon_, NULL));
    raw = raw_session(daemon_.socket, ARENA);
    ck_assert_uint_ne(raw->epoch, epoch);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(a_regular_file_at_the_path_is_refused_and_stays)
{
    ck_assert(daemon_init(&daemon_));
    int fd = open(daemon_.socket, O_WRONLY | O_CREAT | O_EXCL, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, "precious", 8), 8);
    close(fd);
    ck_assert(!daemon_start(&daemon_, NULL));
    ck_assert_int_eq(daemon_.exit_code, 1);
    ck_assert(daemon_log_contains(&daemon_, "is not a socket"));
    struct stat info;
    ck_assert_int_eq(stat(daemon_.socket, &info), 0);
    ck_assert_int_eq(info.st_size, 8);
}
END_TEST

static const struct {
    const char *folder, *why;
} bad_cache_folders[] = {{"/nowhere/at/all", "No such file or directory"},
                         {"/dev/null", "Not a directory"},
                         {"/tmp", "other users may write to it (mode 1777)"}};
enum { NUM_BAD_CACHE_FOLDERS = sizeof bad_cache_folders / sizeof bad_cache_folders[0] };

START_TEST(a_folder_that_cannot_be_written_is_reported_at_once_and_not_used)
{
    char sentence[128];
    start((const char *const[]){"--cache-folder", bad_cache_folders[_i].folder, NULL});
    snprintf(sentence, sizeof sentence, "no folder at %s: %s", bad_cache_folders[_i].folder,
             bad_cache_folders[_i].why);
    ck_assert_msg(daemon_log_contains(&daemon_, sentence), "%s", sentence);
    stop_clean();
}
END_TEST

// Others could put a folder of theirs at the path. A symlink to it hides nothing.
START_TEST(a_folder_that_others_can_exchange_is_not_used_and_a_sticky_one_will_do)
{
    char above[96], folder[128], link[128], sentence[256];
    ck_assert(daemon_init(&daemon_));
    snprintf(above, sizeof above, "%s/above", daemon_.folder);
    snprintf(folder, sizeof folder, "%s/kept", above);
    snprintf(link, sizeof link, "%s/link", daemon_.folder);
    ck_assert_int_eq(mkdir(above, 0700), 0);
    ck_assert_int_eq(symlink(folder, link), 0);
    ck_assert_int_eq(chmod(above, 0777), 0);
    const char *const options[][3] = {{"--cache-folder", folder, NULL},
                                      {"--cache-folder", link, NULL}};
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    for (int i = 0; i < 2; i++) {
        ck_assert(daemon_start(&daemon_, options[i]));
        snprintf(sentence, sizeof sentence,
                 "no folder at %s: other users may write to %s (mode 0777)", options[i][1], above);
        ck_assert_msg(daemon_log_contains(&daemon_, sentence), "%s", sentence);
        stop_clean();
    }
    ck_assert_int_eq(chmod(above, 01777), 0);
    ck_assert(daemon_start(&daemon_, options[1]));
    stop_clean();
    char *text = daemon_log_text(&daemon_);
    ck_assert_ptr_null(strstr(text + daemon_.log_old, "no folder at"));
    free(text);
}
END_TEST

struct refused {
    const char *options[5];
    const char *sentence;
};
static const struct refused bad_options[] = {
    {{"--max-sessions", "0"}, "--max-sessions \"0\""},
    {{"--max-pipelines", "0"}, "--max-pipelines \"0\""},
    {{"--max-sessions", "many"}, "--max-sessions \"many\""},
    {{"--max-sessions", "-1"}, "--max-sessions \"-1\""},
    {{"--max-arena", "99999999999G"}, "--max-arena \"99999999999G\""},
    {{"--memory-fraction", "1.5"}, "--memory-fraction \"1.5\""},
    {{"--memory-fraction", "nan"}, "--memory-fraction \"nan\""},
    {{"--log-level", "loud"}, "--log-level \"loud\" is none of error, warn, info and debug"},
    {{"--idle-timeout", "0"}, "--idle-timeout \"0\" is not a whole number from 1 to 2147483647"},
    {{"--idle-timeout", "4294967296"}, "--idle-timeout \"4294967296\""},
    {{"--drain-timeout"}, "--drain-timeout needs a value"},
    {{"--validation=yes"}, "--validation takes no value"},
    {{"--frobnicate"}, "--frobnicate is no option"},
    {{"--ring-entries", "48"}, "--ring-entries \"48\" is not a power of two"},
    {{"somewhere"}, "\"somewhere\" is no option"},
    {{"--tenant", "team"}, "--tenant \"team\": it does not begin with NAME="},
    {{"--tenant", "a/b=uid:1"}, "a name has neither : nor /"},
    {{"--tenant", "a=gid:x"}, "\"gid:x\" has no number from 0 to 4294967294 behind the colon"},
    {{"--tenant", "a=uid:1,bloks:3"}, "\"bloks:3\" is none of uid:N, gid:N, blocks:N"},
    {{"--tenant", "a=blocks:3"}, "it names no user: it needs uid:N or gid:N"},
    {{"--tenant", "a=uid:1", "--tenant", "a=uid:2"}, "an earlier --tenant has this name"},
    {{"--tenant", "*=floor:1", "--tenant", "*=floor:2"}, "an earlier --tenant has this name"},
    {{"--tenant", "*=uid:1"},
     "\"uid:1\" is none of blocks:N, cached:N and floor:N; \"*\" takes no"},
    {{"--tenant", "*=sessions:1"}, "\"sessions:1\" is none of blocks:N, cached:N and floor:N"},
    {{"--tenant", "*=cached:1,floor:2"},
     "--tenant \"*=cached:1,floor:2\": floor:2 exceeds cached:1"},
    {{"--host-tier", "0", "--tier", "files:///tmp"}, "but --host-tier is 0"},
    {{"--tier", "ftp://x"}, "--tier 1 does not begin with one of: redis://, rediss://, files://"},
    {{"--tier", "files://relative"}, "--tier 1: files://relative: the path must begin with /"},
    {{"--require-gpu", "-1"}, "--require-gpu \"-1\""},
};
enum { NUM_BAD_OPTIONS = sizeof bad_options / sizeof bad_options[0] };

static void *interrupt_the_wait(void *unused)
{
    while (!daemon_log_contains_now(&daemon_, "it waits up to 86400 s for one"))
        nap();
    kill(daemon_.pid, SIGTERM);
    return unused;
}

START_TEST(a_daemon_that_must_have_a_gpu_refuses_the_cpu_and_a_signal_ends_its_wait)
{
    ck_assert(daemon_init(&daemon_));
    if (daemon_start(&daemon_, (const char *const[]){"--require-gpu", "0", NULL})) {
        stop_clean(); // this machine has one
        return;
    }
    ck_assert_int_eq(daemon_.exit_code, 1);
    ck_assert(daemon_log_contains(&daemon_, "runs on the CPU, and --require-gpu asks for a GPU"));
    pthread_t thread;
    daemon_.pid = -1;
    ck_assert_int_eq(pthread_create(&thread, NULL, interrupt_the_wait, NULL), 0);
    ck_assert(!daemon_start(&daemon_, (const char *const[]){"--require-gpu", "86400", NULL}));
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(daemon_.exit_code, 0);
}
END_TEST

START_TEST(a_second_daemon_on_one_device_names_the_first)
{
    struct daemon second;
    char sentence[64];
    start(NULL);
    ck_assert(daemon_launch(&second, NULL));
    snprintf(sentence, sizeof sentence, "aule-daemon, too (pid %d)", (int)daemon_.pid);
    ck_assert(daemon_log_contains(&second, sentence));
    ck_assert_int_eq(daemon_end(&second), 0);
    stop_clean();
}
END_TEST

// An option that names something that does not exist.
static const struct refused not_had[] = {
    {{"--socket", "/nowhere/at/all/0.sock"}, "/nowhere/at/all"},
    {{"--socket", "/nowhere/at/all/"},
     "--socket \"/nowhere/at/all/\" names a folder; name a file in it"},
    {{"--socket", "/tmp"}, "/tmp is a folder; name a file in it, as /tmp/0.sock"},
    {{"--device", "no such device"}, "no such device"},
};
enum { NUM_NOT_HAD = sizeof not_had / sizeof not_had[0] };

static void expect_refused(const struct refused *refused, enum exit_code code)
{
    ck_assert(daemon_init(&daemon_));
    ck_assert(!daemon_start(&daemon_, refused->options));
    ck_assert_int_eq(daemon_.exit_code, code);
    ck_assert_msg(daemon_log_contains(&daemon_, refused->sentence), "%s", refused->sentence);
}

START_TEST(a_bad_option_is_refused_with_its_value)
{
    expect_refused(&bad_options[_i], EXIT_CODE_USAGE);
}
END_TEST

START_TEST(a_place_or_device_that_is_not_to_be_had_is_named)
{
    expect_refused(&not_had[_i], EXIT_CODE_FAILED);
}
END_TEST

START_TEST(a_socket_path_beyond_99_bytes_is_refused)
{
    char path[256];
    ck_assert(daemon_init(&daemon_));
    snprintf(path, sizeof path, "%s/%0100d", daemon_.folder, 0);
    ck_assert(!daemon_start(&daemon_, (const char *const[]){"--socket", path, NULL}));
    ck_assert_int_eq(daemon_.exit_code, 1);
    ck_assert(daemon_log_contains(&daemon_, "at most 99 fit"));
}
END_TEST

START_TEST(information_options_end_0)
{
    static const char *const words[] = {"--help", "-h", "--version", "--list-devices"};
    static const char *const said[] = {"--max-sessions N", "--max-sessions N", AULE_VERSION_STRING,
                                       "0.sock, the default"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        ck_assert(daemon_init(&daemon_));
        ck_assert(!daemon_start(&daemon_, (const char *const[]){words[i], NULL}));
        ck_assert_int_eq(daemon_.exit_code, 0);
        ck_assert_msg(daemon_log_contains(&daemon_, said[i]), "%s", words[i]);
        daemon_finish(&daemon_);
    }
}
END_TEST

START_TEST(a_second_signal_ends_at_once_and_clean)
{
    struct wire_reply reply;
    start(NULL);
    struct raw_client *raw = raw_open(daemon_.socket);
    raw_hello(raw, ARENA, &reply);
    ck_assert_int_eq(daemon_count_segments(&daemon_), 1);
    kill(daemon_.pid, SIGINT);
    kill(daemon_.pid, SIGTERM);
    ck_assert(daemon_wait(&daemon_, DEADLINE_S));
    ck_assert_int_eq(daemon_.exit_code, 0);
    ck_assert_int_eq(access(daemon_.socket, F_OK), -1);
    ck_assert_int_eq(daemon_count_segments(&daemon_), 0);
    raw_close(raw);
}
END_TEST

START_TEST(hangup_signal_changes_nothing)
{
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    kill(daemon_.pid, SIGHUP);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_PING}, STATUS_OK);
    raw_close(raw);
    stop_clean();
}
END_TEST

// Counts the context switches of the threads that the process has now.
static int64_t count_switches(pid_t pid)
{
    char path[64], line[256];
    int64_t sum = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    ck_assert_ptr_nonnull(tasks);
    for (struct dirent *task; (task = readdir(tasks));) {
        char file[384];
        snprintf(file, sizeof file, "%s/%s/status", path, task->d_name);
        FILE *status = task->d_name[0] == '.' ? NULL : fopen(file, "re");
        long long count;
        while (status && fgets(line, sizeof line, status)) {
            if (sscanf(line, "voluntary_ctxt_switches: %lld", &count) == 1)
                sum += count;
        }
        if (status)
            fclose(status);
    }
    closedir(tasks);
    return sum;
}

START_TEST(an_idle_daemon_sleeps)
{
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "idle");
    do_step(raw, cache, 1);
    int64_t switches = INT64_MAX;
    for (int i = 0; i < DEADLINE_S / 3 && switches >= 60;
         i++) { // work from the start may continue for a while
        const int64_t before = count_switches(daemon_.pid);
        sleep(3);
        switches = count_switches(daemon_.pid) - before;
    }
    ck_assert_int_lt(switches, 60); // a loop that polls every 10 ms would have 300
    raw_close(raw);
    stop_clean();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("daemon");
    suite_add(suite, "life",
              (const TTest *const[]){
                  starts_serves_and_leaves_nothing_behind,
                  without_options_the_best_device_listens_where_clients_look, the_socket_is_private,
                  a_second_daemon_on_the_same_socket_is_refused_with_a_sentence,
                  the_next_daemon_removes_the_files_of_a_killed_one,
                  a_regular_file_at_the_path_is_refused_and_stays,
                  a_socket_path_beyond_99_bytes_is_refused, information_options_end_0,
                  a_second_signal_ends_at_once_and_clean, hangup_signal_changes_nothing,
                  an_idle_daemon_sleeps, NULL},
              1);
    suite_add(suite, "two at one place",
              (const TTest *const[]){the_end_of_a_daemon_leaves_the_files_of_the_next_one, NULL},
              2);
    suite_add(suite, "device",
              (const TTest *const[]){
                  a_daemon_that_must_have_a_gpu_refuses_the_cpu_and_a_signal_ends_its_wait,
                  a_second_daemon_on_one_device_names_the_first, NULL},
              1);
    suite_add(suite, "bad options",
              (const TTest *const[]){a_bad_option_is_refused_with_its_value, NULL},
              NUM_BAD_OPTIONS);
    suite_add(suite, "not to be had",
              (const TTest *const[]){a_place_or_device_that_is_not_to_be_had_is_named, NULL},
              NUM_NOT_HAD);
    suite_add(suite, "cache folder",
              (const TTest *const[]){
                  a_folder_that_cannot_be_written_is_reported_at_once_and_not_used, NULL},
              NUM_BAD_CACHE_FOLDERS);
    suite_add(suite, "above the cache folder",
              (const TTest *const[]){
                  a_folder_that_others_can_exchange_is_not_used_and_a_sticky_one_will_do, NULL},
              1);
    return check_main(suite);
}
