// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// monitor.h - struct aule_monitor, and how its files ask the daemon. Knows no command. Any thread.

#ifndef AULE_CLIENT_MONITOR_H
#define AULE_CLIENT_MONITOR_H

#include "client/src/handle.h"
#include "client/src/link/connection.h"

#include <pthread.h>
#include <stdio.h>

struct monitor_protocol {
    bool known;
    uint32_t major, minor;
};

struct aule_monitor {
    struct handle handle;
    int timeout_ms;
    char *path;            // of the daemon's socket; owned
    pthread_mutex_t mutex; // guards all below
    pthread_cond_t unused; // num_users became 0, opening became false, or closed true
    bool closed;
    bool opening;                   // a call opens another connection; it does not hold the mutex
    uint32_t num_users;             // calls that use the connection
    struct connection *connection;  // owned; NULL: opening it anew failed, or goes on
    struct monitor_protocol daemon; // at the other end of the connection
};

// Copies a string of an answer to a char array of the caller's struct; NULL becomes "".
#define COPY_TEXT(to, from) snprintf((to), sizeof(to), "%s", (from) ? (from) : "")

// Sends the request and waits for an answer of the kind `expected`. The first command of a
// connection, unless it is a ping, asks for the daemon's protocol first. On AULE_OK the caller must
// finish *answer; else it is zeroed. AULE_FORKED: another process opened the monitor. Else as
// monitor_check_protocol() and connection_call().
enum aule_status monitor_ask(struct aule_monitor *monitor, const struct wire_request *request,
                             enum wire_answer expected, struct answer *answer);

// AULE_VERSION: the daemon speaks another major. AULE_UNSUPPORTED: its protocol is older than the
// minor that brought the command; such a daemon would call the command malformed.
enum aule_status monitor_check_protocol(const struct monitor_protocol *daemon,
                                        enum wire_command command, uint32_t minor);

// For functions that fill a list of the caller's structs: `array` and entry_size are parameters.
#define REQUIRE_ENTRY                                                                              \
    do {                                                                                           \
        REQUIRE(array);                                                                            \
        if (entry_size == 0)                                                                       \
            return fail(AULE_INVALID, "entry_size is 0");                                          \
    } while (0)

#endif
