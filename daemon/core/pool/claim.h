// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// claim.h - who computes which block of a prompt that the prefix index lacks, so that no two
// workers compute the same one. A claim is one look-up's wish for a chain of blocks. The claims of
// a cache form a tree like the prefix index, with the same keys: root, then the tokens of each
// block. Each node of the tree has a queue of the claims that lack its block, oldest first. The
// first one computes the block; the others wait for it. So prompts that share only their first
// blocks wait for these only. Knows holds as little as the index does. Dispatcher thread only.
//
// A claim whose turn it is has a deadline (--claim-timeout), from its last progress on: a block
// that its session has published or taken, or that became visible. After the deadline the claim is
// late: it goes behind all others in all of its queues, and the next ones inherit. What its session
// publishes later counts as ever, and ends the lateness. A late claim whose turn comes again has a
// deadline again, so late claims take turns.
//
// Claims cannot deadlock. Every queue has the order of the claims' ranks: those that are not late,
// by age, then the others. So a claim waits only for claims before it in one order, and the first
// one waits for none. A session with two claims may still wait with one of them for a session that
// waits for the other one. Then the deadline of the wait ends it.

#ifndef AULE_CORE_CLAIM_H
#define AULE_CORE_CLAIM_H

#include "hold.h"
#include "prefix.h"

// In cache->claim_stock.
struct claim_node {
    uint64_t hash;             // of the chain; a node of the prefix index has the same
    const void *parent;        // the claim_node above, which lives as long; or the root
    struct prefix_node *node;  // the same chain in the prefix index; NULL: it is not there
    struct claim_place *queue; // by rank
    uint32_t refs;             // claims whose chain has it; freed at 0
    int32_t tokens[];          // [block_size]
};

// A claim's place in the queue of one node.
struct claim_place {
    struct claim *claim;
    struct claim_node *node;
    struct claim_place *prev, *next; // node->queue, if `queued`
    bool queued;                     // the claim lacks the block
    bool published;                  // the claim's session has published it; not visible yet
};

struct claim {
    uint64_t id; // from ledger->last_id, so claims are numbered by age
    // Order in all queues: the id. While late: CLAIM_LATE plus a new id. Later: a new id.
    uint64_t rank;
    int64_t progress_ns;  // the ledger's time of its last progress, or when its turn came
    struct heap_node due; // in pool->due, keyed by a lower bound of its deadline
    struct hold_table *table;
    struct claim *prev, *next;  // table->claims
    struct prefix_root *root;   // counted in root->claims
    uint64_t bytes;             // in session->memory.all
    uint32_t num_wanted;        // blocks of the whole chain
    uint32_t num_blocks;        // of these, blocks that have a place
    bool grows;                 // not all have one yet; it has no deadline until then
    uint32_t num_found;         // the first ones, which the session has got from the index
    uint32_t num_queued;        // places with `queued`; a claim without any has ended
    struct core_wait *claimers; // takes that wait for its next block
    struct claim_place places[];
};

#define CLAIM_LATE (UINT64_C(1) << 63)

// Makes the claims late whose deadline has passed.
void claims_expire(struct pool *pool, int64_t now_ns);
int64_t claims_wake_ns(const struct pool *pool); // when to call this next; FOREVER: never

// The blocks that a session's claims name, the found ones included, count against
// --max-claimed-blocks, and their memory against --max-host-memory. LIMIT: `count` more would
// exceed it.
enum status claim_check_limit(const struct hold_table *table, const struct core_prefix *prefix,
                              uint32_t count, struct error *error);
// Claims the blocks tokens[num_found * block_size ...] of a chain of num_blocks; num_found is less.
// NULL: no memory, and nothing has changed.
struct claim *claim_create(struct hold_table *table, const struct core_prefix *prefix,
                           uint32_t num_blocks, uint32_t num_found);
// The same in pieces: the claim begins without a place, and grows by `count` blocks with these
// tokens. False: no memory; end the claim.
struct claim *claim_begin(struct hold_table *table, const struct core_prefix *prefix,
                          uint32_t num_blocks, uint32_t num_found);
bool claim_grow(struct claim *claim, const int32_t *tokens, uint32_t count);
// NULL: the table has no claim of this id.
struct claim *claim_find(const struct hold_table *table, uint64_t id);
// Ends the claim; the next ones in its queues inherit.
void claim_end(struct claim *claim);
void claim_end_all(struct hold_table *table);
// The claim wants only its first num_blocks blocks from now on. It may end by that.
void claim_truncate(struct claim *claim, uint32_t num_blocks);
// The session has got the blocks up to num_found from the index. True: the claim has ended by that.
bool claim_advance(struct claim *claim, uint32_t num_found);
// Counts blocks from num_found on, up to the first one that this claim must compute itself. The
// counted ones are computed by older claims, or are published and not visible yet.
uint32_t claim_num_promised(struct claim *claim);
// A take waits for the next block.
void claim_begin_wait(struct claim *claim, struct core_wait *wait);
void claim_end_wait(struct core_wait *wait); // the claim may have ended
// True: the next block is promised and not visible yet. Looks at no other block.
bool claim_waits(struct claim *claim);
// The session whose claim computes the next block; 0: none does.
uint64_t claim_holder(const struct claim *claim);

// ---- called by the prefix index ----

void claim_meet(struct cache *cache, struct prefix_node *node); // the node is new
void claim_part(struct cache *cache, struct prefix_node *node); // the node goes
// The session has published a block under the node. Its oldest open claim there is fulfilled once
// the block is visible, wherever the claim stands in the queue.
void claim_publish(struct cache *cache, struct prefix_node *node,
                   const struct core_session *session);
void claim_visible(struct cache *cache, struct prefix_node *node); // its block became visible

#endif
