// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_seed_ragged.c - PagedAttention v4, ragged batching: prompts of 36, 37 and 36 tokens
// flattened to 109 tokens, each with seq_id, position and slot, then their decode. v4 only prepared
// this; here the tokens of all prompts are computed at once. A row must have the same bits alone,
// among others, in any order of the tokens, and beside another session's work.

#include "rigs/seed_world.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { NUM_SEQS = 3, TOKENS = 36 + 37 + 36, BLOCK = 16, COLUMNS = 4, LEASED = NUM_SEQS * COLUMNS };
static const int32_t lens[] = {36, 37, 36}, cu_q[] = {0, 36, 73, TOKENS};

// ---- build_ragged_metadata(): token_ids go to the model; the other three arrays come here ----

struct flat {
    int32_t seq_ids[TOKENS], positions[TOKENS];
    int64_t slots[TOKENS];
    int32_t rows[TOKENS]; // the row of token t, sequence by sequence
    uint32_t num_tokens;
};

static void add_token(struct flat *flat, const int32_t *table, int32_t s, int32_t i)
{
    uint32_t row = flat->num_tokens++;
    flat->seq_ids[row] = s;
    flat->positions[row] = i;
    flat->slots[row] = seed_slot(table + (size_t)s * COLUMNS, BLOCK, i);
    flat->rows[cu_q[s] + i] = (int32_t)row;
}

// As the seed flattens them: one prompt after the other.
static void flatten(struct flat *flat, const int32_t *table)
{
    flat->num_tokens = 0;
    for (int32_t s = 0; s < NUM_SEQS; s++)
        for (int32_t i = 0; i < lens[s]; i++)
            add_token(flat, table, s, i);
}

// One token of each in turn, the last prompt first.
static void interleave(struct flat *flat, const int32_t *table)
{
    flat->num_tokens = 0;
    for (int32_t i = 0; i < 37; i++)
        for (int32_t s = NUM_SEQS - 1; s >= 0; s--)
            if (i < lens[s])
                add_token(flat, table, s, i);
}

static struct aule_token_form form_of(const struct flat *flat, const int32_t *table)
{
    return (struct aule_token_form){.num_tokens = flat->num_tokens,
                                    .num_seqs = NUM_SEQS,
                                    .seq_ids = flat->seq_ids,
                                    .positions = flat->positions,
                                    .slot_mapping = flat->slots,
                                    .block_table = table,
                                    .max_blocks = COLUMNS};
}

// ---- a session that computes them ----

struct world {
    struct aule_session *session;
    struct aule_cache *cache;
    int32_t table[LEASED]; // other blocks than another session's
};

static void open_world(struct world *world)
{
    world->session = seed_open(0);
    world->cache = seed_cache(world->session, AULE_F32, BLOCK);
    seed_lease(world->session, world->cache, AULE_F32, BLOCK, LEASED, world->table);
}

static void close_world(struct world *world)
{
    ok(aule_blocks_release(world->cache, LEASED, world->table));
    aule_cache_close(world->cache);
    aule_session_close(world->session);
}

static struct aule_batch *create_batch(const struct world *world, const struct flat *flat)
{
    const struct aule_token_form form = form_of(flat, world->table);
    struct aule_metadata metadata;
    struct aule_batch *batch = NULL;
    ok(aule_metadata_tokens(&form, &metadata));
    ok(aule_batch_create(world->cache, &metadata.params, &batch));
    aule_metadata_finish(&metadata);
    return batch;
}

enum { ROW = SEED_HEADS * SEED_DIM };

// The rows of out, sequence by sequence, for any order of tokens in the tensor.
static void take_out(const struct seed_step *step, float *out)
{
    for (uint32_t t = 0; t < seed_step_tokens(step); t++)
        memcpy(out + (size_t)t * ROW, seed_step_out(step, t), ROW * sizeof *out);
}

static struct seed_step open_prompts(const struct world *world, const struct flat *flat)
{
    struct seed_step step = {.session = world->session,
                             .dtype = AULE_F32,
                             .num_seqs = NUM_SEQS,
                             .cu_q = cu_q,
                             .lens = lens,
                             .rows = flat->rows};
    seed_step_open(&step);
    return step;
}

