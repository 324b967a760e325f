// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hash.h - uthash. A failed allocation leaves a table as it was; uthash alone would end
// the process.

#ifndef AULE_HASH_H
#define AULE_HASH_H

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

// After HASH_ADD*: whether the element is in the table.
#define HASH_ADDED(element) ((element)->hh.tbl != NULL)

#endif
