// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// daemon_harness.h - starts and stops a real aule-daemon in a temporary folder of its own, for
// process tests. Knows nothing of nng or of the protocol. It never asserts: a caller checks what
// comes back, and prints daemon_log_text() when something is wrong. Thread rule: one thread a
// struct daemon. Link the CMake target daemon_harness, which also builds aule-daemon.

#ifndef AULE_TESTS_DAEMON_HARNESS_H
#define AULE_TESTS_DAEMON_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct daemon {
    pid_t pid;       // -1 = not running
    char folder[64]; // made by daemon_init(), mode 0700; removed by daemon_finish()
    char socket[96]; // FOLDER/0.sock: for --socket, $AULE_SOCKET, struct aule_session_params
    char log[96]; // FOLDER/log: what the daemon wrote to stdout and stderr, over all of its lives
    char notify[96]; // FOLDER/notify: the datagram socket that hears READY=1
    int notify_fd;   // owned
    bool by_rule; // to set: no --socket, but AULE_RUNTIME_DIR=FOLDER, which has to come to the same
                  // path
    int exit_code; // of the last life: the exit status, minus the signal's number, or DAEMON_SPOKE;
                   // see daemon_wait()
    bool validated; // this life runs with --validation and became ready
    size_t log_old; // bytes that earlier lives left in the log
};

enum {
    DAEMON_DEADLINE_S = 120
}; // for starting and for stopping: an event is late after this, never slow

// The exit code, instead of 0, of a life under validation in whose log the daemon does not say at
// the end that the layer had 0 messages. That log goes to stderr.
enum { DAEMON_SPOKE = 1000 };

// Make the folder. False with a line on stderr if that fails. Ends with daemon_finish().
bool daemon_init(struct daemon *daemon);

// Start aule-daemon on daemon->socket, under the Vulkan validation layer if AULE_TEST_VALIDATION=1,
// with the options in `options` (NULL-terminated; NULL = none; they come last, so that they win
// over the harness's own --socket and
// --cache-folder none) and wait until it says READY=1. The child dies with the calling thread.
// False if it ended before: exit_code and the log say why. May be called again after a stop.
bool daemon_start(struct daemon *daemon, const char *const *options);

// daemon_init() and daemon_start() in one, the log on stderr if it fails.
bool daemon_launch(struct daemon *daemon, const char *const *options);

// Wait up to `seconds` for it to end by itself. False if it still runs; else exit_code is set and
// pid is -1.
bool daemon_wait(struct daemon *daemon, int seconds);

// SIGTERM, then wait: its exit code (0 is what a test wants), or -SIGKILL if it had to be killed
// after the deadline.
int daemon_stop(struct daemon *daemon);
void daemon_kill(struct daemon *daemon); // SIGKILL and reap

// The whole log as a malloc'd string, "" if there is none; NULL without memory.
char *daemon_log_text(const struct daemon *daemon);
bool daemon_log_contains(const struct daemon *daemon, const char *text);

// Kill what runs and remove the folder. Takes a zeroed struct.
void daemon_finish(struct daemon *daemon);
// daemon_stop(), if it runs, and daemon_finish(): the exit code, 0 if it did not run; the log on
// stderr unless that is 0. For a teardown.
int daemon_end(struct daemon *daemon);

// How many segments of aule (of any daemon) lie in /dev/shm under this daemon's prefix; -1 if the
// folder cannot be read.
int daemon_count_segments(const struct daemon *daemon);

#endif
