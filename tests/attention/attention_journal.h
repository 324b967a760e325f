// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_journal.h - what tests of contiguous attention against a fake daemon have in common: a
// call of two sequences, and a journal of what the fake was asked, which can let a command fail.
// Asserts with check.

#ifndef AULE_TESTS_ATTENTION_JOURNAL_H
#define AULE_TESTS_ATTENTION_JOURNAL_H

#include "rigs/client_world.h"

enum {
    SEQS = 2,
    Q_LEN = 3,
    KV_LEN = 40,
    HEADS = 4,
    KV_HEADS = 2,
    DIM = 16,
    DIM_V = 32,
    BLOCK = 32
};
extern const int32_t kv_lens[SEQS];

// What the fake was asked, one word each, and the last ones of three kinds.
struct journal {
    char words[2000];
    unsigned commands;
    unsigned fail_at; // the command, counted from 1, that fails; 0 = none
    enum status fail_with;
    bool for_good; // and all after it
    bool of_run;   // it is a wait, and succeeds, but the run that it waited for has failed
    bool full;     // a run that attends finds the session full until a ticket is waited for
    struct wire_batch_create import, attend;
    int32_t cu[SEQS + 1], lens[SEQS], q_lens[SEQS], starts[SEQS], table[SEQS * 2],
        import_cu[SEQS + 1];
    int64_t slots[SEQS * KV_LEN];
    struct wire_run_entry write, run;
    char cache[128];
    struct wire_cache_open identity;
};

// A session with a fake that keeps the journal; `threshold` as in struct aule_session_params.
struct aule_session *open_journal(struct journal *journal, uint32_t threshold);
void forget(struct journal *journal);
void expect_words(const struct journal *journal, const char *words);

// Over tensors of the arena: [SEQS, heads, len, dim], heads before tokens.
struct aule_attention_params attention(enum aule_path way);

#endif
