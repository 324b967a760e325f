// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// forms.c - turns other forms of a step's metadata into aule_batch_params. Pure functions, without
// session and daemon. They copy only those of the caller's arrays that must change. The daemon
// checks who holds a block and whether a slot occurs twice. Any thread.

#include "client/src/caller.h"
#include "client/src/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MIN_BLOCK_SIZE = 8, MAX_BLOCK_SIZE = 256 }; // tokens

// Allocates `count` numbers of `size` bytes and `extra` bytes behind them. After AULE_OK `owned` is
// not NULL, even if all are 0.
static enum aule_status allocate(uint64_t count, size_t size, uint64_t extra,
                                 struct aule_metadata *metadata)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) ||
        __builtin_add_overflow(bytes, extra, &bytes) || bytes > SIZE_MAX)
        bytes = UINT64_MAX;
    if (bytes != UINT64_MAX && (metadata->owned = malloc(bytes ? bytes : 1)))
        return AULE_OK;
    return fail(AULE_NO_MEMORY,
                "no memory for a step's metadata of %" PRIu64 " numbers of %zu bytes", count, size);
}

// The caller's struct aule_metadata may have a `params` of another size than the library's; `owned`
// is its last member. False: no such struct can have this size.
static bool is_size(size_t size)
{
    return size >= sizeof(void *) && size % _Alignof(void *) == 0;
}

static void *owned_place(struct aule_metadata *metadata, size_t size)
{
    return (char *)metadata + size - sizeof(void *);
}

void aule_metadata_finish_sized(struct aule_metadata *metadata, size_t metadata_size)
{
    void *owned;
    if (!metadata || !is_size(metadata_size))
        return;
    memcpy(&owned, owned_place(metadata, metadata_size), sizeof owned);
    free(owned);
    memset(metadata, 0, metadata_size);
}

// Hands `whole` to the caller, or frees it after a failure. Returns `status`.
static enum aule_status finish(enum aule_status status, const struct aule_metadata *whole,
                               struct aule_metadata *metadata, size_t size)
{
    if (status != AULE_OK) {
        free(whole->owned);
        return status;
    }
    GIVE(metadata, size - sizeof whole->owned, whole->params);
    memcpy(owned_place(metadata, size), &whole->owned, sizeof whole->owned);
    return AULE_OK;
}

#define REQUIRE_METADATA                                                                           \
    do {                                                                                           \
        REQUIRE(metadata);                                                                         \
        if (!is_size(metadata_size))                                                               \
            return fail(AULE_INVALID,                                                              \
                        "metadata_size = %zu is not the size of a struct aule_metadata",           \
                        metadata_size);                                                            \
        memset(metadata, 0, metadata_size);                                                        \
    } while (0)

// ---- varlen: two prefix sums ----

static enum aule_status check_sums(const char *name, const int32_t *sums, uint32_t num_seqs)
{
    if (sums[0] < 0)
        return fail(AULE_INVALID, "%s[0] = %d is negative", name, sums[0]);
    for (uint32_t s = 0; s < num_seqs; s++)
        if (sums[s + 1] < sums[s])
            return fail(AULE_INVALID, "%s[%u] = %d is less than the entry before it, %d", name,
                        s + 1, sums[s + 1], sums[s]);
    return AULE_OK;
}

static enum aule_status check_longest(const char *name, const int32_t *sums, uint32_t num_seqs,
                                      const char *bound_name, uint32_t bound)
{
    for (uint32_t s = 0; bound > 0 && s < num_seqs; s++)
        if ((uint32_t)(sums[s + 1] - sums[s]) > bound)
            return fail(AULE_OUT_OF_RANGE, "sequence %u has %d rows of %s, more than %s = %u", s,
                        sums[s + 1] - sums[s], name, bound_name, bound);
    return AULE_OK;
}

static enum aule_status check_varlen(uint32_t num_seqs, const int32_t *cu_seqlens_q,
                                     const int32_t *cu_seqlens_k, uint32_t max_seqlen_q,
                                     uint32_t max_seqlen_k)
{
    if (cu_seqlens_q[0] != 0)
        return fail(AULE_INVALID, "cu_seqlens_q[0] = %d instead of 0", cu_seqlens_q[0]);
    enum aule_status status = check_sums("cu_seqlens_q", cu_seqlens_q, num_seqs);
    if (status == AULE_OK)
        status = check_sums("cu_seqlens_k", cu_seqlens_k, num_seqs);
    if (status == AULE_OK)
        status =
            check_longest("cu_seqlens_q", cu_seqlens_q, num_seqs, "max_seqlen_q", max_seqlen_q);
    if (status == AULE_OK)
        status =
            check_longest("cu_seqlens_k", cu_seqlens_k, num_seqs, "max_seqlen_k", max_seqlen_k);
    return status;
}

