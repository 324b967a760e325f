// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// view_prefix.c - the prefix index as a tree. A line is a run of blocks without a branch whose
// state and holders are the same; a line that continues another one is indented below it.

#include "output.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A published block. Places are indices in nodes.array; NOWHERE: none.
struct node {
    struct aule_prefix_state state;
    size_t child, sibling; // the first one; the next one of the same parent
};
#define NOWHERE SIZE_MAX

struct nodes {
    struct node *array; // [count]; owned
    size_t count;
    size_t *places; // [num_places] by block; owned
    size_t num_places;
};

struct line {
    uint64_t cache;
    const char *cache_name; // borrowed from the list of caches
    char begins[128];       // indented, the first token ids
    uint32_t level;         // lines that it continues
    int32_t block, parent;  // its first block, and the one before it; -1: none
    uint32_t blocks, holders;
    uint64_t tokens, hits, age_ms, tree;
    enum aule_block_kind state;
    bool visible;
    char tenant[256];
    const char *keep; // "" = the usual way
    uint32_t extra_key_size;
};

struct lines {
    struct line *array; // owned
    size_t count, room;
};

#define LINE(heading, kind, member)                                                                \
    {                                                                                              \
#member, heading, COLUMN_##kind, offsetof(struct line, member)                             \
    }
static const struct column columns[] = {
    LINE("cache", POINTER, cache_name),
    LINE("begins with tokens", TEXT, begins),
    LINE("tokens", U64, tokens),
    LINE("blocks", U32, blocks),
    LINE("state", BLOCK_KIND, state),
    LINE("holders", U32, holders),
    LINE("hits", U64, hits),
    LINE("age", MS, age_ms),
    LINE("kept", POINTER, keep),
    LINE("first block", I32, block),
    LINE(NULL, I32, parent),
    LINE(NULL, U32, level),
    LINE(NULL, ID, cache),
    LINE(NULL, ID, tree),
    LINE(NULL, BOOL, visible),
    LINE("tenant", TEXT, tenant),
    LINE("extra key", U32, extra_key_size),
    {.key = NULL},
};

// ---- fetching ----

static enum exit_code no_memory(size_t count)
{
    return complain(EXIT_CODE_FAILED, "no memory for %zu blocks", count);
}

static enum exit_code add_page(struct nodes *nodes, const struct aule_prefix_state *page,
                               uint32_t count)
{
    struct node *more = reallocarray(nodes->array, nodes->count + count + 1, sizeof *more);
    if (!more)
        return no_memory(nodes->count + count);
    nodes->array = more;
    for (uint32_t i = 0; i < count; i++)
        more[nodes->count++] = (struct node){page[i], NOWHERE, NOWHERE};
    return EXIT_CODE_DONE;
}

static enum exit_code fetch(const struct ctl *ctl, const struct aule_cache_view *cache,
                            struct nodes *nodes)
{
    uint32_t next = 0;
    enum exit_code code;
    do {
        struct aule_prefix_state *page = NULL;
        uint32_t count = 0;
        enum aule_status status =
            aule_monitor_prefix(ctl->monitor, cache->cache, &next, &page, &count);
        if (status == AULE_NOT_FOUND && !ctl->cache)
            return EXIT_CODE_DONE; // the cache was dropped after we asked for the list
        if (status != AULE_OK)
            return report(ctl, status);
        code = add_page(nodes, page, count);
        free(page);
    } while (code == EXIT_CODE_DONE && next != 0);
    return code;
}

// ---- the tree ----

static int by_depth(const void *one, const void *other)
{
    const struct aule_prefix_state *a = &((const struct node *)one)->state,
                                   *b = &((const struct node *)other)->state;
    if (a->tree != b->tree)
        return a->tree < b->tree ? -1 : 1;
    if (a->depth != b->depth)
        return a->depth < b->depth ? -1 : 1;
    return (a->block > b->block) - (a->block < b->block);
}

