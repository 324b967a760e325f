// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_sequence.c - sequences through the real daemon. Every row that a step computes is
// held against float64; where a sequence was found, forked, truncated or evicted, its rows have the
// same bits as those of one that computed everything itself.

#include "rigs/dice.h"
#include "rigs/text_world.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static struct text_world world;

static void open_world(void)
{
    rig_setup();
    text_open(&world);
}

static void close_world(void)
{
    text_close(&world);
    rig_teardown();
}

// Texts of one seed begin alike.
static const int32_t *words(uint32_t seed)
{
    static int32_t list[TEXT_MOST];
    for (uint32_t i = 0; i < TEXT_MOST; i++)
        list[i] = (int32_t)(seed * 1000 + i * 7 % 97);
    return list;
}

static void step_all(struct text *text)
{
    text_step(&world, &text, NULL, 1, NULL);
}

static struct aule_sequence_info info_of(const struct text *text)
{
    struct aule_sequence_info info;
    ok(aule_sequence_info(text->sequence, &info));
    return info;
}

// The rows of the last `count` tokens, computed by a sequence that found and shares nothing, with
// as many queries in its last step.
static void compute_afresh(const struct text *text, uint32_t count, float *outs)
{
    struct text fresh = {.num_tokens = text->num_tokens};
    const uint32_t first = text->num_tokens - count;
    const struct aule_sequence_params params = {.tokens = text->tokens,
                                                .num_tokens = text->num_tokens,
                                                .extra_key = "fresh",
                                                .extra_key_size = 5};
    struct text *list = &fresh;
    memcpy(fresh.tokens, text->tokens, sizeof fresh.tokens);
    ok(aule_sequence_create(world.cache, &params, &fresh.sequence));
    if (first > 0)
        text_step(&world, &list, &first, 1, NULL);
    text_step(&world, &list, &count, 1, outs);
    text_destroy(&fresh);
}

enum { ROW = TEXT_HEADS * TEXT_DIM };

static void expect_bits_of_fresh(const float *outs, const struct text *text, uint32_t count)
{
    float fresh[64 * ROW];
    ck_assert_uint_le(count, 64);
    compute_afresh(text, count, fresh);
    ck_assert_mem_eq(outs, fresh, count * ROW * sizeof *fresh);
}

START_TEST(a_prompt_that_one_sequence_computed_is_found_by_the_next)
{
    struct text first, second;
    float outs[16 * ROW];
    struct text *list = &second;
    text_create(&world, &first, words(1), 4 * TEXT_BLOCK + 3, true);
    ck_assert_uint_eq(info_of(&first).num_found, 0);
    step_all(&first);
    text_destroy(&first);
    text_create(&world, &second, words(1), 4 * TEXT_BLOCK + 3, true);
    ck_assert_uint_eq(info_of(&second).num_found, 4 * TEXT_BLOCK);
    text_step(&world, &list, NULL, 1, outs);
    expect_bits_of_fresh(outs, &second, 3);
    text_destroy(&second);
}
END_TEST

START_TEST(a_prompt_that_is_found_whole_computes_its_last_token)
{
    struct text first, second;
    float outs[ROW];
    struct text *list = &second;
    text_create(&world, &first, words(2), 2 * TEXT_BLOCK, true);
    step_all(&first);
    text_destroy(&first);
    text_create(&world, &second, words(2), 2 * TEXT_BLOCK, true);
    ck_assert_uint_eq(info_of(&second).num_found, 2 * TEXT_BLOCK);
    ck_assert_uint_eq(info_of(&second).num_computed, 2 * TEXT_BLOCK - 1);
    text_step(&world, &list, NULL, 1, outs);
    expect_bits_of_fresh(outs, &second, 1);
    text_destroy(&second);
}
END_TEST

START_TEST(two_that_publish_the_same_share_blocks_and_release_their_own)
{
    struct text first, second;
    const int32_t *tokens = words(3);
    text_create(&world, &first, tokens, 2 * TEXT_BLOCK, true);
    text_create(&world, &second, tokens, 2 * TEXT_BLOCK, true);
    step_all(&first);
    step_all(&second);
    for (int i = 0; i < 3; i++) { // the first of these steps publishes
        text_append(&first, tokens + i, 1);
        step_all(&first);
        text_append(&second, tokens + i, 1);
        step_all(&second);
    }
    ck_assert_uint_eq(info_of(&first).num_published, 2);
    ck_assert_uint_eq(info_of(&second).num_published, 2);
    struct aule_cache_state state;
    ok(aule_cache_state(world.cache, &state));
    ck_assert_uint_eq(state.held_blocks, 2);
    text_destroy(&first);
    text_destroy(&second);
}
END_TEST

