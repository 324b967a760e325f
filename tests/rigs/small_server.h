// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// small_server.h - the parameters of a server in the test's own process, or in a child of it. Its
// limits are small; a test changes those that it is about.

#ifndef AULE_TESTS_SMALL_SERVER_H
#define AULE_TESTS_SMALL_SERVER_H

#include "server/params.h"

enum { SMALL_BLOCKS = 8 }; // of its pool

static inline struct server_params small_server(const char *socket_path)
{
    return (struct server_params){
        .socket = socket_path,
        .memory_fraction = 0.5,
        .core.max_blocks = SMALL_BLOCKS,
        .core.max_sessions = 8,
        .max_connections = 16,
        .idle_timeout_s = 300,
        .max_message_memory = 64 << 20,
        .core.max_caches = 4,
        .core.max_batches = 8,
        .core.max_tickets = 8,
        .max_arena = 1 << 20,
        .max_metadata = 1 << 20,
        .drain_timeout_ms = 200,
    };
}

#endif
