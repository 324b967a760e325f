// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_kv_merge.c - merging of a caller's partial results, compared with float64.

#include "rigs/kv_world.h"

#include <math.h>
#include <string.h>

enum { TOKENS = 37, HEADS = 3, DIM = 72, PARTS = 5, PART_BYTES = 1 << 16 };

// Part n is at n * PART_BYTES: out, with gaps between its rows, and lse after 48 KiB. The result is
// part PARTS.
static struct engine_part part_at(uint32_t part, enum dtype dtype)
{
    struct engine_part self = {.out = dense((uint64_t)part * PART_BYTES, HEADS, DIM, dtype)};
    self.out.token_stride += 32;
    self.out.head_stride =
        DIM * dtype_size(dtype) + (part % 2 ? 0 : 16) * (dtype == DTYPE_F32 ? 0 : 1);
    self.out.token_stride += (uint64_t)HEADS * 16;
    self.lse = (struct wire_tensor){.offset = (uint64_t)part * PART_BYTES + (48 << 10),
                                    .token_stride = (HEADS + part) * 4,
                                    .dtype = DTYPE_F32};
    return self;
}

static float *lse_at(const struct engine_part *part, uint32_t token, uint32_t head)
{
    return (float *)(memory + part->lse.offset + token * part->lse.token_stride) + head;
}

// Some lse are far from the others, some are -inf, and then out is NaN. In token 5 all are -inf.
static void fill_part(const struct engine_part *part, struct dice *dice)
{
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t h = 0; h < HEADS; h++) {
            bool empty = t == 5 || dice_chance(dice, 20);
            char *row =
                memory + part->out.offset + t * part->out.token_stride + h * part->out.head_stride;
            *lse_at(part, t, h) = empty ? -INFINITY : dice_normal(dice) * (t % 3 ? 2 : 60);
            for (uint32_t d = 0; d < DIM; d++)
                numbers_put(row, part->out.dtype, d,
                            numbers_round(part->out.dtype,
                                          empty ? (d % 2 ? NAN : INFINITY) : dice_normal(dice)));
        }
}

struct merged {
    double out[TOKENS][HEADS][DIM], lse[TOKENS][HEADS];
};

static void merge_row(const struct engine_part *parts, uint32_t num_parts, uint32_t t, uint32_t h,
                      struct merged *merged)
{
    double most = -INFINITY, sum = 0, *out = merged->out[t][h];
    for (uint32_t n = 0; n < num_parts; n++)
        most = fmax(most, (double)*lse_at(&parts[n], t, h));
    memset(out, 0, sizeof merged->out[t][h]);
    for (uint32_t n = 0; n < num_parts; n++) {
        double lse = (double)*lse_at(&parts[n], t, h), weight = isinf(lse) ? 0 : exp(lse - most);
        sum += weight;
        for (uint32_t d = 0; d < DIM && weight != 0; d++)
            out[d] +=
                weight * numbers_value(parts[n].out.dtype, tensor_bits(&parts[n].out, t, h, d));
    }
    for (uint32_t d = 0; d < DIM && sum != 0; d++)
        out[d] /= sum;
    merged->lse[t][h] = sum != 0 ? most + log(sum) : -INFINITY;
}

// In token 7 one part is NaN, for each head another one. Its out stays, as a wrong kernel's might.
static void spoil_parts(const struct engine_part *parts, uint32_t num_parts)
{
    for (uint32_t h = 0; h < HEADS; h++)
        *lse_at(&parts[h * 2 % num_parts], 7, h) = h == 1 ? -NAN : NAN;
}

static const struct {
    enum dtype dtype;
    double bound;
} outs[] = {{DTYPE_F32, 2e-6}, {DTYPE_F16, 5e-4}, {DTYPE_BF16, 4e-3}};

static void expect_merged(const struct engine_part *result, const struct merged *merged,
                          double bound, bool lse)
{
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t h = 0; h < HEADS; h++) {
            double got = (double)*lse_at(result, t, h), wanted = merged->lse[t][h];
            if (lse && !(got == wanted || (isnan(got) && isnan(wanted)) ||
                         fabs(got - wanted) <= 1e-6 * fmax(1, fabs(wanted))))
                ck_abort_msg("token %u, head %u: lse %.9g, expected %.9g", t, h, got, wanted);
            for (uint32_t d = 0; d < DIM; d++) {
                uint32_t bits = tensor_bits(&result->out, t, h, d);
                double value = numbers_value(result->out.dtype, bits), exact = merged->out[t][h][d];
                if (isnan(wanted)   ? !isnan(value)
                    : isinf(wanted) ? bits != 0
                                    : !(fabs(value - exact) <= bound * fmax(1, fabs(exact))))
                    ck_abort_msg("token %u, head %u, dim %u: %.9g, expected %.9g", t, h, d, value,
                                 exact);
            }
        }
}

