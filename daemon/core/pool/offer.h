// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// offer.h - hands a sequence of blocks from one session to another one with the same salt, by a
// name. Knows sessions, holds and blocks, but no process and no message. Dispatcher thread only.
//
//           make                  take                     accept
//   giver --------> OFFERED ----------------> TAKEN ----------------------> ended: the taker has it
//              |        ^                       |   the taker gives it back, closes or dies
//              |        +-----------------------+
//              +------> ended: taken back by the giver, expired, or the giver closed or died
//
// Until its end, an offer names its blocks in the giver's hold table, as a batch does, so that they
// stay. The giver pays for them by its quota, and for the offer's own memory by --max-batch-memory.
// From the take on, the taker holds them, too, and pays for both as well. So at each moment a
// session that has not died holds or names each block, and no block is counted in two states. If an
// offer ends and nobody else has its blocks, they are cached if they are sealed, else free.
//
// No session may write the blocks between make and accept. So a giver that takes them back finds
// what it gave, bit by bit. At the accept the lease of each block that is not sealed goes to the
// taker, unless another session holds that block or another offer names it, too: then nobody may
// write it any more, and both sides copy it first. An offer can be taken when all writes that were
// queued before the make have ended well.
//
// If the giver closes or dies while a taker has the offer, the offer loses its name and stays until
// the taker accepts it or gives it back; then it ends. An offer expires only while it is OFFERED,
// or when it becomes so again.

#ifndef AULE_CORE_OFFER_H
#define AULE_CORE_OFFER_H

#include "base/hash.h"
#include "core/core.h"
#include "core/turns/heap.h"
#include "hold.h"
#include "schema/wire.h"

struct core_session;

// What offers and takes are found by.
struct offer_key {
    uint32_t size;                                       // bytes
    uint8_t bytes[2 * sizeof(uint64_t) + WIRE_MAX_NAME]; // the salt's id, the cache's id, the name
};
// INVALID: the name is too short or too long.
enum status offer_key(const struct core_session *session, const struct cache *cache,
                      const char *name, struct offer_key *key, struct error *error);

// All offers of all sessions; a part of struct core.
struct offers {
    struct offer *by_name;      // those that have a giver, by salt, cache and name
    struct heap expiring;       // those that are OFFERED and have a deadline, nearest first
    struct taker_queue *takers; // takes that wait, by salt, cache and name
    struct offer *unwritten;    // a list: a take waits until writes of `awaited` have ended
    uint32_t num;               // offers that have not ended
};

struct offer {
    struct core_offer view;             // what the taker learns; its pointers lead into `memory`
    UT_hash_handle hh;                  // offers->by_name, by key
    struct core_session *giver, *taker; // NULL: it closed or died; nobody has taken it
    struct cache *cache;
    struct hold_table *table; // the giver's, which names the blocks; NULL without a giver
    struct offer *given_prev, *given_next, *taken_prev, *taken_next; // of giver and of taker
    uint64_t bytes;              // of memory, in batch_memory of the giver and of the taker
    int64_t expires_ns;          // FOREVER: never
    struct heap_node expiry;     // in offers->expiring
    const struct block *awaited; // NULL: it is not in offers->unwritten
    struct offer *unwritten_prev, *unwritten_next;
    uint32_t key_size;  // bytes
    const uint8_t *key; // the salt's id, the cache's id, then the name
    int32_t memory[];   // blocks, tokens, extra key, key
};

// NULL: no offer with a giver has this key.
struct offer *offer_find(const struct core_session *session, const struct offer_key *key);
// True: the offer names the block in its giver's hold table.
bool offer_names(const struct offer *offer, int32_t block);

// The writes of the block, which offers name, have ended.
void offers_written(struct offers *offers, const struct block *block);
// The oldest take that waits for an offer of this name, also before there is one; NULL: none does.
const struct core_wait *takers_first(const struct core_session *session,
                                     const struct offer_key *key);
void takers_end_wait(struct core_wait *wait);
// The first take that waits for the offer may succeed, or may have to be refused.
void takers_wake(const struct offer *offer);
void takers_wake_all(const struct offers *offers); // the first take of each offer
// Ends or passes on what the session has given and taken of `cache`, NULL: of all caches. Call this
// before the session lets go of its holds.
void offers_leave(struct core_session *session, const struct cache *cache);
// Ends the offers whose deadline has passed.
void offers_expire(struct offers *offers, int64_t now_ns);
int64_t offers_wake_ns(const struct offers *offers); // the nearest deadline; FOREVER: there is none
void offers_finish(struct offers *offers);           // there is no offer any more

#endif
