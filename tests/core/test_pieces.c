// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_pieces.c - calls over many blocks that are made in pieces: each piece is small, others may
// do anything between two of them, and a session that ends in the middle leaves nothing.

#include "core/pool/session.h"
#include "rigs/check_main.h"
#include "rigs/ownership_world.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 4, MANY = 30, BLOCK = WORLD_BLOCK };

static struct core_pieces *pieces;
static struct core_claim result;
static uint32_t existing;
static struct core_prefix prefix;

static void open_pieces(void)
{
    world_open(&world, &(struct core_params){.piece_blocks = PIECE});
    worker_open(&a, &world, 1, "");
    worker_open(&b, &world, 1, "");
    count_tokens(tokens, 2048, 1000);
    prefix = (struct core_prefix){.tokens = tokens, .num_tokens = MANY * BLOCK};
}

// Writes and publishes the first `count` blocks, and lets them go.
static void cache_blocks(struct worker *worker, uint32_t count)
{
    worker_lease(worker, count, blocks);
    worker_fill(worker, blocks, count);
    worker_publish(worker, tokens, count * BLOCK, blocks);
    worker_release(worker, blocks, count);
}

// What a call has done so far to the blocks of its session, its claims and the index.
static uint64_t done_so_far(const struct worker *worker)
{
    const struct core_session *session = worker->session;
    struct core_cache_view view;
    ck_assert(core_cache_view(world.core, worker->cache, &view));
    return session->num_claimed + view.published + view.counts.held;
}

// Makes one piece, after which core is sound, and which has changed few blocks only.
static enum status next(struct worker *worker, bool *more, struct error *error)
{
    const uint64_t before = done_so_far(worker);
    enum status status = core_pieces_next(pieces, more, error);
    const uint64_t after = done_so_far(worker);
    ck_assert_uint_le(after > before ? after - before : before - after, 2 * PIECE);
    world_check(&world);
    return status;
}

// Makes pieces until the end, or `count` of them. Returns their number.
static uint32_t make(struct worker *worker, uint32_t count, enum status expected)
{
    struct error error = {0};
    enum status status = STATUS_OK;
    uint32_t made = 0;
    for (bool more = true; status == STATUS_OK && more && made < count; made++)
        status = next(worker, &more, &error);
    ck_assert_msg(status == expected, "%s: %s", status_name((int)status), error.text);
    return made;
}

static void end(void)
{
    core_pieces_discard(pieces);
    pieces = NULL;
}

static void begin_lookup(struct worker *worker, bool claims)
{
    ck_assert_status(core_lookup_begin(worker->session, worker->cache, &prefix, 0, claims, found,
                                       &result, &pieces, &error),
                     STATUS_OK);
}

START_TEST(a_look_up_in_pieces_holds_what_it_finds_and_claims_the_rest)
{
    cache_blocks(&a, 18);
    begin_lookup(&b, true);
    const uint32_t made = make(&b, UINT32_MAX, STATUS_OK);
    ck_assert_uint_ge(made, MANY / PIECE);
    ck_assert_uint_eq(result.num_found, 18);
    ck_assert_uint_eq(result.num_promised, 0);
    ck_assert_mem_eq(found, blocks, 18 * sizeof *found);
    ck_assert_uint_eq(b.session->num_claimed, MANY);
    end();
    worker_release(&b, found, 18);
}
END_TEST

START_TEST(between_two_pieces_of_a_look_up_others_take_what_it_does_not_hold_yet)
{
    cache_blocks(&a, 18);
    begin_lookup(&b, false);
    make(&b, 2, STATUS_OK);
    worker_lease(&a, 64 - 2 * PIECE, blocks); // evicts all that is not held
    make(&b, UINT32_MAX, STATUS_OK);
    ck_assert_uint_eq(result.num_found, 2 * PIECE);
    end();
    worker_release(&b, found, 2 * PIECE);
    worker_release(&a, blocks, 64 - 2 * PIECE);
}
END_TEST

