// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// site.h - a daemon with tiers and what stands for a model on it, for the study "tiers".

#ifndef AULE_BENCH_TIER_SITE_H
#define AULE_BENCH_TIER_SITE_H

#include "tools/bench/fleet/fleet.h"
#include "tools/bench/share/model.h"

struct site {
    struct fleet fleet;
    struct model model;
    struct aule_monitor *monitor;
    uint32_t blocks;      // of the pool
    int32_t *ids;         // [blocks], scratch; owned
    uint64_t block_bytes; // of its cache
};

// `blocks`: what the pool has room for, at least. `more`: options of the daemon that concern tiers.
// False, here and below: standard error says why.
bool site_open(struct site *site, const struct options *options, struct model_shape shape,
               uint32_t blocks, const char *const *more);
void site_close(struct site *site); // takes a zeroed or half-made one

// The value of the daemon's metric `name`.
bool site_metric(struct site *site, const char *name, uint64_t *value);
// Waits until the metric has grown by `more` since it was `before`.
bool site_await(struct site *site, const char *name, uint64_t before, uint64_t more);
// Drops all blocks of the GPU that nobody holds.
bool site_evict(struct site *site);

// What reading a prompt took.
struct reading {
    double us,
        awaited_us;    // in all, without the time for Q, K and V; until what was found was there
    uint64_t computed; // tokens
    uint64_t hash;     // of the last token's output
};
bool site_read(struct site *site, uint32_t text, uint32_t count, enum aule_load load,
               struct reading *reading);

// Publishes `count` tokens of text `text` at once, whose blocks have any contents, so that nothing
// but the way to the tier takes time. *us: until the tier's metric `stored` has counted all blocks.
bool site_store(struct site *site, uint32_t text, uint32_t count, const char *stored, double *us);

// ---- beside.c: decoding while blocks move ----

struct beside {
    double alone_us, beside_us; // of a step
    double gb_per_s;            // that the host tier moved meanwhile
    uint32_t sequences, context, steps;
};
// `queue`: for --transfer-queue.
bool beside_measure(const struct options *options, const char *queue, struct beside *out);

#endif
