// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// sequence.c - the tokens of a sequence and the blocks that hold them. Knows leases, look-ups and
// publishing as aule.h offers them, no message. See sequence.h for threads.

#include "sequence.h"

#include "client/src/caller.h"
#include "client/src/error.h"
#include "client/src/prefix.h"
#include "settle.h"

#include <stdlib.h>
#include <string.h>

static atomic_ullong generations;

void sequence_touch(struct aule_sequence *sequence)
{
    sequence->generation = atomic_fetch_add(&generations, 1) + 1;
}

// ---- blocks that sequences share ----

struct seq_block *seq_block_create(int32_t id, bool sealed)
{
    struct seq_block *block = malloc(sizeof *block);
    if (!block)
        return NULL;
    atomic_init(&block->sharers, 1);
    atomic_init(&block->sealed, sealed);
    block->id = id;
    return block;
}

bool seq_block_drop(struct seq_block *block, int32_t *released)
{
    if (atomic_fetch_sub(&block->sharers, 1) != 1)
        return false;
    *released = block->id;
    free(block);
    return true;
}

// Drops the blocks from `first` on. The daemon is told once; if it is gone, it has them back.
static void drop_blocks(struct aule_sequence *sequence, uint32_t first)
{
    enum { PART = 256 };
    int32_t released[PART];
    uint32_t count = 0;
    error_mute(true);
    for (uint32_t i = first; i < sequence->num_blocks; i++) {
        count += seq_block_drop(sequence->blocks[i], &released[count]);
        if (count < PART && i + 1 < sequence->num_blocks)
            continue;
        if (count > 0)
            blocks_release(sequence->cache, count, released);
        count = 0;
    }
    error_mute(false);
    if (sequence->num_blocks > first)
        sequence->num_blocks = first;
}

// ---- memory ----

static void *grow(void *array, uint32_t *room, uint64_t wanted, size_t element_size)
{
    uint64_t more = wanted + wanted / 2 + 16;
    if (more > INT32_MAX)
        more = INT32_MAX;
    void *grown = wanted > INT32_MAX ? NULL : realloc(array, more * element_size);
    if (grown)
        *room = (uint32_t)more;
    return grown;
}

enum aule_status sequence_make_room(struct aule_sequence *sequence, uint32_t num_blocks)
{
    if (num_blocks <= sequence->block_room)
        return AULE_OK;
    void *grown =
        grow(sequence->blocks, &sequence->block_room, num_blocks, sizeof(struct seq_block *));
    if (!grown)
        return fail(AULE_NO_MEMORY, "no memory for a sequence of %u blocks", num_blocks);
    sequence->blocks = grown;
    return AULE_OK;
}

enum aule_status sequence_keep_tokens(struct aule_sequence *sequence, const int32_t *tokens,
                                      uint32_t count)
{
    uint64_t wanted = (uint64_t)sequence->num_tokens + count;
    if (wanted > INT32_MAX)
        return fail(AULE_LIMIT, "a sequence of %u tokens and %u more; one has %d at most",
                    sequence->num_tokens, count, INT32_MAX);
    if (tokens && count > 0 && sequence->num_known == sequence->num_tokens &&
        sequence->num_tokens < sequence->num_public) {
        if (wanted > sequence->token_room) {
            void *grown = grow(sequence->tokens, &sequence->token_room, wanted, sizeof *tokens);
            if (!grown)
                return fail(AULE_NO_MEMORY, "no memory for a sequence of %u tokens",
                            (uint32_t)wanted);
            sequence->tokens = grown;
        }
        memcpy(sequence->tokens + sequence->num_tokens, tokens, count * sizeof *tokens);
        sequence->num_known += count;
    }
    sequence->num_tokens += count;
    return AULE_OK;
}

// ---- create and destroy ----

// If the daemon is gone, the claim is, too. That all blocks are published does not say that the
// claim has ended: another session's may stand before it.
static void release_claim(struct aule_sequence *sequence, uint32_t num_tokens)
{
    const uint32_t num_blocks = num_tokens / sequence->cache->block_size;
    if (!sequence->claim.id || num_blocks >= sequence->claim.max_blocks)
        return;
    error_mute(true);
    claim_release(sequence->cache, &sequence->claim, num_blocks);
    error_mute(false);
}

void sequence_end(struct aule_sequence *sequence)
{
    if (!sequence)
        return;
    release_claim(sequence, 0);
    drop_blocks(sequence, 0);
    if (sequence->offer)
        settle_give_back(sequence->cache, sequence->offer);
    free(sequence->blocks);
    free(sequence->tokens);
    handle_unref(&sequence->cache->handle);
    free(sequence);
}

