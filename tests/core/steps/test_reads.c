// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_reads.c - runs that would read keys that nothing has written: which are refused, what the
// error says, and what stays as it was. The last test compares thousands of random runs of a batch
// that advances with a plain model of all slots.

#include "core/pool/ledger.h"
#include "core/pool/session.h"
#include "rigs/check_main.h"
#include "rigs/step_world.h"

#include <inttypes.h>
#include <string.h>

static uint64_t num_refused(void)
{
    return core_metrics(world.core)[METRIC_RUNS_UNWRITTEN];
}

// One sequence of `q_len` queries and `seq_len` keys, which writes nothing.
static uint64_t reader(int32_t q_len, int32_t seq_len)
{
    const int32_t cu[] = {0, q_len}, lens[] = {seq_len};
    const struct core_batch_params params = sequences_over(
        a.cache, 1, cu, lens, blocks, ((uint32_t)seq_len + WORLD_BLOCK - 1) / WORLD_BLOCK);
    return worker_create(&a, &params);
}

static enum status try_run(const struct core_run_params *params, struct error *error)
{
    uint64_t ticket;
    enum status status = core_run(a.session, params, &ticket, error);
    world_finish_all(&world);
    if (status == STATUS_OK)
        worker_reap(&a, ticket, STATUS_OK);
    return status;
}

static enum status try_layer(uint64_t batch, uint32_t layer, uint32_t rows, struct error *error)
{
    const struct core_run_params params = worker_run_params(&a, batch, layer, rows, NULL);
    return try_run(&params, error);
}

START_TEST(a_run_that_reads_what_nothing_has_written_is_refused_and_harms_nothing)
{
    struct core_session_counts before, after;
    uint64_t batch = worker_batch(&a, blocks, 11, 11), two = worker_batch(&a, blocks, 13, 1),
             ticket;
    char words[160];
    ck_assert_status(try_layer(batch, 0, 11, &error), STATUS_OK); // its own slots count
    core_session_counts(a.session, &before);
    uint64_t last = worker_run(&a, batch, 0, 11, NULL);
    struct core_run_params params = worker_run_params(&a, two, 0, 1, NULL);
    snprintf(words, sizeof words,
             "sequence 0 reads position 11, slot 3 of block %" PRId32 ", in layer 0; no run, "
             "import or copy has written it",
             blocks[1]);
    ck_assert_refused(core_run(a.session, &params, &ticket, &error), STATUS_UNWRITTEN, words);
    ck_assert_uint_eq(num_refused(), 1);
    world_check(&world);
    world_finish_all(&world);
    worker_reap(&a, last, STATUS_OK);
    core_session_counts(a.session, &after);
    ck_assert_uint_eq(after.tickets_unreaped, before.tickets_unreaped);
    ck_assert_uint_eq(after.runs_done, before.runs_done + 1);
    ck_assert_uint_eq(core_metrics(world.core)[METRIC_RUNS_FAILED], 0);
    // The batch can still run, once another one has written the key.
    ck_assert_status(try_layer(worker_batch(&a, blocks, 12, 1), 0, 1, &error), STATUS_OK);
    ck_assert_uint_eq(worker_run(&a, two, 0, 1, NULL), last + 2);
}
END_TEST

START_TEST(each_layer_counts_by_itself_and_a_run_needs_all_of_its_own)
{
    uint64_t writer = worker_batch(&a, blocks, 16, 16), batch = reader(1, 16);
    struct core_run_params both = worker_run_params(&a, batch, 0, 1, NULL);
    both.layers = (struct wire_layers){.num_layers = 2};
    ck_assert_status(try_layer(writer, 0, 16, &error), STATUS_OK);
    ck_assert_status(try_layer(batch, 0, 1, &error), STATUS_OK);
    ck_assert_refused(try_layer(batch, 1, 1, &error), STATUS_UNWRITTEN, "in layer 1;");
    ck_assert_refused(try_run(&both, &error), STATUS_UNWRITTEN,
                      "reads position 0, slot 0 of block 0, in layer 1;");
    ck_assert_status(try_layer(writer, 1, 16, &error), STATUS_OK);
    ck_assert_status(try_run(&both, &error), STATUS_OK);
}
END_TEST

