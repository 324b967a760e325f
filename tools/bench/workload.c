// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// workload.c - the table. Names and shapes are fixed: results of different days are compared by them.

#include "workload.h"

#include <string.h>

// Log-uniform from 64 to 16384, drawn once.
static const uint32_t ragged[] = {
    2188, 285,   80,   70,    5817,  10099, 1849,  3655,  1304, 11430, 5901,  64,    7430, 77,    3659,  169,
    7672, 1288,  337,  666,   74,    127,   2637,  2316,  1941, 537,   16132, 14732, 2865, 2358,  2911,  553,
    135,  3497,  1178, 357,   946,   8877,  11365, 465,   1522, 381,   1727,  416,   561,  8916,  225,   2027,
    101,  6477,  5031, 241,   8259,  88,    412,   147,   777,  5295,  229,   85,    603,  192,   105,   1598,
    335,  2657,  193,  11885, 484,   114,   2095,  10939, 735,  12736, 1023,  676,   1994, 15944, 12344, 820,
    4275, 1009,  1204, 4995,  637,   3758,  3302,  11240, 121,  3646,  10955, 13714, 69,   7691,  14761, 12923,
    146,  14076, 8899, 6118,  916,   232,   5461,  10721, 279,  1270,  745,   11176, 80,   3707,  1930,  74,
    3453, 69,    4280, 1099,  11058, 92,    6796,  92,    431,  695,   13573, 1446,  268,  244,   8810,  223,
};

enum { RAGGED = sizeof ragged / sizeof *ragged };

#define DECODES(COUNT, LENGTH)                                                                                         \
    {                                                                                                                  \
        {                                                                                                              \
            COUNT, 1, LENGTH                                                                                           \
        }                                                                                                              \
    }
#define GQA  .num_heads = 32, .num_kv_heads = 8, .head_dim = 128
#define MHA  .num_heads = 32, .num_kv_heads = 32, .head_dim = 128
#define GQA8 .num_heads = 64, .num_kv_heads = 8, .head_dim = 128

const struct workload workloads[] = {
    {"D1", "decode, 64 sequences of 4096", GQA, .block_size = 32, .runs = DECODES(64, 4096), .bound_by_memory = true},
    {"D2", "decode, 32 sequences of 4096, as many KV heads as heads", MHA, .block_size = 32, .runs = DECODES(32, 4096),
     .bound_by_memory = true},
    {"D3", "decode, one sequence of 131072", GQA, .block_size = 32, .runs = DECODES(1, 131072),
     .bound_by_memory = true},
    {"D4", "ragged decode, 128 sequences from 64 to 16384", GQA8, .block_size = 32, .kv_lens = ragged,
     .num_kv_lens = RAGGED, .bound_by_memory = true},
    {"D5", "decode, 8 sequences of 1024", GQA, .block_size = 32, .runs = DECODES(8, 1024), .bound_by_memory = true},
    {"D7", "D1 with blocks of 16 tokens", GQA, .block_size = 16, .runs = DECODES(64, 4096), .bound_by_memory = true},
    {"P1", "causal prefill, 1 x 8192", GQA, .block_size = 32, .runs = {{1, 8192, 8192}}},
    {"P2", "causal prefill of 512, 1024, ... 4096", GQA, .block_size = 32,
     .runs = {{1, 512, 512},
              {1, 1024, 1024},
              {1, 1536, 1536},
              {1, 2048, 2048},
              {1, 2560, 2560},
              {1, 3072, 3072},
              {1, 3584, 3584},
              {1, 4096, 4096}}},
    {"P3", "causal prefill, 1 x 16384", GQA, .block_size = 32, .runs = {{1, 16384, 16384}}},
    {"M1", "a chunk of 2048 on a context of 4096, with 63 decodes at 4096", GQA, .block_size = 32,
     .runs = {{1, 2048, 6144}, {63, 1, 4096}}},
    {"C1", "64 decodes that share 16384 tokens and have 512 of their own", GQA, .block_size = 32,
     .runs = DECODES(64, 16896), .shared_prefix = 16384, .bound_by_memory = true},
    {"B8", "decode, 8 sequences from 128 to 16384", GQA, .block_size = 32,
     .runs =
         {{1, 1, 128}, {1, 1, 256}, {1, 1, 512}, {1, 1, 1024}, {1, 1, 2048}, {1, 1, 4096}, {1, 1, 8192}, {1, 1, 16384}},
     .bound_by_memory = true},
    {"S1", "causal prefill, 1 x 1024: small enough for a CPU", GQA, .block_size = 32, .runs = {{1, 1024, 1024}}},
};

const uint32_t num_workloads = sizeof workloads / sizeof *workloads;

const struct workload *workload_find(const char *name)
{
    for (uint32_t i = 0; i < num_workloads; i++) {
        if (strcmp(workloads[i].name, name) == 0)
            return &workloads[i];
    }
    return NULL;
}

uint32_t workload_num_seqs(const struct workload *workload)
{
    uint32_t count = workload->num_kv_lens;
    for (const struct run_of *run = workload->runs; !workload->kv_lens && run->count; run++)
        count += run->count;
    return count;
}

void workload_seq(const struct workload *workload, uint32_t seq, uint32_t *q_len, uint32_t *kv_len)
{
    const struct run_of *run = workload->runs;
    if (workload->kv_lens) {
        *q_len = 1;
        *kv_len = workload->kv_lens[seq];
        return;
    }
    for (; seq >= run->count; run++)
        seq -= run->count;
    *q_len = run->q_len;
    *kv_len = run->kv_len;
}

double workload_bytes(const struct workload *workload, enum dtype kv_dtype)
{
    double tokens = workload->shared_prefix;
    for (uint32_t s = 0; s < workload_num_seqs(workload); s++) {
        uint32_t q_len, kv_len;
        workload_seq(workload, s, &q_len, &kv_len);
        tokens += kv_len - workload->shared_prefix;
    }
    return tokens * 2 * workload->num_kv_heads * workload->head_dim * dtype_size(kv_dtype);
}

double workload_flops(const struct workload *workload)
{
    double pairs = 0;
    for (uint32_t s = 0; s < workload_num_seqs(workload); s++) {
        uint32_t q_len, kv_len;
        workload_seq(workload, s, &q_len, &kv_len);
        pairs += (double)q_len * (kv_len - q_len) + (double)q_len * (q_len + 1) / 2;
    }
    return 4.0 * workload->num_heads * workload->head_dim * pairs;
}
