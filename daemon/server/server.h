// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// server.h - the daemon as one object: engine, core, listener and sessions, driven by the thread
// that calls server_run(), the dispatcher. What main() may ask of it; what is inside stands in
// state.h.

#ifndef AULE_SERVER_H
#define AULE_SERVER_H

#include "base/exit_code.h"
#include "engine/engine.h"
#include "fault.h"
#include "schema/status.h"

#define SERVER_WORK_AUTO UINT64_MAX

struct server_params {
    const char *device;       // --device; NULL = the best one
    const char *socket;       // --socket; NULL = the rule of socket_path.h
    const char *cache_folder; // for compiled pipelines and what was measured; NULL = none
    enum engine_tune tune;
    uint32_t tune_time_ms, max_tuned; // a kind of dispatch; kinds
    uint64_t tune_memory_bytes;       // while it measures
    bool force_staging, validation;
    double memory_fraction; // of the device's budget, for the pool
    uint64_t max_blocks;    // over all caches; 0 = memory_fraction alone
    uint32_t max_sessions, max_connections, max_caches;
    uint32_t max_batches, max_tickets; // a session
    uint64_t max_kept_bytes; // of its batches' metadata and its runs' arrays; 0 = no limit
    uint64_t
        max_run_work; // multiply-adds of one run; 0 = no limit, SERVER_WORK_AUTO = as the device is
    uint64_t session_blocks;   // leased and held blocks a session; 0 = no limit
    uint64_t max_arena;        // bytes a session
    uint64_t max_metadata;     // bytes that one command may have in the arena
    uint64_t max_parked_bytes; // arrays of a session's commands that wait for a ticket
    uint32_t ring_entries;     // of a session's rings, a power of two; 0 = no ring lane
    uint64_t ring_spin_us;     // before a ring sleeps; SERVER_WORK_AUTO = where cores are free
    uint64_t
        completion_poll_us;     // before the engine sleeps; SERVER_WORK_AUTO = where cores are free
    uint32_t max_pipelines;     // compiled shaders to keep
    uint64_t max_scratch_bytes; // for the partial results of split runs, of one submission
    const char *variant;        // attention shader to use; NULL = the best that fits
    uint32_t map_timeout_ms;    // from the answer to Hello until Mapped; 0 = no session ever opens
    uint32_t drain_timeout_ms;  // SIGTERM: wait this long for what is in flight
    enum fault fault;
};

struct server;

enum server_exit {
    SERVER_EXIT_OK = EXIT_CODE_DONE,
    SERVER_EXIT_DEVICE_LOST = EXIT_CODE_GONE
}; // of the process

// Opens the device, takes the lock, sweeps leftovers and listens. SIGTERM, SIGINT and SIGHUP must
// be blocked already (they come through a signalfd), before any thread starts. The strings of
// *params must outlive the server. If it fails, *out is what was made so far (or NULL):
// server_destroy() it as well, and mind what it returns.
enum status server_create(const struct server_params *params, struct server **out,
                          struct error *error);
// Serves until SIGTERM or SIGINT has been answered or the device is lost.
enum server_exit server_run(struct server *server);
// Removes socket, segments and lock; takes NULL and half-made ones. After a drain the next signal
// ends the process. False: the GPU does not come to rest in time, its memory and the server's are
// left as they are, and the caller ends the process with _exit().
bool server_destroy(struct server *server);

#endif
