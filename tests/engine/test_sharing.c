// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_sharing.c - which sequences share which parts, by examples and compared with a search over
// all pairs. No GPU.

#include "engine/memory/crowds.h"
#include "rigs/check_main.h"
#include "rigs/dice.h"

#include <string.h>

enum { MOST_SEQS = 12, COLUMNS = 24, BLOCK = 16, PART = 2 * BLOCK, MOST_BATCHES = 5 };

static struct sharing sharing;
static struct crowds crowds;
static int32_t table[MOST_SEQS][COLUMNS];
static uint32_t used[MOST_SEQS], part_keys[MOST_SEQS], whole_keys[MOST_SEQS];

static const int32_t *const rows[MOST_SEQS] = {table[0], table[1], table[2],  table[3],
                                               table[4], table[5], table[6],  table[7],
                                               table[8], table[9], table[10], table[11]};

static struct sharing_tables tables_from(uint32_t first, uint32_t end)
{
    return (struct sharing_tables){
        .rows = rows + first, .used = used + first, .num_seqs = end - first};
}

static void find_crowds(uint32_t num_seqs, uint32_t least)
{
    crowds_finish(&crowds);
    ck_assert(crowds_find(&crowds, &sharing,
                          &(struct sharing_cut){
                              .part_keys = part_keys,
                              .whole_keys = whole_keys,
                              .num_seqs = num_seqs,
                              .block_size = BLOCK,
                              .least = least,
                          }));
}

static void find(uint32_t num_seqs, uint32_t least)
{
    const struct sharing_tables tables = tables_from(0, num_seqs);
    sharing_finish(&sharing);
    ck_assert(sharing_find(&sharing, &tables));
    find_crowds(num_seqs, least);
}

// The same for several batches: batch i has the sequences from ends[i - 1] to ends[i]. *meet: what
// the filter says.
static void find_jointly(const uint32_t *ends, uint32_t num_batches, uint32_t least, bool *meet)
{
    struct sharing batches[MOST_BATCHES];
    struct sharing_part parts[MOST_BATCHES];
    const struct sharing_tables tables = tables_from(0, ends[num_batches - 1]);
    for (uint32_t i = 0; i < num_batches; i++) {
        uint32_t first = i ? ends[i - 1] : 0;
        const struct sharing_tables own = tables_from(first, ends[i]);
        ck_assert(sharing_find(&batches[i], &own));
        parts[i] = (struct sharing_part){&batches[i], first};
    }
    sharing_finish(&sharing);
    ck_assert(sharing_meet(parts, num_batches, meet));
    ck_assert(sharing_join(&sharing, &tables, parts, num_batches));
    find_crowds(ends[num_batches - 1], least);
    for (uint32_t i = 0; i < num_batches; i++)
        sharing_finish(&batches[i]);
}

// A sequence of blocks `prefix`, `prefix` + 1, .. and from `common` on of its own blocks. All are
// in use and may be shared.
static void add(uint32_t seq, int32_t prefix, uint32_t common)
{
    for (uint32_t i = 0; i < COLUMNS; i++)
        table[seq][i] = i < common ? prefix + (int32_t)i : (int32_t)(1000 * (seq + 1) + i);
    used[seq] = COLUMNS;
    part_keys[seq] = PART;
    whole_keys[seq] = COLUMNS * BLOCK;
}

static void forget(void)
{
    sharing_finish(&sharing);
    crowds_finish(&crowds);
}

static bool in_crowd(const struct crowd *crowd, uint32_t seq)
{
    for (uint32_t i = 0; i < crowd->count; i++)
        if (crowds.members[crowd->first + i] == seq)
            return true;
    return false;
}

// The number of sequences that share part `part` of `seq`; 0 = it is not shared.
static uint32_t company(uint32_t seq, uint32_t part)
{
    for (uint32_t i = 0; i < crowds.num_crowds; i++)
        if (crowds.crowds[i].part == part && in_crowd(&crowds.crowds[i], seq))
            return crowds.crowds[i].count;
    return 0;
}

START_TEST(sequences_with_nothing_in_common_leave_no_order)
{
    for (uint32_t seq = 0; seq < 4; seq++)
        add(seq, (int32_t)seq * 100, COLUMNS);
    find(4, 2);
    ck_assert_uint_eq(sharing.num_places, 0);
    ck_assert_uint_eq(crowds.num_crowds, 0);
    find(1, 2);
    find(0, 2);
    ck_assert_uint_eq(crowds.num_crowds, 0);
}
END_TEST

