// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// view_status.c - the daemon as a whole: which one it is, and some of its metrics. Prints once.

#include "output.h"
#include "units.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// X(field, the daemon's metric): the field is also the key in JSON.
#define STATUS_MAP(X)                                                                              \
    X(num_sessions, "aule_sessions")                                                               \
    X(max_sessions, "aule_sessions_limit")                                                         \
    X(num_caches, "aule_caches")                                                                   \
    X(max_caches, "aule_caches_limit")                                                             \
    X(pool_bytes, "aule_pool_bytes")                                                               \
    X(pool_limit_bytes, "aule_pool_limit_bytes")                                                   \
    X(pool_blocks, "aule_pool_blocks")                                                             \
    X(pool_limit_blocks, "aule_pool_limit_blocks")                                                 \
    X(free_blocks, "aule_blocks{state=\"free\"}")                                                  \
    X(leased_blocks, "aule_blocks{state=\"leased\"}")                                              \
    X(held_blocks, "aule_blocks{state=\"held\"}")                                                  \
    X(cached_blocks, "aule_blocks{state=\"cached\"}")                                              \
    X(quarantined_blocks, "aule_blocks{state=\"quarantined\"}")                                    \
    X(runs_done, "aule_runs_done_total")                                                           \
    X(runs_failed, "aule_runs_failed_total")                                                       \
    X(dispatches, "aule_dispatches_total")                                                         \
    X(submissions, "aule_submissions_total")                                                       \
    X(tokens_attended, "aule_attended_tokens_total")                                               \
    X(lookups, "aule_prefix_lookups_total")                                                        \
    X(lookup_tokens, "aule_prefix_queries_tokens_total")                                           \
    X(hit_tokens, "aule_prefix_hits_tokens_total")                                                 \
    X(evictions, "aule_evicted_blocks_total")                                                      \
    X(session_deaths, "aule_sessions_died_total")                                                  \
    X(max_sessions_per_dispatch, "aule_dispatch_sessions_max")                                     \
    X(sessions_served, "aule_dispatch_sessions_total")                                             \
    X(dispatches_of_1, "aule_run_dispatches_total{sessions=\"1\"}")                                \
    X(dispatches_of_2, "aule_run_dispatches_total{sessions=\"2\"}")                                \
    X(dispatches_of_4, "aule_run_dispatches_total{sessions=\"3-4\"}")                              \
    X(dispatches_of_8, "aule_run_dispatches_total{sessions=\"5-8\"}")                              \
    X(dispatches_of_more, "aule_run_dispatches_total{sessions=\"9+\"}")                            \
    X(ends_awake, "aule_gpu_ends_total{daemon=\"awake\"}")                                         \
    X(ends_asleep, "aule_gpu_ends_total{daemon=\"asleep\"}")                                       \
    X(uptime_seconds, "aule_uptime_seconds")                                                       \
    X(stopping, "aule_stopping")

struct status {
#define FIELD(field, metric) uint64_t field;
    STATUS_MAP(FIELD)
#undef FIELD
    struct aule_ping_info daemon;
};

// For JSON only; people get sentences.
static const struct column status_columns[] = {
    {"epoch", NULL, COLUMN_HEX, offsetof(struct status, daemon.epoch)},
    {"pid", NULL, COLUMN_U64, offsetof(struct status, daemon.pid)},
    {"version", NULL, COLUMN_TEXT, offsetof(struct status, daemon.version)},
    {"socket", NULL, COLUMN_TEXT, offsetof(struct status, daemon.socket)},
#define COLUMN(field, metric) {#field, NULL, COLUMN_U64, offsetof(struct status, field)},
    STATUS_MAP(COLUMN)
#undef COLUMN
        {.key = NULL},
};

// A metric that the daemon does not have stays 0.
static void take_metric(struct status *status, const struct aule_metric *metric)
{
#define TAKE(field, metric_name)                                                                   \
    if (strcmp(metric->name, metric_name) == 0)                                                    \
        status->field = metric->value;
    STATUS_MAP(TAKE)
#undef TAKE
}

static enum aule_status ask(struct aule_monitor *monitor, struct status *status)
{
    struct aule_metric *metrics = NULL;
    uint32_t count = 0;
    *status = (struct status){.num_sessions = 0};
    enum aule_status answer = aule_monitor_ping(monitor, &status->daemon);
    if (answer == AULE_OK)
        answer = aule_monitor_metrics(monitor, &metrics, &count);
    for (uint32_t i = 0; i < count; i++)
        take_metric(status, &metrics[i]);
    free(metrics);
    return answer;
}