enum aule_status aule_metadata_varlen_sized(uint32_t num_seqs, const int32_t *cu_seqlens_q,
                                            const int32_t *cu_seqlens_k, uint32_t max_seqlen_q,
                                            uint32_t max_seqlen_k, struct aule_metadata *metadata,
                                            size_t metadata_size)
{
    REQUIRE_METADATA;
    REQUIRE(cu_seqlens_q);
    REQUIRE(cu_seqlens_k);
    struct aule_metadata whole = {.owned = NULL};
    enum aule_status status =
        check_varlen(num_seqs, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k);
    if (status == AULE_OK)
        status = allocate(num_seqs, sizeof(int32_t), 0, &whole);
    if (status != AULE_OK)
        return status;
    int32_t *lens = whole.owned;
    for (uint32_t s = 0; s < num_seqs; s++)
        lens[s] = cu_seqlens_k[s + 1] - cu_seqlens_k[s];
    whole.params = (struct aule_batch_params){.num_seqs = num_seqs,
                                              .cu_seqlens_q = cu_seqlens_q,
                                              .seq_lens_kv = lens,
                                              .kv_starts = cu_seqlens_k,
                                              .max_seqlen_q = max_seqlen_q,
                                              .max_context_len = max_seqlen_k};
    return finish(AULE_OK, &whole, metadata, metadata_size);
}

// ---- flattened tokens ----

// One call of aule_metadata_tokens(), in the memory that the metadata owns.
struct grouping {
    const struct aule_token_form *form;
    int32_t *cu;      // [num_seqs + 1]
    int32_t *lens;    // [num_seqs]
    int32_t *last;    // [num_seqs] position of the latest token seen, -1 = none yet
    int32_t *rows;    // [num_tokens] the stable order
    bool consecutive; // all positions are those of bottom-right alignment
};

static enum aule_status check_token(const struct aule_token_form *form, uint32_t t)
{
    if (form->seq_ids[t] < 0 || (uint32_t)form->seq_ids[t] >= form->num_seqs)
        return fail(AULE_OUT_OF_RANGE, "seq_ids[%u] = %d is not from 0 to num_seqs %u - 1", t,
                    form->seq_ids[t], form->num_seqs);
    if (form->positions[t] < 0)
        return fail(AULE_INVALID, "positions[%u] = %d is negative", t, form->positions[t]);
    if (form->positions[t] == INT32_MAX && !form->seq_lens_kv)
        return fail(AULE_OUT_OF_RANGE, "positions[%u] = %d: no sequence is that long", t,
                    form->positions[t]);
    return AULE_OK;
}

// Compares token `t` with the one before it in its sequence.
static enum aule_status check_order(const struct grouping *grouping, uint32_t t)
{
    const struct aule_token_form *form = grouping->form;
    int32_t s = form->seq_ids[t], before = grouping->last[s], position = form->positions[t];
    if (before < 0 || position - 1 == before)
        return AULE_OK;
    if (position < before)
        return fail(AULE_INVALID,
                    "positions[%u] = %d of sequence %d falls: its previous token stands at %d", t,
                    position, s, before);
    if (position > before)
        return fail(AULE_INVALID,
                    "positions[%u] = %d of sequence %d leaves a gap: its previous token stands at "
                    "%d",
                    t, position, s, before);
    if (form->repeats)
        return AULE_OK;
    return fail(AULE_INVALID,
                "positions[%u] = %d of sequence %d repeats the one before it; set `repeats` to "
                "allow that",
                t, position, s);
}

static enum aule_status scan_tokens(struct grouping *grouping)
{
    const struct aule_token_form *form = grouping->form;
    for (uint32_t s = 0; s < form->num_seqs; s++)
        grouping->last[s] = -1;
    for (uint32_t t = 0; t < form->num_tokens; t++) {
        enum aule_status status = check_token(form, t);
        if (status == AULE_OK)
            status = check_order(grouping, t);
        if (status != AULE_OK)
            return status;
        int32_t s = form->seq_ids[t];
        if (grouping->last[s] >= 0 && form->positions[t] - 1 != grouping->last[s])
            grouping->consecutive = false;
        grouping->last[s] = form->positions[t];
        grouping->cu[s + 1]++;
    }
    return AULE_OK;
}