// A call in flight ends first: only one thread at a time may change a sequence.
static void end_handle(struct handle *handle)
{
    struct aule_sequence *sequence = (struct aule_sequence *)handle;
    error_mute(true);
    if (!sequence->given)
        (void)sequence_publish(sequence);
    error_mute(false);
    sequence_end(sequence);
}

const struct handle_kind sequence_handles = {"the sequence", AULE_INVALID, end_handle};

enum aule_status sequence_open(struct aule_sequence *sequence, struct aule_sequence **out)
{
    enum aule_status status = handle_open(&sequence->handle, &sequence_handles);
    if (status == AULE_OK)
        *out = sequence;
    else
        sequence_end(sequence);
    return status;
}

enum aule_status sequence_make(struct aule_cache *cache, const struct aule_sequence_params *params,
                               struct aule_sequence **out)
{
    struct aule_sequence *sequence = calloc(1, sizeof *sequence);
    *out = sequence;
    if (!sequence)
        return fail(AULE_NO_MEMORY, "no memory for a sequence");
    sequence_touch(sequence);
    handle_ref(&cache->handle);
    sequence->cache = cache;
    sequence->publish = params->publish;
    sequence->num_public = UINT32_MAX;
    sequence->extra_key_size = (uint32_t)params->extra_key_size;
    if (params->extra_key_size > 0)
        memcpy(sequence->extra_key, params->extra_key, params->extra_key_size);
    return sequence_keep_tokens(sequence, params->tokens, params->num_tokens);
}

static struct aule_prefix prefix_of(const struct aule_sequence *sequence, uint32_t num_tokens)
{
    return (struct aule_prefix){.tokens = sequence->tokens,
                                .num_tokens = num_tokens,
                                .extra_key = sequence->extra_key_size ? sequence->extra_key : NULL,
                                .extra_key_size = sequence->extra_key_size};
}

// Puts the found block `id` at `index`. A block that was reserved there goes.
static enum aule_status put_found(struct aule_sequence *sequence, uint32_t index, int32_t id)
{
    struct seq_block *block = seq_block_create(id, true);
    int32_t released;
    if (!block)
        return fail(AULE_NO_MEMORY, "no memory for a block of a sequence");
    if (index < sequence->num_blocks && seq_block_drop(sequence->blocks[index], &released))
        blocks_release(sequence->cache, 1, &released);
    sequence->blocks[index] = block;
    if (index >= sequence->num_blocks)
        sequence->num_blocks = index + 1;
    return AULE_OK;
}

// Takes blocks [first, end) of the prompt, which are found and held.
static enum aule_status take_found(struct aule_sequence *sequence, const int32_t *ids,
                                   uint32_t first, uint32_t end)
{
    enum aule_status status = AULE_OK;
    uint32_t taken = first;
    while (taken < end && (status = put_found(sequence, taken, ids[taken])) == AULE_OK)
        taken++;
    if (taken < end)
        blocks_release(sequence->cache, end - taken, ids + taken);
    uint32_t tokens = taken * sequence->cache->block_size;
    sequence->num_found = sequence->num_stored = tokens;
    sequence->num_computed = tokens && tokens == sequence->num_tokens ? tokens - 1 : tokens;
    sequence->num_published = taken;
    sequence_touch(sequence);
    return status;
}

static enum aule_status look_up(struct aule_sequence *sequence, bool claims, enum aule_load load)
{
    uint32_t most = sequence->num_tokens / sequence->cache->block_size;
    int32_t *ids = malloc(most ? most * sizeof *ids : 1);
    enum aule_status status = sequence_make_room(sequence, most);
    if (status == AULE_OK && !ids)
        status = fail(AULE_NO_MEMORY, "no memory for a look-up of %u blocks", most);
    struct aule_prefix prefix = prefix_of(sequence, sequence->num_tokens);
    struct aule_claim *claim = &sequence->claim;
    prefix.load = load;
    if (status == AULE_OK && most > 0)
        status = claims ? aule_prefix_claim(sequence->cache, &prefix, 0, ids, claim)
                        : aule_prefix_lookup(sequence->cache, &prefix, 0, ids, &claim->num_blocks);
    if (status == AULE_OK)
        status = take_found(sequence, ids, 0, claim->num_blocks);
    free(ids);
    return status;
}

