// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_stock.c - memory for objects of one size: random takes and gives, compared with a list of
// what is out.

#include "base/pages.h"
#include "core/pool/stock.h"
#include "rigs/check_main.h"
#include "rigs/dice.h"

#include <string.h>

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
static void take(size_t size)
{
    unsigned char *object = stock_take(&stock);
    ck_assert_ptr_nonnull(object);
    ck_assert_uint_eq((uintptr_t)object % 64, 0);
    ck_assert(all_are(object, size, 0));
    memset(object, mark_of(object), size);
    out[num_out++] = object;
}

static void give(uint32_t index, size_t size)
{
    unsigned char *object = out[index];
    ck_assert(all_are(object, size, mark_of(object)));
    stock_give(&stock, object);
    out[index] = out[--num_out];
}

// The number of objects out rises and falls several times between 0 and `most`.
static void walk(size_t size, uint32_t most)
{
    struct dice dice = {.state = size};
    stock_init(&stock, size);
    num_out = 0;
    for (uint32_t step = 0; step < STEPS; step++) {
        const bool rises = step / (2 * most) % 2 == 0;
        if (num_out < most && (num_out == 0 || dice_chance(&dice, rises ? 80 : 20)))
            take(size);
        else
            give(dice_below(&dice, num_out), size);
    }
    while (num_out)
        give(0, size);
    ck_assert_uint_le(stock.num_regions, 1);
    stock_finish(&stock);
}

START_TEST(objects_are_zeroed_and_keep_what_is_written)
{
    walk(256, MOST_OUT);
    walk(1, MOST_OUT);
    walk(1000, MOST_OUT);
}
END_TEST

START_TEST(a_region_has_at_least_one_object_however_large)
{
    enum { LARGE = 3 << 20, MANY = 4 };
    stock_init(&stock, LARGE);
    num_out = 0;
    for (int i = 0; i < MANY; i++)
        take(LARGE);
    ck_assert_uint_eq(stock.num_regions, MANY);
    while (num_out)
        give(num_out / 2, LARGE);
    ck_assert_uint_eq(stock.num_regions, 1);
    take(LARGE);
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
    Suite *suite = suite_create("stock");
    check_case(suite, "stock", NULL, NULL,
               (const TTest *const[]){
                   objects_are_zeroed_and_keep_what_is_written,
                   a_region_has_at_least_one_object_however_large,
                   large_memory_begins_at_a_large_page_and_small_memory_is_no_more_than_asked_for,
                   NULL},
               1);
    return check_main(suite);
}
