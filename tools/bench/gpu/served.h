// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// served.h - which attention kernels serve a run's sequences. It asks the engine's tables.

#ifndef AULE_BENCH_SERVED_H
#define AULE_BENCH_SERVED_H

#include "engine/measuring.h"
#include "tools/bench/shape.h"

// Writes "NAME COUNT of sequences", one after the other, to `text`.
void served_text(const struct engine *engine, const struct engine_run *run,
                 const struct shape *shape, char *text, size_t size);

#endif
