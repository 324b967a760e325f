// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_order.c - the queue of victims, the set of chunk numbers and the table of the prefix index,
// each against a plain list that is searched from end to end; and the memory of nodes and blocks.

#include "base/pages.h"
#include "core/pool/node_table.h"
#include "core/pool/number_set.h"
#include "core/pool/order.h"
#include "core/pool/stock.h"
#include "rigs/check_main.h"
#include "rigs/dice.h"

#include <check.h>
#include <string.h>

enum { NUM_NODES = 200, NUM_STEPS = 4000 };

// ---- order ----

static struct order order;
static struct order_node nodes[NUM_NODES];
static bool queued[NUM_NODES];

static struct order_node *expected_first(void)
{
    struct order_node *first = NULL;
    for (int i = 0; i < NUM_NODES; i++)
        if (queued[i] && (!first || nodes[i].key < first->key))
            first = &nodes[i];
    return first;
}

// Times of use, most of them now, some of long ago, in all four classes.
static uint64_t draw_key(struct dice *dice, uint64_t now)
{
    uint64_t class = dice_below(dice, 4);
    uint64_t at = dice_below(dice, 3) ? now : 2 * dice_below(dice, (uint32_t)now / 2) + 1;
    return class << 62 | at;
}

static bool is_taken(uint64_t key)
{
    for (int i = 0; i < NUM_NODES; i++)
        if (queued[i] && nodes[i].key == key)
            return true;
    return false;
}

START_TEST(the_first_node_of_an_order_is_the_one_with_the_smallest_key)
{
    struct dice dice = {.state = 20};
    ck_assert(order_reserve(&order, NUM_NODES));
    ck_assert_ptr_null(order_first(&order));
    for (uint64_t step = 1; step <= NUM_STEPS; step++) {
        uint32_t i = dice_below(&dice, NUM_NODES);
        uint64_t key = draw_key(&dice, 2 * step);
        if (queued[i])
            order_remove(&order, &nodes[i]);
        else if (!is_taken(key))
            order_add(&order, &nodes[i], key);
        else
            continue;
        queued[i] = !queued[i];
        ck_assert_ptr_eq(order_first(&order), expected_first());
        ck_assert_int_eq(order_has(&order, &nodes[i]), queued[i]);
        ck_assert(order_sound(&order));
    }
    while (order.size) {
        struct order_node *first = order_first(&order);
        ck_assert_ptr_eq(first, expected_first());
        queued[first - nodes] = false;
        order_remove(&order, first);
        order_remove(&order, first); // of one that is in no queue it does nothing
    }
    ck_assert_ptr_null(order_first(&order));
    order_finish(&order);
}
END_TEST

START_TEST(an_order_that_reserved_nothing_is_empty)
{
    struct order none = {0};
    ck_assert_ptr_null(order_first(&none));
    ck_assert(order_sound(&none));
    order_finish(&none);
}
END_TEST

// ---- the set ----

enum { MOST_NUMBERS = 270000 }; // four levels

static bool has[MOST_NUMBERS];

static void check_ends(const struct number_set *set, uint32_t capacity)
{
    uint32_t first = 0, last = capacity;
    while (first < capacity && !has[first])
        first++;
    while (last > 0 && !has[last - 1])
        last--;
    ck_assert_int_eq(set->size > 0, last > 0);
    if (!set->size)
        return;
    ck_assert_uint_eq(number_set_first(set), first);
    ck_assert_uint_eq(number_set_last(set), last - 1);
}

// Draws numbers near both ends, near multiples of 64 and 4096, and anywhere.
static uint32_t draw_number(struct dice *dice, uint32_t capacity)
{
    const uint32_t near = dice_below(dice, 3), anywhere = dice_below(dice, capacity);
    const uint32_t drawn[] = {near, capacity - 1 - near % capacity, anywhere,
                              anywhere / 64 * 64 + near, anywhere / 4096 * 4096 + near};
    return drawn[dice_below(dice, sizeof drawn / sizeof *drawn)] % capacity;
}