START_TEST(a_write_counts_as_soon_as_it_is_queued_and_no_more_once_it_has_failed)
{
    uint64_t writer = worker_batch(&a, blocks, 16, 16), batch = reader(1, 16);
    uint64_t first = worker_run(&a, writer, 0, 16, NULL);
    uint64_t behind = worker_run(&a, batch, 0, 1, NULL);
    world_step(&world);
    fake_engine_oldest(world.engine)->runs[0].fail = STATUS_UNSUPPORTED;
    world_finish_all(&world);
    worker_reap(&a, first, STATUS_UNSUPPORTED);
    worker_reap(&a, behind, STATUS_OK);
    ck_assert_refused(try_layer(batch, 0, 1, &error), STATUS_UNWRITTEN, "position 0,");
    ck_assert_status(try_layer(writer, 0, 16, &error), STATUS_OK);
    ck_assert_status(try_layer(batch, 0, 1, &error), STATUS_OK);
}
END_TEST

// A batch remembers which blocks were whole, so this must take that back.
START_TEST(a_block_that_was_whole_is_looked_at_again_after_a_failure_or_a_copy)
{
    uint64_t ticket, batch = reader(1, 16);
    worker_fill(&a, blocks, 2);
    ck_assert_status(try_layer(batch, 0, 1, &error), STATUS_OK);
    ticket = worker_run(&a, worker_batch(&a, blocks, 9, 1), 1, 1, NULL);
    world_step(&world);
    fake_engine_oldest(world.engine)->runs[0].fail = STATUS_UNSUPPORTED;
    world_finish_all(&world);
    worker_reap(&a, ticket, STATUS_UNSUPPORTED);
    ck_assert_status(try_layer(batch, 0, 1, &error), STATUS_OK);
    ck_assert_refused(try_layer(batch, 1, 1, &error), STATUS_UNWRITTEN, "position 8, slot 0");
    ck_assert_status(
        core_blocks_copy(a.session, a.cache, blocks, blocks + 1, 1, true, &ticket, &error),
        STATUS_OK);
    ck_assert_status(try_layer(batch, 1, 1, &error), STATUS_OK); // the copy is queued
    const int32_t zero = -1;
    ck_assert_status(core_blocks_copy(a.session, a.cache, &zero, blocks, 1, true, &ticket, &error),
                     STATUS_OK);
    ck_assert_refused(try_layer(batch, 1, 1, &error), STATUS_UNWRITTEN, "position 0, slot 0");
}
END_TEST

static void set_length(uint64_t batch, int32_t seq_len)
{
    const struct core_advance advance = {
        .batch = batch, .seq_lens_kv = &seq_len, .num_seq_lens_kv = 1};
    ck_assert_status(core_batch_advance(a.session, &advance, &error), STATUS_OK);
}

START_TEST(a_block_that_a_shorter_step_gave_up_may_come_back_unwritten)
{
    uint64_t batch = reader(1, 16);
    worker_fill(&a, blocks, 2);
    ck_assert_status(try_layer(batch, 0, 1, &error), STATUS_OK);
    set_length(batch, 8);
    worker_release(&a, blocks + 1, 1);
    ck_assert_int_eq((int)worker_block(&a, blocks[1]).state, CORE_FREE);
    for (int32_t leased = -1; leased != blocks[1];)
        worker_lease(&a, 1, &leased);
    set_length(batch, 16);
    ck_assert_refused(try_layer(batch, 0, 1, &error), STATUS_UNWRITTEN, "position 8,");
}
END_TEST

// Blocks at which the check has looked since the last call.
static uint64_t looks(void)
{
    static uint64_t before;
    const uint64_t now = a.session->ledger->looks, count = now - before;
    before = now;
    return count;
}

