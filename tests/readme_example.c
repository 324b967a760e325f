// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// readme_example.c - one attention layer over a paged KV cache that other processes share. README.md shows this file;
// tests build it against an installed aule and run it twice against a daemon: the second run finds what the first published.
//
//     cc readme_example.c $(pkg-config --cflags --libs aule-client) -o example && ./example

#include <aule/aule.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 64, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 64, BLOCK = 32, BLOCKS = TOKENS / BLOCK };

static void check(enum aule_status status, const char *what)
{
    if (status == AULE_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, aule_status_name(status), aule_error());
    exit(1);
}

// Stands for your model: what it computes as q, k and v for each token.
static void fill(struct aule_session *session, const struct aule_tensor *tensor, int heads, float seed)
{
    float *data = aule_tensor_data(session, tensor);
    for (int i = 0; i < TOKENS * heads * HEAD_DIM; i++)
        data[i] = (float)(i % 31) / 31 - seed;
}

int main(void)
{
    // The session: a connection to the daemon ($AULE_SOCKET, or the default place) and shared memory for tensors.
    struct aule_session *session;
    check(aule_session_open(NULL, &session), "session");

    // The cache: sessions that open the same name, with the same shapes and fingerprint, share its blocks.
    const struct aule_cache_params cache_params = {.name = "example",
                                                   .num_layers = 1,
                                                   .num_kv_heads = KV_HEADS,
                                                   .head_dim = HEAD_DIM,
                                                   .block_size = BLOCK,
                                                   .fingerprint = "example-1",
                                                   .fingerprint_size = 9};
    struct aule_cache *cache;
    check(aule_cache_open(session, &cache_params, &cache), "cache");

    // Has anybody computed this prompt? Then its blocks are ours to read, and k and v need not be written again.
    int32_t tokens[TOKENS], blocks[BLOCKS];
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = 1000 + i;
    const struct aule_prefix prompt = {.tokens = tokens, .num_tokens = TOKENS};
    uint32_t hit;
    check(aule_prefix_lookup(cache, &prompt, 0, blocks, &hit), "look-up");
    check(hit < BLOCKS ? aule_blocks_lease(cache, BLOCKS - hit, 1000, blocks + hit) : AULE_OK, "lease");
    printf("%u of %d blocks were in the cache\n", hit, BLOCKS);

    // The tensors, in the arena.
    struct aule_tensor q, k, v, out;
    check(aule_tensor_create(session, AULE_F32, TOKENS, HEADS, HEAD_DIM, &q), "q");
    check(aule_tensor_create(session, AULE_F32, TOKENS, KV_HEADS, HEAD_DIM, &k), "k");
    check(aule_tensor_create(session, AULE_F32, TOKENS, KV_HEADS, HEAD_DIM, &v), "v");
    check(aule_tensor_create(session, AULE_F32, TOKENS, HEADS, HEAD_DIM, &out), "out");
    fill(session, &q, HEADS, 0.4f);
    fill(session, &k, KV_HEADS, 0.5f);
    fill(session, &v, KV_HEADS, 0.6f);

    // The batch: one sequence of TOKENS queries over TOKENS keys. slots say where the new k and v go; -1 = nowhere.
    const int32_t cu_seqlens_q[] = {0, TOKENS}, seq_lens_kv[] = {TOKENS};
    int64_t slots[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++)
        slots[i] = i / BLOCK < hit ? -1 : (int64_t)blocks[i / BLOCK] * BLOCK + i % BLOCK;
    const struct aule_batch_params batch_params = {.num_seqs = 1,
                                                   .max_blocks = BLOCKS,
                                                   .cu_seqlens_q = cu_seqlens_q,
                                                   .seq_lens_kv = seq_lens_kv,
                                                   .block_table = blocks,
                                                   .slot_mapping = slots};
    struct aule_batch *batch;
    check(aule_batch_create(cache, &batch_params, &batch), "batch");

    // The run: write k and v, then attend. Once for each layer; here there is one.
    const struct aule_run_params run = {
        .layer = 0, .num_heads = HEADS, .q = q, .k = k, .v = v, .out = out, .causal = true};
    struct aule_run_result result;
    check(aule_run(batch, &run, 10000, &result), "run");
    const float *row = aule_tensor_data(session, &out);
    printf("out[63][0] begins %.6f %.6f %.6f\n", row[63 * HEADS * HEAD_DIM], row[63 * HEADS * HEAD_DIM + 1],
           row[63 * HEADS * HEAD_DIM + 2]);
    printf("%u run(s) shared the dispatch\n", result.num_runs);

    // Publish: from now on these blocks are sealed, and any session of this user finds them by their tokens.
    aule_batch_destroy(batch);
    if (hit < BLOCKS) {
        uint32_t existing; // somebody may have published the same meanwhile: then we got his blocks in place of ours
        check(aule_prefix_publish(cache, &prompt, blocks, &existing), "publish");
        printf("published %u blocks\n", BLOCKS - hit - existing);
    }

    aule_cache_close(cache); // gives back what the session holds of it; the published blocks stay cached
    aule_session_close(session);
    return 0;
}
