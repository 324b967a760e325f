// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// team.h - loops over all cores: one thread a core, which takes the next index until there are no
// more.

#ifndef AULE_BENCH_TEAM_H
#define AULE_BENCH_TEAM_H

#include <stdint.h>

uint32_t team_size(void); // cores that this process may use

// Calls work(context, i, member) for each i below count. `member`, below team_size(), is the number
// of the calling thread. Returns when all is done. If a thread cannot be created, the others do its
// part.
void team_run(uint32_t count, void (*work)(void *context, uint32_t i, uint32_t member),
              void *context);

#endif
