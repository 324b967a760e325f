// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run.h - queues a run of a batch, of any kind.

#ifndef AULE_CLIENT_RUN_H
#define AULE_CLIENT_RUN_H

#include "batch.h"

// Queues a run; *id is the daemon's ticket. `id` NULL: no call will wait for the run. The caller is
// between attachment_enter() and attachment_leave() of the batch's attachment. AULE_EPOCH: a tensor
// belongs to an earlier life of the daemon. AULE_BUSY: nothing was queued.
enum aule_status run_submit(const struct aule_batch *batch, enum wire_run_kind kind,
                            const struct aule_run_params *params, int timeout_ms, uint64_t *id);
// The same for a public call: this function enters and leaves, and fills a public ticket.
enum aule_status run_queue(const struct aule_batch *batch, enum wire_run_kind kind,
                           const struct aule_run_params *params, int timeout_ms,
                           struct aule_ticket *ticket);

#endif
