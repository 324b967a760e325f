// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// save.c - `save`: writes the published blocks of a cache to a file. It lists the prefix index as
// an operator may, and gets the bytes as a session of the tenant. So it saves what sessions of its
// user and of --tenant find, and nothing else.

#include "mover.h"
#include "output.h"
#include "progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A published block, in the order of its depth.
struct node {
    int32_t block, parent;
    uint32_t depth;
    uint64_t number; // in the file; SAVEFILE_NO_PARENT: not saved yet
    bool has_child, visible;
    bool is_known;                   // its token ids are in saving.tokens
    struct aule_block_tokens *first; // the whole key, of a node that begins a prefix; owned
};

struct saving {
    const struct ctl *ctl;
    struct aule_cache_view cache;
    struct node *nodes; // [count], parents before children; owned
    size_t count;
    struct node **by_block; // [num_ids]; NULL: not published; owned
    size_t num_ids;
    struct mover mover;
    struct savefile file;
    int32_t *tokens;          // [count * block_size] of the nodes; owned
    struct mover_chain chain; // the blocks of one prefix; places: of nodes
    struct progress progress;
    char what[300];
    uint64_t others; // blocks that a session of this tenant does not find
};

struct saved {
    const char *file;
    char name[256];
    uint64_t blocks, tokens, bytes, others;
};
#define SAVED(heading, kind, member)                                                               \
    {                                                                                              \
#member, heading, COLUMN_##kind, offsetof(struct saved, member)                            \
    }
static const struct column saved_columns[] = {
    SAVED("file", POINTER, file),
    SAVED("cache", TEXT, name),
    SAVED("saved blocks", U64, blocks),
    SAVED("saved tokens", U64, tokens),
    SAVED("size", BYTES, bytes),
    SAVED("blocks of other tenants", U64, others),
    {.key = NULL},
};

static enum exit_code no_memory(const struct saving *saving)
{
    return complain(EXIT_CODE_FAILED, "no memory to save the %zu blocks of \"%s\"", saving->count,
                    saving->cache.name);
}

// ---- the cache ----

static enum exit_code take_cache(const struct ctl *ctl, const struct aule_cache_view *cache,
                                 void *context)
{
    struct aule_cache_view *out = context;
    (void)ctl;
    *out = *cache;
    return EXIT_CODE_DONE;
}

static enum exit_code find_cache(struct saving *saving)
{
    const struct ctl *ctl = saving->ctl;
    struct aule_cache_view *caches = NULL;
    uint32_t count = 0;
    enum aule_status status = aule_monitor_caches(ctl->monitor, &caches, &count);
    if (status != AULE_OK)
        return report(ctl, status);
    const enum exit_code code =
        ctl->cache || count == 1
            ? each_cache(ctl, caches, count, take_cache, &saving->cache)
            : complain(EXIT_CODE_USAGE, "the daemon has %" PRIu32 " caches; name one with --cache",
                       count);
    free(caches);
    return code;
}

static bool take_fingerprint(const char *digits, struct savefile_identity *identity)
{
    for (; digits[0] && digits[1]; digits += 2) {
        unsigned byte;
        if (identity->fingerprint_size == sizeof identity->fingerprint ||
            sscanf(digits, "%2x", &byte) != 1)
            return false;
        identity->fingerprint[identity->fingerprint_size++] = (uint8_t)byte;
    }
    return true;
}

static enum exit_code identify(const struct saving *saving, struct savefile_identity *identity)
{
    const struct aule_cache_view *cache = &saving->cache;
    *identity = (struct savefile_identity){
        .num_layers = cache->num_layers,
        .num_kv_heads = cache->num_kv_heads,
        .head_dim = cache->head_dim,
        .head_dim_v = cache->head_dim_v,
        .block_size = cache->block_size,
        .k_dtype = cache->k_dtype,
        .v_dtype = cache->v_dtype,
        .scale_mode = cache->scale_mode,
        .v_is_k_prefix = cache->v_is_k_prefix,
        .block_bytes = cache->block_bytes,
    };
    memcpy(identity->name, cache->name, sizeof identity->name);
    const struct aule_block_tokens *key = NULL;
    if (cache->block_size > sizeof key->tokens / sizeof *key->tokens || !cache->block_bytes)
        return complain(EXIT_CODE_FAILED,
                        "the daemon answered a cache with blocks of %" PRIu32 " tokens, %" PRIu64
                        " bytes",
                        cache->block_size, cache->block_bytes);
    if (take_fingerprint(cache->fingerprint, identity))
        return EXIT_CODE_DONE;
    return complain(EXIT_CODE_FAILED, "the daemon answered \"%s\" as a fingerprint",
                    cache->fingerprint);
}