static void prefill(const struct world *world, const struct flat *flat, const char *name,
                    float *out)
{
    struct seed_step step = open_prompts(world, flat);
    const struct aule_run_params run = seed_step_run(&step);
    seed_step_finish(&step, create_batch(world, flat), &run);
    seed_step_expect(&step, NULL, &run, name);
    take_out(&step, out);
    seed_step_close(&step);
}

// The contents of the three sequences' blocks, [109, kv_heads, dim] of K and then of V.
static void gather(const struct world *world, float *kv)
{
    static const int32_t no_queries[NUM_SEQS + 1];
    const struct aule_batch_params params = {.num_seqs = NUM_SEQS,
                                             .max_blocks = COLUMNS,
                                             .cu_seqlens_q = no_queries,
                                             .seq_lens_kv = lens,
                                             .block_table = world->table};
    struct aule_batch *batch = NULL;
    struct aule_kv_gather gather = {.layer = 0};
    struct aule_ticket ticket;
    size_t size = TOKENS * seed_row_size(AULE_F32, SEED_KV_HEADS);
    ok(aule_tensor_create(world->session, AULE_F32, TOKENS, SEED_KV_HEADS, SEED_DIM, &gather.k));
    ok(aule_tensor_create(world->session, AULE_F32, TOKENS, SEED_KV_HEADS, SEED_DIM, &gather.v));
    ok(aule_batch_create(world->cache, &params, &batch));
    ok(aule_kv_gather(batch, &gather, SEED_WAIT_MS, &ticket));
    ok(aule_ticket_wait(world->session, ticket, SEED_WAIT_MS, NULL));
    memcpy(kv, aule_tensor_data(world->session, &gather.k), size);
    memcpy(kv + size / sizeof *kv, aule_tensor_data(world->session, &gather.v), size);
    aule_batch_destroy(batch);
    aule_tensor_destroy(world->session, &gather.k);
    aule_tensor_destroy(world->session, &gather.v);
}

// ---- prefill ----

START_TEST(prompts_of_36_37_and_36_tokens_have_the_same_bits_flattened_and_interleaved)
{
    static float in_order[TOKENS * ROW], mixed[TOKENS * ROW];
    static float kv_in_order[2 * TOKENS * SEED_KV_HEADS * SEED_DIM],
        kv_mixed[2 * TOKENS * SEED_KV_HEADS * SEED_DIM];
    static struct flat flat;
    struct world world, other;
    open_world(&world);
    open_world(&other);
    flatten(&flat, world.table);
    ck_assert_uint_eq(flat.num_tokens, 109); // it would be 111 with padding
    prefill(&world, &flat, "flattened", in_order);
    gather(&world, kv_in_order);
    interleave(&flat, other.table);
    ck_assert_uint_eq(flat.num_tokens, 109);
    prefill(&other, &flat, "interleaved", mixed);
    gather(&other, kv_mixed);
    ck_assert_mem_eq(mixed, in_order, sizeof mixed);
    ck_assert_mem_eq(kv_mixed, kv_in_order, sizeof kv_mixed);
    close_world(&world);
    close_world(&other);
    seed_expect_nothing_leased();
}
END_TEST

// One prompt as a batch of its own.
static void prefill_alone(const struct world *world, int32_t s, float *out)
{
    const int32_t cu_alone[] = {0, lens[s]};
    int64_t slots[37];
    struct seed_step step = {.session = world->session,
                             .dtype = AULE_F32,
                             .num_seqs = 1,
                             .cu_q = cu_alone,
                             .lens = &lens[s],
                             .first_seq = s};
    struct aule_batch *batch = NULL;
    seed_step_open(&step);
    struct aule_batch_params params = seed_step_batch(&step);
    const struct aule_run_params run = seed_step_run(&step);
    for (int32_t i = 0; i < lens[s]; i++)
        slots[i] = seed_slot(world->table + (size_t)s * COLUMNS, BLOCK, i);
    params.max_blocks = COLUMNS;
    params.block_table = world->table + (size_t)s * COLUMNS;
    params.slot_mapping = slots;
    ok(aule_batch_create(world->cache, &params, &batch));
    seed_step_finish(&step, batch, &run);
    take_out(&step, out);
    seed_step_close(&step);
}

