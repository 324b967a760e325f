// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// view_status.c - the daemon as a whole. Asks once, prints once.

#include "output.h"
#include "units.h"

#include <inttypes.h>
#include <stdio.h>

#define FIELD(kind, member)                                                                        \
    {                                                                                              \
#member, NULL, COLUMN_##kind, offsetof(struct aule_daemon_state, member)                   \
    }

// For JSON only; people get sentences.
static const struct column daemon_columns[] = {
    FIELD(HEX, epoch),
    FIELD(U64, pid),
    FIELD(U64, uptime_ms),
    FIELD(TEXT, version),
    FIELD(TEXT, socket),
    FIELD(BOOL, stopping),
    FIELD(U32, num_sessions),
    FIELD(U32, max_sessions),
    FIELD(U32, num_caches),
    FIELD(U32, max_caches),
    FIELD(U64, pool_bytes),
    FIELD(U64, pool_limit_bytes),
    FIELD(U64, pool_blocks),
    FIELD(U64, pool_limit_blocks),
    FIELD(U64, free_blocks),
    FIELD(U64, leased_blocks),
    FIELD(U64, held_blocks),
    FIELD(U64, cached_blocks),
    FIELD(U64, quarantined_blocks),
    FIELD(U64, runs_done),
    FIELD(U64, runs_failed),
    FIELD(U64, dispatches),
    FIELD(U64, submissions),
    FIELD(U64, tokens_attended),
    FIELD(U64, lookups),
    FIELD(U64, lookup_tokens),
    FIELD(U64, hit_tokens),
    FIELD(U64, evictions),
    FIELD(U64, session_deaths),
    FIELD(U32, max_sessions_per_dispatch),
    FIELD(U64, sessions_served),
    FIELD(U64, dispatches_of_1),
    FIELD(U64, dispatches_of_2),
    FIELD(U64, dispatches_of_4),
    FIELD(U64, dispatches_of_8),
    FIELD(U64, dispatches_of_more),
    FIELD(U64, ends_awake),
    FIELD(U64, ends_asleep),
    {.key = NULL},
};

// ---- status for people ----

static void print_daemon(const struct aule_daemon_state *state)
{
    char up[UNITS_SIZE];
    printf("daemon    %s, pid %" PRIu64 ", up %s, epoch %016" PRIx64 "%s\n", state->version,
           state->pid, units_ms(state->uptime_ms, up), state->epoch,
           state->stopping ? ", stopping" : "");
    printf("socket    %s\n", state->socket);
    printf("sessions  %u of %u, %" PRIu64 " died\n", state->num_sessions, state->max_sessions,
           state->session_deaths);
    printf("caches    %u of %u\n", state->num_caches, state->max_caches);
}

static void print_pool(const struct aule_daemon_state *state)
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

static double hit_rate(const struct aule_daemon_state *state)
{
    return (double)state->hit_tokens / (double)state->lookup_tokens;
}

static void print_work(const struct aule_daemon_state *state)
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
static uint64_t count_serving(const struct aule_daemon_state *state)
{
    return state->dispatches_of_1 + state->dispatches_of_2 + state->dispatches_of_4 +
           state->dispatches_of_8 + state->dispatches_of_more;
}

static void print_sharing(const struct aule_daemon_state *state)
{
    uint64_t count = count_serving(state);
    if (!count)
        return;
    printf("sharing   %.2f sessions a dispatch, at most %u\n"
           "          dispatches for 1: %" PRIu64 ", for 2: %" PRIu64 ", for 3-4: %" PRIu64
           ", for 5-8: %" PRIu64 ", for 9 and more: %" PRIu64 "\n",
           (double)state->sessions_served / (double)count, state->max_sessions_per_dispatch,
           state->dispatches_of_1, state->dispatches_of_2, state->dispatches_of_4,
           state->dispatches_of_8, state->dispatches_of_more);
}

static enum exit_code show_status(struct ctl *ctl)
{
    struct aule_daemon_state state;
    enum aule_status status = aule_monitor_daemon(ctl->monitor, &state);
    if (status != AULE_OK)
        return report(ctl, status);
    if (ctl->json) {
        cJSON *rate =
            state.lookup_tokens ? cJSON_CreateNumber(hit_rate(&state)) : cJSON_CreateNull();
        return output_json(daemon_columns, &state, "prefix_hit_rate", rate);
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