START_TEST(a_look_up_that_fails_in_the_middle_holds_nothing)
{
    cache_blocks(&a, 18);
    core_session_limit(b.session, 10);
    begin_lookup(&b, true);
    make(&b, UINT32_MAX, STATUS_QUOTA);
    ck_assert_uint_eq(b.session->num_blocks, 0);
    ck_assert_uint_eq(b.session->num_claimed, 0);
    end();
}
END_TEST

static void begin_publish(struct worker *worker, int32_t *list, bool releases)
{
    prefix.releases = releases;
    ck_assert_status(core_publish_begin(worker->session, worker->cache, &prefix, list, MANY,
                                        &existing, &pieces, &error),
                     STATUS_OK);
}

static void lease_written(struct worker *worker, int32_t *list)
{
    worker_lease(worker, MANY, list);
    worker_fill(worker, list, MANY);
}

START_TEST(a_publication_in_pieces_exchanges_what_others_publish_between_them)
{
    lease_written(&a, blocks);
    lease_written(&b, found);
    begin_publish(&a, blocks, true);
    make(&a, 1 + 3, STATUS_OK);                      // the first one checks
    worker_publish(&b, tokens, MANY * BLOCK, found); // the first 3 pieces are exchanged
    ck_assert_mem_eq(found, blocks, 3 * PIECE * sizeof *found);
    make(&a, UINT32_MAX, STATUS_OK);
    ck_assert_uint_eq(existing, MANY - 3 * PIECE);
    ck_assert_mem_eq(found, blocks, MANY * sizeof *found);
    ck_assert_uint_eq(a.session->num_blocks, MANY); // what was replaced is released
    end();
    worker_release(&a, blocks, MANY);
    ck_assert_uint_eq(worker_lookup(&a, tokens, MANY * BLOCK, blocks), MANY);
}
END_TEST

START_TEST(a_publication_that_fails_in_the_middle_leaves_its_session_what_it_held)
{
    int32_t before[MANY];
    cache_blocks(&a, 6);
    lease_written(&b, found);
    memcpy(before, found, sizeof before);
    found[20] = found[21];
    begin_publish(&b, found, true);
    ck_assert_uint_eq(make(&b, UINT32_MAX, STATUS_INVALID), 1); // it occurs twice
    end();
    found[20] = before[20];
    worker_publish(&b, tokens + 1000, BLOCK, found + 20); // under other tokens
    begin_publish(&b, found, true);
    make(&b, UINT32_MAX, STATUS_INVALID);
    end();
    ck_assert_mem_eq(found, before, sizeof before);
    ck_assert_uint_eq(b.session->num_blocks, MANY);
    worker_release(&b, found, MANY);
}
END_TEST

START_TEST(a_publication_in_pieces_goes_on_behind_blocks_that_are_not_named)
{
    enum { BEFORE = 7 };
    cache_blocks(&a, BEFORE);
    lease_written(&b, found);
    worker_release(&b, found, BEFORE);
    memset(found, 0xff, BEFORE * sizeof *found); // -1
    prefix.tokens += BLOCK;                      // other keys: nothing is published under them
    begin_publish(&b, found, true);
    ck_assert_uint_eq(make(&b, UINT32_MAX, STATUS_NOT_FOUND), 1);
    end();
    prefix.tokens -= BLOCK;
    begin_publish(&b, found, true);
    make(&b, UINT32_MAX, STATUS_OK);
    end();
    ck_assert_uint_eq(existing, 0);
    ck_assert_int_eq(found[BEFORE - 1], -1);
    ck_assert_uint_eq(b.session->num_blocks, MANY - BEFORE);
    ck_assert_uint_eq(worker_lookup(&a, tokens, MANY * BLOCK, blocks), MANY);
    ck_assert_mem_eq(blocks + BEFORE, found + BEFORE, (MANY - BEFORE) * sizeof *found);
}
END_TEST

