// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// main.c - aule-ctl: the table of commands, what a failure is called, and the exit code. One thread; asks one daemon once.

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
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
    {"device", NULL, "jsth", false, show_device, "show the device that the daemon owns"},
    {"close-session", "ID", "jsth", false, close_session, "end a session as if its worker had died"},
    {"ping", NULL, "jsth", false, ping, "ask whether the daemon answers, and how fast"},
    {"version", NULL, "jh", true, show_version, "show the versions of aule-ctl and its library; needs no daemon"},
    {.name = NULL},
};

// ---- complaints ----

enum exit_code complain(enum exit_code code, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    fputs("aule-ctl: ", stderr);
    vfprintf(stderr, format, values);
    fputs("\n", stderr);
    va_end(values);
    return code;
}

// A status that is not here is the daemon's no, without a hint.
static const struct {
    enum aule_status status;
    enum exit_code code;
    const char *hint;
} meanings[] = {
    {AULE_DAEMON_GONE, EXIT_COULD_NOT_ASK,
     "start aule-daemon, or name its socket by --socket or $AULE_SOCKET if it listens elsewhere"},
    {AULE_TIMEOUT, EXIT_COULD_NOT_ASK, "give it longer with --timeout"},
    {AULE_INVALID, EXIT_COULD_NOT_ASK, "aule-ctl --help shows what is expected"},
    {AULE_NO_MEMORY, EXIT_COULD_NOT_ASK, "free some of it and ask again"},
    {AULE_MALFORMED, EXIT_COULD_NOT_ASK, "use an aule-ctl of the daemon's version"},
    {AULE_FORKED, EXIT_COULD_NOT_ASK, "this is a defect in aule-ctl; please report it"},
    {AULE_VERSION, EXIT_SAID_NO, "use an aule-ctl of the daemon's version"},
    {AULE_DENIED, EXIT_SAID_NO, "ask as the daemon's own user or as root"},
    {AULE_NOT_FOUND, EXIT_SAID_NO, "aule-ctl sessions and aule-ctl caches list what there is"},
};

enum exit_code report(enum aule_status status)
{
    const char *what = aule_error();
    if (!*what)
        what = aule_status_text(status);
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (meanings[i].status == status)
            return complain(meanings[i].code, "%s (%s); %s", what, aule_status_name(status), meanings[i].hint);
    return complain(EXIT_SAID_NO, "%s (%s)", what, aule_status_name(status));
}

// Before the daemon has heard anything no status is its own.
static enum exit_code report_unasked(enum aule_status status)
{
    report(status);
    return EXIT_COULD_NOT_ASK;
}

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
        return report_unasked(status);
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
    if ((fflush(stdout) || ferror(stdout)) && code == EXIT_OK)
        code = complain(EXIT_COULD_NOT_ASK, "the output could not be written: %s", strerror(errno));
    return code;
}
