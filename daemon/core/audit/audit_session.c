// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// audit_session.c - see audit_session.h.

#include "audit_session.h"

#include "base/clock.h"
#include "base/list.h"
#include "core/pool/claim.h"
#include "core/pool/hold.h"
#include "core/pool/tenant.h"
#include "core/runs/run.h"
#include "core/state.h"
#include "core/steps/making.h"

#include <inttypes.h>

bool audit_first_mention(const struct core_session *session, const struct run *run)
{
    const struct run *earlier;
    if (run->over || !run->batch)
        return false;
    const struct batch *found;
    HASH_FIND(hh, session->batches, &run->batch->id, sizeof run->batch->id, found);
    if (found == run->batch) // registered; else `found` is a later step
        return false;
    for (earlier = session->runs.list; earlier != run; earlier = earlier->next) {
        if (!earlier->over && earlier->batch == run->batch)
            return false;
    }
    return true;
}

const struct batch *audit_kept_by(const struct core_draft *draft)
{
    const struct core_session *session = draft->session;
    const struct run *run;
    if (!draft->old || !session->closed)
        return NULL;
    LIST_EACH(session->runs.list, run) {
        if (!run->over && run->batch == draft->old)
            return NULL;
    }
    return draft->old;
}

static uint64_t count_entries(const struct hold_table *table)
{
    uint64_t entries = 0;
    for (uint32_t page = 0; page < table->num_pages; page++) {
        for (uint32_t i = 0; table->pages[page] && i < table->cache->chunk_blocks; i++)
            entries += hold_is_used(table->pages[page], i);
    }
    return entries;
}

static bool check_counts(const struct core_session *session, const struct hold_page *page,
                         uint32_t number, uint32_t i, struct error *error)
{
    const struct hold_bits *bits = &page->bits[i / 64];
    const uint64_t bit = UINT64_C(1) << (i % 64);
    EXPECT(!(bits->seen & bit),
           "session %" PRIu64 ": page %" PRIu32 " has a seen bit outside a check", session->id,
           number);
    EXPECT(!(page->again[i / 64] & bit) == !page->more_holds[i] &&
               (bits->held & bit || !page->more_holds[i]) &&
               (bits->named & bit || !page->more_refs[i]),
           "session %" PRIu64 ": page %" PRIu32 ": bits and counts of block %" PRIu32 " disagree",
           session->id, number, i);
    return true;
}

static bool check_pages(const struct core_session *session, const struct hold_table *table,
                        struct error *error)
{
    for (uint32_t page = 0; page < table->num_pages; page++) {
        for (uint32_t i = 0; table->pages[page] && i < table->cache->chunk_blocks; i++) {
            if (!check_counts(session, table->pages[page], page, i, error))
                return false;
        }
    }
    return true;
}

// Users of a table are its batches, registered or kept by runs, its copies that are not over, and
// its offers.
static bool check_users(const struct core_session *session, const struct hold_table *table,
                        struct error *error)
{
    const struct run *run;
    uint32_t users = 0;
    for (const struct batch *batch = session->batches; batch; batch = batch->hh.next)
        users += batch->table == table;
    for (const struct offer *offer = session->offers.given; offer; offer = offer->given_next)
        users += offer->table == table;
    LIST_EACH(session->runs.list, run) {
        users += audit_first_mention(session, run) && run->batch->table == table;
        users += run->copy && run->copy->table == table;
    }
    for (const struct core_draft *draft = session->drafts; draft; draft = draft->next)
        users += (draft->table == table) + (draft->table == table && audit_kept_by(draft));
    EXPECT(users == table->num_users,
           "session %" PRIu64 " counts %" PRIu32 " users of cache %" PRIu64 ", has %" PRIu32,
           session->id, table->num_users, table->cache_id, users);
    return true;
}

static uint64_t bytes_of(const struct batch *batch)
{
    uint64_t bytes = batch_bytes(batch) + (batch->mentions ? mentions_bytes(batch->mentions) : 0);
    for (const struct mentions_dropped *dropped = batch->dropped; dropped; dropped = dropped->next)
        bytes += mentions_dropped_bytes(dropped->capacity);
    return bytes;
}

