// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// cut.c - see cut.h. Knows lengths and kernels' rules, no GPU memory. Any thread; no state.

#include "cut.h"

#include "engine/state/state.h"
#include "shaders/layout.h"

#include <stdlib.h>
#include <string.h>

uint64_t cut_num_partials(const struct cut *cut)
{
    return cut->halves ? cut->parts * 2 : cut->parts + cut->shared;
}

// ---- loops ----
// A software device may end a shader's loops before they are done; docs/kernels.md says when. So a
// part has at most the kernel's loop_keys() there, and a tile MOST_LOOP_PARTS parts, which one loop
// merges.

enum { MOST_LOOP_PARTS = 4096 };

static bool is_software(const struct engine_batch *batch)
{
    return batch->engine->device.adapter.info.software;
}

static uint64_t longest_part(uint64_t length, uint64_t kv_len)
{
    return length && length < kv_len ? length : kv_len;
}

static bool loops_end(const struct kernel *kernel, const struct engine_kv *kv, uint64_t kv_len,
                      uint64_t length)
{
    uint64_t part = longest_part(length, kv_len);
    return part <= kernel->loop_keys(kv) && kv_len <= part * MOST_LOOP_PARTS;
}

// Keys of one part; 0 = one part. The rule's or the caller's; on a software device more parts or
// fewer where loops would not end. What the rule leaves whole is cut only by the last kernel, which
// serves what others leave.
static uint64_t part_length(const struct engine_batch *batch, uint32_t number, uint64_t rows,
                            uint64_t kv_len, uint32_t num_splits)
{
    const struct variant *variant = batch->engine->pipelines.variant;
    const struct kernel *kernel = variant->kernels[number];
    uint64_t length = kernel_part_keys(kernel, rows, kv_len, num_splits);
    bool stays =
        !kernel_may_cut(kernel, num_splits) || (length == 0 && number != variant->num_kernels - 1);
    if (stays || !is_software(batch) || loops_end(kernel, &batch->kv, kv_len, length))
        return length;
    uint64_t most = kernel->loop_keys(&batch->kv), part = longest_part(length, kv_len);
    uint64_t least =
        divide_up(divide_up(kv_len, MOST_LOOP_PARTS), kernel->part_grain) * kernel->part_grain;
    part = part < most ? part : most;
    return part > least ? part : least;
}

uint32_t cut_kernel(const struct engine_batch *batch, const struct cutting *cutting, uint64_t rows,
                    uint64_t kv_len)
{
    const struct variant *variant = batch->engine->pipelines.variant;
    uint32_t last = variant->num_kernels - 1, serving = cutting->serving;
    for (;;) {
        uint32_t number = variant_kernel(variant, serving, rows, kv_len);
        if (number == last || !is_software(batch) ||
            loops_end(variant->kernels[number], &batch->kv, kv_len,
                      part_length(batch, number, rows, kv_len, cutting->num_splits)))
            return number;
        serving &= ~(1u << number);
    }
}

// ---- a sequence ----

struct cut cut_sequence(const struct engine_batch *batch, uint32_t seq,
                        const struct cutting *cutting)
{
    const struct variant *variant = batch->engine->pipelines.variant;
    uint64_t tokens = (uint32_t)(batch->cu_seqlens_q[seq + 1] - batch->cu_seqlens_q[seq]);
    uint64_t rows = (uint64_t)batch_num_queries(batch, seq) * cutting->group;
    uint64_t kv_len = batch->seq_lens_kv ? (uint32_t)batch->seq_lens_kv[seq] : 0;
    uint32_t number = cut_kernel(batch, cutting, rows, kv_len);
    const struct kernel *kernel = variant->kernels[number];
    uint32_t tile_rows = kernel->tile_rows(&batch->kv);
    uint64_t length = part_length(batch, number, rows, kv_len, cutting->num_splits);
    uint64_t parts = length ? divide_up(kv_len, length) : 1;
    return (struct cut){
        .kernel = number,
        .tile_rows = tile_rows,
        .tiles = divide_up(tokens * cutting->group, tile_rows),
        .live_tiles = divide_up(rows, tile_rows),
        .rows = rows,
        .length = length,
        .parts = parts ? parts : 1,
        .halves = cutting->halves >> number & 1,
    };
}

// ---- parts that several sequences share ----

// Keys of the sequence that a cascade may attend: those that all its queries see. The last part is
// left out, so that each sequence keeps an item of its own.
static uint32_t whole_keys(const struct engine_batch *batch, uint32_t seq, const struct cut *cut,
                           const struct kernel *helper)
{
    uint32_t kv_len = (uint32_t)batch->seq_lens_kv[seq], queries = batch_num_queries(batch, seq);
    if (cut->tiles != 1 || cut->parts == 1 || cut->length % helper->crowd_grain ||
        queries > kv_len || (is_software(batch) && cut->length > helper->loop_keys(&batch->kv)))
        return 0;
    uint64_t most = (cut->parts - 1) * cut->length;
    return (uint32_t)(most < kv_len - queries + 1 ? most : kv_len - queries + 1);
}