static enum aule_status check_params(const struct aule_sequence_params *params)
{
    if (params->claim && !params->publish)
        return fail(AULE_INVALID, "claim without publish: others would wait in vain");
    if (params->num_tokens > 0 && !params->tokens)
        return fail(AULE_INVALID, "tokens is NULL, num_tokens %u", params->num_tokens);
    if (params->extra_key_size > WIRE_MAX_EXTRA_KEY)
        return fail(AULE_INVALID, "extra_key_size = %zu, more than %u", params->extra_key_size,
                    WIRE_MAX_EXTRA_KEY);
    if (params->extra_key_size > 0 && !params->extra_key)
        return fail(AULE_INVALID, "extra_key is NULL, its size %zu", params->extra_key_size);
    return AULE_OK;
}

enum aule_status aule_sequence_create_sized(struct aule_cache *cache,
                                            const struct aule_sequence_params *params,
                                            size_t params_size, struct aule_sequence **out)
{
    REQUIRE(out);
    *out = NULL;
    USE(cache);
    REQUIRE(params);
    struct aule_sequence_params whole;
    struct aule_sequence *sequence = NULL;
    enum aule_status status = TAKE(&whole, params, params_size);
    if (status == AULE_OK)
        status = check_params(&whole);
    if (status == AULE_OK)
        status = sequence_make(cache, &whole, &sequence);
    if (status == AULE_OK)
        status = look_up(sequence, whole.claim, whole.load);
    if (status == AULE_OK)
        return sequence_open(sequence, out);
    sequence_end(sequence);
    return status;
}

// Once a step has computed tokens, the sequence takes nothing more from the cache.
static uint32_t num_promised(const struct aule_sequence *sequence)
{
    return sequence->num_stored > sequence->num_found ? 0 : sequence->claim.num_promised;
}

enum aule_status aule_sequence_wait(struct aule_sequence *sequence, int timeout_ms)
{
    USE(sequence);
    struct aule_claim *claim = &sequence->claim;
    uint32_t had = claim->num_blocks;
    enum aule_status status = timeout_check(timeout_ms);
    if (status != AULE_OK || !num_promised(sequence))
        return status;
    int32_t *ids = malloc(claim->max_blocks * sizeof *ids);
    if (!ids)
        return fail(AULE_NO_MEMORY, "no memory for a look-up of %u blocks", claim->max_blocks);
    status = aule_claim_wait(sequence->cache, claim, timeout_ms, ids);
    if (status == AULE_OK && claim->num_blocks > had) {
        status = take_found(sequence, ids, had, claim->num_blocks);
        if (status != AULE_OK)
            release_claim(sequence, 0);
    } else if (status == AULE_NOT_FOUND) { // ended by what this session has published
        *claim = (struct aule_claim){.num_blocks = had};
        status = AULE_OK;
    }
    free(ids);
    return status;
}

void aule_sequence_destroy(struct aule_sequence *sequence)
{
    if (sequence && handle_close(sequence, &sequence_handles))
        handle_unref(&sequence->handle);
}

// ---- publishing ----

// The blocks [first, end) of a sequence that are published by one message.
struct publishing {
    struct aule_sequence *sequence;
    uint32_t first, end;
    bool releases; // the daemon has released the blocks that were replaced
};

// What own kernels have written is reported by the same message.
struct reporting {
    uint64_t passed;
    uint64_t *mark;
};

// Takes `id`, an existing block of the same tokens, in the place of the block at `index`. Counts
// the block that is left in *count, and writes its id to *left, if no other sequence has it.
static enum aule_status exchange(const struct publishing *publishing, uint32_t index, int32_t id,
                                 int32_t *left, uint32_t *count)
{
    struct aule_sequence *sequence = publishing->sequence;
    struct seq_block *mine = sequence->blocks[index];
    sequence_touch(sequence);
    if (publishing->releases) { // no other sequence has it
        mine->id = id;
        atomic_store(&mine->sealed, true);
        return AULE_OK;
    }
    struct seq_block *theirs = seq_block_create(id, true);
    if (!theirs) {
        *left = id;
        ++*count;
        return fail(AULE_NO_MEMORY, "no memory for a block of a sequence");
    }
    sequence->blocks[index] = theirs;
    *count += seq_block_drop(mine, left);
    return AULE_OK;
}

