// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// beside.h - which links of one session may lie in one wave of a submission, where nothing orders
// them: those that touch no common range of the arena and no common layer of a cache, unless both
// only read. Knows ranges, nothing of turns.

#ifndef AULE_CORE_BESIDE_H
#define AULE_CORE_BESIDE_H

#include "core/pool/session.h"

void beside_begin(struct core_session *session); // a new submission: its first wave is empty
// The wave that the next link of `run` goes into: the session's last one, or the one behind it.
uint32_t beside_place(struct core_session *session, struct run *run);

#endif