// Finds the kernel that has a cascade kernel beside it. There is at most one among the kernels that
// serve a run, since these kernels differ in what they serve.
static uint32_t find_helped(const struct variant *variant, uint32_t serving, uint32_t *helper)
{
    for (uint32_t i = 0; i < variant->num_kernels; i++) {
        *helper = serving & 1u << i ? variant_helper(variant, serving, i) : NO_KERNEL;
        if (*helper != NO_KERNEL)
            return i;
    }
    return NO_KERNEL;
}

static uint32_t num_seqs(const struct cuts *cuts)
{
    return cuts->first[cuts->num_batches];
}

uint32_t cuts_batch_of(const struct cuts *cuts, uint32_t seq)
{
    uint32_t low = 0, high = cuts->num_batches;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        *(seq < cuts->first[middle] ? &high : &low) = middle;
    }
    return low;
}

// The table rows of all sequences, as sharing_join() wants them.
static void list_rows(const struct cuts *cuts, const int32_t **rows, uint32_t *used)
{
    for (uint32_t i = 0; i < cuts->num_batches; i++) {
        const struct engine_batch *batch = cuts->batches[i];
        for (uint32_t seq = 0; seq < batch->num_seqs; seq++) {
            rows[cuts->first[i] + seq] = batch->table->rows + (uint64_t)seq * batch->max_blocks;
            used[cuts->first[i] + seq] = batch_num_columns(batch, seq);
        }
    }
}

// Orders the sequences of all batches together.
static bool join_batches(const struct cuts *cuts, struct sharing *joined)
{
    struct sharing_part *parts = calloc(cuts->num_batches, sizeof *parts);
    const int32_t **rows = calloc(num_seqs(cuts), sizeof *rows);
    uint32_t *used = calloc(num_seqs(cuts), sizeof *used);
    bool found = parts && rows && used;
    for (uint32_t i = 0; found && i < cuts->num_batches; i++)
        parts[i] = (struct sharing_part){&cuts->batches[i]->sharing, cuts->first[i]};
    if (found) {
        list_rows(cuts, rows, used);
        found = sharing_join(
            joined,
            &(struct sharing_tables){.rows = rows, .used = used, .num_seqs = num_seqs(cuts)}, parts,
            cuts->num_batches);
    }
    free(parts);
    free(rows);
    free(used);
    return found;
}

// Notes which sequences have shared parts, and numbers their batches.
static void take_crowds(struct cuts *cuts)
{
    uint32_t next = 0;
    for (uint32_t i = 0; i < cuts->num_batches; i++) {
        bool members = false;
        for (uint32_t seq = cuts->first[i]; seq < cuts->first[i + 1]; seq++) {
            cuts->of[seq].shared = cuts->crowds.parts[seq];
            members = members || cuts->of[seq].shared;
        }
        cuts->numbers[i] = members ? next++ : NO_MEMBERS;
    }
}

// Bytes of parts of 4096 keys that are shared, each counted for each member. A cascade's work item
// reads half a part serially: about 110 us on an H100 (f16, head dim 128), for any number of
// members. With fewer shared bytes for each multiprocessor than this, decode alone is faster. At
// the limit both take as long: eight sequences that share 16384 tokens take 113 us with a cascade
// and 114 us without.
enum { LEAST_SHARED_BYTES = 7 << 19, USUAL_PART_KEYS = 4096 };

static bool are_worth_it(const struct cuts *cuts)
{
    const struct engine *engine = cuts->batches[0]->engine;
    const struct engine_kv *kv = &cuts->batches[0]->kv;
    const uint64_t v_bytes = kv->v_is_k_prefix ? 0 : kv->head_dim_v * dtype_size((int)kv->v_dtype),
                   key_bytes = kv->head_dim_k * dtype_size((int)kv->k_dtype) + v_bytes;
    uint64_t members = 0;
    for (uint32_t i = 0; i < cuts->crowds.num_crowds; i++)
        members += cuts->crowds.crowds[i].count;
    return engine->all_cascades || engine->device.adapter.info.software ||
           members * kv->num_kv_heads * USUAL_PART_KEYS * key_bytes >=
               (uint64_t)LEAST_SHARED_BYTES * engine->device.adapter.info.num_multiprocessors;
}