START_TEST(decoding_sends_what_changed_and_stays_right)
{
    struct text texts[3];
    struct text *list[3] = {&texts[0], &texts[1], &texts[2]};
    for (uint32_t s = 0; s < 3; s++)
        text_create(&world, &texts[s], words(10 + s), 5 + 9 * s, false);
    text_step(&world, list, NULL, 3, NULL);
    struct aule_batch *batch = NULL;
    for (int32_t i = 0; i < 60; i++) {
        for (uint32_t s = 0; s < 3; s++)
            text_append(&texts[s], &i, 1);
        text_step(&world, list, NULL, 3, NULL);
        if (i == 0)
            batch = aule_step_batch(world.step);
        if (i < 50) // the table has room for these
            ck_assert_ptr_eq(aule_step_batch(world.step), batch);
    }
    for (uint32_t s = 0; s < 3; s++)
        text_destroy(&texts[s]);
}
END_TEST

START_TEST(a_fork_and_its_parent_write_their_own_copy_of_a_part_filled_block)
{
    struct text parent, forks[2];
    struct text *list[3] = {&parent, &forks[0], &forks[1]};
    float outs[3 * ROW];
    text_create(&world, &parent, words(4), TEXT_BLOCK + 5, false);
    step_all(&parent);
    text_fork(&parent, &forks[0]);
    text_fork(&parent, &forks[1]);
    for (int32_t s = 0; s < 3; s++)
        text_append(list[s], (int32_t[]){100 + s}, 1);
    text_step(&world, list, NULL, 3, outs);
    struct aule_cache_state state;
    ok(aule_cache_state(world.cache, &state));
    ck_assert_uint_eq(state.leased_blocks, 1 + 3);
    for (uint32_t s = 0; s < 3; s++)
        expect_bits_of_fresh(outs + s * ROW, list[s], 1);
    for (uint32_t s = 0; s < 3; s++)
        text_destroy(list[s]);
}
END_TEST

START_TEST(a_fork_may_outlive_its_parent)
{
    struct text parent, fork;
    float outs[ROW];
    struct text *list = &fork;
    text_create(&world, &parent, words(5), 2 * TEXT_BLOCK + 2, true);
    step_all(&parent);
    text_fork(&parent, &fork);
    text_destroy(&parent);
    text_append(&fork, (int32_t[]){7}, 1);
    text_step(&world, &list, NULL, 1, outs);
    expect_bits_of_fresh(outs, &fork, 1);
    text_destroy(&fork);
}
END_TEST

START_TEST(what_was_truncated_is_written_anew)
{
    struct text text;
    struct text *list = &text;
    float outs[4 * ROW];
    text_create(&world, &text, words(6), 3 * TEXT_BLOCK + 1, false);
    step_all(&text);
    text_truncate(&text, TEXT_BLOCK + 3);
    ck_assert_uint_eq(info_of(&text).num_blocks, 2);
    text_append(&text, (int32_t[]){1, 2, 3, 4}, 4);
    text_step(&world, &list, NULL, 1, outs);
    expect_bits_of_fresh(outs, &text, 4);
    text_destroy(&text);
}
END_TEST

START_TEST(truncating_into_a_published_block_copies_it)
{
    struct text text, other;
    struct text *list = &text;
    float outs[2 * ROW];
    text_create(&world, &text, words(7), 3 * TEXT_BLOCK, true);
    step_all(&text);
    text_append(&text, (int32_t[]){9}, 1);
    step_all(&text); // publishes three blocks
    ck_assert_uint_eq(info_of(&text).num_published, 3);
    text_truncate(&text, 2 * TEXT_BLOCK + 4);
    text_append(&text, (int32_t[]){11, 12}, 2);
    text_step(&world, &list, NULL, 1, outs);
    expect_bits_of_fresh(outs, &text, 2);
    text_create(&world, &other, words(7), 3 * TEXT_BLOCK, true); // what was published is as it was
    ck_assert_uint_eq(info_of(&other).num_found, 3 * TEXT_BLOCK);
    list = &other;
    text_step(&world, &list, NULL, 1, NULL);
    text_destroy(&text);
    text_destroy(&other);
}
END_TEST

