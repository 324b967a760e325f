// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_refused.c - libaule-client with the real daemon: every bad batch and run gets its own
// status and an error with the bad values, and has no other effect. Each test is a process; tests
// of bad input share one daemon, which must still work at the end. Caches and limits:
// test_client_refused_caches.c.

#include "rigs/client_step.h"

#include <math.h>
#include <stdio.h>

static void setup(void)
{
    launch(NULL);
}

// ---- bad input ----
// Each row spoils a step that is right; `words` gets the value that the sentence has to name.

static void say(struct step *step, const char *format, long long a, long long b)
{
    snprintf(step->words, sizeof step->words, format, a, b);
}

static void entry_out_of_range(struct step *step)
{
    step->table[1] = 1000000;
    say(step, "block_table[0][%lld] = %lld", 1, 1000000);
}

static void entry_not_held(struct step *step)
{
    ok(aule_blocks_release(step->cache, 1, &step->blocks[3]));
    step->table[1] = step->blocks[3];
    say(step, "block_table[0][%lld] = %lld", 1, step->blocks[3]);
}

static void entry_missing(struct step *step)
{
    step->table[1] = -1;
    say(step, "block_table[0][%lld] = %lld", 1, -1);
}

static void entry_negative(struct step *step)
{
    step->table[2] = -9;
    say(step, "block_table[1][%lld] = %lld", 0, -9);
}

static void seq_len_beyond_the_table(struct step *step)
{
    step->lens[0] = 17;
    say(step, "seq_lens_kv[%lld] = %lld", 0, 17);
}

static void seq_len_negative(struct step *step)
{
    step->lens[1] = -4;
    say(step, "seq_lens_kv[%lld] = %lld", 1, -4);
}

static void seq_len_beyond_the_context(struct step *step)
{
    step->batch.max_context_len = 15;
    say(step, "%lld exceeds max_context_len %lld", 16, 15);
}

static void cu_seqlens_falling(struct step *step)
{
    step->cu[1] = 18;
    say(step, "[1] = %lld to [2] = %lld", 18, 17);
}

static void cu_seqlens_not_from_zero(struct step *step)
{
    step->cu[0] = 3;
    say(step, "cu_seqlens_q[%lld] is %lld", 0, 3);
}

static void more_queries_than_keys(struct step *step)
{
    step->lens[0] = 15;
    say(step, "q_len %lld above its seq_len %lld", 16, 15);
}

static void slot_outside_held_blocks(struct step *step)
{
    ok(aule_blocks_release(step->cache, 1, &step->blocks[3]));
    step->slots[2] = (int64_t)step->blocks[3] * BLOCK;
    say(step, "slot_mapping[%lld] = %lld", 2, step->slots[2]);
}

static void slot_outside_the_cache(struct step *step)
{
    step->slots[2] = INT64_C(1) << 40;
    say(step, "slot_mapping[%lld] = %lld", 2, step->slots[2]);
}

static void slot_negative(struct step *step)
{
    step->slots[2] = -2;
    say(step, "slot_mapping[%lld] = %lld", 2, -2);
}

static void slot_in_a_sealed_block(struct step *step)
{
    run_once(step);
    ok(aule_prefix_publish(step->cache, &prompt, step->blocks, NULL));
    say(step, "slot_mapping[%lld] = %lld", 0, step->slots[0]);
}

static void slot_twice(struct step *step)
{
    step->slots[5] = step->slots[4];
    say(step, "slot_mapping[%lld] = %lld", 5, step->slots[4]);
}

static void first_entry_missing(struct step *step)
{
    step->table[0] = -1;
    say(step, "block_table[0][%lld] = %lld", 0, -1);
}

static void position_negative(struct step *step)
{
    static int32_t positions[17];
    positions[16] = -6;
    step->batch.positions = positions;
    say(step, "positions[%lld] = %lld", 16, -6);
}

static void mask_too_small(struct step *step)
{
    step->batch.mask = step->lens;
    step->batch.mask_size = 4;
    say(step, "mask has %lld bytes; %lld are needed", 4, 16 * 16 / 8 + 1);
}

static void mask_of_no_size(struct step *step)
{
    step->batch.mask = step->lens;
    say(step, "mask_size %lld, but sequence %lld has queries and keys", 0, 0);
}

