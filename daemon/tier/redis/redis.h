// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// redis.h - the tier that machines share: a Redis or Valkey server, several of them, or a cluster.
// Each part of a block is one key. Look-ups are pipelined EXISTS of up to 8 parts, loads pipelined
// MGET of up to 2 MiB of a block, stores SET with EX. At most four threads of its own do all I/O,
// without blocking: a job ends at its deadline at the latest, whatever the servers do. Built if
// hiredis is there.

#ifndef AULE_TIER_REDIS_H
#define AULE_TIER_REDIS_H

#include "tier/tier.h"

#include <stdbool.h>

// Zero is the default.
struct redis_params {
    const char *url;           // redis://[user:password@]host:port[,host:port...], or rediss://
    const char *password_file; // instead of a password in the URL; NULL: none
    // For rediss://: PEM files with certificates that vouch for the servers, NULL: the system's;
    // and with the client's own certificate and its key, NULL: none.
    const char *ca_file, *cert_file;
    uint32_t stall_ms;       // a server that moves no byte so long has failed; 50
    uint32_t expire_s;       // EX of a key; 86400
    bool never_expires;      // no EX at all
    uint32_t connections;    // at most, for all servers; at least one each; 8
    uint32_t threads;        // 1 to 4; one for each server that the URL names
    uint32_t absent_ms;      // how long the filter trusts "it is not there"; 2000
    uint32_t filter_entries; // of 16 bytes; 262144
    uint64_t queue_bytes;    // of stores that wait; 256 MiB
    uint32_t queue_commands; // of all jobs; 65536
    // Tells an operator a sentence about a server: a memory policy that does not fit, a password
    // that is refused. NULL: nobody. Any thread. It must not call the tier.
    void (*say)(void *context, const char *sentence);
    void *say_context;
};

bool redis_is_built(void); // this build has the backend

extern const struct tier_ops redis_ops;

// open.c. STATUS_INVALID: `url` is no redis:// or rediss:// URL, or an option in it is wrong.
// redis_open(): as redis_create(), with the options that the URL has behind its "?".
enum status redis_check_url(const char *url, struct error *error);
enum status redis_open(const char *url, const struct tier_opening *opening,
                       struct tier_backend **out, struct error *error);
// Starts the threads, which connect by themselves: a server that is away is no error, but a breaker
// that opens. STATUS_INVALID: the URL, a file or a number is wrong; the error never shows a
// password. STATUS_UNSUPPORTED: this build lacks hiredis, or TLS. STATUS_NO_MEMORY.
enum status redis_create(const struct redis_params *params, struct tier_backend **out,
                         struct error *error);

#endif
