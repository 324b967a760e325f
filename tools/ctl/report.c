// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// report.c - what a failed call of the library means to people: the exit code, and what to do.

#include "ctl.h"

#include <stdio.h>

// Any other status is a failure without a hint.
struct meaning {
    enum aule_status status;
    enum exit_code code;
    const char *hint; // NULL = none; @ is replaced by the socket_option
};
static const struct meaning meanings[] = {
    {AULE_DAEMON_GONE, EXIT_CODE_GONE,
     "--socket or $AULE_SOCKET names the socket of one that listens elsewhere"},
    {AULE_TIMEOUT, EXIT_CODE_GONE, "give it longer with --timeout"},
    {AULE_DEVICE_LOST, EXIT_CODE_GONE, "start the daemon again"},
    {AULE_STOPPING, EXIT_CODE_GONE, "start the daemon again"},
    {AULE_INVALID, EXIT_CODE_USAGE, "aule-ctl --help shows what is expected"},
    {AULE_NO_MEMORY, EXIT_CODE_FAILED, "free some of it and ask again"},
    {AULE_MALFORMED, EXIT_CODE_FAILED, "use an aule-ctl of the daemon's version"},
    {AULE_FORKED, EXIT_CODE_FAILED, "this is a defect in aule-ctl; please report it"},
    {AULE_VERSION, EXIT_CODE_FAILED, "use an aule-ctl of the daemon's version"},
    {AULE_NOT_FOUND, EXIT_CODE_FAILED,
     "aule-ctl sessions@ and aule-ctl caches@ list what there is"},
    {AULE_BUSY, EXIT_CODE_FAILED,
     "aule-ctl sessions@ lists who may use it; try again when their work is done"},
    {AULE_UNSUPPORTED, EXIT_CODE_FAILED, "use a daemon of aule-ctl's version"},
};

static struct meaning meaning_of(enum aule_status status)
{
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (meanings[i].status == status)
            return meanings[i];
    return (struct meaning){status, EXIT_CODE_FAILED, NULL};
}

// So that the commands in a hint ask the same daemon.
static void complete_hint(char *to, size_t size, const char *hint, const char *socket_option)
{
    for (size_t used = 0; *hint && used < size; hint++)
        used += (size_t)(*hint == '@' ? snprintf(to + used, size - used, "%s", socket_option)
                                      : snprintf(to + used, size - used, "%c", *hint));
}

enum exit_code report(const struct ctl *ctl, enum aule_status status)
{
    const struct meaning meaning = meaning_of(status);
    const char *what = aule_error();
    char hint[COMPLAINT_SIZE];
    if (meaning.hint)
        complete_hint(hint, sizeof hint, meaning.hint, ctl->socket_option);
    complaint_say(*what ? what : aule_status_text(status), aule_status_name(status),
                  meaning.hint ? hint : NULL);
    return meaning.code;
}
