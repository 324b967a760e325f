// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// commands.c - the list of commands, and the commands whose answer is a line or two. A command is a
// function, and a struct command below it; a view has a file of its own.

#include "output.h"
#include "units.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static const struct command ping_command = {
    .words = {.name = "ping",
              .help = "ask whether the daemon answers, and how fast",
              .groups = COMMAND_ASKS | COMMAND_LOOKS},
    .run = ping,
};

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

static const struct command close_session_command = {
    .words = {.name = "close-session",
              .argument = "ID",
              .help = "end a session as if its worker had died",
              .groups = COMMAND_ASKS},
    .run = close_session,
};

struct unpinned {
    uint64_t cache;
    char name[256];
    int32_t block; // -1: all of the cache
    uint32_t prefixes;
    uint64_t blocks;
};
static const struct column unpinned_columns[] = {
    {"cache", NULL, COLUMN_ID, offsetof(struct unpinned, cache)},
    {"name", "cache", COLUMN_TEXT, offsetof(struct unpinned, name)},
    {"block", NULL, COLUMN_I32, offsetof(struct unpinned, block)},
    {"unpinned_prefixes", "unpinned prefixes", COLUMN_U32, offsetof(struct unpinned, prefixes)},
    {"unpinned_blocks", "unpinned blocks", COLUMN_U64, offsetof(struct unpinned, blocks)},
    {.key = NULL},
};

static enum exit_code unpin_in(const struct ctl *ctl, const struct aule_cache_view *cache,
                               void *context)
{
    struct unpinned *gone = context;
    enum aule_status status =
        aule_monitor_unpin(ctl->monitor, cache->cache, gone->block, &gone->prefixes, &gone->blocks);
    gone->cache = cache->cache;
    memcpy(gone->name, cache->name, sizeof gone->name);
    return status == AULE_OK ? output_object(ctl, unpinned_columns, gone) : report(ctl, status);
}

// Cuts ":BLOCK" off `text`, which is CACHE or CACHE:BLOCK. A cache's name may have colons and end
// with a number, so the whole text is tried as a cache first. Returns the block; -1: none.
static int32_t cut_block(char *text, const struct aule_cache_view *caches, uint32_t count)
{
    uint64_t block;
    char *colon = strrchr(text, ':');
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(text, caches[i].name) == 0)
            return -1;
    if (!colon || !parse_id(colon + 1, &block) || block > INT32_MAX)
        return -1;
    *colon = '\0';
    return (int32_t)block;
}

static enum exit_code unpin(struct ctl *ctl)
{
    struct unpinned gone = {0};
    struct aule_cache_view *caches = NULL;
    uint32_t count = 0;
    enum aule_status status = aule_monitor_caches(ctl->monitor, &caches, &count);
    if (status != AULE_OK)
        return report(ctl, status);
    char *wanted = strdup(ctl->argument);
    enum exit_code code = wanted ? EXIT_CODE_DONE : complain(EXIT_CODE_FAILED, "no memory");
    if (wanted) {
        gone.block = cut_block(wanted, caches, count);
        ctl->cache = wanted;
        code = each_cache(ctl, caches, count, unpin_in, &gone);
    }
    ctl->cache = NULL;
    free(wanted);
    free(caches);
    return code;
}

static const struct command unpin_command = {
    .words =
        {.name = "unpin",
         .argument = "CACHE[:BLOCK]",
         .help = "let pinned prefixes be evicted again: those with this block, or all of the cache",
         .groups = COMMAND_ASKS},
    .run = unpin,
};

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

static const struct command version_command = {
    .words = {.name = "version",
              .help = "show the versions of aule-ctl and its library; needs no daemon"},
    .run = show_version,
};

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

static const struct command log_level_command = {
    .words = {.name = "log-level",
              .argument = "[LEVEL]",
              .help = "show or set what is logged: show, error, warn, info, debug",
              .groups = COMMAND_ASKS},
    .run = log_level,
    .choices = log_levels,
};

struct option_row {
    const char *name, *value; // in the daemon's lines
    bool given;
};
#define OPTION_COLUMN(kind, member)                                                                \
    {                                                                                              \
#member, #member, COLUMN_##kind, offsetof(struct option_row, member)                       \
    }
static const struct column option_columns[] = {OPTION_COLUMN(POINTER, name),
                                               OPTION_COLUMN(BOOL, given),
                                               OPTION_COLUMN(POINTER, value),
                                               {.key = NULL}};

static bool only_given;
static const struct option options_options[] = {
    OPTION_OWN(only_given, "given", NULL, OPTION_FLAG,
               .help = "with `options`: only those that the daemon's command line names"),
    {.name = NULL},
};

// Cuts the first line off *lines. False: it was no option, or is not shown.
static bool cut_option(char **lines, struct option_row *row)
{
    char *line = strsep(lines, "\n"), *value = strchr(line, '=');
    if (!value)
        return false;
    *value = '\0';
    const bool given = *line != '#';
    *row = (struct option_row){given ? line : line + 1, value + 1, given};
    return given || !only_given;
}

static size_t count_lines(const char *text)
{
    size_t count = 1;
    for (; (text = strchr(text, '\n')); text++)
        count++;
    return count;
}

static enum exit_code show_options(struct ctl *ctl)
{
    char *lines = NULL;
    enum aule_status status = aule_monitor_options(ctl->monitor, &lines);
    if (status != AULE_OK)
        return report(ctl, status);
    struct option_row *rows = calloc(count_lines(lines), sizeof *rows);
    struct output_list list = {"options", option_columns, rows, 0, sizeof *rows, 1};
    for (char *rest = lines; rows && rest;)
        list.count += cut_option(&rest, &rows[list.count]);
    enum exit_code code =
        rows ? output_list(ctl, &list) : complain(EXIT_CODE_FAILED, "no memory for the options");
    free(rows);
    free(lines);
    return code;
}

static const struct command options_command = {
    .words = {.name = "options",
              .help = "show the options that the daemon was started with",
              .groups = COMMAND_ASKS | COMMAND_LOOKS,
              .options = options_options},
    .run = show_options,
};

// ---- the list ----

const struct options_command *const commands[] = {
    &status_command.words,     &metrics_command.words,
    &sessions_command.words,   &caches_command.words,
    &blocks_command.words,     &prefix_command.words,
    &tenants_command.words,    &tiers_command.words,
    &device_command.words,     &close_session_command.words,
    &drop_cache_command.words, &unpin_command.words,
    &limit_command.words,      &save_command.words,
    &load_command.words,       &log_level_command.words,
    &options_command.words,    &ping_command.words,
    &version_command.words,    NULL,
};