// Merges into `result`. Only its rows and, if wanted, its lse change.
static void merge(const struct engine_part *parts, uint32_t num_parts,
                  const struct engine_part *result, bool lse)
{
    char *before = malloc(ARENA_BYTES);
    ck_assert_ptr_nonnull(before);
    memcpy(before, memory, ARENA_BYTES);
    kv_run(&(struct engine_run){.kind = ENGINE_MERGE,
                                .arena = arena,
                                .num_heads = HEADS,
                                .num_tokens = TOKENS,
                                .head_dim = DIM,
                                .parts = parts,
                                .num_parts = num_parts,
                                .out = result->out,
                                .lse = lse ? result->lse : (struct wire_tensor){0}});
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t h = 0; h < HEADS; h++) {
            uint64_t at =
                result->out.offset + t * result->out.token_stride + h * result->out.head_stride;
            memcpy(before + at, memory + at, DIM * dtype_size(result->out.dtype));
            at = (uint64_t)((char *)lse_at(result, t, h) - memory);
            if (lse)
                memcpy(before + at, memory + at, sizeof(float));
        }
    expect_bytes(memory, before, ARENA_BYTES, "the arena around what is merged");
    free(before);
}

// Into a separate result, with and without lse, or over part `_i / 3 % 3 - 1`.
// A NaN among the LSE of a row's parts makes all of the row NaN.
START_TEST(parts_become_what_attention_over_all_keys_gives)
{
    enum dtype dtype = outs[_i % 3].dtype;
    struct engine_part parts[PARTS];
    struct merged *merged = calloc(1, sizeof *merged);
    struct dice dice = {(uint64_t)_i};
    uint32_t target = _i / 3 % 4, num_parts = target == 3 ? 1 : PARTS;
    ck_assert_ptr_nonnull(merged);
    memset(memory, 0x7f, ARENA_BYTES);
    for (uint32_t n = 0; n < PARTS; n++) {
        parts[n] = part_at(n, dtype);
        fill_part(&parts[n], &dice);
    }
    spoil_parts(parts, num_parts);
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t h = 0; h < HEADS; h++)
            merge_row(parts, num_parts, t, h, merged);
    struct engine_part result = target == 1   ? parts[0]
                                : target == 2 ? parts[PARTS - 1]
                                              : part_at(PARTS, dtype);
    merge(parts, num_parts, &result, target != 3);
    expect_merged(&result, merged, outs[_i % 3].bound, target != 3);
    free(merged);
}
END_TEST

START_TEST(one_part_comes_back_bit_for_bit)
{
    struct engine_part part = part_at(0, outs[_i].dtype), result = part_at(1, outs[_i].dtype);
    struct dice dice = {77};
    fill_part(&part, &dice);
    merge(&part, 1, &result, true);
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t h = 0; h < HEADS; h++) {
            bool empty = isinf(*lse_at(&part, t, h));
            ck_assert_uint_eq(float_word(*lse_at(&result, t, h)), float_word(*lse_at(&part, t, h)));
            for (uint32_t d = 0; d < DIM; d++)
                expect_equal_uint(tensor_bits(&result.out, t, h, d),
                                  empty ? 0 : tensor_bits(&part.out, t, h, d));
        }
}
END_TEST

void add_merge_tests(Suite *suite)
{
    for (int staging = 0; staging < 2; staging++) {
        TCase *tests = tcase_create(staging ? "merge, staging" : "merge");
        tcase_add_checked_fixture(tests, staging ? setup_staging : setup_import, teardown);
        tcase_add_loop_test(tests, parts_become_what_attention_over_all_keys_gives, 0,
                            staging ? 6 : 12);
        tcase_add_loop_test(tests, one_part_comes_back_bit_for_bit, 0, staging ? 1 : 3);
        suite_add_tcase(suite, tests);
    }
    TCase *slices = tcase_create("merge, slices");
    tcase_add_checked_fixture(slices, setup_slices, teardown);
    tcase_add_loop_test(slices, parts_become_what_attention_over_all_keys_gives, 0, 6);
    suite_add_tcase(suite, slices);
}