static size_t place_of(const struct nodes *nodes, int32_t block)
{
    return block >= 0 && (size_t)block < nodes->num_places ? nodes->places[block] : NOWHERE;
}

// Parents come before their children. A parent that was evicted between two pages is missing; then
// its children begin trees.
static enum exit_code link_nodes(struct nodes *nodes)
{
    qsort(nodes->array, nodes->count, sizeof *nodes->array, by_depth);
    for (size_t i = 0; i < nodes->count; i++)
        if ((size_t)nodes->array[i].state.block >= nodes->num_places)
            nodes->num_places = (size_t)nodes->array[i].state.block + 1;
    nodes->places = malloc((nodes->num_places + 1) * sizeof *nodes->places);
    if (!nodes->places)
        return no_memory(nodes->count);
    memset(nodes->places, 0xff, nodes->num_places * sizeof *nodes->places); // NOWHERE
    for (size_t i = nodes->count; i-- > 0;)
        nodes->places[nodes->array[i].state.block] = i;
    for (size_t i = nodes->count; i-- > 0;) { // so that siblings are in the order of `array`
        size_t parent = place_of(nodes, nodes->array[i].state.parent);
        if (parent >= i) // missing, or another block has its id by now
            continue;
        nodes->array[i].sibling = nodes->array[parent].child;
        nodes->array[parent].child = i;
    }
    return EXIT_CODE_DONE;
}

static bool goes_on(const struct nodes *nodes, size_t at)
{
    const struct node *node = &nodes->array[at];
    if (node->child == NOWHERE || nodes->array[node->child].sibling != NOWHERE)
        return false;
    const struct aule_prefix_state *next = &nodes->array[node->child].state;
    return next->state == node->state.state && next->holders == node->state.holders &&
           next->visible == node->state.visible && next->keep == node->state.keep;
}

static void name_tokens(struct line *line, const int32_t *tokens)
{
    const int indent = line->level < 20 ? 2 * (int)line->level : 40;
    snprintf(line->begins, sizeof line->begins,
             "%*s%" PRId32 " %" PRId32 " %" PRId32 " %" PRId32 " ...", indent, "", tokens[0],
             tokens[1], tokens[2], tokens[3]);
}

static int only_kept; // enum aule_keep; 0: all
static const struct option prefix_options[] = {
    OPTION_OWN(only_kept, "kept", "HOW", OPTION_CHOICE, AULE_KEEP_PREFERRED,
               OPTION_WORDS("preferred", "pinned"), .otherwise = "all",
               .help = "with `prefix`: only blocks that are kept so",
               .details = "`pinned` shows what `unpin` can let go."),
    {.name = NULL},
};

static const char *keep_name(enum aule_keep keep)
{
    return keep == AULE_KEEP_PINNED ? "pinned" : keep == AULE_KEEP_PREFERRED ? "preferred" : "";
}

// Fills *line with the run of blocks that begins at `at`. Returns its last block's place.
static size_t fill_line(const struct nodes *nodes, size_t at, const struct aule_cache_view *cache,
                        struct line *line)
{
    const struct aule_prefix_state *first = &nodes->array[at].state;
    line->cache = cache->cache;
    line->cache_name = cache->name;
    line->block = first->block;
    line->parent = first->parent;
    line->state = first->state;
    line->holders = first->holders;
    line->hits = first->hits;
    line->age_ms = first->age_ms;
    line->tree = first->tree;
    line->visible = first->visible;
    line->keep = keep_name(first->keep);
    line->extra_key_size = first->extra_key_size;
    memcpy(line->tenant, first->tenant, sizeof line->tenant);
    name_tokens(line, first->tokens);
    for (line->blocks = 1; goes_on(nodes, at); line->blocks++)
        at = nodes->array[at].child;
    line->tokens = (uint64_t)line->blocks * cache->block_size;
    return at;
}

