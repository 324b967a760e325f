// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// mover.c - see mover.h.

#include "mover.h"

#include <inttypes.h>
#include <stdlib.h>

enum { ARENA_SLACK = 1 << 20, PIECE_BYTES = 32 << 20, MOVE_MS = 60000 };

static enum exit_code open_session(struct mover *mover)
{
    const struct ctl *ctl = mover->ctl;
    const struct aule_session_params params = {
        .socket = ctl->socket,
        .name = "aule-ctl",
        .tenant = ctl->tenant,
        .arena_size = mover->piece * mover->block_bytes + ARENA_SLACK,
        .timeout_ms = ctl->timeout_ms,
    };
    enum aule_status status = aule_session_open(&params, &mover->session);
    return status == AULE_OK ? EXIT_CODE_DONE : report(ctl, status);
}

static enum exit_code open_cache(struct mover *mover, const struct savefile_identity *identity)
{
    const struct aule_cache_params params = {
        .name = identity->name,
        .num_layers = identity->num_layers,
        .num_kv_heads = identity->num_kv_heads,
        .head_dim = identity->head_dim,
        .head_dim_v = identity->head_dim_v,
        .v_is_k_prefix = identity->v_is_k_prefix,
        .k_dtype = (enum aule_dtype)identity->k_dtype,
        .v_dtype = (enum aule_dtype)identity->v_dtype,
        .scale_mode = (enum aule_scale_mode)identity->scale_mode,
        .block_size = identity->block_size,
        .fingerprint = identity->fingerprint,
        .fingerprint_size = identity->fingerprint_size,
        .block_bytes = identity->num_kv_heads ? 0 : identity->block_bytes, // else opaque blocks
    };
    struct aule_cache_state state;
    enum aule_status status = aule_cache_open(mover->session, &params, &mover->cache);
    if (status == AULE_OK)
        status = aule_cache_state(mover->cache, &state);
    if (status != AULE_OK)
        return report(mover->ctl, status);
    if (state.block_bytes == identity->block_bytes)
        return EXIT_CODE_DONE;
    return complain(EXIT_CODE_FAILED,
                    "a block of cache \"%s\" has %" PRIu64 " bytes in this daemon, and %" PRIu64
                    " in the file",
                    identity->name, state.block_bytes, identity->block_bytes);
}

enum exit_code mover_open(struct mover *mover, const struct ctl *ctl,
                          const struct savefile_identity *identity)
{
    const uint64_t fit = PIECE_BYTES / identity->block_bytes;
    *mover = (struct mover){
        .ctl = ctl, .block_bytes = identity->block_bytes, .piece = fit < 1 ? 1 : (uint32_t)fit};
    enum exit_code code = open_session(mover);
    if (code == EXIT_CODE_DONE)
        code = open_cache(mover, identity);
    if (code != EXIT_CODE_DONE)
        return code;
    void *bytes;
    enum aule_status status =
        aule_arena_alloc(mover->session, mover->piece * mover->block_bytes, &bytes, &mover->offset);
    mover->bytes = bytes;
    return status == AULE_OK ? EXIT_CODE_DONE : report(ctl, status);
}

void mover_close(struct mover *mover)
{
    aule_cache_close(mover->cache);
    aule_session_close(mover->session);
    *mover = (struct mover){.ctl = mover->ctl};
}

static enum exit_code wait_for(struct mover *mover, enum aule_status status,
                               struct aule_ticket ticket)
{
    if (status == AULE_OK)
        status = aule_ticket_wait(mover->session, ticket, MOVE_MS, NULL);
    return status == AULE_OK ? EXIT_CODE_DONE : report(mover->ctl, status);
}

enum exit_code mover_out(struct mover *mover, const int32_t *blocks, uint32_t count)
{
    struct aule_ticket ticket;
    enum aule_status status =
        aule_blocks_export(mover->cache, count, blocks, mover->offset, MOVE_MS, &ticket);
    return wait_for(mover, status, ticket);
}

enum exit_code mover_in(struct mover *mover, const int32_t *blocks, uint32_t count)
{
    struct aule_ticket ticket;
    enum aule_status status =
        aule_blocks_import(mover->cache, count, blocks, mover->offset, MOVE_MS, &ticket);
    return wait_for(mover, status, ticket);
}

bool mover_chain_resize(struct mover_chain *chain, uint32_t count, uint32_t block_size)
{
    if (count > chain->room) {
        const uint32_t room = count + count / 2 + 64;
        int32_t *tokens = realloc(chain->tokens, (size_t)room * block_size * sizeof *tokens);
        chain->tokens = tokens ? tokens : chain->tokens;
        int32_t *blocks = realloc(chain->blocks, room * sizeof *blocks);
        chain->blocks = blocks ? blocks : chain->blocks;
        uint64_t *places = realloc(chain->places, room * sizeof *places);
        chain->places = places ? places : chain->places;
        if (!tokens || !blocks || !places)
            return false;
        chain->room = room;
    }
    chain->count = count;
    return true;
}

void mover_chain_free(struct mover_chain *chain)
{
    free(chain->tokens);
    free(chain->blocks);
    free(chain->places);
    *chain = (struct mover_chain){.count = 0};
}
