// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hash.h - uthash as core uses it: a failed allocation leaves the table as it was instead of ending
// the process.

#ifndef AULE_CORE_HASH_H
#define AULE_CORE_HASH_H

#define HASH_NONFATAL_OOM 1
#include <uthash.h>
#include <utlist.h>

// After HASH_ADD*: did the element get in?
#define HASH_ADDED(element) ((element)->hh.tbl != NULL)

#endif
