// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run_geometry.h - from a run to the specialisation constants of its pipelines. Knows no pipeline
// and no kernel.

#ifndef AULE_ENGINE_RUN_GEOMETRY_H
#define AULE_ENGINE_RUN_GEOMETRY_H

#include "engine/kernels/geometry.h"

// The geometry of `run` without what depends on the kernel: AULE_SPEC_LOCAL_SIZE,
// AULE_SPEC_TILE_ROWS and AULE_FEATURE_SPLIT. Any thread.
struct geometry geometry_of_run(const struct engine_run *run);

#endif