static void decode_one(uint64_t batch, int32_t *seq_len, uint32_t num_layers)
{
    const int64_t slot =
        (int64_t)blocks[*seq_len / WORLD_BLOCK] * WORLD_BLOCK + *seq_len % WORLD_BLOCK;
    const struct core_entry entry = {0, (uint32_t)*seq_len / WORLD_BLOCK,
                                     blocks[*seq_len / WORLD_BLOCK]};
    ++*seq_len;
    const struct core_advance advance = {.batch = batch,
                                         .entries = &entry,
                                         .num_entries = 1,
                                         .seq_lens_kv = seq_len,
                                         .num_seq_lens_kv = 1,
                                         .slot_mapping = &slot,
                                         .num_slot_mapping = 1};
    ck_assert_status(core_batch_advance(a.session, &advance, &error), STATUS_OK);
    for (uint32_t layer = 0; layer < num_layers; layer++)
        ck_assert_status(try_layer(batch, layer, 1, &error), STATUS_OK);
}

// A batch of one sequence with 20 blocks of keys, which decodes. Its prompt is written in the first
// layers only.
static uint64_t decoder(uint32_t num_layers)
{
    enum { PROMPT = 20 * WORLD_BLOCK };
    int64_t slots[PROMPT];
    const int32_t cu[] = {0, 1}, lens[] = {PROMPT};
    const int64_t slot = (int64_t)blocks[19] * WORLD_BLOCK + WORLD_BLOCK - 1;
    for (int32_t i = 0; i < PROMPT; i++)
        slots[i] = (int64_t)blocks[i / WORLD_BLOCK] * WORLD_BLOCK + i % WORLD_BLOCK;
    const uint64_t prompt =
        worker_create(&a, &(struct core_batch_params){
                              .cache = a.cache, .slot_mapping = slots, .num_slot_mapping = PROMPT});
    for (uint32_t layer = 0; layer < num_layers; layer++) {
        struct core_run_params write = worker_run_params(&a, prompt, layer, PROMPT, NULL);
        write.entry.kind = ENGINE_WRITE;
        ck_assert_status(try_run(&write, &error), STATUS_OK);
    }
    struct core_batch_params params = sequences_over(a.cache, 1, cu, lens, blocks, 24);
    params.slot_mapping = &slot;
    params.num_slot_mapping = 1;
    return worker_create(&a, &params);
}

START_TEST(a_step_looks_only_at_blocks_that_may_have_changed_also_if_none_is_ever_whole)
{
    for (uint32_t layers = 1; layers <= WORLD_LAYERS; layers++) {
        int32_t seq_len = 20 * WORLD_BLOCK;
        const uint64_t batch = decoder(layers);
        looks();
        decode_one(batch, &seq_len, layers);
        ck_assert_uint_ge(looks(), 20); // the first one looks at all
        for (int i = 0; i < 3 * WORLD_BLOCK; i++) {
            decode_one(batch, &seq_len, layers);
            ck_assert_uint_le(looks(), 5 * layers);
        }
        ck_assert_status(core_batch_destroy(a.session, batch, &error), STATUS_OK);
    }
}
END_TEST

// A table of `rows` rows and as many columns that names two blocks in turn.
static uint64_t wide_reader(uint32_t rows, const int32_t *lens, bool elsewhere)
{
    int32_t cu[64], table[64 * 64];
    for (uint32_t s = 0; s <= rows; s++)
        cu[s] = (int32_t)s;
    for (uint32_t i = 0; i < rows * rows; i++)
        table[i] = blocks[i % 2];
    const struct core_batch_params params = sequences_over(a.cache, rows, cu, lens, table, rows);
    if (!elsewhere)
        return worker_create(&a, &params);
    struct core_draft *draft;
    uint64_t batch;
    uint32_t num_tokens;
    ck_assert_status(core_batch_begin(a.session, &params, &draft, &error), STATUS_OK);
    ck_assert_status(world_fill(draft, &params, NULL, &error), STATUS_OK);
    ck_assert_status(core_draft_end(draft, &batch, &num_tokens, &error), STATUS_OK);
    core_draft_discard(draft);
    return batch;
}

