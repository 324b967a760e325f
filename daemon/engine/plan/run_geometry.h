// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run_geometry.h - from a run to the specialisation constants of its pipelines.

#ifndef AULE_ENGINE_RUN_GEOMETRY_H
#define AULE_ENGINE_RUN_GEOMETRY_H

#include "engine/kernels/geometry.h"

// What `run` is, whichever kernel does it: without AULE_SPEC_LOCAL_SIZE, _TILE_ROWS and
// AULE_FEATURE_SPLIT, which come with the kernel. Any thread.
struct geometry geometry_of_run(const struct engine_run *run);

#endif