struct bad {
    void (*spoil)(struct step *step);
    enum aule_status status;
};

static const struct bad bad_batches[] = {
    {entry_out_of_range, AULE_OUT_OF_RANGE},
    {entry_not_held, AULE_NOT_HELD},
    {entry_missing, AULE_INVALID},
    {entry_negative, AULE_OUT_OF_RANGE},
    {seq_len_beyond_the_table, AULE_OUT_OF_RANGE},
    {seq_len_negative, AULE_INVALID},
    {seq_len_beyond_the_context, AULE_OUT_OF_RANGE},
    {cu_seqlens_falling, AULE_INVALID},
    {cu_seqlens_not_from_zero, AULE_INVALID},
    {more_queries_than_keys, AULE_INVALID},
    {slot_outside_held_blocks, AULE_NOT_HELD},
    {slot_outside_the_cache, AULE_OUT_OF_RANGE},
    {slot_negative, AULE_OUT_OF_RANGE},
    {slot_in_a_sealed_block, AULE_SEALED},
    {slot_twice, AULE_DUPLICATE_SLOT},
    {first_entry_missing, AULE_INVALID},
    {position_negative, AULE_OUT_OF_RANGE},
    {mask_too_small, AULE_INVALID},
    {mask_of_no_size, AULE_INVALID},
};
enum { NUM_BAD_BATCHES = sizeof bad_batches / sizeof *bad_batches };

START_TEST(a_bad_batch_is_refused_with_its_values)
{
    struct step step;
    struct aule_batch *batch = NULL;
    open_step(&step, NULL);
    bad_batches[_i].spoil(&step);
    expect(aule_batch_create(step.cache, &step.batch, &batch), bad_batches[_i].status, step.words);
    ck_assert_ptr_null(batch);
    still_works(&step);
    close_step(&step);
}
END_TEST

static void past_the_arena(struct step *step)
{
    step->run.q.offset = (1 << 20) - 256;
    say(step, "q at %lld", (1 << 20) - 256, 0);
}

static void offset_that_wraps(struct step *step)
{
    step->run.out.offset = UINT64_MAX - 255;
    say(step, "out at 18446744073709551360", 0, 0);
}

static void stride_that_wraps(struct step *step)
{
    step->run.k.token_stride = UINT64_C(1) << 60;
    say(step, "k at", 0, 0);
}

static void unaligned_offset(struct step *step)
{
    step->run.v.offset += 4;
    say(step, "v has offset %lld", (long long)step->run.v.offset, 0);
}

static void unaligned_stride(struct step *step)
{
    step->run.q.token_stride += 8;
    say(step, "token stride %lld", (long long)step->run.q.token_stride, 0);
}

static void unaligned_head_stride(struct step *step)
{
    step->run.out.head_stride = 68;
    say(step, "head stride %lld", 68, 0);
}

static void dtype_that_is_none(struct step *step)
{
    step->run.q.dtype = step->run.k.dtype = step->run.v.dtype = step->run.out.dtype =
        (enum aule_dtype)42;
    say(step, "dtype %lld", 42, 0);
}

static void dtype_that_only_blocks_have(struct step *step)
{
    step->run.q.dtype = step->run.k.dtype = step->run.v.dtype = step->run.out.dtype = AULE_INT8;
    say(step, "is int8; it may be f32, f16 or bf16", 0, 0);
}

static void two_dtypes(struct step *step)
{
    step->run.out.dtype = AULE_F16;
    say(step, "out is f16", 0, 0);
}

static void memory_that_is_none(struct step *step)
{
    step->run.q.memory = 5;
    say(step, "memory kind %lld", 5, 0);
}

static void heads_not_divisible(struct step *step)
{
    step->run.num_heads = 3;
    say(step, "num_heads %lld is not a multiple of the cache's %lld", 3, KV_HEADS);
}

static void layer_that_is_none(struct step *step)
{
    step->run.layer = 2;
    say(step, "layer %lld of a cache with %lld", 2, LAYERS);
}

static void scale_that_is_no_number(struct step *step)
{
    step->run.scale = NAN;
    say(step, "scale is nan", 0, 0);
}