// batch_memory counts batches, registered or kept by runs, runs from queueing until reaping, and
// offers.
static bool check_batch_memory(const struct core_session *session, struct error *error)
{
    const struct run *run;
    uint64_t bytes = 0;
    for (const struct batch *batch = session->batches; batch; batch = batch->hh.next)
        bytes += bytes_of(batch);
    for (const struct offer *offer = session->offers.given; offer; offer = offer->given_next)
        bytes += offer->bytes;
    for (const struct offer *offer = session->offers.taken; offer; offer = offer->taken_next)
        bytes += offer->bytes;
    LIST_EACH(session->runs.list, run) {
        bytes += run->bytes + (audit_first_mention(session, run) ? bytes_of(run->batch) : 0);
        EXPECT(!run->over || (!run->batch && !run->copy),
               "run %" PRIu64 " is over and keeps what it named", run->ticket);
    }
    for (run = session->runs.tickets; run; run = run->hh.next)
        bytes += run->delivered ? run->bytes : 0;
    for (const struct core_draft *draft = session->drafts; draft; draft = draft->next)
        bytes += audit_kept_by(draft) ? bytes_of(draft->old) : 0;
    EXPECT(bytes == session->memory.batches,
           "session %" PRIu64 " counts %" PRIu64 " bytes of batch memory, has %" PRIu64,
           session->id, session->memory.batches, bytes);
    for (const struct hold_table *table = session->tables; table; table = table->hh.next)
        for (const struct claim *claim = table->claims; claim; claim = claim->next)
            bytes += claim->bytes;
    EXPECT(bytes <= session->memory.all, // the caller keeps the rest
           "session %" PRIu64 " counts %" PRIu64 " bytes of memory, has %" PRIu64, session->id,
           session->memory.all, bytes);
    return true;
}

// The sums of sessions that tenants and the pool count.
static bool check_memory(const struct core *core, struct error *error)
{
    uint64_t all = 0;
    for (const struct tenant *tenant = core->pool.tenants; tenant; tenant = tenant->hh.next) {
        uint64_t bytes = 0;
        const struct core_session *session;
        LIST_EACH_BY(tenant->sessions, session, tenant_next) {
            bytes += session->memory.all;
        }
        EXPECT(bytes == tenant->memory,
               "tenant \"%s\" counts %" PRIu64 " bytes of memory, has %" PRIu64, tenant->label,
               tenant->memory, bytes);
        all += bytes;
    }
    EXPECT(all == core->pool.memory, "%" PRIu64 " bytes of memory, counted %" PRIu64, all,
           core->pool.memory);
    return true;
}

static bool check_offer(const struct offers *offers, const struct offer *offer, struct error *error)
{
    const bool waits = offer->giver && !offer->taker && offer->expires_ns != FOREVER;
    const struct offer *found = NULL;
    if (offer->giver) {
        unsigned hash = ledger_hash(offer->giver->ledger, offer->key, offer->key_size);
        HASH_FIND_BYHASHVALUE(hh, offers->by_name, offer->key, offer->key_size, hash, found);
    }
    EXPECT(found == (offer->giver ? offer : NULL), "offer %" PRIu64 " is not found by its name",
           offer->view.id);
    EXPECT((offer->table != NULL) == (offer->giver != NULL),
           "offer %" PRIu64 " has a table without a giver, or the reverse", offer->view.id);
    EXPECT(in_heap(&offers->expiring, &offer->expiry) == waits,
           "offer %" PRIu64 " is wrongly in or not in the heap of deadlines", offer->view.id);
    for (uint32_t i = 0; i < offer->view.num_blocks; i++) {
        const struct block *block = block_find(offer->cache, offer->view.blocks[i]);
        EXPECT(!offer->giver || (block && block->users && !block->writer),
               "block %" PRId32 " of offer %" PRIu64 " can be written", offer->view.blocks[i],
               offer->view.id);
    }
    return true;
}

