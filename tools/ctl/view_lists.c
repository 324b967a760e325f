// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// view_lists.c - lists of sessions, caches and blocks, each a table of columns; and drop-cache,
// which finds its cache in the list.

#include "output.h"
#include "tools/complaint/clean.h"
#include "tools/complaint/complaint.h"
#include "view_map.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SESSION(heading, kind, member)                                                             \
    {                                                                                              \
#member, heading, COLUMN_##kind, offsetof(struct aule_session_state, member)               \
    }
static const struct column session_columns[] = {
    SESSION("id", ID, session),
    SESSION("name", TEXT, name),
    SESSION("tenant", TEXT, tenant),
    SESSION("pid", ID, pid),
    SESSION(NULL, U32, uid),
    SESSION("age", MS, age_ms),
    SESSION("arena", BYTES, arena_bytes),
    SESSION(NULL, BOOL, arena_imported),
    SESSION("blocks", U64, blocks_held),
    SESSION(NULL, U64, quota_blocks),
    SESSION(NULL, U32, batches),
    SESSION("tickets", U32, tickets_unreaped),
    SESSION("runs", U64, runs_done),
    SESSION("tokens", U64, tokens_attended),
    SESSION("GPU", NS, gpu_ns),
    SESSION("looked up", U64, lookup_tokens),
    SESSION("hits", U64, hit_tokens),
    SESSION("dead", BOOL, dead),
    {.key = NULL},
};

#define CACHE(heading, kind, member)                                                               \
    {                                                                                              \
#member, heading, COLUMN_##kind, offsetof(struct aule_cache_view, member)                  \
    }
static const struct column cache_columns[] = {
    CACHE("id", ID, cache),
    CACHE("name", TEXT, name),
    CACHE("layers", U32, num_layers),
    CACHE("KV heads", U32, num_kv_heads),
    CACHE("K dim", U32, head_dim),
    CACHE("V dim", U32, head_dim_v),
    CACHE("MLA", BOOL, v_is_k_prefix),
    CACHE("K", DTYPE, k_dtype),
    CACHE("V", DTYPE, v_dtype),
    CACHE("scales", SCALE_MODE, scale_mode),
    CACHE("block", U32, block_size),
    CACHE("a block", BYTES, block_bytes),
    CACHE(NULL, U32, chunk_blocks),
    CACHE("chunks", U32, num_chunks),
    CACHE("open", U32, open_sessions),
    CACHE("total", U64, total_blocks),
    CACHE("free", U64, free_blocks),
    CACHE("leased", U64, leased_blocks),
    CACHE("held", U64, held_blocks),
    CACHE("cached", U64, cached_blocks),
    CACHE("quarantined", U64, quarantined_blocks),
    CACHE("published", U64, published_blocks),
    CACHE("pending", U64, pending_blocks),
    CACHE("fingerprint", TEXT, fingerprint),
    {.key = NULL},
};

#define ROW(heading, kind, member)                                                                 \
    {                                                                                              \
#member, heading, COLUMN_##kind, offsetof(struct block_row, member)                        \
    }
#define BLOCK(heading, kind, member)                                                               \
    {                                                                                              \
#member, heading, COLUMN_##kind, offsetof(struct block_row, block.member)                  \
    }
static const struct column block_columns[] = {
    ROW(NULL, ID, cache),           ROW("cache", POINTER, cache_name),
    BLOCK("block", I32, block),     BLOCK("state", BLOCK_KIND, state),
    BLOCK("holders", U32, holders), BLOCK("batches", U32, batch_refs),
    BLOCK("writer", ID, writer),    BLOCK("last use", ID, last_use),
    BLOCK("depth", I32, depth),     {.key = NULL},
};

// ---- sessions and caches ----

static enum exit_code show_sessions(struct ctl *ctl)
{
    struct aule_session_state *array = NULL;
    uint32_t count = 0;
    enum aule_status status = aule_monitor_sessions(ctl->monitor, &array, &count);
    if (status != AULE_OK)
        return report(ctl, status);
    struct output_list list = {"sessions", session_columns, array, count, sizeof *array, 2};
    enum exit_code code = output_list(ctl, &list);
    free(array);
    return code;
}

const struct command sessions_command = {
    .words = {.name = "sessions",
              .help = "list the sessions",
              .groups = COMMAND_ASKS | COMMAND_LOOKS},
    .run = show_sessions,
};