START_TEST(a_large_table_of_few_blocks_costs_a_look_at_each_block_not_at_each_entry)
{
    enum { ROWS = 24 };
    int32_t lens[ROWS];
    for (int s = 0; s < ROWS; s++)
        lens[s] = ROWS * WORLD_BLOCK - s % 3;
    const uint64_t early = wide_reader(ROWS, lens, false);
    ck_assert_refused(try_layer(early, 0, ROWS, &error), STATUS_UNWRITTEN, "position 0, slot 0");
    worker_fill(&a, blocks, 1);
    looks();
    ck_assert_refused(try_layer(early, 0, ROWS, &error), STATUS_UNWRITTEN, "position 8, slot 0");
    worker_fill(&a, blocks + 1, 1);
    const uint64_t late = wide_reader(ROWS, lens, false);
    looks();
    ck_assert_status(try_layer(late, 0, ROWS, &error), STATUS_OK);
    ck_assert_uint_le(looks(), 2);
    ck_assert_status(try_layer(late, 1, ROWS, &error), STATUS_OK);
    ck_assert_uint_eq(looks(), 0);
    ck_assert_status(try_layer(early, 1, ROWS, &error), STATUS_OK);
    ck_assert_uint_le(looks(), 2);
}
END_TEST

// The end of each row is not whole.
START_TEST(a_table_that_another_thread_fills_comes_with_its_whole_blocks_marked)
{
    enum { ROWS = 24 };
    int32_t lens[ROWS];
    worker_fill(&a, blocks, 1);
    ck_assert_status(try_layer(worker_batch(&a, blocks, 12, 4), 0, 4, &error), STATUS_OK);
    for (int s = 0; s < ROWS; s++)
        lens[s] = 12;
    const uint64_t here = wide_reader(ROWS, lens, false), there = wide_reader(ROWS, lens, true);
    looks();
    ck_assert_status(try_layer(here, 0, ROWS, &error), STATUS_OK);
    const uint64_t all = looks();
    ck_assert_status(try_layer(there, 0, ROWS, &error), STATUS_OK);
    ck_assert_uint_le(looks() + ROWS, all); // not at the whole block of each row
    ck_assert_refused(try_layer(there, 1, ROWS, &error), STATUS_UNWRITTEN, "position 8,");
}
END_TEST

START_TEST(what_was_checked_in_one_layer_is_looked_at_again_after_a_failure_or_a_copy)
{
    const uint64_t batch = decoder(1);
    const int32_t zero = -1;
    uint64_t ticket;
    ck_assert_status(try_layer(batch, 0, 1, &error), STATUS_OK);
    ck_assert_refused(try_layer(batch, 1, 1, &error), STATUS_UNWRITTEN, "position 0, slot 0");
    ticket = worker_run(&a, worker_batch(&a, blocks, 9, 1), 0, 1, NULL);
    world_step(&world);
    fake_engine_oldest(world.engine)->runs[0].fail = STATUS_UNSUPPORTED;
    world_finish_all(&world);
    worker_reap(&a, ticket, STATUS_UNSUPPORTED);
    ck_assert_refused(try_layer(batch, 0, 1, &error), STATUS_UNWRITTEN, "position 8, slot 0");
    ck_assert_status(
        core_blocks_copy(a.session, a.cache, blocks, blocks + 1, 1, true, &ticket, &error),
        STATUS_OK);
    ck_assert_status(try_layer(batch, 0, 1, &error), STATUS_OK);
    ck_assert_status(core_blocks_copy(a.session, a.cache, &zero, blocks, 1, true, &ticket, &error),
                     STATUS_OK);
    ck_assert_refused(try_layer(batch, 0, 1, &error), STATUS_UNWRITTEN, "position 0, slot 0");
}
END_TEST

START_TEST(an_entry_that_changes_is_looked_at_again_in_each_layer)
{
    const uint64_t batch = decoder(1);
    const struct core_entry entry = {0, 3, blocks[23]}; // that nothing has written
    const int64_t slot = (int64_t)blocks[20] * WORLD_BLOCK;
    const int32_t seq_len = 20 * WORLD_BLOCK;
    const struct core_advance advance = {.batch = batch,
                                         .entries = &entry,
                                         .num_entries = 1,
                                         .seq_lens_kv = &seq_len,
                                         .num_seq_lens_kv = 1,
                                         .slot_mapping = &slot,
                                         .num_slot_mapping = 1};
    ck_assert_status(try_layer(batch, 0, 1, &error), STATUS_OK);
    ck_assert_status(core_batch_advance(a.session, &advance, &error), STATUS_OK);
    ck_assert_refused(try_layer(batch, 0, 1, &error), STATUS_UNWRITTEN, "position 24, slot 0");
}
END_TEST

