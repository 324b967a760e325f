// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// commands.c - the table of commands, and those whose answer is a line or two. A small command is
// one row and one function here; a view has a file of its own.

#include "output.h"
#include "units.h"

#include <inttypes.h>
#include <stdio.h>

#define PING(kind, member)                                                                         \
    {                                                                                              \
#member, NULL, COLUMN_##kind, offsetof(struct aule_ping_info, member)                      \
    }
static const struct column ping_columns[] = {
    PING(TEXT, version),       PING(HEX, epoch),          PING(U64, round_trip_ns),
    PING(U32, protocol_major), PING(U32, protocol_minor), {.key = NULL},
};

static enum exit_code ping(struct ctl *ctl)
{
    struct aule_ping_info info;
    char time[UNITS_SIZE];
    enum aule_status status = aule_monitor_ping(ctl->monitor, &info);
    if (status != AULE_OK)
        return report(ctl, status);
    if (ctl->json)
        return output_json(ping_columns, &info, NULL, NULL);
    printf("aule-daemon %s answered in %s (protocol %u.%u, epoch %016" PRIx64 ")\n", info.version,
           units_ns(info.round_trip_ns, time), info.protocol_major, info.protocol_minor,
           info.epoch);
    return EXIT_CODE_DONE;
}

static const struct column closed_columns[] = {{"closed_session", NULL, COLUMN_ID, 0},
                                               {.key = NULL}};

static enum exit_code close_session(struct ctl *ctl)
{
    enum aule_status status = aule_monitor_close_session(ctl->monitor, ctl->id);
    if (status != AULE_OK)
        return report(ctl, status);
    if (ctl->json)
        return output_json(closed_columns, &ctl->id, NULL, NULL);
    printf("session %" PRIu64 " is closed\n", ctl->id);
    return EXIT_CODE_DONE;
}

struct versions {
    const char *version, *library;
};
static const struct column version_columns[] = {
    {"version", "aule-ctl", COLUMN_POINTER, offsetof(struct versions, version)},
    {"library", "libaule-client", COLUMN_POINTER, offsetof(struct versions, library)},
    {.key = NULL},
};

static enum exit_code show_version(struct ctl *ctl)
{
    struct versions versions = {AULE_VERSION_STRING, aule_version()};
    return output_object(ctl, version_columns, &versions);
}

static const char *const log_levels[] = {
    [AULE_LOG_SHOW] = "show", [AULE_LOG_ERROR] = "error", [AULE_LOG_WARN] = "warn",
    [AULE_LOG_INFO] = "info", [AULE_LOG_DEBUG] = "debug", NULL,
};

struct levels {
    const char *now, *before;
};
static const struct column level_columns[] = {
    {"level", "log level", COLUMN_POINTER, offsetof(struct levels, now)},
    {"before", "before", COLUMN_POINTER, offsetof(struct levels, before)},
    {.key = NULL},
};

static enum exit_code log_level(struct ctl *ctl)
{
    const enum aule_log_level wanted = (enum aule_log_level)ctl->choice;
    enum aule_log_level before;
    enum aule_status status = aule_monitor_log_level(ctl->monitor, wanted, &before);
    if (status != AULE_OK)
        return report(ctl, status);
    const struct levels levels = {log_levels[wanted == AULE_LOG_SHOW ? before : wanted],
                                  log_levels[before]};
    return output_object(ctl, level_columns, &levels);
}

// ---- the table ----

static const char *const tune_actions[] = {
    [AULE_TUNE_SHOW] = "show", [AULE_TUNE_RENEW] = "renew", [AULE_TUNE_CLEAR] = "clear",
    [AULE_TUNE_OFF] = "off",   [AULE_TUNE_ON] = "on",       NULL,
};

const struct command commands[] = {
    {{"status", NULL, "show the daemon, its pool, prefix hits and runs",
      COMMAND_ASKS | COMMAND_LOOKS},
     .run = show_status},
    {{"metrics", NULL, "list all counters and gauges, with unit and meaning",
      COMMAND_ASKS | COMMAND_LOOKS},
     .run = show_metrics},
    {{"sessions", NULL, "list the sessions", COMMAND_ASKS | COMMAND_LOOKS}, .run = show_sessions},
    {{"caches", NULL, "list the caches and the states of their blocks",
      COMMAND_ASKS | COMMAND_LOOKS},
     .run = show_caches},
    {{"blocks", NULL, "list blocks, or draw them",
      COMMAND_ASKS | COMMAND_LOOKS | COMMAND_CACHE | COMMAND_BLOCKS},
     .run = show_blocks},
    {{"prefix", NULL, "show the prefixes that look-ups find, as a tree",
      COMMAND_ASKS | COMMAND_LOOKS | COMMAND_CACHE},
     .run = show_prefix},
    {{"tenants", NULL, "list the tenants, their blocks and their limits",
      COMMAND_ASKS | COMMAND_LOOKS},
     .run = show_tenants},
    {{"device", NULL, "show the device that the daemon owns, and its attention shaders",
      COMMAND_ASKS | COMMAND_LOOKS},
     .run = show_device},
    {{"close-session", "ID", "end a session as if its worker had died", COMMAND_ASKS},
     .run = close_session},
    {{"drop-cache", "NAME|ID", "end a cache that no session has open, with its cached blocks",
      COMMAND_ASKS},
     .run = drop_cache},
    {{"limit", "WHO=LIMITS",
      "change the limits of a tenant (NAME=blocks:N,cached:N,floor:N) or a session "
      "(session:ID=blocks:N)",
      COMMAND_ASKS},
     .run = limit},
    {{"tune", "[ACTION]", "what was measured of kernels' ways: show, renew, clear, on, off",
      COMMAND_ASKS},
     .run = tune,
     .choices = tune_actions},
    {{"log-level", "[LEVEL]", "show or set what is logged: show, error, warn, info, debug",
      COMMAND_ASKS},
     .run = log_level,
     .choices = log_levels},
    {{"ping", NULL, "ask whether the daemon answers, and how fast", COMMAND_ASKS | COMMAND_LOOKS},
     .run = ping},
    {{"version", NULL, "show the versions of aule-ctl and its library; needs no daemon", 0},
     .run = show_version},
    {.words = {.name = NULL}},
};