// If a sequence's positions rise by one, they are bottom-right aligned if the last one is.
static enum aule_status take_lens(struct grouping *grouping)
{
    const struct aule_token_form *form = grouping->form;
    for (uint32_t s = 0; s < form->num_seqs; s++) {
        int32_t last = grouping->last[s], len = form->seq_lens_kv ? form->seq_lens_kv[s] : last + 1;
        if (len < 0)
            return fail(AULE_INVALID, "seq_lens_kv[%u] = %d is negative", s, len);
        if (last >= len && !form->repeats)
            return fail(AULE_OUT_OF_RANGE,
                        "seq_lens_kv[%u] = %d, but a token of it stands at position %d", s, len,
                        last);
        if (last >= 0 && last != len - 1)
            grouping->consecutive = false;
        grouping->lens[s] = len;
    }
    return AULE_OK;
}

// A stable counting sort. cu[s + 1] is the number of tokens of s before, and the end of s after.
static void sort_tokens(struct grouping *grouping)
{
    const struct aule_token_form *form = grouping->form;
    int32_t *next = grouping->last; // its positions have been used
    for (uint32_t s = 0; s < form->num_seqs; s++) {
        next[s] = grouping->cu[s];
        grouping->cu[s + 1] += grouping->cu[s];
    }
    for (uint32_t t = 0; t < form->num_tokens; t++)
        grouping->rows[next[form->seq_ids[t]]++] = (int32_t)t;
}

static bool is_grouped(const struct aule_token_form *form)
{
    for (uint32_t t = 1; t < form->num_tokens; t++)
        if (form->seq_ids[t] < form->seq_ids[t - 1])
            return false;
    return true;
}

// Bytes of a custom mask for these tokens.
static enum aule_status mask_size_of(const struct grouping *grouping, size_t *size)
{
    uint64_t total = 0;
    for (uint32_t s = 0; s < grouping->form->num_seqs; s++) {
        uint64_t bits =
            (uint64_t)(grouping->cu[s + 1] - grouping->cu[s]) * (uint64_t)grouping->lens[s];
        if (__builtin_add_overflow(total, bits / 8 + (bits % 8 != 0), &total) || total > SIZE_MAX)
            return fail(AULE_OUT_OF_RANGE, "the mask of %u tokens has more than %" PRIu64 " bytes",
                        grouping->form->num_tokens, (uint64_t)SIZE_MAX);
    }
    *size = (size_t)total;
    return AULE_OK;
}

static enum aule_status group(struct grouping *grouping, struct aule_batch_params *params)
{
    const struct aule_token_form *form = grouping->form;
    enum aule_status status = scan_tokens(grouping);
    if (status == AULE_OK)
        status = take_lens(grouping);
    if (status != AULE_OK)
        return status;
    sort_tokens(grouping);
    *params =
        (struct aule_batch_params){.num_seqs = form->num_seqs,
                                   .max_blocks = form->max_blocks,
                                   .cu_seqlens_q = grouping->cu,
                                   .seq_lens_kv = grouping->lens,
                                   .block_table = form->block_table,
                                   .slot_mapping = form->slot_mapping,
                                   .positions = grouping->consecutive ? NULL : form->positions,
                                   .token_rows = is_grouped(form) ? NULL : grouping->rows};
    return form->repeats ? mask_size_of(grouping, &params->mask_size) : AULE_OK;
}

static enum aule_status check_form(const struct aule_token_form *form)
{
    if (form->num_tokens > INT32_MAX)
        return fail(AULE_OUT_OF_RANGE, "num_tokens = %u; at most %d are allowed", form->num_tokens,
                    INT32_MAX);
    if (form->num_tokens > 0 && (!form->seq_ids || !form->positions))
        return fail(AULE_INVALID, "%s is NULL, but num_tokens is %u",
                    form->seq_ids ? "positions" : "seq_ids", form->num_tokens);
    if (form->num_seqs > 0 && form->max_blocks > 0 && !form->block_table)
        return fail(AULE_INVALID, "block_table is NULL, but its shape is [%u, %u]", form->num_seqs,
                    form->max_blocks);
    if (form->repeats && form->num_seqs > 0 && !form->seq_lens_kv)
        return fail(AULE_INVALID,
                    "seq_lens_kv is NULL, but num_seqs is %u, and positions that may repeat do not "
                    "tell the lengths",
                    form->num_seqs);
    return AULE_OK;
}