static enum status try_window(uint64_t batch, int32_t left, int32_t right, bool causal,
                              struct error *error)
{
    struct core_run_params params = worker_run_params(&a, batch, 0, 2, NULL);
    params.entry.window_left = left;
    params.entry.window_right = right;
    params.entry.flags = causal ? WIRE_RUN_CAUSAL : 0;
    return try_run(&params, error);
}

static enum status try_chunk(uint64_t batch, uint32_t chunk, struct error *error)
{
    struct core_run_params params = worker_run_params(&a, batch, 0, 2, NULL);
    params.options.attention_chunk = chunk;
    return try_run(&params, error);
}

START_TEST(keys_that_no_query_sees_need_not_be_written)
{
    const int32_t cu[] = {0, 2}, lens[] = {20}, positions[] = {12, 9};
    struct core_batch_params params = sequences_over(a.cache, 1, cu, lens, blocks, 3);
    uint64_t last = worker_create(&a, &params); // queries at 18 and 19
    worker_fill(&a, blocks + 1, 1);             // keys 8 to 15
    params.positions = positions;
    params.num_positions = 2;
    uint64_t inside = worker_create(&a, &params);
    ck_assert_status(try_window(inside, 1, -1, true, &error), STATUS_OK);
    ck_assert_status(try_window(inside, 1, 3, false, &error), STATUS_OK);
    ck_assert_refused(try_window(inside, 2, 3, false, &error), STATUS_UNWRITTEN, "position 7,");
    ck_assert_refused(try_window(inside, 1, 4, false, &error), STATUS_UNWRITTEN, "position 16,");
    ck_assert_refused(try_window(inside, 1, -1, false, &error), STATUS_UNWRITTEN, "position 16,");
    ck_assert_refused(try_window(inside, -1, -1, true, &error), STATUS_UNWRITTEN, "position 0,");
    ck_assert_status(try_chunk(inside, 8, &error), STATUS_OK);
    ck_assert_status(try_chunk(inside, 3, &error), STATUS_OK);
    ck_assert_refused(try_chunk(inside, 5, &error), STATUS_UNWRITTEN, "position 5,");
    ck_assert_refused(try_chunk(inside, 20, &error), STATUS_UNWRITTEN, "position 0,");
    worker_fill(&a, blocks + 2, 1);
    ck_assert_status(try_window(last, 10, -1, true, &error), STATUS_OK);
    ck_assert_refused(try_window(last, 11, -1, true, &error), STATUS_UNWRITTEN, "position 7,");
}
END_TEST

START_TEST(a_mask_may_hide_keys_so_its_runs_are_not_checked)
{
    const int32_t cu[] = {0, 1}, lens[] = {8};
    const uint8_t mask[] = {0};
    struct core_batch_params params = sequences_over(a.cache, 1, cu, lens, blocks, 1);
    ck_assert_refused(try_layer(worker_create(&a, &params), 0, 1, &error), STATUS_UNWRITTEN, "");
    params.mask = mask;
    params.mask_bytes = 1;
    ck_assert_status(try_layer(worker_create(&a, &params), 0, 1, &error), STATUS_OK);
}
END_TEST

START_TEST(a_gather_reads_all_keys_and_padding_reads_none)
{
    const int32_t cu[] = {0, 1, 1}, lens[] = {8, 8};
    const struct core_batch_params params = sequences_over(a.cache, 2, cu, lens, blocks, 1);
    uint64_t batch = worker_create(&a, &params);
    worker_fill(&a, blocks, 1);
    ck_assert_status(try_layer(batch, 0, 1, &error), STATUS_OK);
    struct core_run_params gather = worker_run_params(&a, batch, 0, 16, NULL);
    gather.entry.kind = ENGINE_GATHER;
    ck_assert_refused(try_run(&gather, &error), STATUS_UNWRITTEN,
                      "sequence 1 reads position 0, slot 0 of block 1, in layer 0;");
    worker_fill(&a, blocks + 1, 1);
    ck_assert_status(try_run(&gather, &error), STATUS_OK);
}
END_TEST

