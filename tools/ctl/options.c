// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.c - the table of aule-ctl's options, and the checks of a command's arguments.
// base/options.h says what an entry means.

#include "options.h"

#include "base/quote.h"
#include "column.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define FIELD(KIND, member) OPTION_FIELD(KIND, struct ctl, member)

static const struct option entries[] = {
    {"json", NULL, FIELD(OPTION_FLAG, json), .otherwise = "text",
     .help = "print one JSON document, also of a failure, with the key `\"schema_version\": 1`",
     .details = "The version is raised when a key changes its meaning or goes, not when one is "
                "added. Lists are "
                "arrays under the command's name; the lists of `device` and `tune` are `variants` "
                "and `tuned`. 64-bit "
                "numbers are written in full. The epoch is a string of hexadecimal digits."},
    {"socket", "PATH", FIELD(OPTION_TEXT, socket), .groups = COMMAND_ASKS,
     .otherwise = "`$AULE_SOCKET`, else the first device's in the runtime folder",
     .help = "the daemon's socket",
     .details = "The runtime folder is $AULE_RUNTIME_DIR, $XDG_RUNTIME_DIR/aule or /run/aule."},
    {"timeout", "MS", FIELD(OPTION_COUNT, timeout_ms), 1, INT_MAX, .groups = COMMAND_ASKS,
     .initial = "10000", .help = "how many milliseconds to wait for the daemon's answer"},
    {"cache", "NAME|ID", FIELD(OPTION_TEXT, cache), .groups = COMMAND_BLOCKS, .otherwise = "all",
     .help = "with `blocks`: only the blocks of this cache",
     .details = "If the value is a cache's name and another's id, it means the name."},
    {"state", "STATE", FIELD(OPTION_CHOICE, state), AULE_BLOCK_FREE, .words = block_kind_names,
     .groups = COMMAND_BLOCKS, .otherwise = "all",
     .help = "with `blocks`: only blocks in this state"},
};

static const struct options_program program = {
    .name = "aule-ctl",
    .usage = "aule-ctl COMMAND [OPTION]...",
    .about =
        "Looks into a running aule-daemon. aule-ctl COMMAND --help lists the options of a command.",
    .epilogue = "Exit codes: 0 done, 1 failed or refused by the daemon, 2 the command line is "
                "wrong, 3 no daemon answers.",
    .options = entries,
    .num_options = sizeof entries / sizeof *entries,
    .commands = commands,
    .command_size = sizeof *commands,
};

// For commands that complaints suggest.
static void keep_socket(struct ctl *ctl)
{
    static const char option[] = " --socket ";
    if (!ctl->socket)
        return;
    strcpy(ctl->socket_option, option);
    quote(ctl->socket_option + strlen(option), sizeof ctl->socket_option - strlen(option),
          ctl->socket);
}

static bool count_fits(const struct options_command *command, int count)
{
    const char *argument = command->argument;
    const bool optional = argument && argument[0] == '[';
    if (count == (argument ? 1 : 0) || (optional && count == 0))
        return true;
    complain(EXIT_CODE_USAGE, "\"%s\" takes %s%s; there are %d", command->name,
             argument ? "one " : "no arguments", argument ? argument : "", count);
    return false;
}

static bool take_argument(struct ctl *ctl, const struct options_command *command, const char *text)
{
    ctl->argument = text;
    if (!text)
        return true;
    if (strcmp(command->argument, "[ACTION]") == 0 && !tune_action_parse(text, &ctl->action)) {
        complain(EXIT_CODE_USAGE, "%s \"%s\": there are show, renew, clear, on and off",
                 command->name, text);
        return false;
    }
    if (strcmp(command->argument, "ID") != 0 || parse_id(text, &ctl->id))
        return true;
    complain(EXIT_CODE_USAGE, "\"%s\" is no session's id; aule-ctl sessions%s lists them", text,
             ctl->socket_option);
    return false;
}

bool options_parse(int argc, char **argv, struct ctl *ctl, const struct command **command,
                   enum exit_code *code)
{
    struct options_line line;
    *ctl = (struct ctl){.state = -1};
    *code = EXIT_CODE_USAGE;
    complaint_begin("aule-ctl", argc, argv);
    switch (options_read(&program, argc, argv, ctl, &line)) {
    case OPTIONS_DONE: *code = EXIT_CODE_DONE; return false;
    case OPTIONS_BAD: complain(EXIT_CODE_USAGE, "%s", line.error); return false;
    case OPTIONS_RUN: break;
    }
    complaint_settle(ctl->json);
    keep_socket(ctl);
    // struct command begins with its options_command
    *command = (const struct command *)(const void *)line.command;
    return count_fits(line.command, line.num_operands) &&
           take_argument(ctl, line.command, line.num_operands ? line.operands[0] : NULL);
}
