// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// example.c - README's example as it was in 0.1: one attention layer over a paged KV cache that
// processes share. A test builds it with 0.1's header and runs it with today's library.

#include <aule/aule.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 64, HEADS = 4, KV_HEADS = 2, DIM = 64, BLOCK = 32, BLOCKS = TOKENS / BLOCK };

static void check(enum aule_status status, const char *what)
{
    if (status == AULE_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, aule_status_name(status), aule_error());
    exit(1);
}

// A tensor [TOKENS, heads, DIM] in the session's arena. Its values stand for those of your model.
static struct aule_tensor tensor(struct aule_session *session, uint32_t heads, float seed)
{
    struct aule_tensor tensor;
    check(aule_tensor_create(session, AULE_F32, TOKENS, heads, DIM, &tensor), "tensor");
    float *data = aule_tensor_data(session, &tensor);
    for (uint32_t i = 0; i < TOKENS * heads * DIM; i++)
        data[i] = (float)(i % 31) / 31 - seed;
    return tensor;
}

int main(void)
{
    struct aule_session *session; // a connection to the daemon, and shared memory for tensors
    check(aule_session_open(NULL, &session), "session");

    // Sessions that open the same name share the cache's blocks.
    const struct aule_cache_params cache_params = {.name = "example",
                                                   .num_layers = 1,
                                                   .num_kv_heads = KV_HEADS,
                                                   .head_dim = DIM,
                                                   .block_size = BLOCK};
    struct aule_cache *cache;
    check(aule_cache_open(session, &cache_params, &cache), "cache");

    // Take the blocks of this prompt that a process has published; lease the others.
    int32_t tokens[TOKENS], blocks[BLOCKS];
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = 1000 + i;
    const struct aule_prefix prompt = {.tokens = tokens, .num_tokens = TOKENS};
    uint32_t hit;
    check(aule_prefix_lookup(cache, &prompt, 0, blocks, &hit), "look-up");
    if (hit < BLOCKS)
        check(aule_blocks_lease(cache, BLOCKS - hit, 1000, blocks + hit), "lease");
    printf("%u of %d blocks were in the cache\n", hit, BLOCKS);

    // One step: a sequence of TOKENS queries. A slot says where K and V go; -1 is nowhere.
    int64_t slots[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++)
        slots[i] = i / BLOCK < hit ? -1 : (int64_t)blocks[i / BLOCK] * BLOCK + i % BLOCK;
    const struct aule_batch_params step = {.num_seqs = 1,
                                           .max_blocks = BLOCKS,
                                           .cu_seqlens_q = (int32_t[]){0, TOKENS},
                                           .seq_lens_kv = (int32_t[]){TOKENS},
                                           .block_table = blocks,
                                           .slot_mapping = slots};
    struct aule_batch *batch;
    check(aule_batch_create(cache, &step, &batch), "batch");

    // Write K and V, then attend. A model does this once for each layer.
    const struct aule_run_params run = {.num_heads = HEADS,
                                        .q = tensor(session, HEADS, 0.4f),
                                        .k = tensor(session, KV_HEADS, 0.5f),
                                        .v = tensor(session, KV_HEADS, 0.6f),
                                        .out = tensor(session, HEADS, 0),
                                        .causal = true};
    check(aule_run(batch, &run, 10000, NULL), "run");
    const float *out = aule_tensor_data(session, &run.out);
    printf("out[1][0] begins %.6f %.6f\n", out[HEADS * DIM], out[HEADS * DIM + 1]);

    // Publish the new blocks: other processes find them by their tokens from now on.
    aule_batch_destroy(batch);
    if (hit < BLOCKS)
        check(aule_prefix_publish(cache, &prompt, blocks, NULL), "publish");
    aule_cache_close(cache); // published blocks stay cached
    aule_session_close(session);
    return 0;
}