static bool check_offers_of(const struct core_session *session, uint32_t *num, struct error *error)
{
    uint32_t given = 0, taken = 0;
    for (const struct offer *offer = session->offers.given; offer;
         offer = offer->given_next, given++) {
        EXPECT(offer->giver == session, "offer %" PRIu64 " has another giver", offer->view.id);
        if (!check_offer(session->all_offers, offer, error))
            return false;
    }
    for (const struct offer *offer = session->offers.taken; offer;
         offer = offer->taken_next, taken++) {
        EXPECT(offer->taker == session, "offer %" PRIu64 " has another taker", offer->view.id);
        if (!check_offer(session->all_offers, offer, error))
            return false;
        *num += !offer->giver;
    }
    EXPECT(given == session->offers.num_given && taken == session->offers.num_taken,
           "session %" PRIu64 " counts %" PRIu32 " given and %" PRIu32 " taken offers, has %" PRIu32
           " and %" PRIu32,
           session->id, session->offers.num_given, session->offers.num_taken, given, taken);
    *num += given;
    return true;
}

static bool check_session(const struct core_session *session, struct error *error)
{
    const struct run *run;
    uint64_t blocks = 0;
    uint32_t in_flight = 0, detached = 0;
    for (const struct hold_table *table = session->tables; table; table = table->hh.next) {
        EXPECT(count_entries(table) == table->num_blocks,
               "session %" PRIu64 " miscounts its blocks of cache %" PRIu64, session->id,
               table->cache_id);
        blocks += table->num_blocks;
        if (!check_pages(session, table, error) || !check_users(session, table, error))
            return false;
    }
    EXPECT(blocks == session->num_blocks,
           "session %" PRIu64 " counts %" PRIu64 " blocks, has %" PRIu64, session->id,
           session->num_blocks, blocks);
    LIST_EACH(session->runs.list, run) {
        in_flight += run->over ? 0 : run->num_picked - run->num_over;
        detached += run->detached;
    }
    EXPECT(!session->runs.queued || !session->runs.queued->over,
           "session %" PRIu64 " has a queued run that is over", session->id);
    EXPECT(!session->runs.put_off || session->runs.queued,
           "session %" PRIu64 " is put off and has no queued run", session->id);
    EXPECT((session->runs.queued != NULL && !session->runs.put_off) ==
               (turns_is_ready(&session->turn) || session->turn.is_hauling),
           "session %" PRIu64 " has queued runs but waits for no turn, or the reverse",
           session->id);
    EXPECT(session->runs.num_in_flight == in_flight,
           "session %" PRIu64 ": %" PRIu32 " layers of runs in flight, not %" PRIu32, session->id,
           session->runs.num_in_flight, in_flight);
    EXPECT(session->closed ||
               session->runs.num_unreaped == HASH_COUNT(session->runs.tickets) + detached,
           "session %" PRIu64 ": %" PRIu32 " tickets unreaped, not %" PRIu32, session->id,
           session->runs.num_unreaped, HASH_COUNT(session->runs.tickets) + detached);
    return check_batch_memory(session, error);
}

bool audit_sessions(const struct core *core, struct error *error)
{
    const struct core_session *session;
    const struct turn *turn;
    uint32_t open = 0, expected = 0, away = 0, listed = 0, offers = 0;
    LIST_EACH(core->sessions, session) {
        open++;
        expected += turns_expects(&session->turn);
        away += session->turn.is_away;
        EXPECT(!session->turn.is_away || !session->runs.queued,
               "session %" PRIu64 " is away and has a run queued", session->id);
        if (!check_session(session, error) || !check_offers_of(session, &offers, error))
            return false;
    }
    LIST_EACH(core->leaving, session) {
        EXPECT(session->runs.num_in_flight || session->haunting.num_tables || session->drafts,
               "session %" PRIu64 " should be gone", session->id);
        if (!check_session(session, error))
            return false;
    }
    EXPECT(expected == core->scheduler.turns.num_expected,
           "%" PRIu32 " sessions expected back, counted %" PRIu32, expected,
           core->scheduler.turns.num_expected);
    LIST_EACH_BY(core->scheduler.turns.away, turn, away_next)
        listed++;
    EXPECT(away == listed, "%" PRIu32 " sessions are away, %" PRIu32 " in the list", away, listed);
    EXPECT(offers == core->offers.num && heap_sound(&core->offers.expiring),
           "%" PRIu32 " offers, counted %" PRIu32, core->offers.num, offers);
    if (!check_memory(core, error))
        return false;
    EXPECT(open == core->num_sessions + core->num_errands,
           "%" PRIu32 " sessions and %" PRIu32 " errands, counted %" PRIu32, core->num_sessions,
           core->num_errands, open);
    return true;
}
