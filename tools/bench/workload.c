// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// workload.c - the table of workloads, and the other names. Names and shapes are fixed, because
// results of different days are compared by them.

#include "workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// Log-uniform from 64 to 16384, drawn once.
static const uint32_t ragged[] = {
    2188,  285,   80,    70,    5817,  10099, 1849,  3655, 1304,  11430, 5901, 64,   7430,
    77,    3659,  169,   7672,  1288,  337,   666,   74,   127,   2637,  2316, 1941, 537,
    16132, 14732, 2865,  2358,  2911,  553,   135,   3497, 1178,  357,   946,  8877, 11365,
    465,   1522,  381,   1727,  416,   561,   8916,  225,  2027,  101,   6477, 5031, 241,
    8259,  88,    412,   147,   777,   5295,  229,   85,   603,   192,   105,  1598, 335,
    2657,  193,   11885, 484,   114,   2095,  10939, 735,  12736, 1023,  676,  1994, 15944,
    12344, 820,   4275,  1009,  1204,  4995,  637,   3758, 3302,  11240, 121,  3646, 10955,
    13714, 69,    7691,  14761, 12923, 146,   14076, 8899, 6118,  916,   232,  5461, 10721,
    279,   1270,  745,   11176, 80,    3707,  1930,  74,   3453,  69,    4280, 1099, 11058,
    92,    6796,  92,    431,   695,   13573, 1446,  268,  244,   8810,  223,
};

enum { RAGGED = sizeof ragged / sizeof *ragged };

// clang-format off
#define DECODES(COUNT, LENGTH) {{COUNT, 1, LENGTH}}
#define GQA     .num_heads = 32, .num_kv_heads = 8, .head_dim = 128, .block_size = 32
#define MHA     .num_heads = 32, .num_kv_heads = 32, .head_dim = 128, .block_size = 32
#define GQA8    .num_heads = 64, .num_kv_heads = 8, .head_dim = 128, .block_size = 32
#define STUDY   .is_study = true
#define MEMORY  .bound_by_memory = true

const struct workload workloads[] = {
    {"D1", "decode, 64 sequences of 4096", GQA, .runs = DECODES(64, 4096), MEMORY},
    {"D2", "decode, 32 sequences of 4096, as many KV heads as heads", MHA, .runs = DECODES(32, 4096), MEMORY},
    {"D3", "decode, one sequence of 131072", GQA, .runs = DECODES(1, 131072), MEMORY},
    {"D4", "ragged decode, 128 sequences from 64 to 16384", GQA8, .kv_lens = ragged, .num_kv_lens = RAGGED, MEMORY},
    {"D5", "decode, 8 sequences of 1024", GQA, .runs = DECODES(8, 1024), MEMORY},
    {"D6", "D1 with K and V in fp8 e4m3", GQA, .runs = DECODES(64, 4096), .kv_dtype = DTYPE_FP8_E4M3, MEMORY},
    {"D6", "D1 with K and V in int8", GQA, .runs = DECODES(64, 4096), .kv_dtype = DTYPE_INT8, MEMORY},
    {"D7", "D1 with blocks of 16 tokens", .num_heads = 32, .num_kv_heads = 8, .head_dim = 128, .block_size = 16,
     .runs = DECODES(64, 4096), MEMORY},
    {"P1", "causal prefill, 1 x 8192", GQA, .runs = {{1, 8192, 8192}}},
    {"P2", "causal prefill of 512, 1024, ... 4096", GQA,
     .runs = {{1, 512, 512}, {1, 1024, 1024}, {1, 1536, 1536}, {1, 2048, 2048}, {1, 2560, 2560}, {1, 3072, 3072},
              {1, 3584, 3584}, {1, 4096, 4096}}},
    {"P3", "causal prefill, 1 x 16384", GQA, .runs = {{1, 16384, 16384}}},
    {"P4", "a chunk of 2048 on a context of 14336", GQA, .runs = {{1, 2048, 16384}}},
    {"M1", "a chunk of 2048 on a context of 4096, with 63 decodes at 4096", GQA,
     .runs = {{1, 2048, 6144}, {63, 1, 4096}}},
    {"C1", "64 decodes that share 16384 tokens and have 512 of their own", GQA, .runs = DECODES(64, 16896),
     .shared_prefix = 16384, MEMORY},
    {"S1", "causal prefill, 1 x 1024: small enough for a CPU", GQA, .runs = {{1, 1024, 1024}}},
    {"border", "a decode of one sequence of 16 by a daemon's lanes, beside an engine in this process", STUDY},
    {"clients", "D1 among 1 to 8 clients of a daemon, and among 8 owners of an engine", STUDY},
    {"growth", "what checks, submissions, leases and releases cost as they grow", STUDY},
    {"cached", "a look-up, an append, a fork and an eviction with 100 to 1,000,000 cached blocks", STUDY},
    {"isolation", "a light neighbour's decode alone, and beside heavy work of each kind", STUDY},
};
// clang-format on

const uint32_t num_workloads = sizeof workloads / sizeof *workloads;

// ---- names ----

static bool add(struct selection *selection, const struct workload *workload)
{
    struct workload *list = realloc(selection->list, (selection->count + 1) * sizeof *list);
    if (!list) {
        fprintf(stderr, "aule-bench: no host memory\n");
        return false;
    }
    selection->list = list;
    list[selection->count++] = *workload;
    return true;
}

// A row of the table is taken once, even if it is named several times.
static bool has(const struct selection *selection, const char *name)
{
    for (uint32_t i = 0; i < selection->count; i++) {
        if (strcmp(selection->list[i].name, name) == 0)
            return true;
    }
    return false;
}

