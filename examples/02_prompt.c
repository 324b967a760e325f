// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// 02_prompt.c - one attention layer over a paged KV cache that processes share.
// README.md shows main(). A test builds this file against an installed aule and runs it twice:
// the second run finds the blocks that the first one published.
//
//     cc 02_prompt.c $(pkg-config --cflags --libs aule-client) -o example && ./example

#include <aule/sequence.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 64, HEADS = 4, KV_HEADS = 2, DIM = 64 };

static void check(enum aule_status status, const char *what)
{
    if (status == AULE_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, aule_status_name(status), aule_error());
    exit(1);
}

// A tensor [TOKENS, heads, DIM] in the session's arena. Its first row is that of token `first`; its
// values stand for those of your model.
static struct aule_tensor fill(struct aule_session *session, uint32_t heads, uint32_t first,
                               float seed)
{
    struct aule_tensor tensor;
    check(aule_tensor_create(session, AULE_F32, TOKENS, heads, DIM, &tensor), "tensor");
    float *data = aule_tensor_data(session, &tensor);
    for (uint32_t i = 0; i < TOKENS * heads * DIM; i++)
        data[i] = (float)((i + first * heads * DIM) % 31) / 31 - seed;
    return tensor;
}

static struct aule_run_params fill_tensors(struct aule_session *session, uint32_t first)
{
    return (struct aule_run_params){.num_heads = HEADS,
                                    .q = fill(session, HEADS, first, 0.4f),
                                    .k = fill(session, KV_HEADS, first, 0.5f),
                                    .v = fill(session, KV_HEADS, first, 0.6f),
                                    .out = fill(session, HEADS, first, 0),
                                    .causal = true};
}

int main(void)
{
    struct aule_session *session; // a connection to the daemon, and shared memory for tensors
    check(aule_session_open(NULL, &session), "session");
    // Sessions that open the same name share the cache's blocks.
    const struct aule_cache_params cache_params = {
        .name = "example", .num_layers = 1, .num_kv_heads = KV_HEADS, .head_dim = DIM};
    struct aule_cache *cache;
    check(aule_cache_open(session, &cache_params, &cache), "cache");

    // A sequence takes what others have published of its prompt, and publishes what it computes.
    int32_t tokens[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = 1000 + i;
    const struct aule_sequence_params prompt = {
        .tokens = tokens, .num_tokens = TOKENS, .publish = true, .claim = true};
    struct aule_sequence *sequence;
    struct aule_sequence_info info;
    check(aule_sequence_create(cache, &prompt, &sequence), "sequence");
    do // wait for what others compute now
        check(aule_sequence_info(sequence, &info), "info");
    while (info.num_promised > 0 && aule_sequence_wait(sequence, 10000) == AULE_OK);
    printf("%u of %d tokens were in the cache\n", info.num_found, TOKENS);

    // One step: all tokens that are not computed yet. A model runs it once for each layer.
    struct aule_step *step;
    struct aule_step_entry entry = {.sequence = sequence};
    check(aule_step_create(cache, &step), "step");
    check(aule_step_make(step, &entry, 1, 1000), "blocks");
    const struct aule_run_params run = fill_tensors(session, info.num_computed);
    check(aule_run(aule_step_batch(step), &run, 60000, NULL), "run");
    const float *out = aule_tensor_data(session, &run.out);
    printf("the last token's out begins %.6f\n", out[(entry.num_tokens - 1) * HEADS * DIM]);

    aule_step_destroy(step);
    aule_sequence_destroy(sequence); // its published blocks stay cached
    aule_cache_close(cache);
    aule_session_close(session);
    return 0;
}