static void out_over_k(struct step *step)
{
    step->run.out.offset = step->k.offset;
    say(step, "out at %lld overlaps", (long long)step->k.offset, 0);
}

static void window_below_unbounded(struct step *step)
{
    step->run.window = (struct aule_window){.enabled = true, .left = 3, .right = -2};
    say(step, "window_left %lld, window_right %lld", 3, -2);
}

static void cap_negative(struct step *step)
{
    step->run.logits_soft_cap = -30;
    say(step, "logits_soft_cap is -%lld", 30, 0);
}

static void cap_that_is_no_number(struct step *step)
{
    step->run.logits_soft_cap = NAN;
    say(step, "logits_soft_cap is nan", 0, 0);
}

static void mask_value_that_excludes_nothing(struct step *step)
{
    step->run.mask_value = -10000;
    say(step, "mask_value is %lld", -10000, 0);
}

static void mask_value_that_is_no_number(struct step *step)
{
    step->run.mask_value = NAN;
    say(step, "mask_value is nan", 0, 0);
}

static const float odd_values[HEADS] = {1, 2, NAN, 4},
                   infinite_values[HEADS] = {-INFINITY, INFINITY, 0, 0};

static void slope_that_is_no_number(struct step *step)
{
    step->run.alibi_slopes = odd_values;
    say(step, "slopes[%lld] is nan", 2, 0);
}

static void slope_infinite(struct step *step)
{
    step->run.alibi_slopes = infinite_values;
    say(step, "slopes[%lld] is -inf", 0, 0);
}

static void sink_that_is_no_number(struct step *step)
{
    step->run.sinks = odd_values;
    say(step, "sinks[%lld] is nan", 2, 0);
}

static void sink_infinite(struct step *step) // minus infinity means no sink and is allowed
{
    step->run.sinks = infinite_values;
    say(step, "sinks[%lld] is inf", 1, 0);
}

static void give_lse(struct step *step, uint64_t offset)
{
    step->run.lse = (struct aule_tensor){
        .dtype = AULE_F32, .offset = offset, .token_stride = HEADS * sizeof(float)};
}

static void lse_of_other_dtype(struct step *step)
{
    give_lse(step, 0);
    step->run.lse.dtype = AULE_F16;
    say(step, "lse is f16; it must be f32", 0, 0);
}

static void lse_with_spread_heads(struct step *step)
{
    give_lse(step, 0);
    step->run.lse.head_stride = 16;
    say(step, "lse has head stride %lld", 16, 0);
}

static void lse_unaligned(struct step *step)
{
    give_lse(step, 6);
    say(step, "lse has offset %lld", 6, 0);
}

static void lse_past_the_arena(struct step *step)
{
    give_lse(step, 1 << 20);
    say(step, "lse at %lld", 1 << 20, 0);
}

static void lse_over_itself(struct step *step)
{
    give_lse(step, (1 << 20) - 4096);
    step->run.lse.token_stride = 0;
    say(step, "lse's rows of %lld bytes overlap", HEADS * sizeof(float), 0);
}

static void lse_over_q(struct step *step)
{
    give_lse(step, step->q.offset);
    say(step, "lse at %lld overlaps q", (long long)step->q.offset, 0);
}

static void lse_over_out(struct step *step)
{
    give_lse(step, step->out.offset);
    say(step, "out at %lld overlaps lse", (long long)step->out.offset, 0);
}

static void rope_of_odd_pairs(struct step *step)
{
    step->run.rope.dim = 7;
    say(step, "rope.dim is %lld; it must be even", 7, 0);
}

static void rope_past_the_head(struct step *step)
{
    step->run.rope.dim = DIM + 2;
    say(step, "rope.dim is %lld; it must be even and at most head_dim_k %lld", DIM + 2, DIM);
}

static void frequency_that_is_no_number(struct step *step)
{
    static const double frequencies[] = {1, NAN};
    step->run.rope = (struct aule_rope){.dim = 4, .frequencies = frequencies};
    say(step, "rope.frequencies[%lld]", 1, 0);
}

static void scale_without_eight_bits(struct step *step)
{
    step->run.k_scale = 2;
    say(step, "k_scale", 0, 0);
}

