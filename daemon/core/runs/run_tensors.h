// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run_tensors.h - do the tensors of a run fit its batch and the session's arena?

#ifndef AULE_CORE_RUN_TENSORS_H
#define AULE_CORE_RUN_TENSORS_H

#include "core/steps/batch.h"
#include "tensor.h"

enum { RUN_MAX_EXTENTS = 8 };

// Where the tensors of a run lie.
struct run_tensors {
    enum tensor_memory memory; // of all of them
    bool chained;              // its layers must be done one after the other
    uint32_t num_extents;
    struct tensor_extent extents[RUN_MAX_EXTENTS];
};

// The session's arena of this kind; NULL = it has none.
struct engine_arena *run_arena(const struct core_session *session, enum tensor_memory memory);
// A check of tensors of the session, all of whose fields but num_layers are set.
struct tensor_check run_tensor_check(const struct core_session *session);
enum status run_check_tensors(const struct batch *batch, const struct core_run_params *params,
                              struct run_tensors *tensors, struct error *error);

#endif