// An earlier block of the chain may change as well: of two sessions that published it at once, one
// block stays in the cache.
static enum aule_status take_published(const struct publishing *publishing, int32_t *ids)
{
    struct aule_sequence *sequence = publishing->sequence;
    uint32_t count = 0;
    enum aule_status status = AULE_OK;
    sequence->num_published = publishing->end;
    for (uint32_t i = publishing->first; i < publishing->end; i++) {
        // The list of those to release grows no faster than the list of ids is read.
        int32_t id = ids[i - publishing->first];
        enum aule_status taken = AULE_OK;
        if (id == sequence->blocks[i]->id)
            atomic_store(&sequence->blocks[i]->sealed, true);
        else
            taken = exchange(publishing, i, id, &ids[count], &count);
        status = status == AULE_OK ? taken : status;
    }
    enum aule_status released = count > 0 ? blocks_release(sequence->cache, count, ids) : AULE_OK;
    return status == AULE_OK ? released : status;
}

// Only this thread can begin to share a block that no other sequence has.
static bool is_unshared(const struct publishing *publishing)
{
    for (uint32_t i = publishing->first; i < publishing->end; i++)
        if (atomic_load(&publishing->sequence->blocks[i]->sharers) > 1)
            return false;
    return true;
}

static enum aule_status publish_blocks(struct aule_sequence *sequence, uint32_t first, uint32_t end,
                                       const struct reporting *reporting)
{
    struct aule_cache *cache = sequence->cache;
    struct publishing publishing = {.sequence = sequence, .first = first, .end = end};
    publishing.releases = is_unshared(&publishing);
    int32_t *ids = malloc((end - first) * sizeof *ids);
    if (!ids)
        return fail(AULE_NO_MEMORY, "no memory to publish %u blocks", end - first);
    for (uint32_t i = first; i < end; i++)
        ids[i - first] = sequence->blocks[i]->id;
    struct prefix_publishing message = {.prefix = prefix_of(sequence, end * cache->block_size),
                                        .parent =
                                            first > 0 ? &sequence->blocks[first - 1]->id : NULL,
                                        .releases = publishing.releases};
    if (reporting) {
        message.written = true;
        message.passed = reporting->passed;
        message.mark = reporting->mark;
    }
    message.prefix.tokens += (size_t)first * cache->block_size;
    message.prefix.num_tokens -= first * cache->block_size;
    enum aule_status status = prefix_publish(cache, &message, ids, NULL);
    if (status == AULE_OK)
        status = take_published(&publishing, ids);
    free(ids);
    return status;
}

static uint32_t num_full(const struct aule_sequence *sequence)
{
    uint32_t done =
        sequence->num_computed < sequence->num_known ? sequence->num_computed : sequence->num_known;
    return done / sequence->cache->block_size;
}

// reporting NULL: reports nothing.
static enum aule_status publish_full(struct aule_sequence *sequence,
                                     const struct reporting *reporting)
{
    const uint32_t num_blocks = num_full(sequence);
    const uint32_t first = sequence->num_published;
    enum aule_status status = publish_blocks(sequence, first, num_blocks, reporting);
    // The parent is not in the index if another session published the same tokens first.
    if (status == AULE_NOT_FOUND && first > 0)
        status = publish_blocks(sequence, 0, num_blocks, reporting);
    return status == AULE_UNWRITTEN ? AULE_OK : status;
}

static enum aule_status publish_computed(struct aule_sequence *sequence)
{
    return num_full(sequence) > sequence->num_published ? publish_full(sequence, NULL) : AULE_OK;
}

enum aule_status sequence_publish(struct aule_sequence *sequence)
{
    return sequence->publish ? publish_computed(sequence) : AULE_OK;
}

enum aule_status aule_sequence_publish(struct aule_sequence *sequence)
{
    USE(sequence);
    return publish_computed(sequence);
}

static enum aule_status report_passed(struct aule_sequence *sequence,
                                      const struct reporting *reporting)
{
    const struct aule_report report = {.passed = reporting->passed};
    return aule_cache_report(sequence->cache, &report, reporting->mark);
}

enum aule_status aule_sequence_publish_written(struct aule_sequence *sequence, uint64_t passed,
                                               uint64_t *mark)
{
    USE(sequence);
    const struct reporting reporting = {.passed = passed, .mark = mark};
    if (num_full(sequence) <= sequence->num_published) // less, if all of a prompt was found
        return report_passed(sequence, &reporting);
    return publish_full(sequence, &reporting);
}

// ---- tokens ----

enum aule_status aule_sequence_append(struct aule_sequence *sequence, const int32_t *tokens,
                                      uint32_t count)
{
    USE(sequence);
    return sequence_keep_tokens(sequence, tokens, count);
}

