// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// main.c - aule-ctl: the table of commands, and the exit code. One thread; asks one daemon once.

#include "ctl.h"
#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct command commands[] = {
    {{"status", NULL, "show the daemon, its pool, prefix hits and runs", COMMAND_ASKS},
     show_status},
    {{"metrics", NULL, "list all counters and gauges, with unit and meaning", COMMAND_ASKS},
     show_metrics},
    {{"sessions", NULL, "list the sessions", COMMAND_ASKS}, show_sessions},
    {{"caches", NULL, "list the caches and the states of their blocks", COMMAND_ASKS}, show_caches},
    {{"blocks", NULL, "list blocks", COMMAND_ASKS | COMMAND_BLOCKS}, show_blocks},
    {{"device", NULL, "show the device that the daemon owns, and its attention shaders",
      COMMAND_ASKS},
     show_device},
    {{"close-session", "ID", "end a session as if its worker had died", COMMAND_ASKS},
     close_session},
    {{"drop-cache", "NAME|ID", "end a cache that no session has open, with its cached blocks",
      COMMAND_ASKS},
     drop_cache},
    {{"tune", "[ACTION]", "what was measured of kernels' ways: show, renew, clear, on, off",
      COMMAND_ASKS},
     tune},
    {{"ping", NULL, "ask whether the daemon answers, and how fast", COMMAND_ASKS}, ping},
    {{"version", NULL, "show the versions of aule-ctl and its library; needs no daemon", 0},
     show_version},
    {{.name = NULL}, NULL},
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
    if (!(command->words.groups & COMMAND_ASKS))
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
    // Writes to a full disk or a closed pipe fail here at the latest.
    if ((fflush(stdout) || ferror(stdout)) && code == EXIT_CODE_DONE)
        code = complain(EXIT_CODE_FAILED, "the output could not be written: %s", strerror(errno));
    return code;
}