static void drop_crowds(struct cuts *cuts)
{
    cuts->crowds.num_crowds = cuts->crowds.num_members = 0;
    memset(cuts->crowds.parts, 0, num_seqs(cuts) * sizeof *cuts->crowds.parts);
}

// Fills cuts->crowds and the fields that depend on them. false: no memory.
static bool find_crowds(struct cuts *cuts, const struct sharing *sharing, uint32_t helped)
{
    const struct engine_kv *kv = &cuts->batches[0]->kv;
    const struct kernel *helper =
        cuts->batches[0]->engine->pipelines.variant->kernels[cuts->helper];
    uint32_t *keys = calloc((size_t)num_seqs(cuts) * 2, sizeof *keys);
    if (!keys)
        return false;
    struct sharing_cut shared = {
        .part_keys = keys,
        .whole_keys = keys + num_seqs(cuts),
        .num_seqs = num_seqs(cuts),
        .block_size = kv->block_size,
        .least = helper->least_members,
    };
    for (uint32_t i = 0; i < sharing->num_places; i++) {
        uint32_t seq = sharing->places[i].seq, of = cuts_batch_of(cuts, seq);
        if (cuts->of[seq].kernel != helped)
            continue;
        keys[seq] = (uint32_t)cuts->of[seq].length;
        keys[num_seqs(cuts) + seq] =
            whole_keys(cuts->batches[of], seq - cuts->first[of], &cuts->of[seq], helper);
    }
    bool found = crowds_find(&cuts->crowds, sharing, &shared);
    if (found && cuts->crowds.num_crowds && !are_worth_it(cuts))
        drop_crowds(cuts);
    if (found)
        take_crowds(cuts);
    cuts->rows = helper->crowd_rows(kv);
    if (cuts->crowds.num_crowds)
        cuts->tiles = calloc(num_seqs(cuts), sizeof *cuts->tiles);
    free(keys);
    return found && (cuts->tiles || !cuts->crowds.num_crowds);
}

// The same, for one batch or several.
static bool find_all_crowds(struct cuts *cuts, uint32_t helped)
{
    struct sharing joined = {0};
    if (cuts->num_batches == 1)
        return find_crowds(cuts, &cuts->batches[0]->sharing, helped);
    bool found = join_batches(cuts, &joined) && find_crowds(cuts, &joined, helped);
    sharing_finish(&joined);
    return found;
}

uint32_t cuts_crowd_width(const struct cuts *cuts, const struct crowd *crowd)
{
    uint32_t width = 1;
    for (uint32_t i = 0; i < crowd->count; i++)
        while (width < cuts->of[cuts->crowds.members[crowd->first + i]].rows)
            width *= 2;
    return width;
}

uint32_t cuts_crowd_items(const struct cuts *cuts, const struct crowd *crowd)
{
    return (uint32_t)divide_up((uint64_t)crowd->count * cuts_crowd_width(cuts, crowd), cuts->rows);
}

static bool may_have_crowds(const struct cuts *cuts)
{
    return cuts->num_batches > 1 || cuts->batches[0]->sharing.num_places > 0;
}

bool cuts_make(struct cuts *cuts, struct engine_batch *const *batches, uint32_t num_batches,
               const struct cutting *cutting)
{
    const struct variant *variant = batches[0]->engine->pipelines.variant;
    uint32_t helper = NO_KERNEL, helped = find_helped(variant, cutting->serving, &helper);
    *cuts = (struct cuts){.batches = batches,
                          .num_batches = num_batches,
                          .first = calloc((size_t)num_batches + 1, sizeof *cuts->first),
                          .numbers = calloc(num_batches, sizeof *cuts->numbers)};
    for (uint32_t i = 0; cuts->first && i < num_batches; i++)
        cuts->first[i + 1] = cuts->first[i] + batches[i]->num_seqs;
    if (cuts->first)
        cuts->of = calloc(num_seqs(cuts) ? num_seqs(cuts) : 1, sizeof *cuts->of);
    for (uint32_t i = 0; cuts->of && i < num_batches; i++)
        for (uint32_t seq = 0; seq < batches[i]->num_seqs; seq++)
            cuts->of[cuts->first[i] + seq] = cut_sequence(batches[i], seq, cutting);
    cuts->helper = cutting->alone || !may_have_crowds(cuts) ? NO_KERNEL : helper;
    if (cuts->of && cuts->numbers && (cuts->helper == NO_KERNEL || find_all_crowds(cuts, helped)))
        return true;
    cuts_finish(cuts);
    return false;
}

void cuts_finish(struct cuts *cuts)
{
    free(cuts->first);
    free(cuts->numbers);
    free(cuts->of);
    free(cuts->tiles);
    crowds_finish(&cuts->crowds);
    *cuts = (struct cuts){0};
}