enum aule_status aule_sequence_truncate(struct aule_sequence *sequence, uint32_t num_tokens)
{
    USE(sequence);
    if (num_tokens > sequence->num_tokens)
        return fail(AULE_OUT_OF_RANGE, "a sequence of %u tokens cannot be truncated to %u",
                    sequence->num_tokens, num_tokens);
    uint32_t kept = blocks_for(sequence->cache, num_tokens);
    release_claim(sequence, num_tokens);
    drop_blocks(sequence, kept);
    uint32_t full = num_tokens / sequence->cache->block_size;
    sequence->num_tokens = num_tokens;
    if (sequence->num_known > num_tokens)
        sequence->num_known = num_tokens;
    if (sequence->num_public >= num_tokens)
        sequence->num_public = UINT32_MAX;
    if (sequence->num_stored > num_tokens)
        sequence->num_stored = num_tokens;
    if (sequence->num_computed > num_tokens)
        sequence->num_computed = num_tokens;
    if (sequence->num_found > num_tokens)
        sequence->num_found = num_tokens;
    if (sequence->num_published > full)
        sequence->num_published = full;
    sequence_touch(sequence);
    return AULE_OK;
}

enum aule_status aule_sequence_keep_private(struct aule_sequence *sequence, uint32_t num_tokens)
{
    USE(sequence);
    if (num_tokens > sequence->num_tokens)
        return fail(AULE_OUT_OF_RANGE, "num_tokens = %u is more than the sequence's %u tokens",
                    num_tokens, sequence->num_tokens);
    uint32_t published = sequence->num_published * sequence->cache->block_size;
    if (num_tokens < published)
        return fail(AULE_SEALED, "tokens from %u on cannot be private: %u are published",
                    num_tokens, published);
    release_claim(sequence, num_tokens);
    if (sequence->num_public > num_tokens)
        sequence->num_public = num_tokens;
    if (sequence->num_known > num_tokens)
        sequence->num_known = num_tokens;
    return AULE_OK;
}

const int32_t *aule_sequence_tokens(const struct aule_sequence *sequence)
{
    struct handle *in_use __attribute__((cleanup(handle_leave))) = NULL;
    if (handle_enter(sequence, &sequence_handles, __func__, "sequence", &in_use) != AULE_OK)
        return NULL;
    return sequence->num_known == sequence->num_tokens ? sequence->tokens : NULL;
}

// ---- forks ----

static enum aule_status share_blocks(const struct aule_sequence *from, struct aule_sequence *to)
{
    uint32_t count = blocks_for(from->cache, from->num_stored);
    enum aule_status status = sequence_make_room(to, count);
    if (status != AULE_OK)
        return status;
    for (; to->num_blocks < count; to->num_blocks++) {
        to->blocks[to->num_blocks] = from->blocks[to->num_blocks];
        atomic_fetch_add(&to->blocks[to->num_blocks]->sharers, 1);
    }
    return AULE_OK;
}

enum aule_status aule_sequence_fork(const struct aule_sequence *sequence,
                                    struct aule_sequence **fork)
{
    REQUIRE(fork);
    *fork = NULL;
    USE(sequence);
    const struct aule_sequence_params params = {.tokens = sequence->tokens,
                                                .num_tokens = sequence->num_known,
                                                .extra_key = sequence->extra_key,
                                                .extra_key_size = sequence->extra_key_size,
                                                .publish = sequence->publish};
    struct aule_sequence *child = NULL;
    enum aule_status status = sequence_make(sequence->cache, &params, &child);
    if (status == AULE_OK)
        status = share_blocks(sequence, child);
    if (status != AULE_OK) {
        sequence_end(child);
        return status;
    }
    child->num_public = sequence->num_public;
    child->num_tokens = sequence->num_tokens;
    child->num_stored = sequence->num_stored;
    child->num_computed = sequence->num_computed;
    child->num_found = sequence->num_found;
    child->num_published = sequence->num_published;
    return sequence_open(child, fork);
}

enum aule_status aule_sequence_info_sized(const struct aule_sequence *sequence,
                                          struct aule_sequence_info *info, size_t info_size)
{
    USE(sequence);
    REQUIRE(info);
    const struct aule_sequence_info whole = {.num_tokens = sequence->num_tokens,
                                             .num_computed = sequence->num_computed,
                                             .num_found = sequence->num_found,
                                             .num_blocks = sequence->num_blocks,
                                             .num_published = sequence->num_published,
                                             .num_promised = num_promised(sequence) *
                                                             sequence->cache->block_size};
    GIVE(info, info_size, whole);
    return AULE_OK;
}