START_TEST(a_prompt_alone_has_the_bits_that_it_has_among_the_others)
{
    static float together[TOKENS * ROW], alone[TOKENS * ROW];
    static struct flat flat;
    struct world world;
    open_world(&world);
    interleave(&flat, world.table);
    prefill(&world, &flat, "together", together);
    for (int32_t s = 0; s < NUM_SEQS; s++)
        prefill_alone(&world, s, alone + (size_t)cu_q[s] * ROW);
    ck_assert_mem_eq(alone, together, sizeof alone);
    close_world(&world);
}
END_TEST

// ---- decode: each sequence has one query, flattened to as many tokens as sequences ----

START_TEST(decode_flattens_to_a_token_a_sequence_in_any_order)
{
    static const int32_t ids[] = {1, 2, 0}, positions[] = {37, 36, 36}, rows[] = {2, 0, 1};
    static const int32_t cu_decode[] = {0, 1, 2, 3}, decode_lens[] = {37, 38, 37};
    static float ignored[TOKENS * ROW];
    static struct flat flat;
    struct world world;
    int64_t slots[NUM_SEQS];
    struct aule_metadata metadata;
    struct aule_batch *batch = NULL;
    open_world(&world);
    flatten(&flat, world.table);
    prefill(&world, &flat, "before decode", ignored);
    for (int t = 0; t < NUM_SEQS; t++)
        slots[t] = seed_slot(world.table + (size_t)ids[t] * COLUMNS, BLOCK, positions[t]);
    struct aule_token_form form = form_of(&flat, world.table);
    form.num_tokens = NUM_SEQS;
    form.seq_ids = ids;
    form.positions = positions;
    form.slot_mapping = slots;
    struct seed_step step = {.session = world.session,
                             .dtype = AULE_F32,
                             .num_seqs = NUM_SEQS,
                             .cu_q = cu_decode,
                             .lens = decode_lens,
                             .rows = rows};
    seed_step_open(&step);
    const struct aule_run_params run = seed_step_run(&step);
    ok(aule_metadata_tokens(&form, &metadata));
    ok(aule_batch_create(world.cache, &metadata.params, &batch));
    aule_metadata_finish(&metadata);
    seed_step_finish(&step, batch, &run);
    seed_step_expect(&step, NULL, &run, "decode");
    seed_step_close(&step);
    close_world(&world);
}
END_TEST

// ---- what is refused ----

START_TEST(gaps_and_repeats_are_refused_with_their_place)
{
    static const int32_t table[LEASED];
    static struct flat flat;
    struct aule_metadata metadata;
    flatten(&flat, table);
    const struct aule_token_form form = form_of(&flat, table);
    for (int t = cu_q[1] + 20; t < cu_q[2]; t++)
        flat.positions[t]++;
    expect(aule_metadata_tokens(&form, &metadata), AULE_INVALID,
           "positions[56] = 21 of sequence 1 leaves a gap");
    for (int t = cu_q[1] + 20; t < cu_q[2]; t++)
        flat.positions[t] -= 2;
    expect(aule_metadata_tokens(&form, &metadata), AULE_INVALID,
           "positions[56] = 19 of sequence 1 repeats");
    flat.positions[cu_q[1] + 20] = 3;
    expect(aule_metadata_tokens(&form, &metadata), AULE_INVALID,
           "positions[56] = 3 of sequence 1 falls");
}
END_TEST

// ---- repeated positions: a tree of drafts behind each prompt ----

enum { DRAFTS = 4, TREE_TOKENS = NUM_SEQS * DRAFTS, TREE_MASK = 20 + 21 + 20 };
static const int32_t tree_cu[] = {0, DRAFTS, 2 * DRAFTS, TREE_TOKENS}, tree_lens[] = {40, 41, 40};
// Two children of the last token, each with a child: drafts 2 and 3 follow drafts 0 and 1.
static const int32_t depths[] = {0, 0, 1, 1}, parents[] = {-1, -1, 0, 1};