enum aule_status aule_metadata_tokens_sized(const struct aule_token_form *form, size_t form_size,
                                            struct aule_metadata *metadata, size_t metadata_size)
{
    REQUIRE_METADATA;
    REQUIRE(form);
    struct aule_token_form whole_form;
    struct aule_metadata whole = {.owned = NULL};
    enum aule_status status = TAKE(&whole_form, form, form_size);
    if (status == AULE_OK)
        status = check_form(&whole_form);
    uint64_t num_seqs = whole_form.num_seqs;
    if (status == AULE_OK)
        status = allocate(num_seqs * 3 + 1 + whole_form.num_tokens, sizeof(int32_t), 0, &whole);
    if (status != AULE_OK)
        return status;
    int32_t *owned = whole.owned;
    struct grouping grouping = {.form = &whole_form,
                                .cu = owned,
                                .lens = owned + num_seqs + 1,
                                .last = owned + 2 * num_seqs + 1,
                                .rows = owned + 3 * num_seqs + 1,
                                .consecutive = true};
    for (uint64_t s = 0; s <= num_seqs; s++)
        grouping.cu[s] = 0;
    return finish(group(&grouping, &whole.params), &whole, metadata, metadata_size);
}

// ---- decode with in-place append ----

static enum aule_status check_append(uint32_t num_seqs, const int32_t *cache_seqlens,
                                     const int32_t *block_table, uint32_t max_blocks,
                                     uint32_t block_size)
{
    if (num_seqs >= INT32_MAX)
        return fail(AULE_OUT_OF_RANGE, "num_seqs = %u; at most %d new tokens are allowed", num_seqs,
                    INT32_MAX - 1);
    if (block_size < MIN_BLOCK_SIZE || block_size > MAX_BLOCK_SIZE ||
        (block_size & (block_size - 1)) != 0)
        return fail(AULE_INVALID, "block_size = %u is not a power of two from %d to %d", block_size,
                    MIN_BLOCK_SIZE, MAX_BLOCK_SIZE);
    if (num_seqs > 0 && !cache_seqlens)
        return fail(AULE_INVALID, "cache_seqlens is NULL, but num_seqs is %u", num_seqs);
    if (num_seqs > 0 && !block_table)
        return fail(AULE_INVALID, "block_table is NULL, but its shape is [%u, %u]", num_seqs,
                    max_blocks);
    return AULE_OK;
}

// Finds the slot for the new token of sequence `s`, which has `len` tokens.
static enum aule_status find_slot(const struct aule_batch_params *params, uint32_t s, int32_t len,
                                  uint32_t block_size, int64_t *slot)
{
    if (len < 0)
        return fail(AULE_INVALID, "cache_seqlens[%u] = %d is negative", s, len);
    uint32_t column = (uint32_t)len / block_size, offset = (uint32_t)len % block_size;
    if (column >= params->max_blocks || len == INT32_MAX)
        return fail(
            AULE_OUT_OF_RANGE,
            "cache_seqlens[%u] = %d: a new token needs column %u of the block table, which has %u",
            s, len, column, params->max_blocks);
    int32_t block = params->block_table[(size_t)s * params->max_blocks + column];
    if (block < 0)
        return fail(
            AULE_OUT_OF_RANGE,
            "cache_seqlens[%u] = %d: a new token needs block_table[%u][%u] = %d, which is no block",
            s, len, s, column, block);
    *slot = (int64_t)block * block_size + offset;
    return AULE_OK;
}

static enum aule_status append(const int32_t *cache_seqlens, uint32_t block_size,
                               struct aule_metadata *metadata)
{
    struct aule_batch_params *params = &metadata->params;
    uint32_t num_seqs = params->num_seqs;
    int64_t *slots = metadata->owned;
    int32_t *lens = (int32_t *)(slots + num_seqs), *cu = lens + num_seqs;
    cu[0] = 0;
    for (uint32_t s = 0; s < num_seqs; s++) {
        enum aule_status status = find_slot(params, s, cache_seqlens[s], block_size, &slots[s]);
        if (status != AULE_OK)
            return status;
        lens[s] = cache_seqlens[s] + 1;
        cu[s + 1] = (int32_t)s + 1;
    }
    params->cu_seqlens_q = cu;
    params->seq_lens_kv = lens;
    params->slot_mapping = slots;
    return AULE_OK;
}

enum aule_status aule_metadata_append_sized(uint32_t num_seqs, const int32_t *cache_seqlens,
                                            const int32_t *block_table, uint32_t max_blocks,
                                            uint32_t block_size, struct aule_metadata *metadata,
                                            size_t metadata_size)
{
    REQUIRE_METADATA;
    struct aule_metadata whole = {.owned = NULL};
    enum aule_status status =
        check_append(num_seqs, cache_seqlens, block_table, max_blocks, block_size);
    if (status == AULE_OK)
        status = allocate(num_seqs, sizeof(int64_t) + 2 * sizeof(int32_t), sizeof(int32_t), &whole);
    if (status != AULE_OK)
        return status;
    whole.params = (struct aule_batch_params){
        .num_seqs = num_seqs, .max_blocks = max_blocks, .block_table = block_table};
    return finish(append(cache_seqlens, block_size, &whole), &whole, metadata, metadata_size);
}
