// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// server.h - the daemon as one object: engine, core, listener and sessions. The thread that calls
// server_run() is the dispatcher. This is what main() may use; state.h has what is inside. Knows no
// command line: options.c fills struct server_params.

#ifndef AULE_SERVER_H
#define AULE_SERVER_H

#include "base/exit_code.h"
#include "base/options.h"
#include "core/core.h"
#include "engine/engine.h"
#include "fault.h"
#include "schema/status.h"

#define SERVER_WORK_AUTO UINT64_MAX

struct server_params {
    const char *device;         // --device; NULL = the best one
    const char *socket;         // --socket; NULL = the rule of socket_path.h
    const char *cache_folder;   // --cache-folder: pipelines and measurements; NULL = none are kept
    enum engine_tune tune;      // --tune
    uint32_t tune_time_ms;      // --tune-time: for measuring one kind of dispatch
    uint32_t max_tuned;         // --max-tuned: kinds of dispatches to measure
    uint64_t tune_memory_bytes; // --tune-memory: device memory while it measures
    bool force_staging, validation; // --force-staging, --validation
    double memory_fraction;         // --memory-fraction: of the device's budget, for the pool
    uint64_t max_blocks;            // --max-blocks of all caches; 0 = only memory_fraction limits
    uint32_t max_sessions, max_connections, max_caches;
    uint32_t max_batches, max_tickets; // live batches, unreaped tickets of a session
    uint32_t max_offers;               // offers of a session that have not ended
    uint64_t max_batch_memory; // --max-batch-memory: metadata of a session's batches and arrays of
                               // its runs; 0 = no limit
    uint64_t max_claimed;      // --max-claimed-blocks: of the chains of a session's claims
    uint64_t max_run_work;     // --max-run-work: multiply-adds of one run; 0 = no limit,
                               // SERVER_WORK_AUTO = by the device
    struct option_texts tenants;      // --tenant
    struct core_limits tenant_limits; // --tenant-blocks, --tenant-cached, --tenant-floor
    uint64_t session_blocks;          // --session-blocks: leased and held blocks; 0 = no limit
    uint64_t max_arena;               // --max-arena: bytes of a session
    uint64_t max_metadata;            // --max-metadata: bytes of one command in the arena
    uint64_t max_parked_bytes;        // --max-parked-memory: arrays of a session's parked commands
    uint32_t ring_entries;            // of a session's rings, a power of two; 0 = no ring lane
    uint64_t ring_spin_us;            // --ring-spin; SERVER_WORK_AUTO = by the number of cores
    uint64_t completion_poll_us; // --completion-poll; SERVER_WORK_AUTO = by the number of cores
    uint32_t max_pipelines;      // compiled shaders to keep
    uint64_t max_scratch_bytes;  // for partial results of split-KV runs of one submission
    const char *variant;         // attention shader to use; NULL = the best that fits
    uint32_t map_timeout_ms;     // from the answer to Hello until Mapped; 0 = no session ever opens
    uint32_t drain_timeout_ms;   // after SIGTERM: for work in flight
    enum fault fault;            // for tests
};

struct server;

// Exit codes of the process.
enum server_exit { SERVER_EXIT_OK = EXIT_CODE_DONE, SERVER_EXIT_DEVICE_LOST = EXIT_CODE_GONE };

// Opens the device, takes the lock, removes what a killed daemon left, and listens. Before this,
// and before any thread starts, the caller must block SIGTERM, SIGINT and SIGHUP, which the server
// reads from a signalfd. *params and its strings must outlive the server. On failure *out is what
// was made so far, or NULL: call server_destroy() for it as well, and obey its result.
enum status server_create(const struct server_params *params, struct server **out,
                          struct error *error);
// Serves until a drain after SIGTERM or SIGINT has ended, or until the device is lost.
enum server_exit server_run(struct server *server);
// Removes socket, segments and lock; takes NULL and half-made servers. After a drain, a further
// SIGTERM or SIGINT ends the process at once. False: the GPU did not become idle in time, so no
// memory was freed; the caller must end the process with _exit().
bool server_destroy(struct server *server);

#endif
