// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// runs.c - kinds of load that keep the device busy: shaders to compile, and runs of each kind.

#include "load.h"

#include <stdio.h>
#include <string.h>

// ---- attention over the session's own memory: new shapes, and the longest run ----

enum { Q, K, V, OUT };
enum { SHAPE_KEYS = 16, DIM_STEPS = 10, FEATURES = 10, WIDEST = 96, LONG_HEADS = 8, LONG_DIM = 64 };

static struct aule_attention_params attention_of(const struct load *load, uint32_t q_len,
                                                 uint32_t kv_len, uint32_t heads, uint32_t head_dim)
{
    return (struct aule_attention_params){.num_seqs = 1,
                                          .q_len = q_len,
                                          .kv_len = kv_len,
                                          .num_kv_heads = heads,
                                          .head_dim = head_dim,
                                          .path = AULE_PATH_CONTIGUOUS,
                                          .run = {.num_heads = heads,
                                                  .q = load->tensors[Q],
                                                  .k = load->tensors[K],
                                                  .v = load->tensors[V],
                                                  .out = load->tensors[OUT]}};
}

static bool open_rows(struct load *load, uint32_t rows, uint32_t heads, uint32_t head_dim)
{
    for (int i = Q; i <= OUT; i++)
        if (!load_tensor(load, i, rows, heads, head_dim))
            return false;
        else if (i != OUT)
            load_fill(load, i, rows, heads * head_dim, false);
    return true;
}

static uint32_t dim_of_shape(uint32_t which)
{
    return WIDEST - 8 * (which % DIM_STEPS);
}

bool shapes_open(struct load *load)
{
    return open_rows(load, SHAPE_KEYS, 1, WIDEST);
}

// Each combination of a head dim and these features needs a pipeline of its own. None of them
// changes the result, because all rows of V are equal.
static void add_features(struct aule_run_params *run, uint32_t which)
{
    static const float slope = 0.5f;
    if (which & 1)
        run->logits_soft_cap = 30;
    if (which & 2)
        run->window = (struct aule_window){.enabled = true, .left = 8, .right = 0};
    if (which & 4)
        run->alibi_slopes = &slope;
    if (which & 8)
        run->rope.dim = 8;
}

bool shapes_act(struct load *load)
{
    struct aule_attention_params params =
        attention_of(load, 1, SHAPE_KEYS, 1, dim_of_shape(load->acts));
    add_features(&params.run, load->acts / DIM_STEPS % FEATURES);
    return load_fine(aule_attention(load->session, &params, LOAD_WAIT_MS, NULL, NULL), "shape");
}

bool shapes_right(const struct load *load)
{
    return load_equals(load, OUT, 1, dim_of_shape(load->acts - 1), false);
}

bool longest_open(struct load *load)
{
    return open_rows(load, load->size, LONG_HEADS, LONG_DIM);
}

// Where the limit is lower, the run is as long as the limit allows.
bool longest_act(struct load *load)
{
    enum aule_status status;
    while (true) {
        const struct aule_attention_params params =
            attention_of(load, load->size, load->size, LONG_HEADS, LONG_DIM);
        status = aule_attention(load->session, &params, LOAD_WAIT_MS, NULL, NULL);
        if (status != AULE_LIMIT || load->size < 16)
            return load_fine(status, "the longest run");
        load->size -= load->size / 16;
    }
}

bool longest_right(const struct load *load)
{
    return load_equals(load, OUT, load->size, LONG_HEADS * LONG_DIM, false);
}

// ---- a merge of a part with itself ----

enum { PART, PART_LSE, MERGED, PARTS = 2, MERGE_HEADS = 1, MERGE_DIM = 64 };

bool merge_open(struct load *load)
{
    if (!load_tensor(load, PART, load->size, MERGE_HEADS, MERGE_DIM) ||
        !load_tensor(load, MERGED, load->size, MERGE_HEADS, MERGE_DIM) ||
        !load_fine(aule_tensor_create_lse(load->session, load->size, MERGE_HEADS,
                                          &load->tensors[PART_LSE]),
                   "tensor"))
        return false;
    load_fill(load, PART, load->size, MERGE_HEADS * MERGE_DIM, true);
    memset(aule_tensor_data(load->session, &load->tensors[PART_LSE]), 0,
           (size_t)load->size * MERGE_HEADS * sizeof(float));
    return true;
}

bool merge_act(struct load *load)
{
    struct aule_tensor outs[PARTS], lses[PARTS];
    struct aule_ticket ticket = {0};
    for (int i = 0; i < PARTS; i++) {
        outs[i] = load->tensors[PART];
        lses[i] = load->tensors[PART_LSE];
    }
    const struct aule_merge_params merge = {.num_parts = PARTS,
                                            .num_tokens = load->size,
                                            .num_heads = MERGE_HEADS,
                                            .head_dim = MERGE_DIM,
                                            .outs = outs,
                                            .lses = lses,
                                            .out = load->tensors[MERGED]};
    return load_wait(load, aule_merge_submit(load->session, &merge, LOAD_WAIT_MS, &ticket), ticket,
                     "merge");
}

bool merge_right(const struct load *load)
{
    return load_equals(load, MERGED, load->size, MERGE_HEADS * MERGE_DIM, true);
}

// ---- a decode of sequences over one block ----

enum { DECODE_HEADS = 2, DECODE_DIM = 64, DECODE_BLOCK = 32 };