START_TEST(a_set_knows_its_smallest_and_its_largest_number)
{
    const uint32_t capacities[] = {1, 63, 64, 65, 4096, 4097, MOST_NUMBERS};
    struct dice dice = {.state = 22};
    struct number_set set = {0};
    ck_assert(!number_set_has(&set, 0));
    ck_assert(number_set_sound(&set));
    number_set_remove(&set, 0); // of one that is not in it it does nothing
    for (size_t i = 0; i < sizeof capacities / sizeof *capacities; i++) {
        ck_assert(number_set_reserve(&set, capacities[i])); // it keeps its numbers
        ck_assert(number_set_sound(&set));
        check_ends(&set, capacities[i]);
        for (uint32_t step = 0; step < 300; step++) {
            const uint32_t number = draw_number(&dice, capacities[i]);
            ck_assert_int_eq(number_set_has(&set, number), has[number]);
            if (!has[number])
                number_set_add(&set, number);
            else
                number_set_remove(&set, number);
            has[number] = !has[number];
            ck_assert(number_set_sound(&set));
            check_ends(&set, capacities[i]);
        }
    }
    while (set.size) {
        const uint32_t first = number_set_first(&set);
        ck_assert(has[first]);
        has[first] = false;
        number_set_remove(&set, first);
        number_set_remove(&set, first);
    }
    check_ends(&set, MOST_NUMBERS);
    ck_assert(number_set_sound(&set));
    number_set_finish(&set);
}
END_TEST

// ---- the table ----

static struct node_table table;
static uint64_t hashes[NUM_NODES];
static bool present[NUM_NODES];

// The table never looks into a node.
static struct prefix_node *node_of(uint32_t i)
{
    return (struct prefix_node *)(void *)&nodes[i];
}

static uint32_t count_found(uint32_t i)
{
    struct node_search search = node_table_search(&table, hashes[i]);
    const struct prefix_node *node;
    uint32_t count = 0;
    while ((node = node_table_next(&table, &search)))
        count += node == node_of(i);
    return count;
}

static uint32_t count_all(void)
{
    uint32_t count = 0;
    size_t at = 0;
    while (node_table_each(&table, &at))
        count++;
    return count;
}

// `spread`: hashes of all sizes; else only three values, one of which begins at the last entry.
static void walk_table(uint32_t spread)
{
    struct dice dice = {.state = 20};
    uint32_t size = 0;
    for (uint32_t step = 0; step < NUM_STEPS; step++) {
        uint32_t i = dice_below(&dice, NUM_NODES);
        if (present[i]) {
            node_table_remove(&table, hashes[i], node_of(i));
        } else {
            hashes[i] = spread ? dice_next(&dice) : UINT64_MAX - (uint64_t)dice_below(&dice, 3);
            ck_assert(node_table_add(&table, hashes[i], node_of(i)));
        }
        present[i] = !present[i];
        size += present[i] ? 1 : UINT32_MAX;
        ck_assert_uint_eq(table.size, size);
        for (uint32_t j = 0; j < NUM_NODES; j += step % 16 ? NUM_NODES / 4 + 1 : 1)
            ck_assert_uint_eq(present[j] || hashes[j] ? count_found(j) : 0, present[j]);
        if (step % 16 == 0)
            ck_assert_uint_eq(count_all(), size);
    }
    node_table_finish(&table);
}

START_TEST(the_table_finds_each_node_that_it_has_and_no_other)
{
    ck_assert_uint_eq(count_found(0), 0);
    walk_table(1);
}
END_TEST

START_TEST(a_table_grows_in_steps_that_have_a_bound)
{
    enum { MANY = 100000, MOST_LOOKED = 200 }; // 16, and the rest of a run of entries
    static uint64_t many[MANY];
    static uint8_t places[MANY];
    struct dice dice = {.state = 21};
    uint32_t searched_old = 0;
    for (uint32_t i = 0; i < MANY; i++) {
        many[i] = dice_next(&dice);
        ck_assert(node_table_add(&table, many[i], (struct prefix_node *)(void *)&places[i]));
        ck_assert_uint_le(table.looked, MOST_LOOKED);
        searched_old += table.old.capacity != 0;
        const uint32_t j = dice_below(&dice, i + 1);
        struct node_search search = node_table_search(&table, many[j]);
        ck_assert_ptr_eq(node_table_next(&table, &search), &places[j]);
        ck_assert_ptr_null(node_table_next(&table, &search));
    }
    ck_assert_uint_gt(searched_old, 1000);
    for (uint32_t i = 0; i < MANY; i++) {
        node_table_remove(&table, many[i], (struct prefix_node *)(void *)&places[i]);
        ck_assert_uint_le(table.looked, MOST_LOOKED);
    }
    ck_assert_uint_eq(count_all(), 0);
    node_table_finish(&table);
}
END_TEST

START_TEST(equal_hashes_cost_time_only)
{
    walk_table(0);
}
END_TEST

// ---- stock ----

enum { MOST_OUT = 3000, STEPS = 30000 };

static struct stock stock;
static unsigned char *out[MOST_OUT];
static uint32_t num_out;

