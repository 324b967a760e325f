// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tuner.h - the thread that measures what tuning.h wants to know, behind the work that asked, and
// keeps it in the file.

#ifndef AULE_ENGINE_TUNER_H
#define AULE_ENGINE_TUNER_H

#include "engine/state/state.h"

enum status tuner_init(struct engine *engine, const struct engine_params *params,
                       struct error *error); // tuning is there
bool tuner_start(struct engine *engine);     // false: its thread cannot be had
void tuner_stop(
    struct engine *engine); // asks the thread to end, which then sets engine->tuner_gone
bool tuner_runs(const struct engine *engine);
void tuner_join(struct engine *engine);
void tuner_finish(struct engine *engine); // no thread runs

#endif
