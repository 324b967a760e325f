// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// metrics.h - the table of the daemon's counters and gauges. Dispatcher thread only.
// A new counter is one row here and the line that counts: ledger->metrics[METRIC_...]++ in core,
// core_metrics(core)[METRIC_...]++ elsewhere. A counter of the engine is a row of engine/metrics.h.
// A new gauge is one row here and one line in core_metrics() or in the server's measure(). The
// message, aule.h and aule-ctl carry names and values, so they do not change. There is no column
// for the source of a figure: METRIC_... leads to the one line that sets it.

#ifndef AULE_CORE_METRICS_H
#define AULE_CORE_METRICS_H

#include "engine/metrics.h"

enum metric_kind { METRIC_COUNTER, METRIC_GAUGE }; // MetricKind of aule.fbs

// X(ID, kind, name, unit, help). Names follow Prometheus: the unit is part of the name, a counter's
// name ends with _total, and a label follows as {label="value"}. Metrics of one name stand next to
// each other and have the same kind, unit and help.
#define METRIC_MAP(X)                                                                              \
    X(UPTIME_SECONDS, GAUGE, "aule_uptime_seconds", "seconds", "time since the daemon started")    \
    X(STOPPING, GAUGE, "aule_stopping", "",                                                        \
      "1 while the daemon stops and takes no new work, else 0")                                    \
    X(SESSIONS, GAUGE, "aule_sessions", "sessions", "open sessions")                               \
    X(SESSIONS_LIMIT, GAUGE, "aule_sessions_limit", "sessions", "--max-sessions")                  \
    X(CACHES, GAUGE, "aule_caches", "caches", "caches, open or not")                               \
    X(CACHES_LIMIT, GAUGE, "aule_caches_limit", "caches", "--max-caches")                          \
    X(POOL_BYTES, GAUGE, "aule_pool_bytes", "bytes", "device memory of the pool")                  \
    X(POOL_LIMIT_BYTES, GAUGE, "aule_pool_limit_bytes", "bytes",                                   \
      "limit of the pool's device memory")                                                         \
    X(POOL_BLOCKS, GAUGE, "aule_pool_blocks", "blocks", "blocks that the pool has memory for")     \
    X(POOL_LIMIT_BLOCKS, GAUGE, "aule_pool_limit_blocks", "blocks",                                \
      "--max-blocks; 0: bytes alone limit the pool")                                               \
    X(BLOCKS_FREE, GAUGE, "aule_blocks{state=\"free\"}", "blocks",                                 \
      "blocks of all caches by state")                                                             \
    X(BLOCKS_LEASED, GAUGE, "aule_blocks{state=\"leased\"}", "blocks",                             \
      "blocks of all caches by state")                                                             \
    X(BLOCKS_HELD, GAUGE, "aule_blocks{state=\"held\"}", "blocks",                                 \
      "blocks of all caches by state")                                                             \
    X(BLOCKS_CACHED, GAUGE, "aule_blocks{state=\"cached\"}", "blocks",                             \
      "blocks of all caches by state")                                                             \
    X(BLOCKS_QUARANTINED, GAUGE, "aule_blocks{state=\"quarantined\"}", "blocks",                   \
      "blocks of all caches by state")                                                             \
    X(EVICTIONS, COUNTER, "aule_evicted_blocks_total", "blocks",                                   \
      "cached blocks that were evicted")                                                           \
    X(REFUSED_NO_BLOCKS, COUNTER, "aule_refused_requests_total{status=\"NO_BLOCKS\"}", "requests", \
      "requests refused: the pool was full (NO_BLOCKS), or the session at its quota (QUOTA)")      \
    X(REFUSED_QUOTA, COUNTER, "aule_refused_requests_total{status=\"QUOTA\"}", "requests",         \
      "requests refused: the pool was full (NO_BLOCKS), or the session at its quota (QUOTA)")      \
    X(REFUSED_CONNECTIONS, COUNTER, "aule_refused_connections_total", "connections",               \
      "connections refused: --max-connections, or the caller's user")                              \
    X(LOOKUPS, COUNTER, "aule_prefix_lookups_total", "lookups", "prefix look-ups")                 \
    X(LOOKUP_TOKENS, COUNTER, "aule_prefix_queries_tokens_total", "tokens",                        \
      "tokens that were looked up")                                                                \
    X(HIT_TOKENS, COUNTER, "aule_prefix_hits_tokens_total", "tokens",                              \
      "tokens that were looked up and found")                                                      \
    X(CLAIMS, COUNTER, "aule_prefix_claims_total", "claims",                                       \
      "look-ups that claimed what was missing")                                                    \
    X(CLAIM_TOKENS, COUNTER, "aule_prefix_claim_hits_tokens_total", "tokens",                      \
      "claimed tokens that another session computed")                                              \
    X(TIER_LOADED_TOKENS, COUNTER, "aule_tier_loaded_tokens_total", "tokens",                      \
      "tokens whose blocks tiers brought back to the GPU")                                         \
    X(TIER_DECLINED, COUNTER, "aule_tier_declined_blocks_total", "blocks",                         \
      "blocks in tiers that were not loaded because computing them takes less time")               \
    X(TIER_SKIPPED, COUNTER, "aule_tier_skipped_blocks_total", "blocks",                           \
      "published blocks that no tier keeps: no room, no memory, or evicted too soon")              \
    X(OFFERS, GAUGE, "aule_offers", "offers",                                                      \
      "sequences that are offered, or taken and not accepted")                                     \
    X(OFFERS_MADE, COUNTER, "aule_offers_made_total", "offers", "sequences that were offered")     \
    X(OFFERS_TAKEN, COUNTER, "aule_offers_taken_total", "offers",                                  \
      "offers that a session took; one that comes back may be taken again")                        \
    X(OFFERS_ACCEPTED, COUNTER, "aule_offers_accepted_total", "offers",                            \
      "offers whose taker accepted them")                                                          \
    X(OFFERS_EXPIRED, COUNTER, "aule_offers_expired_total", "offers",                              \
      "offers that nobody took in time")                                                           \
    X(SESSION_DEATHS, COUNTER, "aule_sessions_died_total", "sessions",                             \
      "sessions whose worker died or that an operator ended")                                      \
    X(RUNS_DONE, COUNTER, "aule_runs_done_total", "runs", "runs that succeeded")                   \
    X(RUNS_FAILED, COUNTER, "aule_runs_failed_total", "runs", "runs that failed")                  \
    X(RUNS_UNWRITTEN, COUNTER, "aule_unwritten_runs_total", "runs",                                \
      "runs refused because they would read keys that no run has written")                         \
    X(TOKENS_ATTENDED, COUNTER, "aule_attended_tokens_total", "tokens",                            \
      "tokens attended by runs: queries times the keys that they see")                             \
    X(SUBMISSIONS, COUNTER, "aule_submissions_total", "submissions",                               \
      "submissions to the GPU's queue")                                                            \
    X(DISPATCHES, COUNTER, "aule_dispatches_total", "dispatches",                                  \
      "dispatches that ran on the GPU")                                                            \
    X(SESSIONS_SERVED, COUNTER, "aule_dispatch_sessions_total", "sessions",                        \
      "sessions served, summed over the dispatches with runs")                                     \
    X(MAX_SESSIONS_SERVED, GAUGE, "aule_dispatch_sessions_max", "sessions",                        \
      "the most sessions that one dispatch served")                                                \
    X(DISPATCHES_OF_1, COUNTER, "aule_run_dispatches_total{sessions=\"1\"}", "dispatches",         \
      "dispatches with runs, by the number of sessions that they served")                          \
    X(DISPATCHES_OF_2, COUNTER, "aule_run_dispatches_total{sessions=\"2\"}", "dispatches",         \
      "dispatches with runs, by the number of sessions that they served")                          \
    X(DISPATCHES_OF_4, COUNTER, "aule_run_dispatches_total{sessions=\"3-4\"}", "dispatches",       \
      "dispatches with runs, by the number of sessions that they served")                          \
    X(DISPATCHES_OF_8, COUNTER, "aule_run_dispatches_total{sessions=\"5-8\"}", "dispatches",       \
      "dispatches with runs, by the number of sessions that they served")                          \
    X(DISPATCHES_OF_MORE, COUNTER, "aule_run_dispatches_total{sessions=\"9+\"}", "dispatches",     \
      "dispatches with runs, by the number of sessions that they served")                          \
    X(ENDS_AWAKE, COUNTER, "aule_gpu_ends_total{daemon=\"awake\"}", "ends",                        \
      "ends of GPU work, by whether the daemon was awake or was woken by them")                    \
    X(ENDS_ASLEEP, COUNTER, "aule_gpu_ends_total{daemon=\"asleep\"}", "ends",                      \
      "ends of GPU work, by whether the daemon was awake or was woken by them")                    \
    ENGINE_METRIC_MAP(X)

enum metric {
#define X(id, kind, name, unit, help) METRIC_##id,
    METRIC_MAP(X)
#undef X
        NUM_METRICS,
    METRIC_ENGINE = NUM_METRICS - NUM_ENGINE_METRICS // where the engine's begin
};

// By enum metric, each [NUM_METRICS], as a message carries them.
extern const char *const metric_names[], *const metric_units[], *const metric_helps[];
extern const unsigned char metric_kinds[];

#endif
