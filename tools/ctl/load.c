// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// load.c - `load`: publishes the blocks of a file that `save` wrote, as a session of the tenant.
// Blocks that are published already are left as they are. Blocks in front of a damage are loaded.

#include "mover.h"
#include "output.h"
#include "progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUN_BLOCKS = 256, LEASE_MS = 10000 };

struct loading {
    const struct ctl *ctl;
    struct savefile file;
    struct mover mover;
    struct savefile_block *blocks; // [count]: all that were read; owned
    uint64_t count, room;
    uint64_t first; // of the run: its blocks follow each other, the last one is count - 1
    struct mover_chain chain;
    struct progress progress;
    char what[300];
    uint64_t loaded, existing; // blocks
    bool damaged;              // file.error says where
};

struct loaded {
    const char *file;
    char name[256];
    uint64_t blocks, tokens, existing;
};
#define LOADED(heading, kind, member)                                                              \
    {                                                                                              \
#member, heading, COLUMN_##kind, offsetof(struct loaded, member)                           \
    }
static const struct column loaded_columns[] = {
    LOADED("file", POINTER, file),
    LOADED("cache", TEXT, name),
    LOADED("loaded blocks", U64, blocks),
    LOADED("loaded tokens", U64, tokens),
    LOADED("blocks that were there", U64, existing),
    {.key = NULL},
};

static enum exit_code no_memory(const struct loading *loading)
{
    return complain(EXIT_CODE_FAILED, "no memory for the keys of %" PRIu64 " blocks",
                    loading->file.expected);
}

// ---- one run: blocks that follow each other ----

// The chain of block `last`, from the prefix's beginning on. False: no memory.
static bool lay_chain(struct loading *loading, uint64_t last)
{
    const uint32_t block_size = loading->file.identity.block_size;
    uint32_t count = 0;
    for (uint64_t at = last; at != SAVEFILE_NO_PARENT; at = loading->blocks[at].parent)
        count++;
    if (!mover_chain_resize(&loading->chain, count, block_size))
        return false;
    for (uint64_t at = last; at != SAVEFILE_NO_PARENT; at = loading->blocks[at].parent) {
        count--;
        loading->chain.places[count] = at;
        memcpy(loading->chain.tokens + (size_t)count * block_size, loading->blocks[at].key.tokens,
               block_size * sizeof(int32_t));
    }
    return true;
}

// The prefix of the chain's first `count` blocks.
static struct aule_prefix prefix_of(const struct loading *loading, uint32_t count)
{
    const struct aule_block_tokens *first = &loading->blocks[loading->chain.places[0]].key;
    return (struct aule_prefix){
        .tokens = loading->chain.tokens,
        .num_tokens = count * loading->file.identity.block_size,
        .extra_key = first->extra_key_size ? first->extra_key : NULL,
        .extra_key_size = first->extra_key_size,
    };
}

// Fills the chain's blocks from `at` on with bytes of the file, up to the first damaged one. *end:
// behind the last one that is filled.
static enum exit_code fill(struct loading *loading, uint32_t at, uint32_t *end)
{
    struct mover *mover = &loading->mover;
    const struct mover_chain *chain = &loading->chain;
    enum exit_code code = EXIT_CODE_DONE;
    *end = at;
    while (code == EXIT_CODE_DONE && at < chain->count && !loading->damaged) {
        uint32_t count = 0;
        while (count < mover->piece && at + count < chain->count && !loading->damaged) {
            const struct savefile_block *block = &loading->blocks[chain->places[at + count]];
            loading->damaged =
                !savefile_read(&loading->file, block, mover->bytes + count * mover->block_bytes);
            count += !loading->damaged;
            progress_show(&loading->progress, block->offset);
        }
        if (count)
            code = mover_in(mover, chain->blocks + at, count);
        at += count;
        *end = code == EXIT_CODE_DONE ? at : *end;
    }
    return code;
}

static enum exit_code publish(struct loading *loading, uint32_t found, uint32_t end)
{
    const struct aule_prefix prefix = prefix_of(loading, end);
    enum aule_status status = end > found ? aule_prefix_publish(loading->mover.cache, &prefix,
                                                                loading->chain.blocks, NULL)
                                          : AULE_OK;
    if (status != AULE_OK)
        return report(loading->ctl, status);
    loading->loaded += end - found;
    return EXIT_CODE_DONE;
}

