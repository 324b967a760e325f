// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// daemon_harness.c - see daemon_harness.h. The daemon's own READY=1 datagram says that it is ready,
// so nothing polls the socket.

#include "daemon_harness.h"

#include "base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef AULE_DAEMON_PATH
#error "AULE_DAEMON_PATH: the path of the built aule-daemon, from tests/server/daemon.cmake"
#endif

enum { MAX_ARGUMENTS = 64 };

static double seconds_now(void)
{
    return (double)clock_now_ns() * 1e-9;
}

static bool complain(const char *what)
{
    fprintf(stderr, "daemon_harness: %s: %s\n", what, strerror(errno));
    return false;
}

// Whether daemons run under the validation layer, which must then report nothing. The build decides
// this for each suite.
static bool validation_wanted(void)
{
    const char *text = getenv("AULE_TEST_VALIDATION");
    return text && strcmp(text, "1") == 0;
}

static bool open_notify(struct daemon *daemon)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", daemon->notify);
    daemon->notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (daemon->notify_fd < 0)
        return complain("socket");
    if (bind(daemon->notify_fd, (struct sockaddr *)&address, sizeof address) != 0)
        return complain(daemon->notify);
    return true;
}

bool daemon_init(struct daemon *daemon)
{
    *daemon = (struct daemon){.pid = -1, .notify_fd = -1};
    snprintf(daemon->folder, sizeof daemon->folder, "/tmp/aule-test-XXXXXX");
    if (!mkdtemp(daemon->folder)) {
        daemon->folder[0] = 0;
        return complain("mkdtemp");
    }
    snprintf(daemon->socket, sizeof daemon->socket, "%s/0.sock", daemon->folder);
    snprintf(daemon->log, sizeof daemon->log, "%s/log", daemon->folder);
    snprintf(daemon->notify, sizeof daemon->notify, "%s/notify", daemon->folder);
    return open_notify(daemon);
}

// In the child.
static void direct_output(const struct daemon *daemon)
{
    if (daemon->output_fd < 0) {
        close_range(STDIN_FILENO, STDERR_FILENO, 0);
        return;
    }
    int log = daemon->output_fd;
    if (log == 0)
        log = open(daemon->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log < 0 || dup2(log, STDOUT_FILENO) < 0 || dup2(log, STDERR_FILENO) < 0)
        _exit(126);
}

// In the child: never returns.
static void become_daemon(const struct daemon *daemon, const char *const *options, pid_t parent)
{
    const char *arguments[MAX_ARGUMENTS] = {AULE_DAEMON_PATH, "--cache-folder", "none",
                                            "--log-level", "debug"};
    size_t count = 5;
    if (validation_wanted())
        arguments[count++] = "--validation";
    if (!daemon->by_rule) {
        arguments[count++] = "--socket";
        arguments[count++] = daemon->socket;
    }
    const char *ring_entries = getenv("AULE_TEST_RING_ENTRIES"); // aule_lanes() of the build
    if (ring_entries) {
        arguments[count++] = "--ring-entries";
        arguments[count++] = ring_entries;
    }
    const char *program = daemon->corrupt ? AULE_DAEMON_CORRUPT_PATH : AULE_DAEMON_PATH;
    for (size_t i = 0; options && options[i] && count + 1 < MAX_ARGUMENTS; i++) {
        if (strcmp(options[i], DAEMON_STAGED) == 0)
            program = AULE_DAEMON_STAGED_PATH;
        else
            arguments[count++] = options[i];
    }
    arguments[count] = NULL;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent && getppid() != 0) // 0: this is the first process of a pid namespace
        _exit(126);
    direct_output(daemon);
    const struct rlimit limit = {daemon->limit, daemon->limit};
    if (daemon->has_limit && setrlimit((__rlimit_resource_t)daemon->resource, &limit) != 0)
        _exit(126);
    setenv("NOTIFY_SOCKET", daemon->notify, 1);
    if (daemon->by_rule)
        setenv("AULE_RUNTIME_DIR", daemon->folder, 1);
    execv(program, (char *const *)(const void *)arguments);
    dprintf(STDERR_FILENO, "%s: %s\n", program, strerror(errno));
    _exit(127);
}

// True: READY=1 arrived. False: the deadline passed, or the daemon ended.
static bool wait_ready(struct daemon *daemon)
{
    double deadline = seconds_now() + DAEMON_DEADLINE_S;
    while (seconds_now() < deadline) {
        struct pollfd ready = {.fd = daemon->notify_fd, .events = POLLIN};
        char text[256];
        if (poll(&ready, 1, 50) > 0) {
            ssize_t size = recv(daemon->notify_fd, text, sizeof text - 1, 0);
            text[size < 0 ? 0 : size] = 0;
            if (strstr(text, "READY=1"))
                return true;
        }
        if (daemon_wait(daemon, 0))
            return false;
    }
    return false;
}

bool daemon_start(struct daemon *daemon, const char *const *options)
{
    char stale[256];
    while (recv(daemon->notify_fd, stale, sizeof stale, MSG_DONTWAIT) >= 0)
        ; // of an earlier run
    struct stat log;
    daemon->log_old = stat(daemon->log, &log) == 0 ? (size_t)log.st_size : 0;
    daemon->validated = false;
    pid_t parent = getpid();
    fflush(NULL);
    daemon->pid = fork();
    if (daemon->pid < 0)
        return complain("fork");
    if (daemon->pid == 0)
        become_daemon(daemon, options, parent);
    if (wait_ready(daemon)) {
        daemon->validated = validation_wanted();
        return true;
    }
    daemon_kill(daemon);
    return false;
}