// ---- random runs, compared with a model ----

enum { WALKS = 20, STEPS = 3000, SEQS = 3, COLUMNS = 4, QUERIES = 4, NUM_BLOCKS = 8 };
static const int32_t cu[] = {0, 1, 2, QUERIES};

struct model {
    int32_t lens[SEQS], table[SEQS * COLUMNS]; // the table has indices of `blocks`
    int64_t slots[QUERIES];                    // likewise
    uint64_t batch;
};

static bool written[WORLD_LAYERS][NUM_BLOCKS * WORLD_BLOCK];
static uint64_t num_accepted;
static uint64_t random_state;

static uint32_t roll(uint32_t sides)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 33) % sides);
}

static int32_t slot_of(const struct model *m, uint32_t s, int32_t position)
{
    return m->table[s * COLUMNS + (uint32_t)position / WORLD_BLOCK] * WORLD_BLOCK +
           position % WORLD_BLOCK;
}

static void draw_slots(struct model *m)
{
    for (uint32_t s = 0; s < SEQS; s++)
        for (int32_t t = cu[s]; t < cu[s + 1]; t++) {
            int32_t position = m->lens[s] - cu[s + 1] + t;
            m->slots[t] = roll(3) && m->lens[s] >= 2 ? slot_of(m, s, position) : -1;
            for (int32_t u = 0; u < t; u++)
                if (m->slots[u] == m->slots[t])
                    m->slots[t] = -1;
        }
}

static int64_t real_slot(int64_t slot)
{
    return slot < 0 ? -1 : (int64_t)blocks[slot / WORLD_BLOCK] * WORLD_BLOCK + slot % WORLD_BLOCK;
}

static void create_model(struct model *m)
{
    int32_t table[SEQS * COLUMNS];
    int64_t slots[QUERIES];
    for (uint32_t s = 0; s < SEQS; s++)
        m->lens[s] = (int32_t)(2 + roll(10));
    for (uint32_t i = 0; i < SEQS * COLUMNS; i++) {
        m->table[i] = (int32_t)roll(NUM_BLOCKS);
        table[i] = blocks[m->table[i]];
    }
    draw_slots(m);
    for (uint32_t t = 0; t < QUERIES; t++)
        slots[t] = real_slot(m->slots[t]);
    struct core_batch_params params = sequences_over(a.cache, SEQS, cu, m->lens, table, COLUMNS);
    params.slot_mapping = slots;
    params.num_slot_mapping = QUERIES;
    m->batch = worker_create(&a, &params);
}

static void advance_model(struct model *m)
{
    struct core_entry entries[2];
    int64_t slots[QUERIES];
    struct core_advance advance = {.batch = m->batch,
                                   .seq_lens_kv = m->lens,
                                   .num_seq_lens_kv = SEQS,
                                   .entries = entries,
                                   .num_entries = roll(3),
                                   .slot_mapping = slots,
                                   .num_slot_mapping = QUERIES};
    for (uint32_t s = 0; s < SEQS; s++) {
        int32_t len = roll(8) ? m->lens[s] + (int32_t)roll(2) : (int32_t)roll(33);
        m->lens[s] = len > COLUMNS * WORLD_BLOCK ? 1 : len;
    }
    for (uint32_t i = 0; i < advance.num_entries; i++) {
        entries[i] = (struct core_entry){roll(SEQS), roll(COLUMNS), 0};
        int32_t index = (int32_t)roll(NUM_BLOCKS);
        m->table[entries[i].seq * COLUMNS + entries[i].column] = index;
        entries[i].block = blocks[index];
    }
    draw_slots(m);
    for (uint32_t t = 0; t < QUERIES; t++)
        slots[t] = real_slot(m->slots[t]);
    ck_assert_status(core_batch_advance(a.session, &advance, &error), STATUS_OK);
}

