// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_tensor.c - thousands of random pairs of small tensors, compared with a map of bytes:
// accepted tensors lie in the arena, written tensors do not overlap themselves, and tensor.h tells
// exactly whether two tensors overlap. The seed is fixed.

#include "core/runs/tensor.h"
#include "rigs/check_main.h"
#include "rigs/core_world.h"

#include <string.h>

enum { ARENA = 4096, ROUNDS = 40000 };

static uint64_t random_state = 88172645463325252ull;

static uint32_t roll(uint32_t sides)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 16) % sides);
}

struct shape {
    struct wire_tensor tensor;
    uint64_t outer, tokens;
    uint32_t heads;
};

static uint64_t stride(void)
{
    return roll(3) ? 16ull * roll(8) : 16ull * roll(40);
}

static struct shape random_shape(void)
{
    return (struct shape){
        .tensor = {.dtype = DTYPE_F16,
                   .offset = 16ull * roll(60),
                   .token_stride = stride(),
                   .head_stride = stride(),
                   .outer_stride = stride()},
        .outer = 1 + roll(3),
        .tokens = 1 + roll(4),
        .heads = 1 + roll(3),
    };
}

static struct tensor_use use_of(const char *name, const struct shape *shape, bool written)
{
    return (struct tensor_use){.name = name,
                               .tensor = &shape->tensor,
                               .num_outer = shape->outer,
                               .num_tokens = shape->tokens,
                               .heads = shape->heads,
                               .head_dim = 8,
                               .written = written};
}

// Counts how many rows cover each 16 bytes. False: a row ends beyond the arena.
static bool cover(const struct shape *shape, uint8_t units[ARENA / 16])
{
    const struct wire_tensor *t = &shape->tensor;
    memset(units, 0, ARENA / 16);
    for (uint64_t o = 0; o < shape->outer; o++) {
        for (uint64_t i = 0; i < shape->tokens; i++) {
            for (uint64_t h = 0; h < shape->heads; h++) {
                uint64_t at =
                    t->offset + o * t->outer_stride + i * t->token_stride + h * t->head_stride;
                if (at + 16 > ARENA)
                    return false;
                units[at / 16]++;
            }
        }
    }
    return true;
}

static uint32_t largest(const uint8_t units[ARENA / 16])
{
    uint32_t most = 0;
    for (int i = 0; i < ARENA / 16; i++)
        most = units[i] > most ? units[i] : most;
    return most;
}

// True if the tensor covers one piece without gaps, each unit once.
static bool dense(const uint8_t units[ARENA / 16])
{
    int pieces = 0;
    for (int i = 0; i < ARENA / 16; i++)
        pieces += units[i] && (i == 0 || !units[i - 1]);
    return pieces == 1 && largest(units) == 1;
}

static bool same_strides(const struct shape *a, const struct shape *b)
{
    return (a->outer < 2 || b->outer < 2 || a->tensor.outer_stride == b->tensor.outer_stride) &&
           (a->tokens < 2 || b->tokens < 2 || a->tensor.token_stride == b->tensor.token_stride) &&
           (a->heads < 2 || b->heads < 2 || a->tensor.head_stride == b->tensor.head_stride);
}

START_TEST(a_tensor_is_accepted_only_inside_the_arena_and_written_only_if_no_rows_overlap)
{
    uint8_t units[ARENA / 16];
    uint32_t accepted = 0, overlapping = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const struct shape shape = random_shape();
        const struct tensor_use reads = use_of("in", &shape, false),
                                writes = use_of("out", &shape, true);
        struct tensor_check check = {.arena_sizes = {ARENA}, .steps = TENSOR_STEPS};
        bool fits = cover(&shape, units);
        ck_assert_int_eq((int)tensor_check_all(&check, &reads, 1, NULL),
                         fits ? STATUS_OK : STATUS_OUT_OF_RANGE);
        enum status status = tensor_check_all(&check, &writes, 1, NULL);
        if (status == STATUS_OK)
            ck_assert_uint_eq(largest(units), 1);
        accepted += status == STATUS_OK;
        overlapping += status == STATUS_INVALID;
    }
    ck_assert_uint_gt(accepted, ROUNDS / 10);
    ck_assert_uint_gt(overlapping, ROUNDS / 10);
}
END_TEST

START_TEST(two_tensors_are_told_apart_exactly_where_strides_are_the_same_or_one_is_dense)
{
    uint8_t a[ARENA / 16], b[ARENA / 16];
    uint32_t exact = 0, apart = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct shape out = random_shape(), in = random_shape();
        if (roll(2)) {
            uint64_t offset = in.tensor.offset;
            in.tensor = out.tensor;
            in.tensor.offset = offset;
        }
        const struct tensor_use first = use_of("out", &out, true);
        struct tensor_check check = {.arena_sizes = {ARENA}, .steps = TENSOR_STEPS};
        if (!cover(&out, a) || !cover(&in, b) ||
            tensor_check_all(&check, &first, 1, NULL) != STATUS_OK)
            continue;
        const struct tensor_use both[] = {first, use_of("in", &in, false)};
        enum status status = tensor_check_all(&check, both, 2, NULL);
        bool overlap = false;
        for (int i = 0; i < ARENA / 16; i++)
            overlap |= a[i] && b[i];
        if (status != STATUS_OK)
            ck_assert(overlap);
        if (same_strides(&out, &in) || dense(a)) {
            ck_assert_int_eq((int)status, overlap ? STATUS_INVALID : STATUS_OK);
            exact++;
            apart += !overlap;
        }
    }
    ck_assert_uint_gt(exact, ROUNDS / 10);
    ck_assert_uint_gt(apart, ROUNDS / 50);
}
END_TEST

// Comparing rows that interleave could take very long.
START_TEST(senseless_strides_are_given_up_soon)
{
    const struct wire_tensor out = {.dtype = DTYPE_F16, .offset = 16, .token_stride = 32};
    const struct wire_tensor in = {
        .dtype = DTYPE_F16, .token_stride = 32, .head_stride = 64, .outer_stride = 96};
    const struct tensor_use uses[] = {
        {.name = "out",
         .tensor = &out,
         .num_outer = 1,
         .num_tokens = 1 << 14,
         .heads = 1,
         .head_dim = 8,
         .written = true},
        {.name = "in",
         .tensor = &in,
         .num_outer = 1 << 14,
         .num_tokens = 1 << 14,
         .heads = 1 << 14,
         .head_dim = 8},
    };
    struct tensor_check check = {.arena_sizes = {UINT64_C(1) << 50}, .steps = TENSOR_STEPS};
    ck_assert_int_eq((int)tensor_check_all(&check, uses, 2, NULL), STATUS_OK);
    ck_assert_uint_eq(check.steps, 0); // as many as it has, and no more
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tensor");
    TCase *tcase = tcase_create("tensors");
    tcase_add_test(tcase,
                   a_tensor_is_accepted_only_inside_the_arena_and_written_only_if_no_rows_overlap);
    tcase_add_test(tcase,
                   two_tensors_are_told_apart_exactly_where_strides_are_the_same_or_one_is_dense);
    tcase_add_test(tcase, senseless_strides_are_given_up_soon);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
