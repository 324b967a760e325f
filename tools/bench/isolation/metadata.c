// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// metadata.c - kinds of load that keep the daemon's dispatcher busy: large batches, long prompts,
// and advances that copy a table. They have no results; the neighbour's are checked.

#include "load.h"

#include <stdlib.h>

enum { BATCH_SEQS = 1024, HEADS = 1, DIM = 8, BLOCK = 32, PROMPT_BLOCK = 16 };

// Blocks that are written, for tables.
static bool open_table(struct load *load)
{
    const struct load_shape shape = {1, HEADS, DIM, BLOCK, 2};
    if (!load_cache(load, &shape) || !load_tensor(load, 0, 2 * BLOCK, HEADS, DIM) ||
        !load_tensor(load, 1, 2 * BLOCK, HEADS, DIM))
        return false;
    load_fill(load, 0, 2 * BLOCK, HEADS * DIM, false);
    load_fill(load, 1, 2 * BLOCK, HEADS * DIM, false);
    return load_import(load, 0, 2 * BLOCK);
}

static uint32_t columns_of(const struct load *load)
{
    return load->size / BATCH_SEQS / (uint32_t)sizeof(int32_t);
}

bool batches_open(struct load *load)
{
    return open_table(load);
}

bool batches_act(struct load *load)
{
    struct aule_batch *batch = NULL;
    const bool made = load_batch(load, BATCH_SEQS, columns_of(load), 1, &batch);
    aule_batch_destroy(batch);
    return made;
}

bool claims_open(struct load *load)
{
    const struct load_shape shape = {1, HEADS, DIM, PROMPT_BLOCK, 1};
    int32_t *tokens = malloc(load->size * sizeof *tokens);
    load->array = tokens;
    for (uint32_t i = 0; tokens && i < load->size; i++)
        tokens[i] = (int32_t)i;
    return tokens && load_cache(load, &shape);
}

bool claims_act(struct load *load)
{
    const struct aule_prefix prefix = {.tokens = load->array, .num_tokens = load->size};
    int32_t *blocks = malloc(load->size / PROMPT_BLOCK * sizeof *blocks);
    struct aule_claim claim = {0};
    ((int32_t *)load->array)[0] = (int32_t)load->acts; // another prompt
    const bool done =
        blocks && load_fine(aule_prefix_claim(load->cache, &prefix, 0, blocks, &claim), "claim") &&
        load_fine(aule_claim_release(load->cache, &claim, 0), "claim");
    free(blocks);
    return done;
}

bool advances_open(struct load *load)
{
    return open_table(load) && load_tensor(load, 2, BATCH_SEQS, HEADS, DIM) &&
           load_tensor(load, 3, BATCH_SEQS, HEADS, DIM) &&
           load_batch(load, BATCH_SEQS, columns_of(load), 1, &load->batch);
}

// A run that is not waited for can still read the entry, so the advance copies the table.
bool advances_act(struct load *load)
{
    const struct aule_run_params run = {
        .num_heads = HEADS, .q = load->tensors[2], .out = load->tensors[3]};
    const struct aule_table_entry entry = {.block = load->blocks[(load->acts + 1) % 2]};
    int32_t lens[BATCH_SEQS];
    struct aule_ticket ticket = {0};
    for (int i = 0; i < BATCH_SEQS; i++)
        lens[i] = 1;
    const struct aule_advance advance = {.seq_lens_kv = lens, .entries = &entry, .num_entries = 1};
    const enum aule_status status = aule_run_submit(load->batch, &run, LOAD_WAIT_MS, &ticket);
    return load_fine(status, "run") &&
           load_fine(aule_batch_advance(load->batch, &advance), "advance") &&
           load_wait(load, status, ticket, "run");
}