// "all" are the workloads, "sharing" the studies.
static bool means(const char *name, const struct workload *workload)
{
    return strcmp(name, workload->name) == 0 ||
           strcmp(name, workload->is_study ? "sharing" : "all") == 0;
}

static bool add_rows(struct selection *selection, const char *name, bool *known)
{
    bool before[sizeof workloads / sizeof *workloads];
    for (uint32_t i = 0; i < num_workloads; i++)
        before[i] = has(selection, workloads[i].name);
    for (uint32_t i = 0; i < num_workloads; i++) {
        if (!means(name, &workloads[i]))
            continue;
        *known = true;
        if (!before[i] && !add(selection, &workloads[i]))
            return false;
    }
    return true;
}

// NAME:NxLENGTH.
static const char *const shaped[] = {"decode", "prefill"};
enum { NUM_SHAPED = sizeof shaped / sizeof *shaped };

static bool add_made(struct selection *selection, bool prefill, uint32_t num_seqs, uint32_t length)
{
    struct workload workload = {.what = prefill ? "causal prefill" : "decode",
                                GQA,
                                .runs = {{num_seqs, prefill ? length : 1, length}},
                                .bound_by_memory = !prefill};
    snprintf(workload.name, sizeof workload.name, "%s:%ux%u", shaped[prefill], num_seqs, length);
    return add(selection, &workload);
}

static bool add_shape(struct selection *selection, const char *name, bool *known)
{
    for (int prefill = 0; prefill < NUM_SHAPED; prefill++) {
        unsigned num_seqs, length;
        int end = 0;
        size_t skip = strlen(shaped[prefill]);
        if (strncmp(name, shaped[prefill], skip) != 0 ||
            sscanf(name + skip, ":%6ux%8u%n", &num_seqs, &length, &end) != 2 ||
            name[skip + (size_t)end] != 0 || !num_seqs || !length)
            continue;
        *known = true;
        return add_made(selection, prefill == 1, num_seqs, length);
    }
    return true;
}

// shared:NxPREFIX+OWN. A prefix is shared in whole blocks.
static bool add_shared(struct selection *selection, const char *name, bool *known)
{
    struct workload workload = {.what = "decode with a shared prefix", GQA, MEMORY};
    unsigned num_seqs, prefix, own;
    int end = 0;
    if (sscanf(name, "shared:%6ux%8u+%8u%n", &num_seqs, &prefix, &own, &end) != 3 || name[end] ||
        !num_seqs || !prefix || !own || prefix % workload.block_size)
        return true;
    if (num_seqs > 999999 || prefix > 99999999 || own > 99999999) // the name would be too long
        return true;
    *known = true;
    workload.runs[0] = (struct run_of){num_seqs, 1, prefix + own};
    workload.shared_prefix = prefix;
    snprintf(workload.name, sizeof workload.name, "shared:%ux%u+%u", num_seqs, prefix, own);
    return add(selection, &workload);
}

static void say_unknown(const char *name)
{
    for (uint32_t i = 0; i < num_workloads; i++) {
        if (strcasecmp(name, workloads[i].name) != 0)
            continue;
        fprintf(stderr, "aule-bench: there is no workload '%s'; did you mean '%s'?\n", name,
                workloads[i].name);
        return;
    }
    for (int i = 0; i < NUM_SHAPED; i++) {
        if (strncmp(name, shaped[i], strlen(shaped[i])) != 0)
            continue;
        fprintf(stderr,
                "aule-bench: '%s' is not %s:NxLENGTH, N sequences (1 to 999999) of LENGTH tokens "
                "(1 to 99999999)\n",
                name, shaped[i]);
        return;
    }
    if (strncmp(name, "shared", strlen("shared")) == 0)
        fprintf(stderr,
                "aule-bench: '%s' is not shared:NxPREFIX+OWN, N sequences (1 to 999999) that share "
                "PREFIX tokens (a multiple of 32) and have OWN more (1 to 99999999)\n",
                name);
    else
        fprintf(stderr, "aule-bench: there is no workload '%s'; aule-bench list has them\n", name);
}

bool selection_add(struct selection *selection, const char *name)
{
    bool known = false;
    if (!add_rows(selection, name, &known) || !add_shape(selection, name, &known) ||
        !add_shared(selection, name, &known))
        return false;
    if (!known)
        say_unknown(name);
    return known;
}

void selection_shape(struct selection *selection, uint32_t head_dim)
{
    for (uint32_t i = 0; head_dim && i < selection->count; i++)
        selection->list[i].head_dim = head_dim;
}

void selection_finish(struct selection *selection)
{
    free(selection->list);
    *selection = (struct selection){0};
}

// ---- sequences ----

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

enum dtype workload_kv_dtype(const struct workload *workload, enum dtype dtype, enum dtype asked)
{
    if (workload->kv_dtype)
        return workload->kv_dtype;
    return asked ? asked : dtype;
}

static double token_bytes(const struct workload *workload, enum dtype dtype)
{
    return 2.0 * workload->num_kv_heads * workload->head_dim * dtype_size(dtype);
}

double workload_bytes(const struct workload *workload, enum dtype kv_dtype)
{
    double tokens = workload->shared_prefix;
    for (uint32_t s = 0; s < workload_num_seqs(workload); s++) {
        uint32_t q_len, kv_len;
        workload_seq(workload, s, &q_len, &kv_len);
        tokens += kv_len - workload->shared_prefix;
    }
    return tokens * token_bytes(workload, kv_dtype);
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