START_TEST(a_prefix_is_shared_by_whole_parts)
{
    add(0, 1, 7); // three parts and a block
    add(1, 50, COLUMNS);
    add(2, 1, 7);
    add(3, 1, 9);
    find(4, 2);
    ck_assert_uint_eq(crowds.num_crowds, 3);
    for (uint32_t part = 0; part < 3; part++) {
        ck_assert_uint_eq(company(0, part), 3);
        ck_assert_uint_eq(company(1, part), 0);
    }
    ck_assert_uint_eq(crowds.parts[0], 3);
    ck_assert_uint_eq(crowds.parts[1], 0);
    ck_assert_uint_eq(crowds.parts[3], 3);
}
END_TEST

START_TEST(a_tree_of_prefixes_is_shared_branch_by_branch)
{
    for (uint32_t seq = 0; seq < 4; seq++)
        add(seq, 1, 12);
    for (uint32_t i = 4; i < COLUMNS; i++) // from the second part on
        table[0][i] = table[1][i] = 500 + (int32_t)i;
    find(4, 2);
    ck_assert_uint_eq(company(0, 1), 4);
    ck_assert_uint_eq(company(0, 2), 2);
    ck_assert_uint_eq(company(2, 2), 2);
    ck_assert_uint_eq(crowds.parts[0], 12);
    ck_assert_uint_eq(crowds.parts[2], 6);
}
END_TEST

START_TEST(what_a_sequence_keeps_to_itself_parts_no_others)
{
    for (uint32_t seq = 0; seq < 3; seq++)
        add(seq, 1, COLUMNS);
    whole_keys[1] = 2 * PART - 1;
    find(3, 2);
    ck_assert_uint_eq(company(0, 0), 3);
    ck_assert_uint_eq(company(0, 1), 2);
    ck_assert_uint_eq(company(1, 1), 0);
    ck_assert_uint_eq(crowds.parts[1], 1);
    ck_assert_uint_eq(crowds.parts[2], 12);
}
END_TEST

START_TEST(parts_of_other_lengths_are_others)
{
    for (uint32_t seq = 0; seq < 5; seq++)
        add(seq, 1, COLUMNS);
    part_keys[0] = part_keys[2] = 2 * PART;
    part_keys[4] = 0;
    find(5, 2);
    ck_assert_uint_eq(crowds.parts[0], 6);
    ck_assert_uint_eq(company(0, 5), 2);
    ck_assert_uint_eq(crowds.parts[1], 12);
    ck_assert_uint_eq(company(1, 11), 2);
    ck_assert_uint_eq(crowds.parts[4], 0);
}
END_TEST

START_TEST(a_small_crowd_is_none)
{
    for (uint32_t seq = 0; seq < 5; seq++)
        add(seq, 1, seq < 3 ? COLUMNS : 4);
    find(5, 4);
    ck_assert_uint_eq(crowds.num_crowds, 2);
    ck_assert_uint_eq(crowds.parts[0], 2);
    ck_assert_uint_eq(company(4, 1), 5);
}
END_TEST

START_TEST(entries_that_do_not_count_are_not_compared)
{
    for (uint32_t seq = 0; seq < 3; seq++)
        add(seq, 1, COLUMNS);
    used[1] = 3;
    find(3, 2);
    ck_assert_uint_eq(company(0, 0), 3);
    ck_assert_uint_eq(company(0, 1), 2);
    used[1] = 0;
    find(3, 2);
    ck_assert_uint_eq(company(0, 0), 2);
}
END_TEST

// ---- compared with a search over all pairs ----

static bool may_share(uint32_t seq, uint32_t part)
{
    uint32_t keys = (part + 1) * part_keys[seq];
    return part_keys[seq] && keys <= whole_keys[seq] && keys <= used[seq] * BLOCK;
}

static bool share(uint32_t a, uint32_t b, uint32_t part)
{
    return part_keys[a] == part_keys[b] && may_share(a, part) && may_share(b, part) &&
           memcmp(table[a], table[b], (part + 1) * part_keys[a] / BLOCK * sizeof table[a][0]) == 0;
}

static void check_all(uint32_t num_seqs, uint32_t least)
{
    for (uint32_t seq = 0; seq < num_seqs; seq++) {
        uint32_t parts = 0;
        for (uint32_t part = 0; part < COLUMNS; part++) {
            uint32_t others = 0;
            for (uint32_t other = 0; other < num_seqs; other++)
                others += share(seq, other, part);
            uint32_t wanted = others >= least ? others : 0;
            ck_assert_msg(company(seq, part) == wanted,
                          "part %u of sequence %u has a crowd of %u, not of %u", part, seq,
                          company(seq, part), wanted);
            parts += wanted > 0;
        }
        ck_assert_uint_eq(crowds.parts[seq], parts);
    }
}

