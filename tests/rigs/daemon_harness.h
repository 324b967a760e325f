// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// daemon_harness.h - starts and stops a real aule-daemon in a temporary folder, for process tests.
// It knows nothing of nng or of the protocol. It never asserts: a caller checks results, and prints
// daemon_log_text() after a failure. Each struct daemon belongs to one thread. Link the CMake
// target daemon_harness, which also builds aule-daemon.

#ifndef AULE_TESTS_DAEMON_HARNESS_H
#define AULE_TESTS_DAEMON_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct daemon {
    pid_t pid;       // -1 = not running
    char folder[64]; // made by daemon_init(), mode 0700; removed by daemon_finish()
    char socket[96]; // FOLDER/0.sock: for --socket, $AULE_SOCKET, struct aule_session_params
    char log[96];    // FOLDER/log: stdout and stderr of the daemon, of all its runs
    char notify[96]; // FOLDER/notify: the datagram socket that receives READY=1
    int notify_fd;   // owned
    bool corrupt;    // set by the test: aule-daemon-corrupt, which corrupts a block
    bool by_rule;   // set by the test: no --socket, but AULE_RUNTIME_DIR=FOLDER, which must lead to
                    // the same path
    int output_fd;  // set by the test, for stdout and stderr: 0 = the log, -1 = 0 to 2 are closed
    bool has_limit; // set by the test: the daemon runs with this resource limit, soft and hard
    int resource;   // RLIMIT_...
    unsigned long limit;
    int exit_code;  // of the last run: the exit status, minus the number of the signal, or
                    // DAEMON_SPOKE; see daemon_wait()
    bool validated; // this run has --validation and became ready
    size_t log_old; // bytes of earlier runs in the log
};

enum { DAEMON_DEADLINE_S = 120 }; // for starting and stopping: long enough for a slow machine

// Replaces exit code 0 of a run under validation whose log does not end with 0 messages of the
// layer. The log then goes to stderr.
enum { DAEMON_SPOKE = 1000 };

// An "option" that the harness takes itself: the program is aule-daemon-staged, which copies arenas
// around each run.
#define DAEMON_STAGED "staged"

// Makes the folder. False: failed, with a line on stderr. End with daemon_finish().
bool daemon_init(struct daemon *daemon);

// Starts aule-daemon on daemon->socket, and waits until it says READY=1. It runs under the Vulkan
// validation layer if AULE_TEST_VALIDATION=1. `options` (NULL-terminated; NULL = none) come last,
// so they override the harness's --socket and --cache-folder none. The child dies with the calling
// thread. False: it ended before; exit_code and the log say why. May be called again after a stop.
bool daemon_start(struct daemon *daemon, const char *const *options);

// daemon_init() and daemon_start() in one. Prints the log on stderr if it fails.
bool daemon_launch(struct daemon *daemon, const char *const *options);

// Waits up to `seconds` until it ends by itself. False: it still runs. Else exit_code is set and
// pid is -1.
bool daemon_wait(struct daemon *daemon, int seconds);

// Sends SIGTERM and waits. Returns its exit code (tests expect 0), or -SIGKILL if it had to be
// killed after the deadline.
int daemon_stop(struct daemon *daemon);
void daemon_kill(struct daemon *daemon); // sends SIGKILL and reaps it

// The whole log as a malloc'd string; "" if there is none; NULL: no memory.
char *daemon_log_text(const struct daemon *daemon);
// While the daemon runs, waits up to two seconds for it: another thread writes the log.
bool daemon_log_contains(const struct daemon *daemon, const char *text);
bool daemon_log_contains_now(const struct daemon *daemon, const char *text); // does not wait

// Kills the daemon if it runs, and removes the folder. Accepts a zeroed struct.
void daemon_finish(struct daemon *daemon);
// daemon_stop(), if it runs, and daemon_finish(). Returns the exit code, 0 if it did not run.
// Prints the log on stderr unless the code is 0. For a teardown.
int daemon_end(struct daemon *daemon);

// The same for a daemon that several test processes share: ends the program if the code is not 0,
// because a failed assert in the parent of the tests goes unnoticed.
void daemon_end_shared(struct daemon *daemon);

// How many segments of aule (of any daemon) with this daemon's prefix are in /dev/shm; -1: the
// folder cannot be read.
int daemon_count_segments(const struct daemon *daemon);

#endif
