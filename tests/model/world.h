// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// world.h - real processes for the model: a daemon over the fake engine, workers that link
// libaule-client and do what the test's process orders, one operation at a time, and the monitor
// that compares the daemon with the model. Asserts with check; one test a process.

#ifndef AULE_TESTS_MODEL_WORLD_H
#define AULE_TESTS_MODEL_WORLD_H

#include "plain_model.h"

enum order_kind {
    ORDER_OPEN,
    ORDER_CLOSE,
    ORDER_CREATE,
    ORDER_WAIT,
    ORDER_STEP,
    ORDER_MAKE,   // the step without its runs
    ORDER_SUBMIT, // the runs of that step; waits for none of them
    ORDER_TRUNCATE,
    ORDER_FORK,
    ORDER_PUBLISH,
    ORDER_DESTROY,
    ORDER_OFFER,
    ORDER_TAKE,
    ORDER_ACCEPT,
    ORDER_KEEP,
    ORDER_ATTACH, // to the cache's memory
    ORDER_REPORT, // that all kernels have passed
    ORDER_FILL,   // leases `count` blocks and releases them, so that the pool has grown
};
struct order {
    enum order_kind kind;
    int sequence, other;               // the fork, the number of the offer, the tenant, the keep
    bool publish, claim, waits, loads; // loads: from tiers, whatever it takes
    uint32_t count;
    int32_t tokens[TOKENS];
};
struct reply {
    int status; // enum aule_status
    uint64_t session;
    uint32_t num_tokens, num_computed, num_found, num_blocks, num_published, num_promised, kept;
    char text[200]; // what went wrong; "" if only `status` tells
};

struct server_params;
// Set before world_start(): what the daemon has besides; what it does in each turn; whether its
// engine has hauls.
extern void (*world_adjust)(struct server_params *params);
extern void (*world_in_turn)(void);
extern bool world_has_hauls;

void world_start(void);
void world_start_exported(void); // with --export-pool: workers can attach
int world_blocks(void);          // of the pool
void world_stop(void);

void world_spawn(int worker);
void world_kill(int worker); // at once; does not wait for the daemon
void world_order(int worker, const struct order *order);
void world_reply(int worker, struct reply *reply); // waits for it
bool world_answered(int worker);
// Commands that have begun to wait in core so far.
unsigned world_begun(void);
// Waits until the worker has answered or a command more than `begun` waits.
void world_await(int worker, unsigned begun);
void world_hold(bool hold);       // the GPU finishes nothing
unsigned world_submissions(void); // so far
void world_limit(int tenant, uint64_t blocks, uint64_t cached, uint64_t floor);
void world_quota(int worker, uint64_t blocks);
// Waits until the daemon shows what the model has. Learns the ids of published blocks.
void world_compare(struct model *model, const char *after);

// Without a model: the states of all blocks add up to the pool.
void world_check_sum(void);
// Waits until nobody but the keepers has anything, so no block is leased, held or quarantined.
void world_await_rest(void);
uint64_t world_metric(const char *name);

// In a worker's process: serves orders until the descriptor ends.
void worker_serve(int fd, const char *socket_path);

#endif