// Whether a query of the sequence sees a key that is neither written nor in `own`.
static bool reads_unwritten(const struct model *m, const struct core_run_params *p, uint32_t s,
                            const bool *own)
{
    const int32_t chunk = (int32_t)p->options.attention_chunk;
    for (int32_t t = cu[s]; t < cu[s + 1]; t++) {
        int32_t query = m->lens[s] - cu[s + 1] + t;
        for (int32_t key = 0; key < m->lens[s]; key++) {
            bool hidden = (p->entry.flags & WIRE_RUN_CAUSAL && key > query) ||
                          (p->entry.window_left >= 0 && key < query - p->entry.window_left) ||
                          (p->entry.window_right >= 0 && key > query + p->entry.window_right) ||
                          (chunk && (query < 0 || key / chunk != query / chunk));
            const int32_t slot = slot_of(m, s, key);
            for (uint32_t n = 0; !hidden && !own[slot] && n < core_run_layers(p); n++)
                if (!written[p->entry.layer + n][slot])
                    return true;
        }
    }
    return false;
}

// Finishes the last run, which may fail. True: it did not.
static bool finish(uint64_t ticket)
{
    const bool fails = !roll(5);
    world_step(&world);
    struct fake_submission *s = fake_engine_oldest(world.engine);
    for (uint32_t i = 0; fails && i < s->num_runs; i++)
        s->runs[i].fail = STATUS_UNSUPPORTED;
    world_finish_all(&world);
    worker_reap(&a, ticket, fails ? STATUS_UNSUPPORTED : STATUS_OK);
    return !fails;
}

static void set_written(uint32_t layer, const bool *slots, bool value)
{
    for (uint32_t i = 0; i < NUM_BLOCKS * WORLD_BLOCK; i++)
        if (slots[i])
            written[layer][i] = value;
}

static void attend_model(const struct model *m)
{
    bool own[NUM_BLOCKS * WORLD_BLOCK] = {false}, refused = false;
    struct core_run_params p = worker_run_params(&a, m->batch, roll(WORLD_LAYERS), QUERIES, NULL);
    uint64_t ticket;
    if (!roll(3)) {
        p.entry.layer = 0;
        p.layers = (struct wire_layers){.num_layers = WORLD_LAYERS};
    }
    p.entry.flags = roll(2) ? WIRE_RUN_CAUSAL : 0;
    p.entry.window_left = roll(2) ? -1 : (int32_t)roll(12);
    p.entry.window_right = roll(2) ? -1 : (int32_t)roll(4);
    p.options.attention_chunk = roll(3) ? 0 : 1 + (uint32_t)roll(20);
    for (uint32_t t = 0; t < QUERIES; t++)
        if (m->slots[t] >= 0)
            own[m->slots[t]] = true;
    for (uint32_t s = 0; s < SEQS; s++)
        refused |= reads_unwritten(m, &p, s, own);
    ck_assert_status(core_run(a.session, &p, &ticket, &error),
                     refused ? STATUS_UNWRITTEN : STATUS_OK);
    if (refused)
        return;
    num_accepted++;
    bool done = finish(ticket);
    for (uint32_t n = 0; n < core_run_layers(&p); n++)
        set_written(p.entry.layer + n, own, done);
}

static void gather_model(const struct model *m)
{
    bool refused = false;
    uint32_t layer = roll(WORLD_LAYERS), rows = 0;
    for (uint32_t s = 0; s < SEQS; s++) {
        rows += (uint32_t)m->lens[s];
        for (int32_t key = 0; key < m->lens[s]; key++)
            refused |= !written[layer][slot_of(m, s, key)];
    }
    struct core_run_params p = worker_run_params(&a, m->batch, layer, rows, NULL);
    uint64_t ticket;
    p.entry.kind = ENGINE_GATHER;
    ck_assert_status(core_run(a.session, &p, &ticket, &error),
                     refused ? STATUS_UNWRITTEN : STATUS_OK);
    if (!refused)
        finish(ticket);
}

