// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// main.c - aule-ctl: runs the command, and says how it went by the exit code. One thread.

#include "base/process.h"
#include "ctl.h"
#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

bool parse_id(const char *text, uint64_t *id)
{
    if (!*text || text[strspn(text, "0123456789")])
        return false;
    errno = 0;
    *id = strtoull(text, NULL, 10);
    return errno == 0;
}

// ---- main ----

// Waits for the next time; false: there is none.
static bool again(const struct ctl *ctl)
{
    const time_t whole = (time_t)ctl->watch_s;
    const struct timespec pause = {whole, (long)((ctl->watch_s - (double)whole) * 1e9)};
    if (ctl->watch_s <= 0 || fflush(stdout) != 0) // once, or the reader has gone
        return false;
    nanosleep(&pause, NULL);
    if (!ctl->json)
        putchar('\n');
    return true;
}

static enum exit_code run(struct ctl *ctl, const struct command *command)
{
    if (!(command->words.groups & COMMAND_ASKS))
        return command->run(ctl);
    enum aule_status status = aule_monitor_open(ctl->socket, ctl->timeout_ms, &ctl->monitor);
    if (status != AULE_OK)
        return report(ctl, status);
    enum exit_code code;
    do
        code = command->run(ctl);
    while (code == EXIT_CODE_DONE && again(ctl));
    aule_monitor_close(ctl->monitor);
    return code;
}

int main(int argc, char **argv)
{
    struct ctl ctl;
    const struct command *command;
    enum exit_code code;
    process_begin();
    if (options_parse(argc, argv, &ctl, &command, &code))
        code = run(&ctl, command);
    // What was printed is written here at the latest: the disk may be full, the pipe closed.
    if ((fflush(stdout) || ferror(stdout)) && code == EXIT_CODE_DONE)
        code = complain(EXIT_CODE_FAILED, "the output could not be written: %s", strerror(errno));
    return code;
}