static enum exit_code show_caches(struct ctl *ctl)
{
    struct aule_cache_view *array = NULL;
    uint32_t count = 0;
    enum aule_status status = aule_monitor_caches(ctl->monitor, &array, &count);
    if (status != AULE_OK)
        return report(ctl, status);
    struct output_list list = {"caches", cache_columns, array, count, sizeof *array, 2};
    enum exit_code code = output_list(ctl, &list);
    free(array);
    return code;
}

const struct command caches_command = {
    .words = {.name = "caches",
              .help = "list the caches and the states of their blocks",
              .groups = COMMAND_ASKS | COMMAND_LOOKS},
    .run = show_caches,
};

// ---- blocks of the caches that --cache names ----

static struct {
    int state; // enum aule_block_kind; -1: all
    bool map;
} of_blocks = {.state = -1};

static const struct option block_options[] = {
    OPTION_OWN(of_blocks.state, "state", "STATE", OPTION_CHOICE, AULE_BLOCK_FREE,
               .words = block_kind_names, .otherwise = "all",
               .help = "with `blocks`: only blocks in this state"),
    OPTION_OWN(of_blocks.map, "map", NULL, OPTION_FLAG, .otherwise = "a list",
               .help = "with `blocks`: draw each cache's blocks, one character for one or more",
               .details = "A character shows the state that most of its blocks have. On a terminal "
                          "it has a colour, unless $NO_COLOR is set."),
    {.name = NULL},
};

static enum exit_code add_rows(struct block_rows *rows, const struct aule_cache_view *cache,
                               const struct aule_block_state *blocks, uint32_t count, int state)
{
    struct block_row *more = reallocarray(rows->array, rows->count + count + 1, sizeof *more);
    if (!more)
        return complain(EXIT_CODE_FAILED, "no memory for %zu blocks", rows->count + count);
    rows->array = more;
    for (uint32_t i = 0; i < count; i++)
        if (state < 0 || (int)blocks[i].state == state)
            more[rows->count++] = (struct block_row){cache->cache, cache->name, blocks[i]};
    return EXIT_CODE_DONE;
}

static enum exit_code add_cache(const struct ctl *ctl, const struct aule_cache_view *cache,
                                void *context)
{
    struct block_rows *rows = context;
    struct aule_block_state *blocks = NULL;
    uint32_t count = 0;
    enum aule_status status = aule_monitor_blocks(ctl->monitor, cache->cache, &blocks, &count);
    if (status == AULE_NOT_FOUND && !ctl->cache)
        return EXIT_CODE_DONE; // the cache was dropped after we asked for the list
    if (status != AULE_OK)
        return report(ctl, status);
    enum exit_code code = add_rows(rows, cache, blocks, count, of_blocks.state);
    free(blocks);
    return code;
}

// A name is tried before an id: a cache may be called "7".
static bool is_called(const char *wanted, const struct aule_cache_view *cache, bool by_name)
{
    uint64_t id;
    if (by_name)
        return strcmp(wanted, cache->name) == 0;
    return parse_id(wanted, &id) && id == cache->cache;
}

static void no_cache(const struct ctl *ctl, const char *wanted, uint32_t count)
{
    char what[COMPLAINT_SIZE];
    snprintf(what, sizeof what,
             "the daemon has no cache \"%s\" among its %u; aule-ctl caches%s lists them", wanted,
             count, ctl->socket_option);
    complaint_say(what, aule_status_name(AULE_NOT_FOUND), NULL);
}

static void several_caches(const char *wanted, const struct aule_cache_view *caches, uint32_t count)
{
    char ids[COMPLAINT_SIZE / 2] = "";
    for (uint32_t i = 0; i < count; i++) {
        const size_t size = strlen(ids);
        if (is_called(wanted, &caches[i], true))
            snprintf(ids + size, sizeof ids - size, "%s%" PRIu64, size ? ", " : "",
                     caches[i].cache);
    }
    complain(EXIT_CODE_FAILED,
             "the daemon has several caches \"%s\", of several tenants; give an id: %s", wanted,
             ids);
}

