// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// audit.h - compares every counter of core with what it counts. Knows all structs of core, and
// changes nothing but scratch stamps. It walks everything, so only tests and aule-bench call it, on
// the thread that calls core.

#ifndef AULE_CORE_AUDIT_H
#define AULE_CORE_AUDIT_H

#include "core/core.h"

// False: *error names the first counter that is wrong.
bool core_check(const struct core *core, struct error *error);

#endif