START_TEST(private_tokens_are_published_never_and_those_before_them_are)
{
    struct text first, second;
    text_create(&world, &first, words(40), 4 * TEXT_BLOCK, true);
    expect(aule_sequence_keep_private(first.sequence, 4 * TEXT_BLOCK + 1), AULE_OUT_OF_RANGE,
           "num_tokens = 33 is more than the sequence's 32 tokens");
    ok(aule_sequence_keep_private(first.sequence, 2 * TEXT_BLOCK + 3));
    ck_assert_ptr_null(aule_sequence_tokens(first.sequence));
    step_all(&first);
    ok(aule_sequence_publish(first.sequence));
    ck_assert_uint_eq(info_of(&first).num_published, 2);
    expect(aule_sequence_keep_private(first.sequence, TEXT_BLOCK), AULE_SEALED,
           "tokens from 8 on cannot be private: 16 are published");
    text_destroy(&first);
    text_create(&world, &second, words(40), 4 * TEXT_BLOCK, true);
    ck_assert_uint_eq(info_of(&second).num_found, 2 * TEXT_BLOCK);
    text_destroy(&second);
}
END_TEST

START_TEST(tokens_that_are_appended_behind_a_private_end_are_private)
{
    struct text text;
    int32_t more[2 * TEXT_BLOCK] = {7};
    text_create(&world, &text, words(41), TEXT_BLOCK, true);
    ok(aule_sequence_keep_private(text.sequence, TEXT_BLOCK));
    ck_assert_ptr_nonnull(aule_sequence_tokens(text.sequence));
    ok(aule_sequence_append(text.sequence, more, TEXT_BLOCK));
    ck_assert_ptr_null(aule_sequence_tokens(text.sequence));
    ok(aule_sequence_truncate(text.sequence, TEXT_BLOCK)); // public again
    ok(aule_sequence_append(text.sequence, more, TEXT_BLOCK));
    ck_assert_ptr_nonnull(aule_sequence_tokens(text.sequence));
    text_destroy(&text);
}
END_TEST

START_TEST(a_sequence_publishes_when_it_is_asked_to)
{
    struct text text, found;
    expect(aule_sequence_publish(NULL), AULE_INVALID, "sequence is NULL");
    text_create(&world, &text, words(9), 2 * TEXT_BLOCK + 1, false);
    step_all(&text);
    ck_assert_uint_eq(info_of(&text).num_published, 0);
    ok(aule_sequence_publish(text.sequence));
    ck_assert_uint_eq(info_of(&text).num_published, 2);
    text_create(&world, &found, words(9), 2 * TEXT_BLOCK + 1, false);
    ck_assert_uint_eq(info_of(&found).num_found, 2 * TEXT_BLOCK);
    text_destroy(&found);
    text_destroy(&text);
}
END_TEST

// A mask in which each query sees the keys up to its own gives the bits of causal.
// ---- publishing before the writes have ended ----

enum { LONG_PROMPT = 50 * TEXT_BLOCK };

// Rows whose values follow from token and position, the same for all layers.
static void fill_rows(const struct text *text, uint32_t first, uint32_t count)
{
    const struct aule_tensor *const tensors[] = {&world.q, &world.k, &world.v};
    for (uint32_t t = 0; t < 3; t++) {
        const uint32_t size = (t ? 1 : TEXT_HEADS) * TEXT_DIM;
        float *to = aule_tensor_data(world.session, tensors[t]);
        for (uint32_t i = 0; i < count * size; i++) {
            const uint32_t at = first + i / size, token = (uint32_t)text->tokens[at];
            to[i] = (float)((token * 7 + at * 5 + i % size * 3 + t) % 17) / 8 - 1;
        }
    }
}

static struct aule_ticket submit_rows(struct text *text, uint32_t count)
{
    struct aule_step_entry entry = {.sequence = text->sequence, .num_tokens = count};
    const struct aule_run_params run = {.num_heads = TEXT_HEADS,
                                        .q = world.q,
                                        .k = world.k,
                                        .v = world.v,
                                        .out = world.out,
                                        .causal = true};
    const struct aule_layers layers = {.num_layers = TEXT_LAYERS};
    struct aule_ticket ticket;
    fill_rows(text, info_of(text).num_computed, count);
    ok(aule_step_make(world.step, &entry, 1, WAIT_MS));
    ok(aule_run_layers_submit(aule_step_batch(world.step), &run, &layers, WAIT_MS, &ticket));
    return ticket;
}