// Tensors 0 and 1 are rows of the block first, and then q and out.
bool decode_open(struct load *load)
{
    const struct load_shape shape = {1, DECODE_HEADS, DECODE_DIM, DECODE_BLOCK, 1};
    if (!load_cache(load, &shape) || !load_tensor(load, 0, load->size, DECODE_HEADS, DECODE_DIM) ||
        !load_tensor(load, 1, load->size, DECODE_HEADS, DECODE_DIM))
        return false;
    load_fill(load, 0, load->size, DECODE_HEADS * DECODE_DIM, false);
    load_fill(load, 1, DECODE_BLOCK, DECODE_HEADS * DECODE_DIM, false);
    return load_import(load, 0, DECODE_BLOCK) &&
           load_batch(load, load->size, 1, DECODE_BLOCK, &load->batch);
}

bool decode_act(struct load *load)
{
    const struct aule_run_params run = {
        .num_heads = DECODE_HEADS, .q = load->tensors[0], .out = load->tensors[1]};
    return load_fine(aule_run(load->batch, &run, LOAD_WAIT_MS, NULL), "decode");
}

bool decode_right(const struct load *load)
{
    return load_equals(load, 1, load->size, DECODE_HEADS * DECODE_DIM, false);
}

// ---- an import, whose last block is read again ----

enum { IMPORT_HEADS = 8, IMPORT_DIM = 64, IMPORT_BLOCK = 32 };

bool import_open(struct load *load)
{
    load->size -= load->size % IMPORT_BLOCK;
    const struct load_shape shape = {1, IMPORT_HEADS, IMPORT_DIM, IMPORT_BLOCK,
                                     load->size / IMPORT_BLOCK};
    const uint32_t width = IMPORT_HEADS * IMPORT_DIM;
    if (!load_cache(load, &shape) || !load_tensor(load, 0, load->size, IMPORT_HEADS, IMPORT_DIM) ||
        !load_tensor(load, 1, load->size, IMPORT_HEADS, IMPORT_DIM) ||
        !load_tensor(load, 2, IMPORT_BLOCK, IMPORT_HEADS, IMPORT_DIM) ||
        !load_tensor(load, 3, IMPORT_BLOCK, IMPORT_HEADS, IMPORT_DIM))
        return false;
    load_fill(load, 0, load->size, width, true);
    load_fill(load, 1, load->size, width, true);
    return true;
}

bool import_act(struct load *load)
{
    return load_import(load, 0, load->size);
}

bool import_right(const struct load *load)
{
    return load_export(load, 0, IMPORT_BLOCK) &&
           load_equals(load, 2, IMPORT_BLOCK, IMPORT_HEADS * IMPORT_DIM, true) &&
           load_equals(load, 3, IMPORT_BLOCK, IMPORT_HEADS * IMPORT_DIM, true);
}

// ---- a gather of one block, again and again ----

enum { GATHER_DIM = 8, GATHER_BLOCK = 16 };

bool gather_open(struct load *load)
{
    const struct load_shape shape = {1, 1, GATHER_DIM, GATHER_BLOCK, 1};
    load->size -= load->size % GATHER_BLOCK;
    if (!load_cache(load, &shape))
        return false;
    for (int i = 0; i < 4; i++)
        if (!load_tensor(load, i, i < 2 ? GATHER_BLOCK : load->size, 1, GATHER_DIM))
            return false;
    load_fill(load, 0, GATHER_BLOCK, GATHER_DIM, false);
    load_fill(load, 1, GATHER_BLOCK, GATHER_DIM, false);
    return load_import(load, 0, GATHER_BLOCK) &&
           load_batch(load, load->size / GATHER_BLOCK, 1, GATHER_BLOCK, &load->batch);
}

bool gather_act(struct load *load)
{
    const struct aule_kv_gather gather = {.k = load->tensors[2], .v = load->tensors[3]};
    struct aule_ticket ticket = {0};
    return load_wait(load, aule_kv_gather(load->batch, &gather, LOAD_WAIT_MS, &ticket), ticket,
                     "gather");
}

bool gather_right(const struct load *load)
{
    return load_equals(load, 2, load->size, GATHER_DIM, false) &&
           load_equals(load, 3, load->size, GATHER_DIM, false);
}

// ---- copies of blocks: of the first half of the blocks to the second ----

enum { COPY_LAYERS = 8, COPY_HEADS = 8, COPY_DIM = 64, COPY_BLOCK = 32 };

bool copies_open(struct load *load)
{
    const struct load_shape shape = {COPY_LAYERS, COPY_HEADS, COPY_DIM, COPY_BLOCK, 2 * load->size};
    if (!load_cache(load, &shape))
        return false;
    for (int i = 0; i < 4; i++)
        if (!load_tensor(load, i, COPY_BLOCK, COPY_HEADS, COPY_DIM))
            return false;
    load_fill(load, 0, COPY_BLOCK, COPY_HEADS * COPY_DIM, true);
    load_fill(load, 1, COPY_BLOCK, COPY_HEADS * COPY_DIM, true);
    return load_import(load, load->size - 1, COPY_BLOCK);
}

bool copies_act(struct load *load)
{
    struct aule_ticket ticket = {0};
    return load_wait(load,
                     aule_blocks_copy(load->cache, load->size, load->blocks,
                                      load->blocks + load->size, LOAD_WAIT_MS, &ticket),
                     ticket, "copy");
}

bool copies_right(const struct load *load)
{
    return load_export(load, 2 * load->size - 1, COPY_BLOCK) &&
           load_equals(load, 2, COPY_BLOCK, COPY_HEADS * COPY_DIM, true) &&
           load_equals(load, 3, COPY_BLOCK, COPY_HEADS * COPY_DIM, true);
}
