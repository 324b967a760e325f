// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// load.h - the heavy work beside which the study "isolation" measures a light neighbour. Each kind
// has a session of its own, and repeats one action. It knows no clock. One thread for each load.

#ifndef AULE_BENCH_ISOLATION_LOAD_H
#define AULE_BENCH_ISOLATION_LOAD_H

#include <aule/aule.h>

struct load {
    const struct load_kind *kind;
    uint32_t size; // of one action, in the kind's unit
    uint32_t acts; // that have ended
    struct aule_session *session;
    struct aule_cache *cache;
    struct aule_batch *batch;
    struct aule_tensor tensors[4]; // the kind's inputs, then its outputs
    uint32_t block_size;           // of the cache
    int32_t *blocks;               // leased, owned
    void *array;                   // slots or token ids, owned
};

struct load_kind {
    const char *name, *unit;
    uint32_t few, full;  // sizes on a software device, and of a GPU
    uint64_t unit_bytes; // of the arena, for each unit of the size
    bool once;           // the size is a number of actions, all of which are done
    bool (*open)(struct load *load);
    bool (*act)(struct load *load);
    bool (*right)(const struct load *load); // the results of the last action; NULL: it has none
};
extern const struct load_kind load_kinds[];
extern const uint32_t num_load_kinds;

// False, here and below: standard error says why.
bool load_open(struct load *load, const struct load_kind *kind, const char *socket, uint32_t size);
void load_close(struct load *load); // takes a zeroed or half-made one
bool load_act(struct load *load);
bool load_right(const struct load *load);

// ---- what the kinds share ----

enum { LOAD_WAIT_MS = 120000 };
// Whether a call of the library went well; if not, standard error says why.
bool load_fine(enum aule_status status, const char *what);

// Shapes of a kind's cache and tensors.
struct load_shape {
    uint32_t layers, heads, head_dim, block_size, num_blocks;
};
bool load_cache(struct load *load, const struct load_shape *shape); // and leases its blocks
bool load_tensor(struct load *load, int which, uint32_t rows, uint32_t heads, uint32_t head_dim);
// Rows of known numbers. With `apart` each row differs from the next one; else all are equal, so
// that attention over them gives the same row.
void load_fill(const struct load *load, int which, uint32_t rows, uint32_t width, bool apart);
bool load_equals(const struct load *load, int which, uint32_t rows, uint32_t width, bool apart);
bool load_wait(const struct load *load, enum aule_status status, struct aule_ticket ticket,
               const char *what);
// Writes tensors 0 and 1 into `rows` slots of layer 0, beginning with that of block `first`.
bool load_import(const struct load *load, uint32_t first, uint32_t rows);
// Reads the same number of rows from `first` on into tensors 2 and 3.
bool load_export(const struct load *load, uint32_t first, uint32_t rows);
// A batch of decodes over the first key of block 0, with a table of `columns`.
bool load_batch(const struct load *load, uint32_t seqs, uint32_t columns, uint32_t keys,
                struct aule_batch **batch);

// ---- the kinds: runs.c and metadata.c ----

bool shapes_open(struct load *load), shapes_act(struct load *load);
bool shapes_right(const struct load *load);
bool longest_open(struct load *load), longest_act(struct load *load);
bool longest_right(const struct load *load);
bool merge_open(struct load *load), merge_act(struct load *load);
bool merge_right(const struct load *load);
bool decode_open(struct load *load), decode_act(struct load *load);
bool decode_right(const struct load *load);
bool import_open(struct load *load), import_act(struct load *load);
bool import_right(const struct load *load);
bool gather_open(struct load *load), gather_act(struct load *load);
bool gather_right(const struct load *load);
bool copies_open(struct load *load), copies_act(struct load *load);
bool copies_right(const struct load *load);
bool batches_open(struct load *load), batches_act(struct load *load);
bool claims_open(struct load *load), claims_act(struct load *load);
bool advances_open(struct load *load), advances_act(struct load *load);

#endif