struct tree {
    int32_t seq_ids[TREE_TOKENS], positions[TREE_TOKENS], rows[TREE_TOKENS];
    int64_t slots[TREE_TOKENS];
    uint8_t mask[TREE_MASK];
};

static void allow(uint8_t *part, int32_t query, int32_t key, int32_t kv_len)
{
    int32_t bit = query * kv_len + key;
    part[bit / 8] |= (uint8_t)(1u << bit % 8);
}

// A draft sees the prompt, its ancestors and itself.
static void fill_part(uint8_t *part, int32_t s)
{
    for (int32_t i = 0; i < DRAFTS; i++) {
        for (int32_t j = 0; j < lens[s]; j++)
            allow(part, i, j, tree_lens[s]);
        for (int32_t draft = i; draft >= 0; draft = parents[draft])
            allow(part, i, lens[s] + draft, tree_lens[s]);
    }
}

static void fill_tree(struct tree *tree, const int32_t *table)
{
    uint8_t *part = tree->mask;
    *tree = (struct tree){.mask = {0}};
    for (int32_t s = 0; s < NUM_SEQS; s++) {
        for (int32_t i = 0; i < DRAFTS; i++) {
            int32_t row = i * NUM_SEQS + s;
            tree->seq_ids[row] = s;
            tree->positions[row] = lens[s] + depths[i];
            tree->slots[row] = seed_slot(table + (size_t)s * COLUMNS, BLOCK, lens[s] + i);
            tree->rows[tree_cu[s] + i] = row;
        }
        fill_part(part, s);
        part += (DRAFTS * tree_lens[s] + 7) / 8;
    }
    ck_assert_ptr_eq(part, tree->mask + TREE_MASK);
}

static void expect_tree(const struct world *world, const struct tree *tree,
                        const struct aule_batch_params *params)
{
    struct aule_batch *batch = NULL;
    struct seed_step step = {.session = world->session,
                             .dtype = AULE_F32,
                             .num_seqs = NUM_SEQS,
                             .cu_q = tree_cu,
                             .lens = tree_lens,
                             .rows = tree->rows};
    seed_step_open(&step);
    const struct aule_run_params run = seed_step_run(&step);
    ok(aule_batch_create(world->cache, params, &batch));
    seed_step_finish(&step, batch, &run);
    seed_step_expect(&step, params, &run, "a tree of drafts");
    seed_step_close(&step);
}

START_TEST(positions_may_repeat_with_a_custom_mask_and_only_so)
{
    static float ignored[TOKENS * ROW];
    static struct flat flat;
    struct tree tree;
    struct world world;
    struct aule_metadata metadata;
    struct aule_batch *batch = NULL;
    open_world(&world);
    flatten(&flat, world.table);
    prefill(&world, &flat, "before the drafts", ignored);
    fill_tree(&tree, world.table);
    struct aule_token_form form = {.num_tokens = TREE_TOKENS,
                                   .num_seqs = NUM_SEQS,
                                   .seq_ids = tree.seq_ids,
                                   .positions = tree.positions,
                                   .slot_mapping = tree.slots,
                                   .block_table = world.table,
                                   .max_blocks = COLUMNS,
                                   .seq_lens_kv = tree_lens};
    expect(aule_metadata_tokens(&form, &metadata), AULE_INVALID, "repeats");
    form.repeats = true;
    ok(aule_metadata_tokens(&form, &metadata));
    ck_assert_uint_eq(metadata.params.mask_size, TREE_MASK);
    enum aule_status status = aule_batch_create(world.cache, &metadata.params, &batch);
    ck_assert_int_ne((int)status, AULE_OK);
    expect(status, status, "mask");
    metadata.params.mask = tree.mask;
    expect_tree(&world, &tree, &metadata.params);
    aule_metadata_finish(&metadata);
    close_world(&world);
}
END_TEST

// ---- beside another session's work ----

enum { ROUNDS = 10, IN_FLIGHT = 8, MAX_ROUNDS = 2000 };

