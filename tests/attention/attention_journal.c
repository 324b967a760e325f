// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_journal.c - see attention_journal.h.

#include "attention_journal.h"

#include <stdio.h>
#include <string.h>

const int32_t kv_lens[SEQS] = {40, 33};

static void note(struct journal *journal, const char *word, int64_t number)
{
    size_t used = strlen(journal->words);
    if (number >= 0)
        snprintf(journal->words + used, sizeof journal->words - used, "%s:%lld ", word,
                 (long long)number);
    else
        snprintf(journal->words + used, sizeof journal->words - used, "%s ", word);
}

static void keep_ints(int32_t *to, const struct wire_ints *from, uint32_t room)
{
    ck_assert_uint_le(from->count, room);
    if (from->count > 0)
        memcpy(to, from->data, from->count * sizeof *to);
}

static void note_batch(struct journal *journal, const struct wire_batch_create *batch)
{
    bool import = batch->num_seqs > 0 && batch->seq_lens_kv.count == 0;
    note(journal, batch->has_layout ? "local" : import ? "import" : "batch", -1);
    if (import) {
        journal->import = *batch;
        keep_ints(journal->import_cu, &batch->cu_seqlens_q, SEQS + 1);
        ck_assert_uint_le(batch->slot_mapping.count, SEQS * KV_LEN);
        memcpy(journal->slots, batch->slot_mapping.data,
               batch->slot_mapping.count * sizeof *journal->slots);
        return;
    }
    journal->attend = *batch;
    keep_ints(journal->cu, &batch->cu_seqlens_q, SEQS + 1);
    keep_ints(journal->lens, &batch->seq_lens_kv, SEQS);
    keep_ints(journal->q_lens, &batch->q_lens, SEQS);
    keep_ints(journal->starts, &batch->kv_starts, SEQS);
    keep_ints(journal->table, &batch->block_table, SEQS * 2);
}

static void note_run(struct journal *journal, const struct wire_run_entry *run)
{
    static const char *const kinds[] = {"attend", "write", "gather"};
    char word[16];
    snprintf(word, sizeof word, "%s%s", kinds[run->kind],
             run->flags & WIRE_RUN_DETACHED ? "!" : "");
    note(journal, word, -1);
    *(run->kind == WIRE_RUN_WRITE ? &journal->write : &journal->run) = *run;
}

static void note_request(struct journal *journal, const struct wire_request *request)
{
    switch (request->command) {
    case WIRE_COMMAND_CACHE_OPEN:
        note(journal, "open", -1);
        snprintf(journal->cache, sizeof journal->cache, "%s", request->cache_open.name);
        journal->identity = request->cache_open;
        break;
    case WIRE_COMMAND_CACHE_CLOSE: note(journal, "close", -1); break;
    case WIRE_COMMAND_BLOCKS_LEASE: note(journal, "lease", request->blocks_lease.count); break;
    case WIRE_COMMAND_BLOCKS_RELEASE:
        note(journal, "release", request->blocks_release.blocks.count);
        break;
    case WIRE_COMMAND_BATCH_CREATE: note_batch(journal, &request->batch_create); break;
    case WIRE_COMMAND_BATCH_DESTROY: note(journal, "end", -1); break;
    case WIRE_COMMAND_RUN: note_run(journal, &request->run.entry); break;
    case WIRE_COMMAND_WAIT: note(journal, "wait", (int64_t)request->wait.ticket); break;
    default: break;
    }
}

static const char *message_of(const struct journal *journal)
{
    return journal->for_good && journal->commands > journal->fail_at ? "and another"
                                                                     : "as the test wants it";
}

static enum fake_action keep(struct fake_daemon *daemon, const struct wire_request *request,
                             struct wire_reply *reply)
{
    struct journal *journal = daemon->context;
    enum status status = STATUS_OK;
    if (request->command == WIRE_COMMAND_HELLO || request->command == WIRE_COMMAND_MAPPED ||
        request->command == WIRE_COMMAND_CLOSE_SESSION)
        return FAKE_ANSWER;
    note_request(journal, request);
    journal->commands++;
    if (journal->commands == journal->fail_at ||
        (journal->for_good && journal->commands > journal->fail_at))
        status = journal->fail_with;
    if (journal->full && request->command == WIRE_COMMAND_WAIT)
        journal->full = false;
    if (journal->full && request->command == WIRE_COMMAND_RUN &&
        request->run.entry.kind == WIRE_RUN_ATTEND)
        status = STATUS_BUSY;
    if (status != STATUS_OK && journal->of_run) {
        ck_assert_int_eq(request->command, WIRE_COMMAND_WAIT);
        reply->wait.run_status = status;
        reply->wait.run_message = message_of(journal);
    } else if (status != STATUS_OK) {
        *reply = (struct wire_reply){
            .status = status, .message = message_of(journal), .answer = WIRE_ANSWER_EMPTY};
    }
    return FAKE_ANSWER;
}

void forget(struct journal *journal)
{
    *journal = (struct journal){.commands = 0};
}

void expect_words(const struct journal *journal, const char *words)
{
    ck_assert_str_eq(journal->words, words);
}

// A tensor by hand: [SEQS, heads, len, dim], heads before tokens.
static struct aule_tensor tensor_at(uint64_t offset, uint32_t heads, uint32_t len, uint32_t dim)
{
    return (struct aule_tensor){.dtype = AULE_F16,
                                .offset = offset,
                                .token_stride = 2 * (uint64_t)dim,
                                .head_stride = 2 * (uint64_t)dim * len,
                                .outer_stride = 2 * (uint64_t)dim * len * heads};
}

struct aule_attention_params attention(enum aule_path way)
{
    return (struct aule_attention_params){.num_seqs = SEQS,
                                          .q_len = Q_LEN,
                                          .kv_len = KV_LEN,
                                          .num_kv_heads = KV_HEADS,
                                          .head_dim = DIM,
                                          .head_dim_v = DIM_V,
                                          .kv_lens = kv_lens,
                                          .path = way,
                                          .run = {.layer = 3, // not used
                                                  .num_heads = HEADS,
                                                  .q = tensor_at(0, HEADS, Q_LEN, DIM),
                                                  .k = tensor_at(4096, KV_HEADS, KV_LEN, DIM),
                                                  .v = tensor_at(16384, KV_HEADS, KV_LEN, DIM_V),
                                                  .out = tensor_at(65536, HEADS, Q_LEN, DIM_V),
                                                  .causal = true,
                                                  .scale = 0.25f}};
}

struct aule_session *open_journal(struct journal *journal, uint32_t threshold)
{
    struct aule_session *session = NULL;
    const struct aule_session_params params = {.socket = path, .paged_threshold = threshold};
    fake_start(&fake, path, keep, journal);
    ck_assert_int_eq(aule_session_open(&params, &session), AULE_OK);
    return session;
}