// ---- the prefix index ----

static bool add_page(struct saving *saving, const struct aule_prefix_state *page, uint32_t count)
{
    struct node *more =
        reallocarray(saving->nodes, saving->count + count + 1, sizeof *saving->nodes);
    if (!more)
        return false;
    saving->nodes = more;
    for (uint32_t i = 0; i < count; i++)
        more[saving->count++] = (struct node){.block = page[i].block,
                                              .parent = page[i].parent,
                                              .depth = page[i].depth,
                                              .number = SAVEFILE_NO_PARENT,
                                              .visible = page[i].visible};
    return true;
}

static enum exit_code fetch(struct saving *saving)
{
    const struct ctl *ctl = saving->ctl;
    uint32_t next = 0;
    do {
        struct aule_prefix_state *page = NULL;
        uint32_t count = 0;
        enum aule_status status =
            aule_monitor_prefix(ctl->monitor, saving->cache.cache, &next, &page, &count);
        if (status != AULE_OK)
            return report(ctl, status);
        const bool added = add_page(saving, page, count);
        free(page);
        if (!added)
            return no_memory(saving);
    } while (next);
    return EXIT_CODE_DONE;
}

static int by_depth(const void *one, const void *other)
{
    const struct node *a = one, *b = other;
    if (a->depth != b->depth)
        return a->depth < b->depth ? -1 : 1;
    return (a->block > b->block) - (a->block < b->block);
}

static struct node *node_of(const struct saving *saving, int32_t block)
{
    return block >= 0 && (size_t)block < saving->num_ids ? saving->by_block[block] : NULL;
}

static enum exit_code link_nodes(struct saving *saving)
{
    if (saving->count)
        qsort(saving->nodes, saving->count, sizeof *saving->nodes, by_depth);
    for (size_t i = 0; i < saving->count; i++)
        if ((size_t)saving->nodes[i].block >= saving->num_ids)
            saving->num_ids = (size_t)saving->nodes[i].block + 1;
    saving->by_block = calloc(saving->num_ids + 1, sizeof(struct node *));
    saving->tokens = calloc(saving->count + 1, saving->cache.block_size * sizeof *saving->tokens);
    if (!saving->by_block || !saving->tokens)
        return no_memory(saving);
    for (size_t i = 0; i < saving->count; i++)
        saving->by_block[saving->nodes[i].block] = &saving->nodes[i];
    for (size_t i = 0; i < saving->count; i++) {
        struct node *parent = node_of(saving, saving->nodes[i].parent);
        if (parent && parent->depth < saving->nodes[i].depth)
            parent->has_child = true;
    }
    return EXIT_CODE_DONE;
}

// ---- one prefix ----

// The blocks from the prefix's beginning to `leaf`, as far back as they are known. False: no
// memory.
static bool lay_chain(struct saving *saving, const struct node *leaf)
{
    const uint32_t count = leaf->depth + 1;
    struct mover_chain *chain = &saving->chain;
    const struct node *node = leaf;
    if (!mover_chain_resize(chain, count, saving->cache.block_size))
        return false;
    for (uint32_t i = count; i-- > 0;) {
        if (!node || node->depth != i || !node->visible) {
            chain->count = i; // and what is before it is looked at, too
            node = node && node->depth == i ? node_of(saving, node->parent) : NULL;
            continue;
        }
        chain->places[i] = (uint64_t)(node - saving->nodes);
        node = node_of(saving, node->parent);
    }
    return true;
}