struct neighbour {
    pthread_t thread;
    struct world world;
    struct flat flat;
    bool stop; // under `mutex`
    pthread_mutex_t mutex;
};

static bool stopped(struct neighbour *neighbour)
{
    pthread_mutex_lock(&neighbour->mutex);
    bool stop = neighbour->stop;
    pthread_mutex_unlock(&neighbour->mutex);
    return stop;
}

// The same prompts in its own order and blocks, again and again, with several in flight.
static void *work_beside(void *context)
{
    struct neighbour *neighbour = context;
    struct seed_step step = open_prompts(&neighbour->world, &neighbour->flat);
    const struct aule_run_params run = seed_step_run(&step);
    struct aule_batch *batch = create_batch(&neighbour->world, &neighbour->flat);
    while (!stopped(neighbour)) {
        struct aule_ticket tickets[IN_FLIGHT];
        for (int i = 0; i < IN_FLIGHT; i++)
            ok(aule_run_submit(batch, &run, SEED_WAIT_MS, &tickets[i]));
        for (int i = 0; i < IN_FLIGHT; i++)
            ok(aule_ticket_wait(neighbour->world.session, tickets[i], SEED_WAIT_MS, NULL));
    }
    seed_step_expect(&step, NULL, &run, "the neighbour");
    aule_batch_destroy(batch);
    seed_step_close(&step);
    return NULL;
}

// Runs until ROUNDS runs have shared their dispatch with the neighbour, which always has more in
// flight than the device takes at once. Each run must give the same bytes as alone.
static void run_beside(const struct world *world, const struct flat *flat, const float *alone)
{
    static float out[TOKENS * ROW];
    struct seed_step step = open_prompts(world, flat);
    const struct aule_run_params run = seed_step_run(&step);
    struct aule_batch *batch = create_batch(world, flat);
    int shared = 0;
    for (int round = 0; shared < ROUNDS && round < MAX_ROUNDS; round++) {
        struct aule_run_result result;
        seed_step_clear(&step);
        ok(aule_run(batch, &run, SEED_WAIT_MS, &result));
        take_out(&step, out);
        ck_assert_mem_eq(out, alone, sizeof out);
        shared += result.num_sessions > 1;
    }
    // The test compares bytes, however often the sessions shared a dispatch. But if they never did,
    // nothing was tested.
    ck_assert_msg(shared > 0, "in %d rounds no dispatch was shared", MAX_ROUNDS);
    aule_batch_destroy(batch);
    seed_step_close(&step);
}

START_TEST(beside_another_sessions_work_or_alone_a_run_gives_the_same_bytes)
{
    static float alone[TOKENS * ROW];
    static struct flat flat;
    static struct neighbour neighbour = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    struct world world;
    open_world(&world);
    flatten(&flat, world.table);
    prefill(&world, &flat, "alone", alone);
    open_world(&neighbour.world);
    interleave(&neighbour.flat, neighbour.world.table);
    ck_assert_int_eq(pthread_create(&neighbour.thread, NULL, work_beside, &neighbour), 0);
    run_beside(&world, &flat, alone);
    pthread_mutex_lock(&neighbour.mutex);
    neighbour.stop = true;
    pthread_mutex_unlock(&neighbour.mutex);
    ck_assert_int_eq(pthread_join(neighbour.thread, NULL), 0);
    close_world(&neighbour.world);
    close_world(&world);
    seed_expect_nothing_leased();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("seed, ragged batching v4");
    seed_add(suite, "ragged", seed_setup,
             (const TTest *const[]){
                 prompts_of_36_37_and_36_tokens_have_the_same_bits_flattened_and_interleaved,
                 a_prompt_alone_has_the_bits_that_it_has_among_the_others,
                 decode_flattens_to_a_token_a_sequence_in_any_order,
                 gaps_and_repeats_are_refused_with_their_place,
                 positions_may_repeat_with_a_custom_mask_and_only_so,
                 beside_another_sessions_work_or_alone_a_run_gives_the_same_bytes, NULL});
    return check_main(suite);
}