static void compute_rows(struct text *text, uint32_t count, float *row)
{
    ok(aule_ticket_wait(world.session, submit_rows(text, count), WAIT_MS, NULL));
    memcpy(row, aule_tensor_data(world.session, &world.out), ROW * sizeof *row);
}

// Look-ups find nothing until then.
static void find_at_last(struct text *text)
{
    text_create(&world, text, words(60), LONG_PROMPT + 1, false);
    while (!info_of(text).num_found) {
        text_destroy(text);
        text_create(&world, text, words(60), LONG_PROMPT + 1, false);
    }
    ck_assert_uint_eq(info_of(text).num_found, LONG_PROMPT);
}

START_TEST(what_is_published_before_its_writes_have_ended_is_found_whole_with_the_same_bits)
{
    struct text first, second, fresh;
    float found_row[ROW], fresh_row[ROW];
    const struct aule_sequence_params params = {.tokens = words(60),
                                                .num_tokens = LONG_PROMPT + 1,
                                                .extra_key = "fresh",
                                                .extra_key_size = 5};
    text_create(&world, &first, words(60), LONG_PROMPT + 1, false);
    const struct aule_ticket ticket = submit_rows(&first, LONG_PROMPT);
    ok(aule_sequence_publish(first.sequence));
    ck_assert_uint_eq(info_of(&first).num_published, LONG_PROMPT / TEXT_BLOCK);
    find_at_last(&second);
    ok(aule_ticket_wait(world.session, ticket, WAIT_MS, NULL));
    compute_rows(&second, 1, found_row);
    fresh = second;
    ok(aule_sequence_create(world.cache, &params, &fresh.sequence));
    compute_rows(&fresh, LONG_PROMPT, fresh_row);
    compute_rows(&fresh, 1, fresh_row);
    ck_assert_mem_eq(found_row, fresh_row, sizeof found_row);
    text_destroy(&first);
    text_destroy(&second);
    text_destroy(&fresh);
}
END_TEST

START_TEST(a_step_takes_a_custom_mask)
{
    enum { TOKENS = 11, MASK_BYTES = (TOKENS * TOKENS + 7) / 8 };
    uint8_t mask[MASK_BYTES] = {0};
    float outs[TOKENS * ROW];
    struct text text, *list = &text;
    struct aule_batch *batch = NULL;
    for (uint32_t i = 0; i < TOKENS; i++)
        for (uint32_t j = 0; j <= i; j++)
            mask[(i * TOKENS + j) / 8] |= (uint8_t)(1u << (i * TOKENS + j) % 8);
    expect(aule_step_masked(world.step, mask, sizeof mask, &batch), AULE_INVALID,
           "a mask for a step that is not made");
    text_create(&world, &text, words(10), TOKENS, false);
    text_step(&world, &list, NULL, 1, outs);
    expect(aule_step_masked(world.step, NULL, sizeof mask, &batch), AULE_INVALID, "mask is NULL");
    expect(aule_step_masked(world.step, mask, 1, &batch), AULE_INVALID, "mask");
    ck_assert_ptr_null(batch);
    ok(aule_step_masked(world.step, mask, sizeof mask, &batch));
    const struct aule_run_params run = {.layer = TEXT_LAYERS - 1,
                                        .num_heads = TEXT_HEADS,
                                        .q = world.q,
                                        .k = world.k,
                                        .v = world.v,
                                        .out = world.out};
    ok(aule_run(batch, &run, -1, NULL));
    ck_assert_mem_eq(aule_tensor_data(world.session, &world.out), outs, sizeof outs);
    aule_batch_destroy(batch);
    text_destroy(&text);
}
END_TEST

// ---- refusals ----

static struct aule_step_entry entry_of(const struct text *text, uint32_t num_tokens)
{
    return (struct aule_step_entry){.sequence = text->sequence, .num_tokens = num_tokens};
}

