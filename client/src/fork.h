// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fork.h - which process made an object.

#ifndef AULE_CLIENT_FORK_H
#define AULE_CLIENT_FORK_H

#include "aule/aule.h"

#include <sys/types.h>

// AULE_FORKED if `owner`, the process that made `what`, is not the calling process.
enum aule_status fork_check(pid_t owner, const char *what);

#endif
