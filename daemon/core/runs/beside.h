// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// beside.h - which links of one session may share a wave of a submission. Links of a wave run in
// any order. So if one writes a range of the arena or a layer of a cache, no other may touch it.
// Knows ranges, nothing of turns. Dispatcher thread only.

#ifndef AULE_CORE_BESIDE_H
#define AULE_CORE_BESIDE_H

#include "core/pool/session.h"

// Call this before the session's first link of a submission.
void beside_begin(struct core_session *session);
// Places the next link of `run`. Returns its wave: the session's latest one, or the next one if the
// link conflicts with a link there.
uint32_t beside_place(struct core_session *session, struct run *run);

#endif
