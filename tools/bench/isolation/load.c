// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// load.c - see load.h: the table of kinds, and what they share.

#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPARE_ARENA = 160 << 20, EXPORTED = 2 };

const struct load_kind load_kinds[] = {
    {"new shapes", "shapes", 20, 100, 0, true, shapes_open, shapes_act, shapes_right},
    {"the longest legal run", "rows", 1500, 98000, 4096, false, longest_open, longest_act,
     longest_right},
    {"a merge", "rows", 20000, 200000, 288, false, merge_open, merge_act, merge_right},
    {"a decode", "sequences", 2000, 20000, 512, false, decode_open, decode_act, decode_right},
    {"an import", "rows", 10000, 100000, 2048, false, import_open, import_act, import_right},
    {"a gather", "rows", 100000, 6400000, 32, false, gather_open, gather_act, gather_right},
    {"block copies", "blocks", 200, 2000, 0, false, copies_open, copies_act, copies_right},
    {"batches", "bytes of metadata", 60u << 20, 60u << 20, 2, false, batches_open, batches_act,
     NULL},
    {"claims", "tokens", 1000000, 1000000, 0, false, claims_open, claims_act, NULL},
    {"one-entry advances", "bytes of the table", 48u << 20, 48u << 20, 2, false, advances_open,
     advances_act, NULL},
};
const uint32_t num_load_kinds = sizeof load_kinds / sizeof *load_kinds;

bool load_fine(enum aule_status status, const char *what)
{
    if (status == AULE_OK)
        return true;
    fprintf(stderr, "aule-bench: %s: %s\n", what, aule_error());
    return false;
}

bool load_open(struct load *load, const struct load_kind *kind, const char *socket, uint32_t size)
{
    const struct aule_session_params session = {.socket = socket,
                                                .name = "heavy",
                                                .timeout_ms = LOAD_WAIT_MS,
                                                .arena_size =
                                                    size * kind->unit_bytes + SPARE_ARENA};
    *load = (struct load){.kind = kind, .size = size};
    return load_fine(aule_session_open(&session, &load->session), "session") && kind->open(load);
}

void load_close(struct load *load)
{
    aule_batch_destroy(load->batch);
    aule_cache_close(load->cache);
    aule_session_close(load->session);
    free(load->blocks);
    free(load->array);
    *load = (struct load){.session = NULL};
}

bool load_act(struct load *load)
{
    if (!load->kind->act(load))
        return false;
    load->acts++;
    return true;
}

bool load_right(const struct load *load)
{
    return !load->kind->right || load->kind->right(load);
}

bool load_cache(struct load *load, const struct load_shape *shape)
{
    const struct aule_cache_params cache = {.name = load->kind->name,
                                            .num_layers = shape->layers,
                                            .num_kv_heads = shape->heads,
                                            .head_dim = shape->head_dim,
                                            .block_size = shape->block_size};
    load->block_size = shape->block_size;
    load->blocks = calloc(shape->num_blocks, sizeof *load->blocks);
    return load->blocks &&
           load_fine(aule_cache_open(load->session, &cache, &load->cache), "cache") &&
           load_fine(aule_blocks_lease(load->cache, shape->num_blocks, LOAD_WAIT_MS, load->blocks),
                     "lease");
}

bool load_tensor(struct load *load, int which, uint32_t rows, uint32_t heads, uint32_t head_dim)
{
    return load_fine(
        aule_tensor_create(load->session, AULE_F16, rows, heads, head_dim, &load->tensors[which]),
        "tensor");
}

// An f16 from 0.5 up to 1.
static uint16_t number_at(uint32_t row, uint32_t column, bool apart)
{
    return (uint16_t)(0x3800 + (column * 37 + (apart ? row * 11 : 0)) % 0x400);
}

void load_fill(const struct load *load, int which, uint32_t rows, uint32_t width, bool apart)
{
    uint16_t *to = aule_tensor_data(load->session, &load->tensors[which]);
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t i = 0; i < width; i++)
            *to++ = number_at(row, i, apart);
}

// Attention may round: neighbouring numbers are equal.
bool load_equals(const struct load *load, int which, uint32_t rows, uint32_t width, bool apart)
{
    const uint16_t *is = aule_tensor_data(load->session, &load->tensors[which]);
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t i = 0; i < width; i++, is++) {
            const uint16_t wanted = number_at(row, i, apart);
            if (abs(*is - wanted) <= 1)
                continue;
            fprintf(stderr, "aule-bench: %s: row %u, element %u is 0x%04x, not 0x%04x\n",
                    load->kind->name, row, i, *is, wanted);
            return false;
        }
    return true;
}

bool load_wait(const struct load *load, enum aule_status status, struct aule_ticket ticket,
               const char *what)
{
    return load_fine(status, what) &&
           load_fine(aule_ticket_wait(load->session, ticket, LOAD_WAIT_MS, NULL), what);
}

bool load_import(const struct load *load, uint32_t first, uint32_t rows)
{
    const uint32_t size = load->block_size;
    int64_t *slots = malloc(rows * sizeof *slots);
    struct aule_ticket ticket = {0};
    for (uint32_t i = 0; slots && i < rows; i++)
        slots[i] = (int64_t)load->blocks[first + i / size] * size + i % size;
    const struct aule_kv_import import = {
        .num_rows = rows, .slot_mapping = slots, .k = load->tensors[0], .v = load->tensors[1]};
    const bool done =
        slots && load_wait(load, aule_kv_import(load->cache, &import, LOAD_WAIT_MS, &ticket),
                           ticket, "import");
    free(slots);
    return done;
}

bool load_export(const struct load *load, uint32_t first, uint32_t rows)
{
    const struct aule_kv_export export = {.num_rows = rows,
                                          .block_ids = load->blocks + first,
                                          .k = load->tensors[EXPORTED],
                                          .v = load->tensors[EXPORTED + 1]};
    struct aule_ticket ticket = {0};
    return load_wait(load, aule_kv_export(load->cache, &export, LOAD_WAIT_MS, &ticket), ticket,
                     "export");
}

static void fill_numbers(int32_t *numbers, size_t count, int32_t first, int32_t step)
{
    for (size_t i = 0; i < count; i++)
        numbers[i] = first + (int32_t)i * step;
}

bool load_batch(const struct load *load, uint32_t seqs, uint32_t columns, uint32_t keys,
                struct aule_batch **batch)
{
    const size_t entries = (size_t)seqs * columns;
    int32_t *table = malloc(entries * sizeof *table), *lens = malloc(seqs * sizeof *lens),
            *starts = malloc((seqs + (size_t)1) * sizeof *starts);
    bool made = table && lens && starts;
    if (made) {
        fill_numbers(table, entries, load->blocks[0], 0);
        fill_numbers(lens, seqs, (int32_t)keys, 0);
        fill_numbers(starts, seqs + (size_t)1, 0, 1);
        const struct aule_batch_params params = {.num_seqs = seqs,
                                                 .max_blocks = columns,
                                                 .cu_seqlens_q = starts,
                                                 .seq_lens_kv = lens,
                                                 .block_table = table};
        made = load_fine(aule_batch_create(load->cache, &params, batch), "batch");
    }
    free(table);
    free(lens);
    free(starts);
    return made;
}
