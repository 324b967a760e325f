// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pieces.h - the first part of each call that is made in pieces (core.h). Between two pieces any
// other session may do anything. So a call keeps only what its session's own holds keep alive, and
// each piece leaves core as a whole call would. Thread: dispatcher.

#ifndef AULE_CORE_PIECES_H
#define AULE_CORE_PIECES_H

#include "core/core.h"

// Blocks of one piece: publishing as many takes about half a millisecond.
enum { CORE_PIECE = 2048 };

struct core_pieces {
    enum status (*next)(struct core_pieces *pieces, bool *more, struct error *error);
    void (*discard)(struct core_pieces *pieces); // frees it
};

// Of `left` blocks.
uint32_t piece_of(const struct core_session *session, uint32_t left);

#endif