START_TEST(a_step_refuses_what_makes_no_sense_with_the_values)
{
    struct text text;
    text_create(&world, &text, words(8), 5, false);
    struct aule_step_entry entries[2] = {entry_of(&text, 6), entry_of(&text, 1)};
    expect(aule_step_make(world.step, entries, 1, 0), AULE_INVALID,
           "entries[0].num_tokens = 6, but its sequence of 5 tokens has 5 left");
    entries[0].num_tokens = 5;
    expect(aule_step_make(world.step, entries, 2, 0), AULE_INVALID,
           "entries[1].sequence occurs twice");
    entries[1].sequence = NULL;
    expect(aule_step_make(world.step, entries, 2, 0), AULE_INVALID, "entries[1].sequence is NULL");
    expect(aule_sequence_truncate(text.sequence, 6), AULE_OUT_OF_RANGE,
           "a sequence of 5 tokens cannot be truncated to 6");
    expect(aule_sequence_append(text.sequence, NULL, INT32_MAX), AULE_LIMIT,
           "a sequence of 5 tokens and 2147483647 more");
    expect(aule_sequence_create(world.cache, &(struct aule_sequence_params){.num_tokens = 3},
                                &entries[0].sequence),
           AULE_INVALID, "tokens is NULL, num_tokens 3");
    ck_assert_ptr_null(aule_step_batch(world.step));
    step_all(&text);
    text_destroy(&text);
}
END_TEST

START_TEST(room_for_several_is_reserved_for_all_or_for_none)
{
    struct aule_cache_state before, after;
    struct text texts[2];
    text_create(&world, &texts[0], words(20), 3, false);
    text_create(&world, &texts[1], words(21), 3, false);
    ok(aule_cache_state(world.cache, &before));
    uint32_t most = (uint32_t)before.limit_blocks * TEXT_BLOCK;
    struct aule_step_entry entries[2] = {entry_of(&texts[0], TEXT_BLOCK * 4),
                                         entry_of(&texts[1], most)};
    enum aule_status status = aule_sequences_reserve(entries, 2, 0);
    ck_assert(status == AULE_NO_BLOCKS || status == AULE_LIMIT || status == AULE_NO_MEMORY);
    ok(aule_cache_state(world.cache, &after));
    ck_assert_uint_eq(after.leased_blocks, 0);
    entries[1].num_tokens = TEXT_BLOCK * 2;
    ok(aule_sequences_reserve(entries, 2, 0));
    ok(aule_cache_state(world.cache, &after));
    ck_assert_uint_eq(after.leased_blocks, 6);
    ok(aule_sequences_reserve(entries, 2, 0)); // is there already
    ok(aule_cache_state(world.cache, &after));
    ck_assert_uint_eq(after.leased_blocks, 6);
    step_all(&texts[0]);
    text_destroy(&texts[0]);
    text_destroy(&texts[1]);
}
END_TEST

// The daemon of this one has 8 blocks.
static void open_small_world(void)
{
    rig_launch((const char *const[]){"--max-blocks", "8", NULL});
    text_open(&world);
}

START_TEST(a_step_takes_blocks_that_only_its_last_batch_refers_to)
{
    struct text first, second;
    text_create(&world, &first, words(30), 8 * TEXT_BLOCK, false);
    step_all(&first);
    text_destroy(&first);
    text_create(&world, &second, words(31), 8 * TEXT_BLOCK, false);
    step_all(&second);
    text_destroy(&second);
}
END_TEST

START_TEST(a_reservation_takes_the_blocks_of_a_step_that_rests)
{
    struct text first, second;
    text_create(&world, &first, words(32), 8 * TEXT_BLOCK, false);
    step_all(&first);
    text_destroy(&first);
    text_create(&world, &second, words(33), 8 * TEXT_BLOCK, false);
    const struct aule_step_entry entry = entry_of(&second, 8 * TEXT_BLOCK);
    expect(aule_sequences_reserve(&entry, 1, 0), AULE_NO_BLOCKS, "8");
    aule_step_rest(world.step);
    ok(aule_sequences_reserve(&entry, 1, 0));
    step_all(&second);
    text_destroy(&second);
}
END_TEST

struct reservation {
    struct text texts[2];
    enum aule_status status;
    atomic_bool over;
};

static void *reserve_both(void *context)
{
    struct reservation *r = context;
    const struct aule_step_entry entries[] = {entry_of(&r->texts[0], 2 * TEXT_BLOCK),
                                              entry_of(&r->texts[1], 2 * TEXT_BLOCK)};
    r->status = aule_sequences_reserve(entries, 2, WAIT_MS);
    atomic_store(&r->over, true);
    return NULL;
}