// Loads the blocks of the run that are not published, and those before it that have gone.
static enum exit_code load_run(struct loading *loading)
{
    struct mover_chain *chain = &loading->chain;
    struct aule_cache *cache = loading->mover.cache;
    uint32_t found = 0, end = 0;
    if (loading->first == loading->count)
        return EXIT_CODE_DONE;
    if (!lay_chain(loading, loading->count - 1))
        return no_memory(loading);
    const struct aule_prefix prefix = prefix_of(loading, chain->count);
    enum aule_status status = aule_prefix_lookup(cache, &prefix, 0, chain->blocks, &found);
    const uint32_t missing = chain->count - found;
    if (status == AULE_OK && missing)
        status = aule_blocks_lease(cache, missing, LEASE_MS, chain->blocks + found);
    if (status != AULE_OK) {
        if (found)
            aule_blocks_release(cache, found, chain->blocks);
        return report(loading->ctl, status);
    }
    const uint64_t fresh = loading->count - loading->first;
    loading->existing += missing < fresh ? fresh - missing : 0;
    loading->first = loading->count;
    enum exit_code code = fill(loading, found, &end);
    if (code == EXIT_CODE_DONE)
        code = publish(loading, found, end);
    aule_blocks_release(cache, chain->count, chain->blocks);
    return code;
}

// ---- all of it ----

static bool add_block(struct loading *loading, const struct savefile_block *block)
{
    if (loading->count == loading->room) {
        const uint64_t room = 2 * loading->room + 256;
        struct savefile_block *more = reallocarray(loading->blocks, room, sizeof *more);
        if (!more)
            return false;
        loading->blocks = more;
        loading->room = room;
    }
    loading->blocks[loading->count++] = *block;
    return true;
}

// The block does not follow the one before it, or the run is long enough.
static bool ends_run(const struct loading *loading, const struct savefile_block *block)
{
    return loading->count &&
           (block->parent != loading->count - 1 || loading->count - loading->first >= RUN_BLOCKS);
}

static enum exit_code read_file(struct loading *loading)
{
    struct savefile_block block;
    enum savefile_next next = SAVEFILE_BLOCK;
    enum exit_code code = EXIT_CODE_DONE;
    while (code == EXIT_CODE_DONE && !loading->damaged &&
           (next = savefile_next(&loading->file, &block)) == SAVEFILE_BLOCK) {
        if (ends_run(loading, &block))
            code = load_run(loading);
        if (code == EXIT_CODE_DONE && !loading->damaged && !add_block(loading, &block))
            code = no_memory(loading);
    }
    char sentence[SAVEFILE_ERROR_SIZE];
    memcpy(sentence, loading->file.error, sizeof sentence);
    if (code == EXIT_CODE_DONE && !loading->damaged)
        code = load_run(loading);
    if (next == SAVEFILE_DAMAGED && !loading->damaged) {
        loading->damaged = true;
        memcpy(loading->file.error, sentence, sizeof sentence);
    }
    return code;
}

static enum exit_code tell(const struct loading *loading)
{
    struct loaded loaded = {.file = loading->ctl->argument,
                            .blocks = loading->loaded,
                            .tokens = loading->loaded * loading->file.identity.block_size,
                            .existing = loading->existing};
    memcpy(loaded.name, loading->file.identity.name, sizeof loaded.name);
    if (loading->damaged)
        return complain(EXIT_CODE_FAILED,
                        "%s; %" PRIu64 " blocks before are loaded, %" PRIu64 " were there",
                        loading->file.error, loading->loaded, loading->existing);
    return output_object(loading->ctl, loaded_columns, &loaded);
}

static enum exit_code load(struct ctl *ctl)
{
    struct loading loading = {.ctl = ctl};
    enum exit_code code = EXIT_CODE_DONE;
    if (!savefile_open(&loading.file, ctl->argument))
        code = complain(EXIT_CODE_FAILED, "%s", loading.file.error);
    if (code == EXIT_CODE_DONE)
        code = mover_open(&loading.mover, ctl, &loading.file.identity);
    if (code == EXIT_CODE_DONE) {
        snprintf(loading.what, sizeof loading.what, "loading %s", loading.file.identity.name);
        loading.progress = progress_begin(
            loading.what, loading.file.expected * loading.file.identity.block_bytes, ctl->json);
        code = read_file(&loading);
        progress_end(&loading.progress);
    }
    if (code == EXIT_CODE_DONE)
        code = tell(&loading);
    savefile_close(&loading.file);
    mover_close(&loading.mover);
    mover_chain_free(&loading.chain);
    free(loading.blocks);
    return code;
}

const struct command load_command = {
    .words = {.name = "load",
              .argument = "FILE",
              .help = "publish the prefixes of a file that save wrote",
              .groups = COMMAND_ASKS | COMMAND_TENANT},
    .run = load,
};
