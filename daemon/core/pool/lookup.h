// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// lookup.h - what every call over a prefix begins with. Dispatcher thread only.

#ifndef AULE_CORE_LOOKUP_H
#define AULE_CORE_LOOKUP_H

#include "hold.h"

// Finds the session's table of the cache, and checks the prefix. DEVICE_LOST, NOT_FOUND, INVALID.
enum status lookup_begin(struct core_session *session, uint64_t cache,
                         const struct core_prefix *prefix, struct hold_table **table,
                         struct error *error);

#endif
