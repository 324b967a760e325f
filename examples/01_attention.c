// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// 01_attention.c - attention over keys and values in shared memory: no cache, no blocks. All values
// are equal here, so the output must equal them, too.
//
//     cc 01_attention.c $(pkg-config --cflags --libs aule-client) -o example && ./example

#include <aule/aule.h>
#include <stdio.h>
#include <stdlib.h>

enum { QUERIES = 4, KEYS = 16, HEADS = 4, KV_HEADS = 2, DIM = 64 };

static void check(enum aule_status status, const char *what)
{
    if (status == AULE_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, aule_status_name(status), aule_error());
    exit(1);
}

// A tensor [rows, heads, DIM] in the session's shared memory, full of `value`.
static struct aule_tensor full(struct aule_session *session, uint32_t rows, uint32_t heads,
                               float value)
{
    struct aule_tensor tensor;
    check(aule_tensor_create(session, AULE_F32, rows, heads, DIM, &tensor), "tensor");
    float *data = aule_tensor_data(session, &tensor);
    for (uint32_t i = 0; i < rows * heads * DIM; i++)
        data[i] = value;
    return tensor;
}

int main(void)
{
    struct aule_session *session; // a connection to the daemon, and shared memory for tensors
    check(aule_session_open(NULL, &session), "session");
    const struct aule_attention_params attention = {
        .num_seqs = 1,
        .q_len = QUERIES,
        .kv_len = KEYS,
        .num_kv_heads = KV_HEADS,
        .head_dim = DIM,
        .run = {.num_heads = HEADS,
                .q = full(session, QUERIES, HEADS, 0.5f),
                .k = full(session, KEYS, KV_HEADS, 0.25f),
                .v = full(session, KEYS, KV_HEADS, 3),
                .out = full(session, QUERIES, HEADS, 0),
                .causal = true},
    };
    check(aule_attention(session, &attention, 60000, NULL, NULL), "attention");
    const float *out = aule_tensor_data(session, &attention.run.out);
    const float last = out[QUERIES * HEADS * DIM - 1];
    printf("the last element of out is %.6f\n", last);
    aule_session_close(session);
    return last > 2.999f && last < 3.001f ? 0 : 1;
}
