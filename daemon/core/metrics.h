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
    X(LOG_DROPPED_LINES, COUNTER, "aule_log_dropped_lines_total", "lines",                         \
      "lines of the log that were dropped: standard error was not read, or not writable")          \
    X(SESSIONS, GAUGE, "aule_sessions", "sessions", "open sessions")                               \
    X(SESSIONS_LIMIT, GAUGE, "aule_sessions_limit", "sessions", "--max-sessions")                  \
    X(CACHES, GAUGE, "aule_caches", "caches", "caches, open or not")                               \
    X(CACHES_LIMIT, GAUGE, "aule_caches_limit", "caches", "--max-caches")                          \
    X(ARENA_MEMORY, GAUGE, "aule_arena_memory_bytes", "bytes", "shared memory of all sessions")    \
    X(ARENA_MEMORY_LIMIT, GAUGE, "aule_arena_memory_limit_bytes", "bytes",                         \
      "--max-arena-memory; 0: no limit")                                                           \
    X(HOST_MEMORY, GAUGE, "aule_host_memory_bytes", "bytes",                                       \
      "host memory that the daemon keeps for all sessions")                                        \
    X(HOST_MEMORY_LIMIT, GAUGE, "aule_host_memory_limit_bytes", "bytes",                           \
      "--max-host-memory; 0: no limit")                                                            \
    X(POOL_BYTES, GAUGE, "aule_pool_bytes", "bytes",                                               \
      "device memory of the pool, with that which is being allocated")                             \
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
    X(CLAIMS_LATE, COUNTER, "aule_prefix_claims_late_total", "claims",                             \
      "claims without progress for --claim-timeout, whose blocks others may compute")              \
    X(CLAIM_TOKENS, COUNTER, "aule_prefix_claim_hits_tokens_total", "tokens",                      \
      "claimed tokens that another session computed")                                              \
    X(TIER_LOADED_TOKENS, COUNTER, "aule_tier_loaded_tokens_total", "tokens",                      \
      "tokens whose blocks tiers brought back to the GPU")                                         \
    X(TIER_DECLINED, COUNTER, "aule_tier_declined_blocks_total", "blocks",                         \
      "blocks in tiers that were not loaded because computing them takes less time")               \
    X(TIER_SKIPPED, COUNTER, "aule_tier_skipped_blocks_total", "blocks",                           \
      "published blocks that no tier keeps: no room, no memory, or evicted too soon")              \
    X(TIER_HOST_BYTES, GAUGE, "aule_tier_bytes{tier=\"host\"}", "bytes",                           \
      "bytes that a tier keeps")                                                                   \
    X(TIER_REDIS_BYTES, GAUGE, "aule_tier_bytes{tier=\"redis\"}", "bytes",                         \
      "bytes that a tier keeps")                                                                   \
    X(TIER_FILES_BYTES, GAUGE, "aule_tier_bytes{tier=\"files\"}", "bytes",                         \
      "bytes that a tier keeps")                                                                   \
    X(TIER_HOST_LIMIT, GAUGE, "aule_tier_limit_bytes{tier=\"host\"}", "bytes",                     \
      "bytes that a tier may keep; 0: it has no limit of its own")                                 \
    X(TIER_REDIS_LIMIT, GAUGE, "aule_tier_limit_bytes{tier=\"redis\"}", "bytes",                   \
      "bytes that a tier may keep; 0: it has no limit of its own")                                 \
    X(TIER_FILES_LIMIT, GAUGE, "aule_tier_limit_bytes{tier=\"files\"}", "bytes",                   \
      "bytes that a tier may keep; 0: it has no limit of its own")                                 \
    X(TIER_HOST_BLOCKS, GAUGE, "aule_tier_blocks{tier=\"host\"}", "blocks",                        \
      "blocks that a tier keeps")                                                                  \
    X(TIER_REDIS_BLOCKS, GAUGE, "aule_tier_blocks{tier=\"redis\"}", "blocks",                      \
      "blocks that a tier keeps")                                                                  \
    X(TIER_FILES_BLOCKS, GAUGE, "aule_tier_blocks{tier=\"files\"}", "blocks",                      \
      "blocks that a tier keeps")                                                                  \
    X(TIER_HOST_BROKEN, GAUGE, "aule_tier_broken{tier=\"host\"}", "",                              \
      "1 while a tier is not asked because it failed, else 0")                                     \
    X(TIER_REDIS_BROKEN, GAUGE, "aule_tier_broken{tier=\"redis\"}", "",                            \
      "1 while a tier is not asked because it failed, else 0")                                     \
    X(TIER_FILES_BROKEN, GAUGE, "aule_tier_broken{tier=\"files\"}", "",                            \
      "1 while a tier is not asked because it failed, else 0")                                     \
    X(TIER_HOST_HITS, COUNTER, "aule_tier_hits_blocks_total{tier=\"host\"}", "blocks",             \
      "blocks that look-ups asked a tier for, and that it had")                                    \
    X(TIER_REDIS_HITS, COUNTER, "aule_tier_hits_blocks_total{tier=\"redis\"}", "blocks",           \
      "blocks that look-ups asked a tier for, and that it had")                                    \
    X(TIER_FILES_HITS, COUNTER, "aule_tier_hits_blocks_total{tier=\"files\"}", "blocks",           \
      "blocks that look-ups asked a tier for, and that it had")                                    \
    X(TIER_HOST_MISSES, COUNTER, "aule_tier_misses_blocks_total{tier=\"host\"}", "blocks",         \
      "blocks that look-ups asked a tier for, and that it lacked")                                 \
    X(TIER_REDIS_MISSES, COUNTER, "aule_tier_misses_blocks_total{tier=\"redis\"}", "blocks",       \
      "blocks that look-ups asked a tier for, and that it lacked")                                 \
    X(TIER_FILES_MISSES, COUNTER, "aule_tier_misses_blocks_total{tier=\"files\"}", "blocks",       \
      "blocks that look-ups asked a tier for, and that it lacked")                                 \
    X(TIER_HOST_LOADED, COUNTER, "aule_tier_loaded_blocks_total{tier=\"host\"}", "blocks",         \
      "blocks that a tier gave")                                                                   \
    X(TIER_REDIS_LOADED, COUNTER, "aule_tier_loaded_blocks_total{tier=\"redis\"}", "blocks",       \
      "blocks that a tier gave")                                                                   \
    X(TIER_FILES_LOADED, COUNTER, "aule_tier_loaded_blocks_total{tier=\"files\"}", "blocks",       \
      "blocks that a tier gave")                                                                   \
    X(TIER_HOST_STORED, COUNTER, "aule_tier_stored_blocks_total{tier=\"host\"}", "blocks",         \
      "blocks that a tier took")                                                                   \
    X(TIER_REDIS_STORED, COUNTER, "aule_tier_stored_blocks_total{tier=\"redis\"}", "blocks",       \
      "blocks that a tier took")                                                                   \
    X(TIER_FILES_STORED, COUNTER, "aule_tier_stored_blocks_total{tier=\"files\"}", "blocks",       \
      "blocks that a tier took")                                                                   \
    X(TIER_HOST_LOADED_BYTES, COUNTER, "aule_tier_loaded_bytes_total{tier=\"host\"}", "bytes",     \
      "bytes of the blocks that a tier gave")                                                      \
    X(TIER_REDIS_LOADED_BYTES, COUNTER, "aule_tier_loaded_bytes_total{tier=\"redis\"}", "bytes",   \
      "bytes of the blocks that a tier gave")                                                      \
    X(TIER_FILES_LOADED_BYTES, COUNTER, "aule_tier_loaded_bytes_total{tier=\"files\"}", "bytes",   \
      "bytes of the blocks that a tier gave")                                                      \
    X(TIER_HOST_STORED_BYTES, COUNTER, "aule_tier_stored_bytes_total{tier=\"host\"}", "bytes",     \
      "bytes of the blocks that a tier took")                                                      \
    X(TIER_REDIS_STORED_BYTES, COUNTER, "aule_tier_stored_bytes_total{tier=\"redis\"}", "bytes",   \
      "bytes of the blocks that a tier took")                                                      \
    X(TIER_FILES_STORED_BYTES, COUNTER, "aule_tier_stored_bytes_total{tier=\"files\"}", "bytes",   \
      "bytes of the blocks that a tier took")                                                      \
    X(TIER_HOST_LOAD_NS, COUNTER, "aule_tier_load_nanoseconds_total{tier=\"host\"}",               \
      "nanoseconds", "time of jobs that loaded, from start to end")                                \
    X(TIER_REDIS_LOAD_NS, COUNTER, "aule_tier_load_nanoseconds_total{tier=\"redis\"}",             \
      "nanoseconds", "time of jobs that loaded, from start to end")                                \
    X(TIER_FILES_LOAD_NS, COUNTER, "aule_tier_load_nanoseconds_total{tier=\"files\"}",             \
      "nanoseconds", "time of jobs that loaded, from start to end")                                \
    X(TIER_HOST_STORE_NS, COUNTER, "aule_tier_store_nanoseconds_total{tier=\"host\"}",             \
      "nanoseconds", "time of jobs that stored, from start to end")                                \
    X(TIER_REDIS_STORE_NS, COUNTER, "aule_tier_store_nanoseconds_total{tier=\"redis\"}",           \
      "nanoseconds", "time of jobs that stored, from start to end")                                \
    X(TIER_FILES_STORE_NS, COUNTER, "aule_tier_store_nanoseconds_total{tier=\"files\"}",           \
      "nanoseconds", "time of jobs that stored, from start to end")                                \
    X(TIER_HOST_SPEED, GAUGE, "aule_tier_load_speed_bytes{tier=\"host\"}", "bytes",                \
      "estimated bytes a second of loads to the GPU; 0: not known yet")                            \
    X(TIER_REDIS_SPEED, GAUGE, "aule_tier_load_speed_bytes{tier=\"redis\"}", "bytes",              \
      "estimated bytes a second of loads to the GPU; 0: not known yet")                            \
    X(TIER_FILES_SPEED, GAUGE, "aule_tier_load_speed_bytes{tier=\"files\"}", "bytes",              \
      "estimated bytes a second of loads to the GPU; 0: not known yet")                            \
    X(TIER_HOST_EVICTED, COUNTER, "aule_tier_evicted_blocks_total{tier=\"host\"}", "blocks",       \
      "blocks that a tier dropped to make room")                                                   \
    X(TIER_REDIS_EVICTED, COUNTER, "aule_tier_evicted_blocks_total{tier=\"redis\"}", "blocks",     \
      "blocks that a tier dropped to make room")                                                   \
    X(TIER_FILES_EVICTED, COUNTER, "aule_tier_evicted_blocks_total{tier=\"files\"}", "blocks",     \
      "blocks that a tier dropped to make room")                                                   \
    X(TIER_HOST_CONNECTS, COUNTER, "aule_tier_connections_total{tier=\"host\"}", "connections",    \
      "connections that a tier made")                                                              \
    X(TIER_REDIS_CONNECTS, COUNTER, "aule_tier_connections_total{tier=\"redis\"}", "connections",  \
      "connections that a tier made")                                                              \
    X(TIER_FILES_CONNECTS, COUNTER, "aule_tier_connections_total{tier=\"files\"}", "connections",  \
      "connections that a tier made")                                                              \
    X(TIER_HOST_BREAKS, COUNTER, "aule_tier_breaks_total{tier=\"host\"}", "breaks",                \
      "times that a tier failed so often that it was not asked for a while")                       \
    X(TIER_REDIS_BREAKS, COUNTER, "aule_tier_breaks_total{tier=\"redis\"}", "breaks",              \
      "times that a tier failed so often that it was not asked for a while")                       \
    X(TIER_FILES_BREAKS, COUNTER, "aule_tier_breaks_total{tier=\"files\"}", "breaks",              \
      "times that a tier failed so often that it was not asked for a while")                       \
    X(TIER_HOST_FAILED_OTHER_VERSION, COUNTER,                                                     \
      "aule_tier_failed_blocks_total{tier=\"host\",reason=\"version\"}", "blocks",                 \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_HOST_FAILED_IDENTITY, COUNTER,                                                          \
      "aule_tier_failed_blocks_total{tier=\"host\",reason=\"identity\"}", "blocks",                \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_HOST_FAILED_LENGTH, COUNTER,                                                            \
      "aule_tier_failed_blocks_total{tier=\"host\",reason=\"length\"}", "blocks",                  \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_HOST_FAILED_CHECKSUM, COUNTER,                                                          \
      "aule_tier_failed_blocks_total{tier=\"host\",reason=\"checksum\"}", "blocks",                \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_HOST_FAILED_TIMEOUT, COUNTER,                                                           \
      "aule_tier_failed_blocks_total{tier=\"host\",reason=\"timeout\"}", "blocks",                 \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_HOST_FAILED_ABANDONED, COUNTER,                                                         \
      "aule_tier_failed_blocks_total{tier=\"host\",reason=\"abandoned\"}", "blocks",               \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_HOST_FAILED_BREAKER, COUNTER,                                                           \
      "aule_tier_failed_blocks_total{tier=\"host\",reason=\"breaker\"}", "blocks",                 \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_HOST_FAILED_FULL, COUNTER,                                                              \
      "aule_tier_failed_blocks_total{tier=\"host\",reason=\"full\"}", "blocks",                    \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_HOST_FAILED_CONNECTION, COUNTER,                                                        \
      "aule_tier_failed_blocks_total{tier=\"host\",reason=\"connection\"}", "blocks",              \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_HOST_FAILED_DENIED, COUNTER,                                                            \
      "aule_tier_failed_blocks_total{tier=\"host\",reason=\"denied\"}", "blocks",                  \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_HOST_FAILED_STORE, COUNTER,                                                             \
      "aule_tier_failed_blocks_total{tier=\"host\",reason=\"store\"}", "blocks",                   \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_HOST_FAILED_MEMORY, COUNTER,                                                            \
      "aule_tier_failed_blocks_total{tier=\"host\",reason=\"memory\"}", "blocks",                  \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_HOST_FAILED_CLOSED, COUNTER,                                                            \
      "aule_tier_failed_blocks_total{tier=\"host\",reason=\"closed\"}", "blocks",                  \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_REDIS_FAILED_OTHER_VERSION, COUNTER,                                                    \
      "aule_tier_failed_blocks_total{tier=\"redis\",reason=\"version\"}", "blocks",                \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_REDIS_FAILED_IDENTITY, COUNTER,                                                         \
      "aule_tier_failed_blocks_total{tier=\"redis\",reason=\"identity\"}", "blocks",               \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_REDIS_FAILED_LENGTH, COUNTER,                                                           \
      "aule_tier_failed_blocks_total{tier=\"redis\",reason=\"length\"}", "blocks",                 \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_REDIS_FAILED_CHECKSUM, COUNTER,                                                         \
      "aule_tier_failed_blocks_total{tier=\"redis\",reason=\"checksum\"}", "blocks",               \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_REDIS_FAILED_TIMEOUT, COUNTER,                                                          \
      "aule_tier_failed_blocks_total{tier=\"redis\",reason=\"timeout\"}", "blocks",                \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_REDIS_FAILED_ABANDONED, COUNTER,                                                        \
      "aule_tier_failed_blocks_total{tier=\"redis\",reason=\"abandoned\"}", "blocks",              \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_REDIS_FAILED_BREAKER, COUNTER,                                                          \
      "aule_tier_failed_blocks_total{tier=\"redis\",reason=\"breaker\"}", "blocks",                \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_REDIS_FAILED_FULL, COUNTER,                                                             \
      "aule_tier_failed_blocks_total{tier=\"redis\",reason=\"full\"}", "blocks",                   \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_REDIS_FAILED_CONNECTION, COUNTER,                                                       \
      "aule_tier_failed_blocks_total{tier=\"redis\",reason=\"connection\"}", "blocks",             \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_REDIS_FAILED_DENIED, COUNTER,                                                           \
      "aule_tier_failed_blocks_total{tier=\"redis\",reason=\"denied\"}", "blocks",                 \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_REDIS_FAILED_STORE, COUNTER,                                                            \
      "aule_tier_failed_blocks_total{tier=\"redis\",reason=\"store\"}", "blocks",                  \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_REDIS_FAILED_MEMORY, COUNTER,                                                           \
      "aule_tier_failed_blocks_total{tier=\"redis\",reason=\"memory\"}", "blocks",                 \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_REDIS_FAILED_CLOSED, COUNTER,                                                           \
      "aule_tier_failed_blocks_total{tier=\"redis\",reason=\"closed\"}", "blocks",                 \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_FILES_FAILED_OTHER_VERSION, COUNTER,                                                    \
      "aule_tier_failed_blocks_total{tier=\"files\",reason=\"version\"}", "blocks",                \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_FILES_FAILED_IDENTITY, COUNTER,                                                         \
      "aule_tier_failed_blocks_total{tier=\"files\",reason=\"identity\"}", "blocks",               \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_FILES_FAILED_LENGTH, COUNTER,                                                           \
      "aule_tier_failed_blocks_total{tier=\"files\",reason=\"length\"}", "blocks",                 \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_FILES_FAILED_CHECKSUM, COUNTER,                                                         \
      "aule_tier_failed_blocks_total{tier=\"files\",reason=\"checksum\"}", "blocks",               \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_FILES_FAILED_TIMEOUT, COUNTER,                                                          \
      "aule_tier_failed_blocks_total{tier=\"files\",reason=\"timeout\"}", "blocks",                \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_FILES_FAILED_ABANDONED, COUNTER,                                                        \
      "aule_tier_failed_blocks_total{tier=\"files\",reason=\"abandoned\"}", "blocks",              \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_FILES_FAILED_BREAKER, COUNTER,                                                          \
      "aule_tier_failed_blocks_total{tier=\"files\",reason=\"breaker\"}", "blocks",                \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_FILES_FAILED_FULL, COUNTER,                                                             \
      "aule_tier_failed_blocks_total{tier=\"files\",reason=\"full\"}", "blocks",                   \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_FILES_FAILED_CONNECTION, COUNTER,                                                       \
      "aule_tier_failed_blocks_total{tier=\"files\",reason=\"connection\"}", "blocks",             \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_FILES_FAILED_DENIED, COUNTER,                                                           \
      "aule_tier_failed_blocks_total{tier=\"files\",reason=\"denied\"}", "blocks",                 \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_FILES_FAILED_STORE, COUNTER,                                                            \
      "aule_tier_failed_blocks_total{tier=\"files\",reason=\"store\"}", "blocks",                  \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_FILES_FAILED_MEMORY, COUNTER,                                                           \
      "aule_tier_failed_blocks_total{tier=\"files\",reason=\"memory\"}", "blocks",                 \
      "blocks that did not come or were not kept, by reason")                                      \
    X(TIER_FILES_FAILED_CLOSED, COUNTER,                                                           \
      "aule_tier_failed_blocks_total{tier=\"files\",reason=\"closed\"}", "blocks",                 \
      "blocks that did not come or were not kept, by reason")                                      \
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
