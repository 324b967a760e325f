// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fork.h - which process made an object, and whether this one may use nng.

#ifndef AULE_CLIENT_FORK_H
#define AULE_CLIENT_FORK_H

#include "aule/aule.h"

#include <stdbool.h>
#include <sys/types.h>

// AULE_FORKED: the process `owner`, which opened `what`, is not the calling one.
enum aule_status fork_check(pid_t owner, const char *what);

// Call this before the first use of nng. AULE_FORKED: a parent of this process has used nng through
// this library, so nng would abort this process.
enum aule_status fork_claim(void);

#endif
