// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fault.c - see fault.h. The orders and the held jobs are under a lock, because jobs end on the
// inner tier's threads.

#include "fault.h"

#include <pthread.h>
#include <stdlib.h>

struct tier_backend {
    struct tier_ops ops; // of this tier: those of the inner one that it has
    const struct tier_ops *inner;
    struct tier_backend *backend; // owned
    pthread_mutex_t lock;
    struct fault_order orders[FAULT_NUM_KINDS]; // times 0: none
    struct tier_job *held;                      // a stack through job->work
    uint32_t num_held;
    void (*end)(struct tier_job *job); // of the jobs, as tier.c set it
};

// Uses up one of the order's times. False: there is no such order now.
static bool use_order(struct tier_backend *fault, enum fault_kind kind, const struct tier_job *job,
                      struct fault_order *out)
{
    bool used = false;
    pthread_mutex_lock(&fault->lock);
    struct fault_order *order = &fault->orders[kind];
    const bool any = kind == FAULT_FLIP || kind == FAULT_TRUNCATE;
    if (order->times && (any || order->jobs == job->kind)) {
        order->times--;
        used = true;
    }
    *out = *order;
    pthread_mutex_unlock(&fault->lock);
    return used;
}

// The inner tier has ended the job.
static void end_inner(struct tier_job *job)
{
    struct tier_backend *fault = tier_backend(job->tier);
    struct fault_order order;
    if (!use_order(fault, FAULT_HOLD, job, &order)) {
        fault->end(job);
        return;
    }
    pthread_mutex_lock(&fault->lock);
    job->work = fault->held;
    fault->held = job;
    fault->num_held++;
    pthread_mutex_unlock(&fault->lock);
}

static void strike(struct tier_job *job, uint32_t block, uint32_t part, void *payload,
                   uint64_t *payload_bytes)
{
    struct tier_backend *fault = tier_backend(job->tier);
    struct fault_order order;
    (void)block;
    (void)part;
    if (use_order(fault, FAULT_TRUNCATE, job, &order) && order.bytes < *payload_bytes)
        *payload_bytes = order.bytes;
    if (*payload_bytes && use_order(fault, FAULT_FLIP, job, &order))
        ((uint8_t *)payload)[order.bytes % *payload_bytes] ^= 1;
}

// False: the job has ended.
static bool begin(struct tier_backend *fault, struct tier_job *job)
{
    struct fault_order order;
    if (!fault->end) // later jobs have the same one, and threads read it
        fault->end = job->end;
    if (use_order(fault, FAULT_FAIL, job, &order)) {
        tier_job_fail(job, order.reason);
        return false;
    }
    job->end = end_inner;
    job->strike = strike;
    return true;
}

static void lookup(struct tier_backend *fault, struct tier_job *job)
{
    if (begin(fault, job))
        fault->inner->lookup(fault->backend, job);
}

static void store(struct tier_backend *fault, struct tier_job *job)
{
    if (begin(fault, job))
        fault->inner->store(fault->backend, job);
}

static void load(struct tier_backend *fault, struct tier_job *job)
{
    if (begin(fault, job))
        fault->inner->load(fault->backend, job);
}

static void erase(struct tier_backend *fault, struct tier_job *job)
{
    if (begin(fault, job))
        fault->inner->erase(fault->backend, job);
}

static enum tier_answer probe(struct tier_backend *fault, const struct stored_space *space,
                              const struct stored_chain *chain)
{
    return fault->inner->probe(fault->backend, space, chain);
}

static void give_back(struct tier_backend *fault, uint8_t *data)
{
    fault->inner->give_back(fault->backend, data);
}

static void state(struct tier_backend *fault, struct tier_state *out)
{
    fault->inner->state(fault->backend, out);
}

static void stop(struct tier_backend *fault)
{
    if (fault->inner->stop)
        fault->inner->stop(fault->backend);
}

static bool fault_close(struct tier_backend *fault, int64_t deadline_ns)
{
    fault_let_go(fault);
    if (!fault->inner->close(fault->backend, deadline_ns))
        return false;
    pthread_mutex_destroy(&fault->lock);
    free(fault);
    return true;
}

struct tier_backend *fault_open(const struct tier_ops *inner, struct tier_backend *backend,
                                const struct tier_ops **ops)
{
    struct tier_backend *fault = calloc(1, sizeof *fault);
    if (!fault || pthread_mutex_init(&fault->lock, NULL)) {
        free(fault);
        return NULL;
    }
    fault->inner = inner;
    fault->backend = backend;
    fault->ops = (struct tier_ops){
        .name = "fault",
        .lends = inner->lends,
        .lookup = inner->lookup ? lookup : NULL,
        .store = inner->store ? store : NULL,
        .load = inner->load ? load : NULL,
        .erase = inner->erase ? erase : NULL,
        .probe = inner->probe ? probe : NULL,
        .give_back = inner->give_back ? give_back : NULL,
        .state = state,
        .stop = stop,
        .close = fault_close,
    };
    *ops = &fault->ops;
    return fault;
}

void fault_order(struct tier_backend *fault, const struct fault_order *order)
{
    pthread_mutex_lock(&fault->lock);
    fault->orders[order->kind] = *order;
    pthread_mutex_unlock(&fault->lock);
}

void fault_let_go(struct tier_backend *fault)
{
    pthread_mutex_lock(&fault->lock);
    struct tier_job *held = fault->held;
    fault->held = NULL;
    fault->num_held = 0;
    fault->orders[FAULT_HOLD].times = 0;
    pthread_mutex_unlock(&fault->lock);
    while (held) {
        struct tier_job *job = held;
        held = job->work;
        fault->end(job);
    }
}

uint32_t fault_num_held(struct tier_backend *fault)
{
    pthread_mutex_lock(&fault->lock);
    const uint32_t count = fault->num_held;
    pthread_mutex_unlock(&fault->lock);
    return count;
}