// Some blocks from their first slot on, in one layer or in both.
static void import_model(void)
{
    bool own[NUM_BLOCKS * WORLD_BLOCK] = {false};
    int64_t slots[2 * WORLD_BLOCK];
    uint32_t first = roll(NUM_BLOCKS - 1) * WORLD_BLOCK, count = 1 + roll(2 * WORLD_BLOCK);
    for (uint32_t i = 0; i < count; i++) {
        slots[i] = real_slot(first + i);
        own[first + i] = true;
    }
    uint64_t batch =
        worker_create(&a, &(struct core_batch_params){
                              .cache = a.cache, .slot_mapping = slots, .num_slot_mapping = count});
    for (uint32_t layer = 0; layer < WORLD_LAYERS; layer++) {
        struct core_run_params p = worker_run_params(&a, batch, layer, count, NULL);
        p.entry.kind = ENGINE_WRITE;
        if (roll(8))
            set_written(layer, own, finish(worker_queue(&a, &p)));
    }
    ck_assert_status(core_batch_destroy(a.session, batch, &error), STATUS_OK);
}

static void copy_model(void)
{
    uint32_t to = roll(NUM_BLOCKS), from = roll(NUM_BLOCKS);
    const int32_t ids[] = {from == to ? -1 : blocks[from]};
    uint64_t ticket;
    ck_assert_status(
        core_blocks_copy(a.session, a.cache, ids, &blocks[to], 1, false, &ticket, &error),
        STATUS_OK);
    bool done = finish(ticket) && from != to;
    for (uint32_t layer = 0; layer < WORLD_LAYERS; layer++)
        for (uint32_t i = 0; i < WORLD_BLOCK; i++)
            written[layer][to * WORLD_BLOCK + i] = done && written[layer][from * WORLD_BLOCK + i];
}

START_TEST(runs_of_a_batch_that_advances_are_refused_as_a_simple_model_says)
{
    struct model m = {0};
    random_state = 0x9e3779b97f4a7c15ull * (uint64_t)(_i + 1);
    create_model(&m);
    for (int i = 0; i < STEPS; i++) {
        switch (roll(8)) {
        case 0:
        case 1:
        case 2: advance_model(&m); break;
        case 3:
        case 4: attend_model(&m); break;
        case 5: gather_model(&m); break;
        case 6: import_model(); break;
        default:
            if (roll(3) == 0)
                copy_model();
        }
        world_check(&world);
    }
    ck_assert_uint_gt(num_accepted, 50);
    ck_assert_uint_gt(num_refused(), 50);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reads");
    TCase *tcase = tcase_create("runs"), *walks = tcase_create("random walks");
    tcase_add_checked_fixture(tcase, open_world, close_all);
    tcase_add_checked_fixture(walks, open_world, close_all);
    const TTest *tests[] = {
        a_run_that_reads_what_nothing_has_written_is_refused_and_harms_nothing,
        each_layer_counts_by_itself_and_a_run_needs_all_of_its_own,
        a_write_counts_as_soon_as_it_is_queued_and_no_more_once_it_has_failed,
        a_block_that_was_whole_is_looked_at_again_after_a_failure_or_a_copy,
        a_block_that_a_shorter_step_gave_up_may_come_back_unwritten,
        a_step_looks_only_at_blocks_that_may_have_changed_also_if_none_is_ever_whole,
        a_large_table_of_few_blocks_costs_a_look_at_each_block_not_at_each_entry,
        a_table_that_another_thread_fills_comes_with_its_whole_blocks_marked,
        what_was_checked_in_one_layer_is_looked_at_again_after_a_failure_or_a_copy,
        an_entry_that_changes_is_looked_at_again_in_each_layer,
        keys_that_no_query_sees_need_not_be_written,
        a_mask_may_hide_keys_so_its_runs_are_not_checked,
        a_gather_reads_all_keys_and_padding_reads_none,
    };
    for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++)
        tcase_add_test(tcase, tests[i]);
    tcase_add_loop_test(walks, runs_of_a_batch_that_advances_are_refused_as_a_simple_model_says, 0,
                        WALKS);
    tcase_set_timeout(walks, 240);
    suite_add_tcase(suite, tcase);
    suite_add_tcase(suite, walks);
    return check_main(suite);
}
