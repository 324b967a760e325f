// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// geometry.h - what a pipeline is compiled for, and what a run asks of it. Two runs of one geometry
// can share a dispatch.

#ifndef AULE_ENGINE_GEOMETRY_H
#define AULE_ENGINE_GEOMETRY_H

#include "engine/engine.h"

enum { SPEC_CONSTANTS = 13 }; // AULE_SPEC_* of layout.h, by number

struct geometry {
    uint32_t spec[SPEC_CONSTANTS];
    uint32_t kernel; // attention, merge of splits: which one of the variant's list
};

// How K and V lie.
struct engine_kv geometry_kv(const uint32_t spec[SPEC_CONSTANTS]);
// For people: "d64/64 heads8 block32 kf16 vf16 iof32 place0 scales0 features40 local128"; without a
// local size if there is none.
void geometry_text(const uint32_t spec[SPEC_CONSTANTS], char *text, size_t size);

#endif