static const struct bad bad_runs[] = {
    {past_the_arena, AULE_OUT_OF_RANGE},
    {offset_that_wraps, AULE_OUT_OF_RANGE},
    {stride_that_wraps, AULE_OUT_OF_RANGE},
    {unaligned_offset, AULE_MISALIGNED},
    {unaligned_stride, AULE_MISALIGNED},
    {unaligned_head_stride, AULE_MISALIGNED},
    {dtype_that_is_none, AULE_INVALID},
    {dtype_that_only_blocks_have, AULE_UNSUPPORTED},
    {two_dtypes, AULE_MISMATCH},
    {memory_that_is_none, AULE_UNSUPPORTED},
    {heads_not_divisible, AULE_INVALID},
    {layer_that_is_none, AULE_OUT_OF_RANGE},
    {scale_that_is_no_number, AULE_INVALID},
    {out_over_k, AULE_INVALID},
    {window_below_unbounded, AULE_INVALID},
    {cap_negative, AULE_INVALID},
    {cap_that_is_no_number, AULE_INVALID},
    {mask_value_that_excludes_nothing, AULE_INVALID},
    {mask_value_that_is_no_number, AULE_INVALID},
    {slope_that_is_no_number, AULE_INVALID},
    {slope_infinite, AULE_INVALID},
    {sink_that_is_no_number, AULE_INVALID},
    {sink_infinite, AULE_INVALID},
    {lse_of_other_dtype, AULE_MISMATCH},
    {lse_with_spread_heads, AULE_INVALID},
    {lse_unaligned, AULE_MISALIGNED},
    {lse_past_the_arena, AULE_OUT_OF_RANGE},
    {lse_over_itself, AULE_INVALID},
    {lse_over_q, AULE_INVALID},
    {lse_over_out, AULE_INVALID},
    {rope_of_odd_pairs, AULE_INVALID},
    {rope_past_the_head, AULE_INVALID},
    {frequency_that_is_no_number, AULE_INVALID},
    {scale_without_eight_bits, AULE_INVALID},
};
enum { NUM_BAD_RUNS = sizeof bad_runs / sizeof *bad_runs };

START_TEST(a_bad_run_is_refused_with_its_values)
{
    struct step step;
    struct aule_ticket ticket = {.id = 77};
    open_step(&step, NULL);
    struct aule_batch *batch = create_batch(&step);
    bad_runs[_i].spoil(&step);
    expect(aule_run_submit(batch, &step.run, 0, &ticket), bad_runs[_i].status, step.words);
    ck_assert_uint_eq(ticket.id, 77);
    aule_batch_destroy(batch);
    still_works(&step);
    close_step(&step);
}
END_TEST

START_TEST(a_batch_whose_block_was_sealed_runs_no_more)
{
    struct step step;
    open_step(&step, NULL);
    struct aule_batch *batch = create_batch(&step);
    run_every_layer(&step, batch);
    ok(aule_prefix_publish(step.cache, &prompt, step.blocks, NULL));
    struct aule_run_result result;
    enum aule_status status = aule_run(batch, &step.run, WAIT_MS, &result);
    ck_assert_msg(status == AULE_SEALED, "%s: %s", aule_status_name(status), aule_error());
    aule_batch_destroy(batch);
    still_works(&step);
    close_step(&step);
}
END_TEST

START_TEST(a_run_that_reads_what_nothing_has_written_is_refused_and_takes_no_ticket)
{
    struct step step;
    struct aule_ticket before, ticket = {.id = 77};
    char words[128];
    open_step(&step, NULL);
    struct aule_batch *batch = create_batch(&step);
    ok(aule_run_submit(batch, &step.run, WAIT_MS, &before));
    aule_batch_destroy(batch);
    step.lens[0] = 24; // blocks 0, 1 and 3; nothing has written the last one but its last slot
    step.batch.max_blocks = 3;
    step.table[2] = step.blocks[3];
    step.table[3] = step.blocks[2];
    memset(step.slots, -1, sizeof step.slots);
    step.slots[15] = (int64_t)step.blocks[3] * BLOCK + 7;
    batch = create_batch(&step);
    snprintf(words, sizeof words, "sequence 0 reads position 16, slot 0 of block %d, in layer 0;",
             step.blocks[3]);
    expect(aule_run_submit(batch, &step.run, 0, &ticket), AULE_UNWRITTEN, words);
    ck_assert_uint_eq(ticket.id, 77);
    step.run.layer = 1;
    expect(aule_run(batch, &step.run, WAIT_MS, NULL), AULE_UNWRITTEN, "reads position 0, slot 0");
    step.run.layer = 0;
    const struct aule_layers both = {.num_layers = LAYERS,
                                     .out_stride = step.run.out.token_stride * MAX_TOKENS / LAYERS};
    expect(aule_run_layers(batch, &step.run, &both, WAIT_MS, NULL), AULE_UNWRITTEN, "in layer 1;");
    aule_batch_destroy(batch);
    ok(aule_ticket_wait(step.session, before, WAIT_MS, NULL));
    still_works(&step);
    close_step(&step);
}
END_TEST