bool daemon_launch(struct daemon *daemon, const char *const *options)
{
    if (daemon_init(daemon) && daemon_start(daemon, options))
        return true;
    char *text = daemon_log_text(daemon);
    fprintf(stderr, "daemon_harness: aule-daemon did not start (%d); its log:\n%s",
            daemon->exit_code, text ? text : "");
    free(text);
    return false;
}

// Whether the daemon's last run had no message of the validation layer; if it had, the log goes to
// stderr. A second signal ends a daemon before it prints the number. Then its log must have no
// message.
static bool layer_was_silent(const struct daemon *daemon)
{
    char *text = daemon_log_text(daemon);
    const char *life = text && strlen(text) >= daemon->log_old ? text + daemon->log_old : "";
    bool silent = strstr(life, "a second signal: ends without draining")
                      ? !strstr(life, "validation:")
                      : strstr(life, "validation: 0 messages\n") != NULL;
    if (!silent)
        fprintf(stderr, "daemon_harness: the validation layer was not silent to the end:\n%s",
                text ? text : "");
    free(text);
    return silent;
}

static void set_exit_code(struct daemon *daemon, int status)
{
    daemon->exit_code = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    daemon->pid = -1;
    if (daemon->exit_code == 0 && daemon->validated && !layer_was_silent(daemon))
        daemon->exit_code = DAEMON_SPOKE;
}

bool daemon_wait(struct daemon *daemon, int seconds)
{
    if (daemon->pid < 0)
        return true;
    double deadline = seconds_now() + seconds;
    for (;;) {
        int status;
        if (waitpid(daemon->pid, &status, WNOHANG) == daemon->pid) {
            set_exit_code(daemon, status);
            return true;
        }
        if (seconds_now() >= deadline)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = 5 * 1000 * 1000}, NULL);
    }
}

int daemon_stop(struct daemon *daemon)
{
    if (daemon->pid < 0)
        return daemon->exit_code;
    kill(daemon->pid, SIGTERM);
    if (!daemon_wait(daemon, DAEMON_DEADLINE_S))
        daemon_kill(daemon);
    return daemon->exit_code;
}

void daemon_kill(struct daemon *daemon)
{
    if (daemon->pid < 0)
        return;
    int status;
    kill(daemon->pid, SIGKILL);
    if (waitpid(daemon->pid, &status, 0) == daemon->pid)
        set_exit_code(daemon, status);
    daemon->pid = -1;
}

char *daemon_log_text(const struct daemon *daemon)
{
    FILE *file = fopen(daemon->log, "re");
    if (!file)
        return strdup("");
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    for (int c; memory && (c = getc(file)) != EOF;)
        putc(c, memory);
    fclose(file);
    if (memory)
        fclose(memory);
    return text;
}

bool daemon_log_contains_now(const struct daemon *daemon, const char *text)
{
    char *log = daemon_log_text(daemon);
    bool found = log && strstr(log, text);
    free(log);
    return found;
}

bool daemon_log_contains(const struct daemon *daemon, const char *text)
{
    bool found = daemon_log_contains_now(daemon, text);
    const int64_t deadline_ns = clock_now_ns() + 2 * NS_PER_S;
    while (!found && daemon->pid > 0 && clock_now_ns() < deadline_ns) {
        nanosleep(&(struct timespec){.tv_nsec = 5 * NS_PER_MS}, NULL);
        found = daemon_log_contains_now(daemon, text);
    }
    return found;
}

// Whether the log names the segment's prefix, "aule-EPOCH-": a daemon of this socket has made it.
static bool is_of(const char *log, const char *name)
{
    char prefix[64];
    snprintf(prefix, sizeof prefix, "its segments are %.22s*", name);
    return strncmp(name, "aule-", strlen("aule-")) == 0 && log && strstr(log, prefix);
}

// Returns how many there are; -1: the folder cannot be read.
static int each_segment(const struct daemon *daemon, bool remove_them)
{
    DIR *entries = opendir("/dev/shm");
    if (!entries)
        return -1;
    char *log = daemon_log_text(daemon);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(entries));) {
        if (!is_of(log, entry->d_name))
            continue;
        count++;
        if (remove_them)
            unlinkat(dirfd(entries), entry->d_name, 0);
    }
    free(log);
    closedir(entries);
    return count;
}

int daemon_count_segments(const struct daemon *daemon)
{
    return each_segment(daemon, false);
}

// The folder has no sub-folders: sockets, lock, log, and files of the test.
static void remove_folder(const char *folder)
{
    DIR *entries = opendir(folder);
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        unlinkat(dirfd(entries), entry->d_name, 0);
    if (entries)
        closedir(entries);
    rmdir(folder);
}

void daemon_finish(struct daemon *daemon)
{
    if (!daemon->folder[0])
        return;
    daemon_kill(daemon);
    if (daemon->notify_fd >= 0)
        close(daemon->notify_fd);
    each_segment(daemon, true); // of a killed daemon: no later start with this path would remove
                                // them
    remove_folder(daemon->folder);
    *daemon = (struct daemon){.pid = -1, .notify_fd = -1};
}

int daemon_end(struct daemon *daemon)
{
    int code = daemon->pid > 0 ? daemon_stop(daemon) : 0;
    char *log = code == 0 ? NULL : daemon_log_text(daemon);
    if (log)
        fprintf(stderr, "%s", log);
    free(log);
    daemon_finish(daemon);
    return code;
}

void daemon_end_shared(struct daemon *daemon)
{
    int code = daemon_end(daemon);
    if (code == 0)
        return;
    fprintf(stderr, "the daemon that the tests shared ended with %d\n", code);
    exit(EXIT_FAILURE);
}
