// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_list.c - lists by the links of their items. Each step is compared with an array that has the
// same numbers, in both directions.

#include "base/list.h"
#include "rigs/check_main.h"

#include <string.h>

enum { MOST = 8, STEPS = 4000 };

struct item {
    struct item *prev, *next;             // of `first`
    struct item *other_prev, *other_next; // of `other`
    int number;
};

struct pair {
    struct item items[MOST];
    struct item *first, *other;
    struct item *order[MOST]; // as `first` should be
    int count;
};

static void check(const struct pair *pair)
{
    struct item *item;
    int at = 0;
    LIST_EACH(pair->first, item) {
        ck_assert_int_lt(at, pair->count);
        ck_assert_ptr_eq(item, pair->order[at]);
        ck_assert_ptr_eq(item->prev, pair->order[at ? at - 1 : pair->count - 1]);
        at++;
    }
    ck_assert_int_eq(at, pair->count);
}

static int place_of(const struct pair *pair, const struct item *item)
{
    for (int i = 0; i < pair->count; i++)
        if (pair->order[i] == item)
            return i;
    return -1;
}

static void insert_at(struct pair *pair, int at, struct item *item)
{
    memmove(&pair->order[at + 1], &pair->order[at],
            (size_t)(pair->count++ - at) * sizeof pair->order[0]);
    pair->order[at] = item;
}

static void remove_at(struct pair *pair, int at)
{
    memmove(&pair->order[at], &pair->order[at + 1],
            (size_t)(--pair->count - at) * sizeof pair->order[0]);
}

static void add(struct pair *pair, struct item *item, unsigned how)
{
    const int at = pair->count ? (int)(how / 4 % (unsigned)(pair->count + 1)) : 0;
    if (how % 4 == 0) {
        LIST_APPEND(pair->first, item);
        insert_at(pair, pair->count, item);
    } else if (how % 4 == 1) {
        LIST_PREPEND(pair->first, item);
        insert_at(pair, 0, item);
    } else {
        struct item *place = at ? pair->order[at - 1] : NULL;
        LIST_INSERT(pair->first, place, item);
        insert_at(pair, at, item);
    }
}

START_TEST(any_order_of_steps_leaves_the_list_as_an_array_has_it)
{
    struct pair pair = {.count = 0};
    uint64_t chance = 1;
    check(&pair);
    for (int i = 0; i < STEPS; i++) {
        chance = chance * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        struct item *item = &pair.items[chance >> 33 & (MOST - 1)];
        const int at = place_of(&pair, item);
        if (at < 0) {
            add(&pair, item, (unsigned)(chance >> 40));
        } else {
            LIST_DELETE(pair.first, item);
            remove_at(&pair, at);
        }
        check(&pair);
    }
}
END_TEST

START_TEST(an_item_is_in_two_lists_by_two_pairs_of_links)
{
    struct pair pair = {.count = 0};
    struct item *item;
    int sum = 0;
    for (int i = 0; i < 4; i++) {
        pair.items[i].number = i;
        LIST_APPEND(pair.first, &pair.items[i]);
        insert_at(&pair, i, &pair.items[i]);
        LIST_PREPEND_BY(pair.other, &pair.items[i], other_prev, other_next);
    }
    LIST_DELETE_BY(pair.other, &pair.items[3], other_prev, other_next);
    LIST_DELETE_BY(pair.other, &pair.items[1], other_prev, other_next);
    LIST_INSERT_BY(pair.other, &pair.items[0], &pair.items[3], other_prev, other_next);
    check(&pair);
    LIST_EACH_BY(pair.other, item, other_next)
        sum = sum * 10 + item->number;
    ck_assert_int_eq(sum, 203);
    ck_assert_ptr_eq(pair.other->other_prev, &pair.items[3]);
}
END_TEST

START_TEST(a_walk_may_delete_and_clear_the_item_that_it_stands_on)
{
    struct pair pair = {.count = 0};
    struct item *item, *after;
    int seen = 0;
    for (int i = 0; i < MOST; i++)
        LIST_APPEND(pair.first, &pair.items[i]);
    LIST_EACH_SAFE(pair.first, item, after) {
        LIST_DELETE(pair.first, item);
        memset(item, 0xFF, sizeof *item);
        seen++;
    }
    ck_assert_int_eq(seen, MOST);
    ck_assert_ptr_null(pair.first);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        any_order_of_steps_leaves_the_list_as_an_array_has_it,
        an_item_is_in_two_lists_by_two_pairs_of_links,
        a_walk_may_delete_and_clear_the_item_that_it_stands_on,
        NULL,
    };
    Suite *suite = suite_create("list");
    check_case(suite, "list", NULL, NULL, tests, 1);
    return check_main(suite);
}
