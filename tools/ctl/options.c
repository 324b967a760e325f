// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.c - reads the command line by the tables of options (ctl.h) and commands (commands.c),
// and checks a command's arguments.

#include "options.h"

#include "base/quote.h"
#include "column.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define ENTRY(...) OPTION_ENTRY(struct ctl, __VA_ARGS__)
static const struct option entries[] = {CTL_OPTIONS(ENTRY)};

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
};

// Complaints name commands with the same --socket.
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

static bool choose(struct ctl *ctl, const struct command *command, const char *text)
{
    char words[256];
    for (ctl->choice = 0; command->choices[ctl->choice]; ctl->choice++)
        if (strcmp(command->choices[ctl->choice], text) == 0)
            return true;
    complain(EXIT_CODE_USAGE, "%s \"%s\": there are %s", command->words.name, text,
             options_join(words, sizeof words, command->choices, ", ", " and "));
    return false;
}

static bool take_argument(struct ctl *ctl, const struct command *command, const char *text)
{
    ctl->argument = text;
    if (!text)
        return true;
    if (command->choices)
        return choose(ctl, command, text);
    if (strcmp(command->words.argument, "ID") != 0 || parse_id(text, &ctl->id))
        return true;
    complain(EXIT_CODE_USAGE, "\"%s\" is no session's id; aule-ctl sessions%s lists them", text,
             ctl->socket_option);
    return false;
}

bool options_parse(int argc, char **argv, struct ctl *ctl, const struct command **command,
                   enum exit_code *code)
{
    struct options_line line;
    *ctl = (struct ctl){.json = false};
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
           take_argument(ctl, *command, line.num_operands ? line.operands[0] : NULL);
}