static uint8_t mark_of(const unsigned char *object)
{
    return (uint8_t)(1 + (uintptr_t)object / 64 % 255);
}

static bool all_are(const unsigned char *object, size_t size, uint8_t value)
{
    return object[0] == value && memcmp(object, object + 1, size - 1) == 0;
}

// An object that is taken is zeroed. Each byte of it then gets the object's own mark, so that a
// neighbour that overlaps it would be seen.
static void take_object(size_t size)
{
    unsigned char *object = stock_take(&stock);
    ck_assert_ptr_nonnull(object);
    ck_assert_uint_eq((uintptr_t)object % 64, 0);
    ck_assert(all_are(object, size, 0));
    memset(object, mark_of(object), size);
    out[num_out++] = object;
}

static void give_object(uint32_t index, size_t size)
{
    unsigned char *object = out[index];
    ck_assert(all_are(object, size, mark_of(object)));
    stock_give(&stock, object);
    out[index] = out[--num_out];
}

// The number of objects out rises and falls several times between 0 and `most`.
static void walk_stock(size_t size, size_t link, uint32_t most)
{
    struct dice dice = {.state = size};
    stock_init(&stock, size, link);
    num_out = 0;
    for (uint32_t step = 0; step < STEPS; step++) {
        const bool rises = step / (2 * most) % 2 == 0;
        if (num_out < most && (num_out == 0 || dice_chance(&dice, rises ? 80 : 20)))
            take_object(size);
        else
            give_object(dice_below(&dice, num_out), size);
    }
    while (num_out)
        give_object(0, size);
    ck_assert_uint_le(stock.num_regions, 1);
    stock_finish(&stock);
}

START_TEST(objects_are_zeroed_and_keep_what_is_written)
{
    walk_stock(256, 0, MOST_OUT);
    walk_stock(1, 0, MOST_OUT);
    walk_stock(1000, 64, MOST_OUT);
    walk_stock(192, 184, MOST_OUT);
}
END_TEST

START_TEST(a_region_has_at_least_one_object_however_large)
{
    enum { LARGE = 3 << 20, MANY = 4 };
    stock_init(&stock, LARGE, LARGE - 8);
    num_out = 0;
    for (int i = 0; i < MANY; i++)
        take_object(LARGE);
    ck_assert_uint_eq(stock.num_regions, MANY);
    while (num_out)
        give_object(num_out / 2, LARGE);
    ck_assert_uint_eq(stock.num_regions, 1);
    take_object(LARGE);
    stock_finish(&stock); // with an object that is out
}
END_TEST

START_TEST(large_memory_begins_at_a_large_page_and_small_memory_is_no_more_than_asked_for)
{
    const size_t sizes[] = {1, 4096, 5000, PAGES_LARGE - 1, PAGES_LARGE, 3 * PAGES_LARGE + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *memory = pages_map(sizes[i], true);
        ck_assert_ptr_nonnull(memory);
        if (sizes[i] >= PAGES_LARGE)
            ck_assert_uint_eq((uintptr_t)memory % PAGES_LARGE, 0);
        ck_assert_uint_eq(memory[0] | memory[sizes[i] - 1], 0);
        memory[0] = memory[sizes[i] - 1] = 1;
        pages_unmap(memory, sizes[i]);
    }
    ck_assert_ptr_null(pages_map(0, false));
    ck_assert_ptr_null(pages_map(SIZE_MAX, false));
    ck_assert_ptr_null(pages_map(SIZE_MAX - PAGES_LARGE, true));
    pages_unmap(NULL, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("order");
    check_case(suite, "order", NULL, NULL,
               (const TTest *const[]){the_first_node_of_an_order_is_the_one_with_the_smallest_key,
                                      an_order_that_reserved_nothing_is_empty, NULL},
               1);
    check_case(suite, "set", NULL, NULL,
               (const TTest *const[]){a_set_knows_its_smallest_and_its_largest_number, NULL}, 1);
    check_case(suite, "table", NULL, NULL,
               (const TTest *const[]){the_table_finds_each_node_that_it_has_and_no_other,
                                      a_table_grows_in_steps_that_have_a_bound,
                                      equal_hashes_cost_time_only, NULL},
               1);
    check_case(suite, "stock", NULL, NULL,
               (const TTest *const[]){
                   objects_are_zeroed_and_keep_what_is_written,
                   a_region_has_at_least_one_object_however_large,
                   large_memory_begins_at_a_large_page_and_small_memory_is_no_more_than_asked_for,
                   NULL},
               1);
    return check_main(suite);
}
