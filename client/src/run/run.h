// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run.h - queues a run of a batch, of any kind.

#ifndef AULE_CLIENT_RUN_H
#define AULE_CLIENT_RUN_H

#include "batch.h"

// Queues a run, between life_enter() and life_leave() of the batch's life. *id is
// the daemon's ticket; `id` NULL: no call will wait for it. AULE_EPOCH: a tensor is of an earlier
// life. AULE_BUSY: no ticket came free, and nothing was queued.
enum aule_status run_submit(const struct aule_batch *batch, enum wire_run_kind kind,
                            const struct aule_run_params *params, int timeout_ms, uint64_t *id);
// The same for a public call: enters, queues, leaves, and makes a public ticket.
enum aule_status run_queue(const struct aule_batch *batch, enum wire_run_kind kind,
                           const struct aule_run_params *params, int timeout_ms,
                           struct aule_ticket *ticket);

#endif
