// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// shape.c - see shape.h.

#include "shape.h"

#include "values.h"

#include <stdio.h>
#include <stdlib.h>

static bool no_memory(void)
{
    fprintf(stderr, "aule-bench: no host memory\n");
    return false;
}

static uint32_t blocks_of(const struct shape *shape, uint32_t tokens)
{
    return (tokens + shape->workload->block_size - 1) / shape->workload->block_size;
}

static bool make_lengths(struct shape *shape, uint32_t first)
{
    shape->cu_seqlens_q = calloc(shape->num_seqs + 1, sizeof(int32_t));
    shape->seq_lens_kv = calloc(shape->num_seqs, sizeof(int32_t));
    if (!shape->cu_seqlens_q || !shape->seq_lens_kv)
        return no_memory();
    for (uint32_t s = 0; s < shape->num_seqs; s++) {
        uint32_t q_len, kv_len;
        workload_seq(shape->workload, first + s, &q_len, &kv_len);
        shape->cu_seqlens_q[s + 1] = shape->cu_seqlens_q[s] + (int32_t)q_len;
        shape->seq_lens_kv[s] = (int32_t)kv_len;
        if (blocks_of(shape, kv_len) > shape->max_blocks)
            shape->max_blocks = blocks_of(shape, kv_len);
    }
    shape->num_tokens = (uint32_t)shape->cu_seqlens_q[shape->num_seqs];
    return true;
}

// Numbers from `first` on, shuffled, so that the blocks of a sequence do not lie together.
static void scatter(int32_t *blocks, uint32_t first, uint32_t count)
{
    uint64_t state = 0x1234567;
    for (uint32_t i = 0; i < count; i++)
        blocks[i] = (int32_t)(first + i);
    for (uint32_t i = count; i > 1; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t other = (uint32_t)((state >> 33) % i);
        int32_t held = blocks[i - 1];
        blocks[i - 1] = blocks[other];
        blocks[other] = held;
    }
}

static bool make_table(struct shape *shape)
{
    uint32_t prefix = shape->workload->shared_prefix / shape->workload->block_size, next = prefix;
    for (uint32_t s = 0; s < shape->num_seqs; s++)
        next += blocks_of(shape, (uint32_t)shape->seq_lens_kv[s]) - prefix;
    shape->num_blocks = shape->num_contents = next;
    int32_t *blocks = malloc(shape->num_blocks * sizeof *blocks);
    shape->block_table = malloc((size_t)shape->num_seqs * shape->max_blocks * sizeof(int32_t));
    if (!blocks || !shape->block_table) {
        free(blocks);
        return no_memory();
    }
    scatter(blocks, 0, prefix);
    scatter(blocks + prefix, prefix, shape->num_blocks - prefix);
    next = prefix;
    for (uint32_t s = 0; s < shape->num_seqs; s++) {
        int32_t *row = shape->block_table + (size_t)s * shape->max_blocks;
        uint32_t has = blocks_of(shape, (uint32_t)shape->seq_lens_kv[s]);
        for (uint32_t i = 0; i < shape->max_blocks; i++)
            row[i] = i < prefix ? blocks[i] : i < has ? blocks[next++] : -1;
    }
    free(blocks);
    return true;
}

bool shape_init(struct shape *shape, const struct workload *workload, uint32_t first,
                uint32_t count)
{
    *shape = (struct shape){.workload = workload, .num_seqs = count};
    return make_lengths(shape, first) && make_table(shape);
}

void shape_finish(struct shape *shape)
{
    free(shape->cu_seqlens_q);
    free(shape->seq_lens_kv);
    free(shape->block_table);
    *shape = (struct shape){0};
}

uint32_t shape_seq_of(const struct shape *shape, uint32_t token)
{
    uint32_t seq = 0;
    while ((uint32_t)shape->cu_seqlens_q[seq + 1] <= token)
        seq++;
    return seq;
}

uint64_t shape_block_elements(const struct shape *shape)
{
    const struct workload *w = shape->workload;
    return (uint64_t)w->num_kv_heads * w->block_size * w->head_dim;
}

uint64_t shape_elements(const struct shape *shape)
{
    return shape_block_elements(shape) * shape->num_blocks;
}

uint64_t shape_query_elements(const struct shape *shape)
{
    return (uint64_t)shape->num_tokens * shape->workload->num_heads * shape->workload->head_dim;
}

uint64_t shape_element(const struct shape *shape, uint32_t seq, uint32_t key, uint32_t kv_head)
{
    const struct workload *w = shape->workload;
    int32_t block = shape->block_table[(size_t)seq * shape->max_blocks + key / w->block_size];
    uint64_t row = ((uint64_t)((uint32_t)block % shape->num_contents) * w->num_kv_heads + kv_head) *
                       w->block_size +
                   key % w->block_size;
    return row * w->head_dim;
}

int64_t shape_last_slot(const struct shape *shape, uint32_t seq, const int32_t *blocks)
{
    uint32_t size = shape->workload->block_size, last = (uint32_t)shape->seq_lens_kv[seq] - 1;
    int32_t block = shape->block_table[(size_t)seq * shape->max_blocks + last / size];
    return (int64_t)(blocks ? blocks[block] : block) * size + last % size;
}

uint64_t shape_stream(uint32_t set, enum shape_part part)
{
    return 1 + (uint64_t)set * SHAPE_PARTS + part;
}

uint64_t shape_newest_elements(const struct shape *shape)
{
    return (uint64_t)shape->num_seqs * shape->workload->num_kv_heads * shape->workload->head_dim;
}

void shape_newest(const struct shape *shape, enum dtype dtype, uint32_t set, enum shape_part part,
                  void *rows)
{
    const struct workload *w = shape->workload;
    uint64_t row_bytes = w->head_dim * dtype_size(dtype);
    for (uint32_t i = 0; i < shape->num_seqs * w->num_kv_heads; i++) {
        uint32_t seq = i / w->num_kv_heads, last = (uint32_t)shape->seq_lens_kv[seq] - 1;
        uint64_t element = shape_element(shape, seq, last, i % w->num_kv_heads);
        values_fill(dtype, shape_stream(set, part), element, w->head_dim,
                    (char *)rows + i * row_bytes);
    }
}
