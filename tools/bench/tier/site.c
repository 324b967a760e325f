// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// site.c - see site.h.

#include "site.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The pool grows by chunks of so many blocks, or of a lower power of two if it is smaller.
enum { CHUNK_BLOCKS = 512 };

static uint32_t whole_chunks(uint32_t blocks)
{
    uint32_t chunk = 1;
    while (chunk < blocks && chunk < CHUNK_BLOCKS)
        chunk *= 2;
    return (blocks + chunk - 1) / chunk * chunk;
}

bool site_open(struct site *site, const struct options *options, struct model_shape shape,
               uint32_t blocks, const char *const *more)
{
    char number[16];
    const char *words[MOST_DAEMON_OPTIONS + 1] = {"--max-blocks", number};
    blocks = whole_chunks(blocks);
    snprintf(number, sizeof number, "%u", blocks);
    for (int i = 0; more[i]; i++)
        words[2 + i] = more[i];
    *site = (struct site){.blocks = blocks, .ids = calloc(blocks, sizeof *site->ids)};
    if (!site->ids || !fleet_open_with(&site->fleet, options, false, words))
        return false;
    const struct model_params params = {
        .socket = site->fleet.socket, .cache = "tiers", .shape = shape, .whole_steps = true};
    if (!model_open(&site->model, &params) ||
        !model_fine(aule_monitor_open(site->fleet.socket, MODEL_WAIT_MS, &site->monitor),
                    "monitor"))
        return false;
    site->block_bytes = UINT64_C(4) * shape.layers * shape.num_kv_heads * shape.head_dim *
                        shape.block_size; // K and V of f16
    return true;
}

void site_close(struct site *site)
{
    aule_monitor_close(site->monitor);
    model_close(&site->model);
    fleet_close(&site->fleet);
    free(site->ids);
    *site = (struct site){.monitor = NULL};
}

bool site_metric(struct site *site, const char *name, uint64_t *value)
{
    struct aule_metric *metrics;
    uint32_t count;
    bool found = false;
    if (!model_fine(aule_monitor_metrics(site->monitor, &metrics, &count), "metrics"))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(metrics[i].name, name) != 0)
            continue;
        *value = metrics[i].value;
        found = true;
    }
    free(metrics);
    if (!found)
        fprintf(stderr, "aule-bench: the daemon has no metric %s\n", name);
    return found;
}

bool site_await(struct site *site, const char *name, uint64_t before, uint64_t more)
{
    const double end_us = now_us() + MODEL_WAIT_MS * 1000.0;
    uint64_t value;
    while (site_metric(site, name, &value)) {
        if (value - before >= more)
            return true;
        if (now_us() > end_us) {
            fprintf(stderr, "aule-bench: %s grew by %llu in %d ms, not by %llu\n", name,
                    (unsigned long long)(value - before), MODEL_WAIT_MS, (unsigned long long)more);
            return false;
        }
        usleep(200);
    }
    return false;
}

bool site_evict(struct site *site)
{
    struct aule_cache *cache = site->model.cache;
    return model_let_go(&site->model) &&
           model_fine(aule_blocks_lease(cache, site->blocks, MODEL_WAIT_MS, site->ids), "lease") &&
           model_fine(aule_blocks_release(cache, site->blocks, site->ids), "release");
}

bool site_read(struct site *site, uint32_t text, uint32_t count, enum aule_load load,
               struct reading *out)
{
    struct model *model = &site->model;
    const struct model_prompt prompt = {
        .text = text, .count = count, .publish = true, .load = load};
    struct aule_sequence *sequence = NULL;
    const uint64_t computed = model->computed;
    const double begin_us = now_us(), filled_us = model->filled_us;
    bool ok = model_sequence(model, &prompt, &sequence) && model_await(sequence);
    out->awaited_us = now_us() - begin_us;
    ok = ok && model_prefill(model, sequence);
    out->us = now_us() - begin_us - (model->filled_us - filled_us);
    out->computed = model->computed - computed;
    out->hash = ok ? model_hash(model, model->last_row, 0) : 0;
    aule_sequence_destroy(sequence);
    return ok;
}

// Fills leased blocks with bytes of the arena, some at a time.
static bool fill_blocks(struct site *site, uint32_t count)
{
    struct model *model = &site->model;
    const uint32_t fit = (uint32_t)(MODEL_ARENA / site->block_bytes), most = fit ? fit : 1;
    struct aule_ticket ticket;
    for (uint32_t first = 0, size; first < count; first += size) {
        size = count - first < most ? count - first : most;
        if (!model_fine(aule_blocks_import(model->cache, size, site->ids + first, 0, MODEL_WAIT_MS,
                                           &ticket),
                        "import") ||
            !model_fine(aule_ticket_wait(model->session, ticket, MODEL_WAIT_MS, NULL), "ticket"))
            return false;
    }
    return true;
}

static bool publish_blocks(struct site *site, uint32_t text, uint32_t count)
{
    int32_t *tokens = model_tokens(text, count);
    const struct aule_prefix prefix = {.tokens = tokens, .num_tokens = count};
    uint32_t existing;
    const bool ok =
        tokens && model_fine(aule_prefix_publish(site->model.cache, &prefix, site->ids, &existing),
                             "publish");
    free(tokens);
    return ok;
}

bool site_store(struct site *site, uint32_t text, uint32_t count, const char *stored, double *us)
{
    struct aule_cache *cache = site->model.cache;
    const uint32_t blocks = count / site->model.params.shape.block_size;
    uint64_t before;
    if (!model_let_go(&site->model) || !site_metric(site, stored, &before) ||
        !model_fine(aule_blocks_lease(cache, blocks, MODEL_WAIT_MS, site->ids), "lease"))
        return false;
    bool ok = fill_blocks(site, blocks);
    const double begin_us = now_us();
    ok = ok && publish_blocks(site, text, count) && site_await(site, stored, before, blocks);
    *us = now_us() - begin_us;
    return model_fine(aule_blocks_release(cache, blocks, site->ids), "release") && ok;
}