// Names are a tenant's own, so several caches may have the wanted one. NULL: there is none, or not
// only one, and the user was told.
static const struct aule_cache_view *find_cache(const struct ctl *ctl, const char *wanted,
                                                const struct aule_cache_view *caches,
                                                uint32_t count)
{
    const struct aule_cache_view *found = NULL;
    for (int by_name = 1; by_name >= 0 && !found; by_name--) {
        for (uint32_t i = 0; i < count; i++) {
            if (!is_called(wanted, &caches[i], by_name))
                continue;
            if (found) {
                several_caches(wanted, caches, count);
                return NULL;
            }
            found = &caches[i];
        }
    }
    if (!found)
        no_cache(ctl, wanted, count);
    return found;
}

enum exit_code each_cache(const struct ctl *ctl, const struct aule_cache_view *caches,
                          uint32_t count, cache_visitor visit, void *context)
{
    if (ctl->cache) {
        const struct aule_cache_view *cache = find_cache(ctl, ctl->cache, caches, count);
        return cache ? visit(ctl, cache, context) : EXIT_CODE_FAILED;
    }
    enum exit_code code = EXIT_CODE_DONE;
    for (uint32_t i = 0; i < count && code == EXIT_CODE_DONE; i++)
        code = visit(ctl, &caches[i], context);
    return code;
}

static enum exit_code print_blocks(const struct ctl *ctl, const struct block_rows *rows)
{
    const struct output_list list = {"blocks",    block_columns,       rows->array,
                                     rows->count, sizeof *rows->array, 2};
    return of_blocks.map ? map_print(rows) : output_list(ctl, &list);
}

static enum exit_code show_blocks(struct ctl *ctl)
{
    struct aule_cache_view *caches = NULL;
    uint32_t count = 0;
    if (of_blocks.map && ctl->json)
        return complain(EXIT_CODE_USAGE, "--map draws for people; with --json, blocks lists them");
    enum aule_status status = aule_monitor_caches(ctl->monitor, &caches, &count);
    if (status != AULE_OK)
        return report(ctl, status);
    struct block_rows rows = {.array = NULL};
    enum exit_code code = each_cache(ctl, caches, count, add_cache, &rows);
    if (code == EXIT_CODE_DONE)
        code = print_blocks(ctl, &rows);
    free(rows.array);
    free(caches);
    return code;
}

const struct command blocks_command = {
    .words = {.name = "blocks",
              .help = "list blocks, or draw them",
              .groups = COMMAND_ASKS | COMMAND_LOOKS | COMMAND_CACHE,
              .options = block_options},
    .run = show_blocks,
};

// ---- dropping a cache ----

static const struct column dropped_columns[] = {
    {"dropped_cache", NULL, COLUMN_ID, offsetof(struct aule_cache_view, cache)},
    {"name", NULL, COLUMN_TEXT, offsetof(struct aule_cache_view, name)},
    {"cached_blocks", NULL, COLUMN_U64, offsetof(struct aule_cache_view, cached_blocks)},
    {.key = NULL},
};

static enum exit_code drop(const struct ctl *ctl, const struct aule_cache_view *cache)
{
    enum aule_status status = aule_monitor_drop_cache(ctl->monitor, cache->cache);
    char name[COLUMN_TEXT_SIZE];
    if (status != AULE_OK)
        return report(ctl, status);
    if (ctl->json)
        return output_json(dropped_columns, cache, NULL, NULL);
    clean_text(name, sizeof name, cache->name, true);
    printf("cache %" PRIu64 " \"%s\" is dropped, with %" PRIu64 " cached blocks\n", cache->cache,
           name, cache->cached_blocks);
    return EXIT_CODE_DONE;
}

static enum exit_code drop_cache(struct ctl *ctl)
{
    struct aule_cache_view *caches = NULL;
    uint32_t count = 0;
    enum aule_status status = aule_monitor_caches(ctl->monitor, &caches, &count);
    if (status != AULE_OK)
        return report(ctl, status);
    const struct aule_cache_view *cache = find_cache(ctl, ctl->argument, caches, count);
    enum exit_code code = cache ? drop(ctl, cache) : EXIT_CODE_FAILED;
    free(caches);
    return code;
}

const struct command drop_cache_command = {
    .words = {.name = "drop-cache",
              .argument = "NAME|ID",
              .help = "end a cache that no session has open, with its cached blocks",
              .groups = COMMAND_ASKS},
    .run = drop_cache,
};
