// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tuner.h - the tuning thread: it measures what tuning/tuning.h asks for, beside the daemon's work,
// and saves the results. The functions are for the caller's thread.

#ifndef AULE_ENGINE_TUNER_H
#define AULE_ENGINE_TUNER_H

#include "engine/state/state.h"

// Needs engine->tuning.
enum status tuner_init(struct engine *engine, const struct engine_params *params,
                       struct error *error);
bool tuner_start(struct engine *engine); // false: its thread could not be created
// Asks the thread to end; it then sets engine->tuner_gone.
void tuner_stop(struct engine *engine);
bool tuner_runs(const struct engine *engine);
void tuner_join(struct engine *engine);
void tuner_finish(struct engine *engine); // the thread has ended

#endif
