// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fork.c - keeps a forked child away from its parent's connections. If the parent has used nng, nng
// aborts a child that uses it. So the child gets a status instead. Its copy of the connection's
// descriptor cannot be closed safely; it closes at exec() (it is close-on-exec) or when the child
// ends. getpid() at every entry costs well below a microsecond. Unlike pthread_atfork() it also
// notices a bare clone(). Any thread.

#include "fork.h"

#include "error.h"

#include <stdatomic.h>
#include <unistd.h>

static _Atomic pid_t claimant; // the process that first used nng; 0: none yet

enum aule_status fork_check(pid_t owner, const char *what)
{
    if (owner == getpid())
        return AULE_OK;
    return fail(AULE_FORKED,
                "%s was opened by process %d before fork(); process %d may only close it", what,
                (int)owner, (int)getpid());
}

enum aule_status fork_claim(void)
{
    pid_t expected = 0;
    if (atomic_compare_exchange_strong(&claimant, &expected, getpid()) || expected == getpid())
        return AULE_OK;
    return fail(AULE_FORKED,
                "process %d was forked by process %d, which had opened a session before; it can "
                "open none before exec(): fork first, then open",
                (int)getpid(), (int)expected);
}
