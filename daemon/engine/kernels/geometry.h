// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// geometry.h - the specialisation constants of a pipeline, and what a run contributes to them. Runs
// with equal geometries can share a dispatch.

#ifndef AULE_ENGINE_GEOMETRY_H
#define AULE_ENGINE_GEOMETRY_H

#include "engine/engine.h"

enum { SPEC_CONSTANTS = 13 }; // AULE_SPEC_* of layout.h, by id

struct geometry {
    uint32_t spec[SPEC_CONSTANTS];
    uint32_t kernel; // attention and merge of splits: index in the variant's list
};

// For logs: "d64/64 heads8 block32 kf16 vf16 iof32 place0 scales0 features40 local128"; without a
// local size if it is 0.
void geometry_text(const uint32_t spec[SPEC_CONSTANTS], char *text, size_t size);

#endif