static int32_t *tokens_of(const struct saving *saving, const struct node *node)
{
    return saving->tokens + (size_t)(node - saving->nodes) * saving->cache.block_size;
}

// Asks for the node's token ids, once. AULE_NOT_FOUND: it is no longer published.
static enum aule_status fetch_key(struct saving *saving, struct node *node)
{
    struct aule_block_tokens key;
    if (node->is_known)
        return AULE_OK;
    enum aule_status status =
        aule_monitor_tokens(saving->ctl->monitor, saving->cache.cache, node->block, &key);
    if (status != AULE_OK)
        return status;
    if (key.num_tokens != saving->cache.block_size)
        return AULE_MALFORMED;
    if (node->depth == 0) {
        node->first = malloc(sizeof *node->first);
        if (!node->first)
            return AULE_NO_MEMORY;
        *node->first = key;
    }
    memcpy(tokens_of(saving, node), key.tokens, key.num_tokens * sizeof *key.tokens);
    node->is_known = true;
    return AULE_OK;
}

// The chain ends before the first block that is no longer published.
static enum exit_code fetch_keys(struct saving *saving)
{
    struct mover_chain *chain = &saving->chain;
    const uint32_t block_size = saving->cache.block_size;
    for (uint32_t i = 0; i < chain->count; i++) {
        struct node *node = &saving->nodes[chain->places[i]];
        enum aule_status status = fetch_key(saving, node);
        if (status == AULE_NOT_FOUND)
            chain->count = i;
        else if (status != AULE_OK)
            return report(saving->ctl, status);
        else
            memcpy(chain->tokens + (size_t)i * block_size, tokens_of(saving, node),
                   block_size * sizeof *chain->tokens);
    }
    return EXIT_CODE_DONE;
}

// Holds the chain's blocks as a session does. Only those that are the listed ones stay: a session
// of another tenant would find others, or none.
static enum exit_code hold_chain(struct saving *saving, uint32_t *held)
{
    struct mover_chain *chain = &saving->chain;
    const struct aule_block_tokens *first = saving->nodes[chain->places[0]].first;
    const struct aule_prefix prefix = {
        .tokens = chain->tokens,
        .num_tokens = chain->count * saving->cache.block_size,
        .extra_key = first->extra_key_size ? first->extra_key : NULL,
        .extra_key_size = first->extra_key_size,
        .load = AULE_LOAD_NEVER, // a block that has been evicted meanwhile is left out
    };
    enum aule_status status =
        aule_prefix_lookup(saving->mover.cache, &prefix, 0, chain->blocks, held);
    if (status != AULE_OK)
        return report(saving->ctl, status);
    uint32_t same = 0;
    while (same < *held && chain->blocks[same] == saving->nodes[chain->places[same]].block)
        same++;
    chain->count = same;
    return EXIT_CODE_DONE;
}

static enum exit_code fail_file(const struct saving *saving)
{
    return complain(EXIT_CODE_FAILED, "%s", saving->file.error);
}

// Writes the chain's blocks from `first` to `end`, whose bytes are in the arena.
static enum exit_code write_piece(struct saving *saving, uint32_t first, uint32_t end)
{
    struct savefile_block block;
    for (uint32_t i = first; i < end; i++) {
        struct node *node = &saving->nodes[saving->chain.places[i]];
        block.parent = i ? saving->nodes[saving->chain.places[i - 1]].number : SAVEFILE_NO_PARENT;
        block.key.num_tokens = saving->cache.block_size;
        block.key.extra_key_size = 0;
        if (i == 0)
            block.key = *node->first;
        memcpy(block.key.tokens, tokens_of(saving, node),
               saving->cache.block_size * sizeof *block.key.tokens);
        node->number = saving->file.count;
        if (!savefile_write(&saving->file, &block,
                            saving->mover.bytes + (i - first) * saving->mover.block_bytes))
            return fail_file(saving);
        progress_show(&saving->progress, saving->file.offset);
    }
    return EXIT_CODE_DONE;
}

