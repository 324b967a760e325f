// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// written.h - which slots count as written while runs and copies are on their way, and what a
// failure takes back.

#ifndef AULE_CORE_WRITTEN_H
#define AULE_CORE_WRITTEN_H

#include "run.h"

// A slot counts as written from the moment on that a run which writes it is queued, and a copy's
// blocks have what its sources have then: whoever relies on it comes later in the session's order,
// or waits until block->pending is 0.
void written_begin(struct run *run);
// The run is over. If it failed, nothing that it was to write counts, in its blocks and in what
// later copies make of them; what was published on trust must never be seen.
void written_end(struct run *run, bool ok);

#endif
