// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// audit.h - does everything that core counts agree with what it counts? Walks all; for tests.

#ifndef AULE_CORE_AUDIT_H
#define AULE_CORE_AUDIT_H

#include "core.h"

// False: *error says what disagrees.
bool core_check(const struct core *core, struct error *error);

#endif