static struct line *new_line(struct lines *lines)
{
    if (lines->count == lines->room) {
        size_t room = 2 * lines->room + 64;
        struct line *more = reallocarray(lines->array, room, sizeof *more);
        if (!more)
            return NULL;
        lines->array = more;
        lines->room = room;
    }
    return memset(&lines->array[lines->count++], 0, sizeof *lines->array);
}

// Places that are still to be shown, and the level of each; the last one comes first.
struct todo {
    size_t *places;   // [count of nodes]; owned
    uint32_t *levels; // the same
    size_t count;
};

static void push_siblings(const struct nodes *nodes, struct todo *todo, size_t first,
                          uint32_t level)
{
    size_t from = todo->count;
    for (size_t at = first; at != NOWHERE; at = nodes->array[at].sibling) {
        todo->places[todo->count] = at;
        todo->levels[todo->count++] = level;
    }
    for (size_t end = todo->count; from + 1 < end; from++, end--) { // the first one last
        size_t place = todo->places[from];
        todo->places[from] = todo->places[end - 1];
        todo->places[end - 1] = place;
    }
}

static bool is_first(const struct nodes *nodes, size_t at)
{
    return place_of(nodes, nodes->array[at].state.parent) >= at;
}

static enum exit_code walk(const struct nodes *nodes, const struct aule_cache_view *cache,
                           struct todo *todo, struct lines *lines)
{
    for (size_t root = 0; root < nodes->count; root++) {
        if (!is_first(nodes, root))
            continue;
        todo->places[0] = root;
        todo->levels[0] = 0;
        todo->count = 1;
        while (todo->count > 0) {
            size_t at = todo->places[--todo->count];
            struct line *line = new_line(lines);
            if (!line)
                return no_memory(nodes->count);
            line->level = todo->levels[todo->count];
            size_t last = fill_line(nodes, at, cache, line);
            push_siblings(nodes, todo, nodes->array[last].child, line->level + 1);
            if (only_kept && (int)nodes->array[at].state.keep != only_kept)
                lines->count--;
        }
    }
    return EXIT_CODE_DONE;
}

static enum exit_code add_cache(const struct ctl *ctl, const struct aule_cache_view *cache,
                                void *context)
{
    struct nodes nodes = {.array = NULL};
    struct todo todo = {.places = NULL};
    enum exit_code code = fetch(ctl, cache, &nodes);
    if (code == EXIT_CODE_DONE)
        code = link_nodes(&nodes);
    todo.places = malloc((nodes.count + 1) * sizeof *todo.places);
    todo.levels = malloc((nodes.count + 1) * sizeof *todo.levels);
    if (code == EXIT_CODE_DONE)
        code = todo.places && todo.levels ? walk(&nodes, cache, &todo, context)
                                          : no_memory(nodes.count);
    free(todo.places);
    free(todo.levels);
    free(nodes.places);
    free(nodes.array);
    return code;
}

static enum exit_code show_prefix(struct ctl *ctl)
{
    struct aule_cache_view *caches = NULL;
    uint32_t count = 0;
    enum aule_status status = aule_monitor_caches(ctl->monitor, &caches, &count);
    if (status != AULE_OK)
        return report(ctl, status);
    struct lines lines = {.array = NULL};
    enum exit_code code = each_cache(ctl, caches, count, add_cache, &lines);
    if (code == EXIT_CODE_DONE) {
        const struct output_list list = {
            "prefix", columns, lines.array, lines.count, sizeof *lines.array, 2};
        code = output_list(ctl, &list);
    }
    free(lines.array);
    free(caches);
    return code;
}

const struct command prefix_command = {
    .words = {.name = "prefix",
              .help = "show the prefixes that look-ups find, as a tree",
              .groups = COMMAND_ASKS | COMMAND_LOOKS | COMMAND_CACHE,
              .options = prefix_options},
    .run = show_prefix,
};
