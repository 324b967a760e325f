// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run.h - a run of a batch, of whatever kind.

#ifndef AULE_CLIENT_RUN_H
#define AULE_CLIENT_RUN_H

#include "batch.h"

// Queues it; *id is the daemon's ticket, `id` NULL: nobody will wait. Between attachment_enter()
// and attachment_leave() of the batch's attachment. AULE_EPOCH: a tensor of an earlier life.
// AULE_BUSY: nothing was queued.
enum aule_status run_submit(const struct aule_batch *batch, enum wire_run_kind kind,
                            const struct aule_run_params *params, int timeout_ms, uint64_t *id);
// The same as a public call: it enters and leaves, and gives a public ticket.
enum aule_status run_queue(const struct aule_batch *batch, enum wire_run_kind kind,
                           const struct aule_run_params *params, int timeout_ms,
                           struct aule_ticket *ticket);

#endif