static enum exit_code write_chain(struct saving *saving)
{
    const struct mover_chain *chain = &saving->chain;
    uint32_t at = 0;
    enum exit_code code = EXIT_CODE_DONE;
    while (at < chain->count && saving->nodes[chain->places[at]].number != SAVEFILE_NO_PARENT)
        at++;
    while (code == EXIT_CODE_DONE && at < chain->count) {
        const uint32_t left = chain->count - at,
                       count = left < saving->mover.piece ? left : saving->mover.piece;
        code = mover_out(&saving->mover, chain->blocks + at, count);
        if (code == EXIT_CODE_DONE)
            code = write_piece(saving, at, at + count);
        at += count;
    }
    return code;
}

static enum exit_code save_chain(struct saving *saving, const struct node *leaf)
{
    uint32_t held = 0;
    if (!lay_chain(saving, leaf))
        return no_memory(saving);
    enum exit_code code = fetch_keys(saving);
    if (code != EXIT_CODE_DONE || !saving->chain.count)
        return code;
    code = hold_chain(saving, &held);
    if (code == EXIT_CODE_DONE)
        code = write_chain(saving);
    if (held)
        aule_blocks_release(saving->mover.cache, held, saving->chain.blocks);
    return code;
}

// ---- all of it ----

static enum exit_code write_file(struct saving *saving, const struct savefile_identity *identity)
{
    enum exit_code code = EXIT_CODE_DONE;
    if (!savefile_create(&saving->file, saving->ctl->argument, identity, saving->count))
        return fail_file(saving);
    snprintf(saving->what, sizeof saving->what, "saving %s", saving->cache.name);
    saving->progress =
        progress_begin(saving->what, saving->count * identity->block_bytes, saving->ctl->json);
    for (size_t i = 0; code == EXIT_CODE_DONE && i < saving->count; i++) {
        if (!saving->nodes[i].has_child)
            code = save_chain(saving, &saving->nodes[i]);
    }
    progress_end(&saving->progress);
    for (size_t i = 0; i < saving->count; i++)
        saving->others += saving->nodes[i].number == SAVEFILE_NO_PARENT;
    if (code == EXIT_CODE_DONE && !savefile_finish(&saving->file))
        code = fail_file(saving);
    return code;
}

static enum exit_code tell(const struct saving *saving)
{
    struct saved saved = {.file = saving->ctl->argument,
                          .blocks = saving->file.count,
                          .tokens = saving->file.count * saving->cache.block_size,
                          .bytes = saving->file.offset,
                          .others = saving->others};
    memcpy(saved.name, saving->cache.name, sizeof saved.name);
    return output_object(saving->ctl, saved_columns, &saved);
}

static void finish(struct saving *saving)
{
    savefile_close(&saving->file);
    mover_close(&saving->mover);
    mover_chain_free(&saving->chain);
    for (size_t i = 0; i < saving->count; i++)
        free(saving->nodes[i].first);
    free(saving->tokens);
    free(saving->by_block);
    free(saving->nodes);
}

static enum exit_code save(struct ctl *ctl)
{
    struct saving saving = {.ctl = ctl, .file = {.fd = -1}};
    struct savefile_identity identity;
    enum exit_code code = find_cache(&saving);
    if (code == EXIT_CODE_DONE)
        code = identify(&saving, &identity);
    if (code == EXIT_CODE_DONE)
        code = mover_open(&saving.mover, ctl, &identity);
    if (code == EXIT_CODE_DONE)
        code = fetch(&saving);
    if (code == EXIT_CODE_DONE)
        code = link_nodes(&saving);
    if (code == EXIT_CODE_DONE)
        code = write_file(&saving, &identity);
    if (code == EXIT_CODE_DONE)
        code = tell(&saving);
    finish(&saving);
    return code;
}

const struct command save_command = {
    .words = {.name = "save",
              .argument = "FILE",
              .help = "write a cache's published prefixes to a file, which load reads",
              .groups = COMMAND_ASKS | COMMAND_CACHE | COMMAND_TENANT},
    .run = save,
};