static uint32_t num_leased(void)
{
    struct aule_cache_state state;
    ok(aule_cache_state(world.cache, &state));
    return (uint32_t)state.leased_blocks;
}

START_TEST(a_reservation_for_two_waits_until_there_is_room_for_both)
{
    static struct reservation r;
    struct text_world other;
    int32_t blocks[6];
    pthread_t thread;
    text_open(&other);
    ok(aule_blocks_lease(other.cache, 6, 0, blocks));
    for (uint32_t i = 0; i < 2; i++)
        text_create(&world, &r.texts[i], words(34 + i), 2 * TEXT_BLOCK, false);
    const struct aule_step_entry entries[] = {entry_of(&r.texts[0], 2 * TEXT_BLOCK),
                                              entry_of(&r.texts[1], 2 * TEXT_BLOCK)};
    expect(aule_sequences_reserve(entries, 2, 20), AULE_NO_BLOCKS, "4");
    ck_assert_uint_eq(num_leased(), 6);
    ck_assert_int_eq(pthread_create(&thread, NULL, reserve_both, &r), 0);
    ok(aule_blocks_release(other.cache, 1, blocks));
    for (int i = 0; i < 20; i++) // room for one of them
        ck_assert_uint_eq(num_leased(), 5);
    ck_assert(!atomic_load(&r.over));
    ok(aule_blocks_release(other.cache, 1, blocks + 1));
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(r.status, AULE_OK);
    ck_assert_uint_eq(num_leased(), 8);
    for (uint32_t i = 0; i < 2; i++)
        text_destroy(&r.texts[i]);
    aule_step_destroy(other.step);
    aule_cache_close(other.cache);
    aule_session_close(other.session);
}
END_TEST

// ---- eviction ----

enum { POOL_BLOCKS = 16, WHOLE_BLOCKS = 6 }; // of the prompt: more than a chunk

static void open_shared_world(void)
{
    rig_launch((const char *const[]){"--max-blocks", "16", NULL});
    text_open(&world);
}

// Another cache leases `count` blocks and writes them, so that memory of the first one moves.
static void fill_other_cache(uint32_t count)
{
    struct aule_cache_params params = text_cache;
    struct text_world other = world;
    struct text text, *list = &text;
    params.name = "others";
    aule_step_rest(world.step);
    ok(aule_cache_open(world.session, &params, &other.cache));
    ok(aule_step_create(other.cache, &other.step));
    text_create(&other, &text, words(50), count * TEXT_BLOCK, false);
    text_step(&other, &list, NULL, 1, NULL);
    text_destroy(&text);
    aule_step_destroy(other.step);
    aule_cache_close(other.cache);
}

// Returns how many tokens were found.
static uint32_t compute_what_is_missing(void)
{
    struct text text, *list = &text;
    float outs[64 * ROW];
    text_create(&world, &text, words(40), WHOLE_BLOCKS * TEXT_BLOCK + 3, true);
    const uint32_t found = info_of(&text).num_found;
    text_step(&world, &list, NULL, 1, outs);
    expect_bits_of_fresh(outs, &text, text.num_tokens - found);
    for (int32_t i = 0; i < 3; i++) { // the first of these steps publishes
        text_append(&text, &i, 1);
        text_step(&world, &list, NULL, 1, outs);
        expect_bits_of_fresh(outs, &text, 1);
    }
    text_destroy(&text);
    return found;
}

START_TEST(what_another_cache_evicted_is_computed_anew_with_the_same_bits)
{
    uint32_t last = WHOLE_BLOCKS * TEXT_BLOCK;
    bool in_part = false;
    ck_assert_uint_eq(compute_what_is_missing(), 0);
    ck_assert_uint_eq(compute_what_is_missing(), last);
    for (uint32_t count = POOL_BLOCKS - WHOLE_BLOCKS; count <= POOL_BLOCKS; count++) {
        fill_other_cache(count);
        uint32_t found = compute_what_is_missing();
        ck_assert_uint_le(found, last);
        in_part |= found > 0 && found < WHOLE_BLOCKS * TEXT_BLOCK;
        last = found;
    }
    ck_assert_uint_eq(last, 0);
    ck_assert(in_part);
}
END_TEST

