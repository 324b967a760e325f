// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// main.c - aule-ctl: the table of commands, and the exit code. One thread; asks one daemon once.

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl.h"
#include "options.h"

const struct command commands[] = {
    {"status", NULL, "jsth", false, show_status, "show the daemon, its pool, prefix hits and runs"},
    {"sessions", NULL, "jsth", false, show_sessions, "list the sessions"},
    {"caches", NULL, "jsth", false, show_caches, "list the caches and the states of their blocks"},
    {"blocks", NULL, "jstcah", false, show_blocks, "list blocks"},
    {"device", NULL, "jsth", false, show_device, "show the device that the daemon owns, and its attention shaders"},
    {"close-session", "ID", "jsth", false, close_session, "end a session as if its worker had died"},
    {"drop-cache", "NAME|ID", "jsth", false, drop_cache,
     "end a cache that no session has open, with its cached blocks"},
    {"tune", "[ACTION]", "jsth", false, tune, "what was measured of kernels' ways: show, renew, clear, on, off"},
    {"ping", NULL, "jsth", false, ping, "ask whether the daemon answers, and how fast"},
    {"version", NULL, "jh", true, show_version, "show the versions of aule-ctl and its library; needs no daemon"},
    {.name = NULL},
};

bool parse_id(const char *text, uint64_t *id)
{
    if (!*text || text[strspn(text, "0123456789")])
        return false;
    errno = 0;
    *id = strtoull(text, NULL, 10);
    return errno == 0;
}

// ---- main ----

static enum exit_code run(struct ctl *ctl, const struct command *command)
{
    if (command->without_daemon)
        return command->run(ctl);
    enum aule_status status = aule_monitor_open(ctl->socket, ctl->timeout_ms, &ctl->monitor);
    if (status != AULE_OK)
        return report(ctl, status);
    enum exit_code code = command->run(ctl);
    aule_monitor_close(ctl->monitor);
    return code;
}

int main(int argc, char **argv)
{
    struct ctl ctl;
    const struct command *command;
    enum exit_code code;
    if (options_parse(argc, argv, &ctl, &command, &code))
        code = run(&ctl, command);
    // A full disk or a closed pipe shows here at the latest.
    if ((fflush(stdout) || ferror(stdout)) && code == EXIT_CODE_DONE)
        code = complain(EXIT_CODE_FAILED, "the output could not be written: %s", strerror(errno));
    return code;
}