START_TEST(publishing_what_is_not_ready_is_refused)
{
    struct step step, other;
    char words[64];
    uint32_t existing;
    open_step(&step, NULL);
    open_step(&other, NULL);
    snprintf(words, sizeof words, "blocks[0] = %d has 0 of 8 slots written", step.blocks[0]);
    expect(aule_prefix_publish(step.cache, &prompt, step.blocks, &existing), AULE_UNWRITTEN, words);

    // One layer of two is not enough, nor are seven slots of eight.
    struct aule_batch *batch = create_batch(&step);
    ok(aule_run(batch, &step.run, WAIT_MS, NULL));
    expect(aule_prefix_publish(step.cache, &prompt, step.blocks, &existing), AULE_UNWRITTEN,
           "layer 1");
    aule_batch_destroy(batch);
    step.cu[1] = step.lens[0] = 15;
    step.cu[2] = 16;
    step.slots[15] = step.slots[16];
    run_once(&step);
    snprintf(words, sizeof words, "blocks[1] = %d has 7 of 8 slots written", step.blocks[1]);
    struct aule_prefix longer = prompt;
    expect(aule_prefix_publish(step.cache, &longer, step.blocks, &existing), AULE_UNWRITTEN, words);

    // A block of another session.
    snprintf(words, sizeof words, "blocks[0] = %d is not held", step.blocks[0]);
    expect(aule_prefix_publish(other.cache, &prompt, step.blocks, &existing), AULE_NOT_HELD, words);
    still_works(&step);
    still_works(&other);
    close_step(&step);
    close_step(&other);
}
END_TEST

START_TEST(releasing_what_is_not_held_releases_nothing)
{
    struct step step;
    char words[64];
    open_step(&step, NULL);
    const int32_t twice[] = {step.blocks[0], step.blocks[0]}, beyond[] = {step.blocks[0], 999999};
    snprintf(words, sizeof words, "= %d is named 2 times", step.blocks[0]);
    expect(aule_blocks_release(step.cache, 2, twice), AULE_NOT_HELD, words);
    expect(aule_blocks_release(step.cache, 2, beyond), AULE_OUT_OF_RANGE, "blocks[1] = 999999");
    ck_assert_uint_eq(state_of(step.cache).leased_blocks, 4);
    ok(aule_blocks_release(step.cache, 4, step.blocks));
    ck_assert_uint_eq(state_of(step.cache).leased_blocks, 0);
    expect(aule_blocks_lease(step.cache, 0, 0, step.blocks), AULE_INVALID, "0 blocks");
    expect(aule_blocks_lease(step.cache, 1, -3, step.blocks), AULE_INVALID, "-3");
    still_works(&step);
    close_step(&step);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_refused");
    add_shared(suite, "bad input", setup,
               (const struct entry[]){{a_bad_batch_is_refused_with_its_values, NUM_BAD_BATCHES},
                                      {a_bad_run_is_refused_with_its_values, NUM_BAD_RUNS},
                                      {releasing_what_is_not_held_releases_nothing, 0},
                                      {NULL, 0}});
    add(suite, "prefixes", setup,
        (const struct entry[]){
            {a_batch_whose_block_was_sealed_runs_no_more, 0},
            {publishing_what_is_not_ready_is_refused, 0},
            {a_run_that_reads_what_nothing_has_written_is_refused_and_takes_no_ticket, 0},
            {NULL, 0}});
    return check_main(suite);
}
