// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// batch.h - what a run may know of its batch.

#ifndef AULE_CLIENT_BATCH_H
#define AULE_CLIENT_BATCH_H

#include "attachment.h"

struct aule_batch {
    struct attachment *attachment; // a reference
    uint64_t id;
};

#endif