// Another session's block is in the index, and its writes have not ended.
START_TEST(a_publication_goes_on_behind_blocks_that_another_one_has_in_the_index)
{
    uint64_t last;
    worker_lease(&a, 6, blocks);
    worker_write_async(&a, blocks, tokens, 6 * BLOCK, &last);
    worker_publish(&a, tokens, 6 * BLOCK, blocks);
    worker_lease(&b, MANY, found);
    uint64_t batch = worker_batch(&b, found, MANY * BLOCK, MANY * BLOCK);
    for (uint32_t layer = 0; layer < WORLD_LAYERS; layer++)
        worker_run(&b, batch, layer, MANY * BLOCK, NULL);
    begin_publish(&b, found, false);
    make(&b, UINT32_MAX, STATUS_OK);
    ck_assert_uint_eq(existing, 0);
    end();
    world_finish_all(&world);
    ck_assert_uint_eq(worker_lookup(&a, tokens, MANY * BLOCK, blocks), MANY);
}
END_TEST

static void begin_release(struct worker *worker, const int32_t *list, uint32_t count)
{
    ck_assert_status(
        core_release_begin(worker->session, worker->cache, list, count, &pieces, &error),
        STATUS_OK);
}

START_TEST(a_release_in_pieces_checks_all_blocks_before_it_releases_one)
{
    worker_lease(&a, MANY, blocks);
    const int32_t last = blocks[3];
    blocks[3] = 63;
    begin_release(&a, blocks, MANY);
    make(&a, UINT32_MAX, STATUS_OUT_OF_RANGE);
    end();
    ck_assert_uint_eq(a.session->num_blocks, MANY);
    blocks[3] = last;
    begin_release(&a, blocks, MANY);
    ck_assert_uint_eq(make(&a, UINT32_MAX, STATUS_OK), 1 + (MANY + PIECE - 1) / PIECE);
    end();
    ck_assert_uint_eq(a.session->num_blocks, 0);
}
END_TEST

static void prepare_publish(void)
{
    cache_blocks(&a, 6);
    lease_written(&b, found);
    begin_publish(&b, found, true);
}

static void prepare_claim(void)
{
    cache_blocks(&a, 18);
    begin_lookup(&b, true);
}

static void prepare_release(void)
{
    worker_lease(&b, MANY, found);
    begin_release(&b, found, MANY);
}

static void prepare_failure(void)
{
    cache_blocks(&a, 18);
    core_session_limit(b.session, 10);
    begin_lookup(&b, true);
}

START_TEST(a_session_that_ends_between_two_pieces_leaves_nothing)
{
    static void (*const prepare[])(void) = {prepare_publish, prepare_claim, prepare_release,
                                            prepare_failure};
    struct error error;
    prepare[_i % 4]();
    bool more = true;
    for (int made = 0; more && made < _i / 4; made++)
        if (next(&b, &more, &error) != STATUS_OK)
            break;
    worker_close(&b, _i % 8 >= 4);
    world_check(&world);
    end(); // after the session, as the server does
    const struct core_counts counts = worker_counts(&a);
    ck_assert_uint_eq(counts.leased + counts.held + counts.quarantined, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pieces");
    check_case(suite, "pieces", open_pieces, close_all,
               (const TTest *const[]){
                   a_look_up_in_pieces_holds_what_it_finds_and_claims_the_rest,
                   between_two_pieces_of_a_look_up_others_take_what_it_does_not_hold_yet,
                   a_look_up_that_fails_in_the_middle_holds_nothing,
                   a_publication_in_pieces_exchanges_what_others_publish_between_them,
                   a_publication_that_fails_in_the_middle_leaves_its_session_what_it_held,
                   a_publication_in_pieces_goes_on_behind_blocks_that_are_not_named,
                   a_publication_goes_on_behind_blocks_that_another_one_has_in_the_index,
                   a_release_in_pieces_checks_all_blocks_before_it_releases_one, NULL},
               1);
    check_case(suite, "ends", open_pieces, close_all,
               (const TTest *const[]){a_session_that_ends_between_two_pieces_leaves_nothing, NULL},
               4 * 18);
    return check_main(suite);
}