START_TEST(a_step_over_no_sequence_is_refused)
{
    struct aule_step_entry none = {.sequence = NULL};
    enum aule_status status = aule_step_make(world.step, &none, 0, 0);
    ck_assert_int_eq(status, AULE_INVALID);
    ck_assert_ptr_null(aule_step_batch(world.step));
}
END_TEST

// ---- at random ----

enum { TEXTS = 12, OPERATIONS = 150 };

static void do_something(struct text *texts, struct dice *dice)
{
    struct text *text = &texts[dice_below(dice, TEXTS)];
    struct text *other = &texts[dice_below(dice, TEXTS)];
    uint32_t count = 1 + dice_below(dice, 30);
    if (!text->sequence) {
        text_create(&world, text, words(dice_below(dice, 2)), 1 + dice_below(dice, 70),
                    dice_below(dice, 2));
        return;
    }
    switch (dice_below(dice, 6)) {
    case 0:
        if (!other->sequence)
            text_fork(text, other);
        return;
    case 1: text_truncate(text, dice_below(dice, text->num_tokens + 1)); return;
    case 2: text_destroy(text); return;
    default:
        if (text->num_tokens + count <= 300)
            text_append(text, words(dice_below(dice, 2)) + text->num_tokens, count);
    }
}

static void step_some(struct text *texts, struct dice *dice)
{
    struct text *list[TEXTS];
    uint32_t counts[TEXTS], count = 0, rows = 0;
    for (uint32_t i = 0; i < TEXTS; i++) {
        uint32_t left = texts[i].num_tokens - texts[i].num_computed;
        if (!texts[i].sequence || left == 0 || dice_below(dice, 3) == 0)
            continue;
        uint32_t part = 1 + dice_below(dice, left < 40 ? left : 40);
        if (rows + part > TEXT_ROWS)
            continue;
        rows += part;
        counts[count] = part;
        list[count++] = &texts[i];
    }
    if (count > 0)
        text_step(&world, list, counts, count, NULL);
}

START_TEST(whatever_is_done_to_sequences_their_rows_are_right)
{
    struct text texts[TEXTS] = {{.sequence = NULL}};
    struct dice dice = {check_number("AULE_TEST_SEED", 1) + (uint64_t)_i};
    for (int i = 0; i < (check_is_long() ? 20 * OPERATIONS : OPERATIONS); i++) {
        do_something(texts, &dice);
        do_something(texts, &dice);
        step_some(texts, &dice);
    }
    for (uint32_t i = 0; i < TEXTS; i++)
        aule_sequence_destroy(texts[i].sequence);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_sequence");
    const TTest *const tests[] = {
        a_prompt_that_one_sequence_computed_is_found_by_the_next,
        a_prompt_that_is_found_whole_computes_its_last_token,
        two_that_publish_the_same_share_blocks_and_release_their_own,
        decoding_sends_what_changed_and_stays_right,
        a_fork_and_its_parent_write_their_own_copy_of_a_part_filled_block,
        a_fork_may_outlive_its_parent,
        what_was_truncated_is_written_anew,
        truncating_into_a_published_block_copies_it,
        private_tokens_are_published_never_and_those_before_them_are,
        tokens_that_are_appended_behind_a_private_end_are_private,
        a_sequence_publishes_when_it_is_asked_to,
        what_is_published_before_its_writes_have_ended_is_found_whole_with_the_same_bits,
        a_step_takes_a_custom_mask,
        a_step_refuses_what_makes_no_sense_with_the_values,
        room_for_several_is_reserved_for_all_or_for_none,
        a_step_over_no_sequence_is_refused,
        NULL};
    const TTest *const small[] = {a_step_takes_blocks_that_only_its_last_batch_refers_to,
                                  a_reservation_takes_the_blocks_of_a_step_that_rests,
                                  a_reservation_for_two_waits_until_there_is_room_for_both, NULL};
    check_case(suite, "few blocks", open_small_world, close_world, small, 1);
    const TTest *const shared[] = {what_another_cache_evicted_is_computed_anew_with_the_same_bits,
                                   NULL};
    check_case(suite, "two caches", open_shared_world, close_world, shared, 1);
    check_case(suite, "sequences", open_world, close_world, tests, 1);
    const TTest *const random[] = {whatever_is_done_to_sequences_their_rows_are_right, NULL};
    check_case(suite, "random", open_world, close_world, random, 4);
    return check_main(suite);
}