// ---- status for people ----

static void print_daemon(const struct status *state)
{
    char up[UNITS_SIZE];
    printf("daemon    %s, pid %" PRIu64 ", up %s, epoch %016" PRIx64 "%s\n", state->daemon.version,
           state->daemon.pid, units_ms(state->uptime_seconds * 1000, up), state->daemon.epoch,
           state->stopping ? ", stopping" : "");
    printf("socket    %s\n", state->daemon.socket);
    printf("sessions  %" PRIu64 " of %" PRIu64 ", %" PRIu64 " died\n", state->num_sessions,
           state->max_sessions, state->session_deaths);
    printf("caches    %" PRIu64 " of %" PRIu64 "\n", state->num_caches, state->max_caches);
}

static void print_pool(const struct status *state)
{
    char bytes[UNITS_SIZE], limit[UNITS_SIZE];
    printf("pool      %s of %s, %" PRIu64 " blocks", units_bytes(state->pool_bytes, bytes),
           units_bytes(state->pool_limit_bytes, limit), state->pool_blocks);
    if (state->pool_limit_blocks)
        printf(" of %" PRIu64, state->pool_limit_blocks);
    printf("\nblocks    %" PRIu64 " free, %" PRIu64 " leased, %" PRIu64 " held, %" PRIu64
           " cached, %" PRIu64 " quarantined, %" PRIu64 " evictions\n",
           state->free_blocks, state->leased_blocks, state->held_blocks, state->cached_blocks,
           state->quarantined_blocks, state->evictions);
}

static double hit_rate(const struct status *state)
{
    return (double)state->hit_tokens / (double)state->lookup_tokens;
}

static void print_work(const struct status *state)
{
    char tokens[UNITS_SIZE];
    printf("prefixes  %" PRIu64 " look-ups", state->lookups);
    if (state->lookup_tokens)
        printf(", %" PRIu64 " of %" PRIu64 " tokens were hits (%.1f %%)", state->hit_tokens,
               state->lookup_tokens, 100 * hit_rate(state));
    printf("\nruns      %" PRIu64 " done, %" PRIu64 " failed, %s tokens attended\n",
           state->runs_done, state->runs_failed, units_count(state->tokens_attended, tokens));
    printf("GPU       %" PRIu64 " dispatches in %" PRIu64 " submissions", state->dispatches,
           state->submissions);
    if (state->ends_awake + state->ends_asleep)
        printf("; %" PRIu64 " ends of work seen awake, woken for %" PRIu64, state->ends_awake,
               state->ends_asleep);
    putchar('\n');
}

// How many dispatches had runs.
static uint64_t count_serving(const struct status *state)
{
    return state->dispatches_of_1 + state->dispatches_of_2 + state->dispatches_of_4 +
           state->dispatches_of_8 + state->dispatches_of_more;
}

static void print_sharing(const struct status *state)
{
    uint64_t count = count_serving(state);
    if (!count)
        return;
    printf("sharing   %.2f sessions a dispatch, at most %" PRIu64 "\n"
           "          dispatches for 1: %" PRIu64 ", for 2: %" PRIu64 ", for 3-4: %" PRIu64
           ", for 5-8: %" PRIu64 ", for 9 and more: %" PRIu64 "\n",
           (double)state->sessions_served / (double)count, state->max_sessions_per_dispatch,
           state->dispatches_of_1, state->dispatches_of_2, state->dispatches_of_4,
           state->dispatches_of_8, state->dispatches_of_more);
}

static enum exit_code show_status(struct ctl *ctl)
{
    struct status state;
    enum aule_status status = ask(ctl->monitor, &state);
    if (status != AULE_OK)
        return report(ctl, status);
    if (ctl->json) {
        cJSON *rate =
            state.lookup_tokens ? cJSON_CreateNumber(hit_rate(&state)) : cJSON_CreateNull();
        return output_json(status_columns, &state, "prefix_hit_rate", rate);
    }
    print_daemon(&state);
    print_pool(&state);
    print_work(&state);
    print_sharing(&state);
    return EXIT_CODE_DONE;
}

const struct command status_command = {
    .words = {.name = "status",
              .help = "show the daemon, its pool, prefix hits and runs",
              .groups = COMMAND_ASKS | COMMAND_LOOKS},
    .run = show_status,
};
