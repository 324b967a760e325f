// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fork.c - keeps a forked child away from its parent's connections, on which two processes would
// mix their requests. The child may open its own. getpid() at every entry costs well below a
// microsecond and, unlike pthread_atfork(), also sees a bare clone(). Any thread.

#include "fork.h"

#include "error.h"

#include <unistd.h>

enum aule_status fork_check(pid_t owner, const char *what)
{
    if (owner == getpid())
        return AULE_OK;
    return fail(AULE_FORKED,
                "%s was opened by process %d before fork(); process %d may only close it, and open "
                "one of its own. Python's multiprocessing does so with the start method spawn; a "
                "program that calls exec() starts afresh",
                what, (int)owner, (int)getpid());
}
