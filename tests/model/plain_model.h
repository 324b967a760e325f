// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// plain_model.h - what a daemon with one cache must have after each message: blocks, prefix index,
// claims, offers, limits and the order of eviction. Arrays and linear searches, no counter that
// could go wrong: every sum is counted anew. The struct has no pointers, so a copy is a snapshot.
// Knows no process, no message and no library; texts.h has what the library makes of sequences.

#ifndef AULE_TESTS_PLAIN_MODEL_H
#define AULE_TESTS_PLAIN_MODEL_H

#include <stdbool.h>
#include <stdint.h>

enum {
    WORKERS = 4,
    SEQUENCES = 3, // of a worker
    TENANTS = 2,
    BLOCKS = 32, // of the largest pool
    BLOCK = 8,   // tokens
    DEPTH = 4,   // blocks of a text
    TOKENS = DEPTH * BLOCK,
    CLAIMS = WORKERS * SEQUENCES,
    OFFERS = 4,
    NONE = -1,
};

enum outcome { DONE, NO_BLOCKS, QUOTA, NOT_FOUND, TIMEOUT, BUSY };
enum state { FREE, LEASED, HELD, CACHED, QUARANTINED, NUM_STATES };
enum keep { NORMAL, PREFERRED, PINNED };

struct model_block {
    bool sealed, evictable;
    int node, tenant, writer;
    uint32_t holds[WORKERS], names[WORKERS]; // names: offers of this giver
    uint64_t lingers[WORKERS]; // number of the release by an attached worker; 0: it does not linger
    uint32_t offers;
    uint64_t last_use;
    int32_t id;  // the daemon's, learned when it is published
    bool dead;   // runs or kernels of a dead session use it
    bool absent; // beyond the pool's end
};
struct model_node {
    bool used;
    int tenant, parent, block, depth;
    enum keep keep; // of the prefix that ends here
    uint64_t made;
    int32_t tokens[BLOCK];
};
struct model_claim {
    bool used, queued[DEPTH];
    uint64_t id;
    int worker;
    uint32_t num_blocks, num_found;
    int32_t tokens[TOKENS];
};
struct model_offer {
    bool used, publish;
    uint64_t made, took;
    int giver, taker, tenant; // NONE: it has ended; nobody
    int blocks[DEPTH + 1];
    uint32_t num_blocks, num_stored, num_computed, num_tokens;
    int32_t tokens[TOKENS];
};
struct model_tenant {
    uint64_t blocks, cached, floor; // limits
    uint64_t evicted;
};
struct model_session {
    bool open, waits, attached;
    int tenant;
    uint64_t quota;
};

// A record of the library: forks share it.
struct model_record {
    uint32_t sharers; // 0: unused
    bool sealed;
    int block;
};
struct model_sequence {
    bool used, publish;
    int32_t tokens[TOKENS];
    uint32_t num_tokens, num_stored, num_computed, num_found, num_blocks, num_published;
    int records[DEPTH + 1];
    uint64_t claim; // id; 0 = none
    uint32_t claim_max, claim_blocks, claim_promised;
    int offer; // taken and not accepted
};

enum waiting { WAITS_NOT, WAITS_LEASE, WAITS_CLAIM, WAITS_TAKE };

struct model {
    struct model_block blocks[BLOCKS];
    struct model_node nodes[BLOCKS];
    struct model_claim claims[CLAIMS];
    struct model_offer offers[OFFERS];
    struct model_tenant tenants[TENANTS];
    struct model_session sessions[WORKERS];
    struct model_record records[WORKERS][BLOCKS * 2];
    struct model_sequence sequences[WORKERS][SEQUENCES];
    uint64_t clock, last_id, last_release;
    bool eager; // a command that waits is tried after each message, else after each operation
    struct {
        enum waiting kind; // of one worker at most
        int worker, sequence, offer;
        uint32_t count; // blocks
        bool over;      // it was answered, with `outcome`
        enum outcome outcome;
    } waiter;
};

void model_init(struct model *m, int num_blocks);

// ---- what can be counted ----

enum state block_state(const struct model *m, int block);
uint32_t block_holders(const struct model *m, int block);
enum keep node_keep(const struct model *m, int node);
uint32_t count_state(const struct model *m, enum state state);
uint32_t session_blocks(const struct model *m, int worker);
uint32_t session_leased(const struct model *m, int worker); // blocks that it may write
struct tenant_counts {
    uint32_t used, pinned, cached;
};
struct tenant_counts tenant_counts(const struct model *m, int tenant);
// Equal for two models that no observer can tell apart now or later.
uint64_t model_digest(const struct model *m);

// ---- the daemon's messages ----

// Blocks of a prompt that are in the index.
uint32_t find_chain(const struct model *m, int tenant, const int32_t *tokens, uint32_t num_blocks,
                    int *nodes);
enum outcome model_lookup(struct model *m, int worker, const int32_t *tokens, uint32_t num_blocks,
                          int *blocks, uint32_t *num_found);
// After a look-up that found num_found.
struct model_claim *model_claim(struct model *m, int worker, const int32_t *tokens,
                                uint32_t num_blocks, uint32_t num_found);
struct model_claim *claim_of(struct model *m, uint64_t id); // NULL: it has ended
uint32_t claim_promised(struct model *m, struct model_claim *claim);
// TIMEOUT: it waits. NOT_FOUND: it has ended.
enum outcome model_claim_take(struct model *m, uint64_t id, int *blocks, uint32_t *num_blocks,
                              uint32_t *promised, bool *ended);
void model_claim_release(struct model *m, uint64_t id, uint32_t num_blocks);
// Whether a new lease has its turn and enough blocks; then it has them.
enum outcome model_lease(struct model *m, int worker, uint32_t count, int *blocks, bool waited);
void model_release(struct model *m, int worker, const int *blocks, uint32_t count);
// parent NONE: the tokens begin a prompt. NOT_FOUND: the parent is not in the index.
enum outcome model_publish(struct model *m, int worker, int parent, const int32_t *tokens,
                           int *blocks, uint32_t num_blocks, bool releases);
enum outcome model_keep(struct model *m, int worker, const int32_t *tokens, uint32_t num_blocks,
                        enum keep keep, uint32_t *num_kept);
void model_offer(struct model *m, int worker, int offer, const struct model_offer *what,
                 const bool *keep);
enum outcome model_take(struct model *m, int worker, int offer);
// access[i]: the taker may write block i.
void model_settle(struct model *m, int offer, bool accept, bool *may_write);
void model_open(struct model *m, int worker, int tenant);
// From now on blocks that the worker releases linger until model_report().
void model_attach(struct model *m, int worker);
void model_report(struct model *m, int worker);
// Blocks that kernels of an attached worker may use, in the order in which they will be let go.
uint32_t model_haunted(const struct model *m, int worker, int *blocks);
// `in_flight`: blocks that runs use, which the GPU has not finished.
void model_close(struct model *m, int worker, const int *in_flight, uint32_t num_in_flight);
void model_finish_dead(struct model *m, const int *in_flight, uint32_t num_in_flight);
void model_limit(struct model *m, int tenant, uint64_t blocks, uint64_t cached, uint64_t floor);

#endif
