// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// submit.h - queues a submission for the submitter. Knows nothing of the GPU. Any thread.

#ifndef AULE_ENGINE_SUBMIT_H
#define AULE_ENGINE_SUBMIT_H

#include "engine/engine.h"

struct sample;

// As engine_submit(), for any thread. With a tuning sample also STOPPING: the engine ends.
enum status submit_queue(struct engine *engine, const struct engine_submission *params,
                         struct sample *sample, uint64_t *sequence, struct error *error);

#endif