// Draws the tables of some sequences, many of which begin like another one.
static uint32_t draw(struct dice *dice)
{
    uint32_t num_seqs = dice_between(dice, 1, MOST_SEQS);
    for (uint32_t seq = 0; seq < num_seqs; seq++) {
        uint32_t like = seq ? dice_below(dice, seq) : 0,
                 common = seq ? dice_below(dice, COLUMNS + 1) : 0;
        memcpy(table[seq], table[like], sizeof table[seq]);
        for (uint32_t column = common; column < COLUMNS; column++)
            table[seq][column] = (int32_t)dice_below(dice, 3) - 1;
        used[seq] = dice_chance(dice, 30) ? dice_below(dice, COLUMNS + 1) : COLUMNS;
        part_keys[seq] = PART * dice_between(dice, dice_chance(dice, 10) ? 0 : 1, 2);
        whole_keys[seq] =
            dice_chance(dice, 30) ? dice_below(dice, COLUMNS * BLOCK) : used[seq] * BLOCK;
    }
    return num_seqs;
}

START_TEST(all_sequences_that_share_a_part_are_found)
{
    struct dice dice = {.state = 77};
    for (int i = 0; i < 3000; i++) {
        uint32_t num_seqs = draw(&dice), least = dice_between(&dice, 2, 4);
        find(num_seqs, least);
        check_all(num_seqs, least);
    }
}
END_TEST

START_TEST(sequences_of_several_batches_are_found_as_if_they_were_in_one)
{
    struct dice dice = {.state = 78};
    for (int i = 0; i < 3000; i++) {
        uint32_t num_seqs = draw(&dice), least = dice_between(&dice, 2, 4),
                 num_batches = dice_between(&dice, 1, MOST_BATCHES), ends[MOST_BATCHES];
        for (uint32_t batch = 0; batch < num_batches; batch++) { // some are empty
            uint32_t first = batch ? ends[batch - 1] : 0;
            ends[batch] = batch + 1 == num_batches
                              ? num_seqs
                              : first + dice_below(&dice, num_seqs - first + 1);
        }
        bool meet;
        find_jointly(ends, num_batches, least, &meet);
        for (uint32_t batch = 0; batch < num_batches; batch++)
            for (uint32_t seq = ends[batch]; seq < num_seqs; seq++)
                for (uint32_t other = batch ? ends[batch - 1] : 0; other < ends[batch]; other++)
                    ck_assert(meet || !used[seq] || !used[other] ||
                              table[seq][0] != table[other][0]);
        check_all(num_seqs, least);
    }
}
END_TEST

START_TEST(batches_without_a_common_first_block_do_not_meet)
{
    uint32_t ends[] = {3, 5, 6};
    for (uint32_t seq = 0; seq < 6; seq++)
        add(seq, seq < 3 ? 1 : (int32_t)seq * 100, COLUMNS);
    bool meet;
    find_jointly(ends, 3, 2, &meet);
    ck_assert(!meet);
    ck_assert_uint_eq(company(0, 0), 3);
    add(5, 1, 4);
    find_jointly(ends, 3, 2, &meet);
    ck_assert(meet);
    ck_assert_uint_eq(company(5, 1), 4);
    ck_assert_uint_eq(company(5, 2), 0);
    ck_assert_uint_eq(company(0, 2), 3);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sharing");
    TCase *examples = tcase_create("examples"), *pairs = tcase_create("pairs");
    tcase_add_checked_fixture(examples, NULL, forget);
    tcase_add_checked_fixture(pairs, NULL, forget);
    tcase_add_test(examples, sequences_with_nothing_in_common_leave_no_order);
    tcase_add_test(examples, a_prefix_is_shared_by_whole_parts);
    tcase_add_test(examples, a_tree_of_prefixes_is_shared_branch_by_branch);
    tcase_add_test(examples, what_a_sequence_keeps_to_itself_parts_no_others);
    tcase_add_test(examples, parts_of_other_lengths_are_others);
    tcase_add_test(examples, a_small_crowd_is_none);
    tcase_add_test(examples, entries_that_do_not_count_are_not_compared);
    tcase_add_test(examples, batches_without_a_common_first_block_do_not_meet);
    tcase_add_test(pairs, all_sequences_that_share_a_part_are_found);
    tcase_add_test(pairs, sequences_of_several_batches_are_found_as_if_they_were_in_one);
    suite_add_tcase(suite, examples);
    suite_add_tcase(suite, pairs);
    return check_main(suite);
}
