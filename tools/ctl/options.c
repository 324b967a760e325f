// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.c - the table of options, the parsing and the help. Knows which options exist, not what a command does with them.

#include "options.h"

#include "column.h"
#include "quote.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_TIMEOUT_MS = 10000 };

struct known {
    char letter; // in struct command's options; also what getopt_long() returns
    const char *name, *value, *help;
};
static const struct known known[] = {
    {'j', "json", NULL, "print one JSON document, also of a failure, with the key \"schema_version\": 1"},
    {'s', "socket", "PATH", "the daemon's socket; default: $AULE_SOCKET, else the runtime folder's first device"},
    {'t', "timeout", "MS", "wait for the daemon's answer at most so many milliseconds; default: 10000"},
    {'c', "cache", "NAME|ID", "only the blocks of this cache"},
    {'a', "state", "STATE", "only blocks in this state: free, leased, held, cached, quarantined or absent"},
    {'h', "help", NULL, "print this and exit"},
    {'v', "version", NULL, "print the version of aule-ctl and exit"},
};
enum { NUM_KNOWN = sizeof known / sizeof *known };

static const struct known *known_find(int letter)
{
    for (int i = 0; i < NUM_KNOWN; i++)
        if (known[i].letter == letter)
            return &known[i];
    return NULL;
}

static const struct command *command_find(const char *name)
{
    for (const struct command *command = commands; command->name; command++)
        if (strcmp(command->name, name) == 0)
            return command;
    return NULL;
}

// ---- help ----

static void print_option(const struct known *option)
{
    char left[40];
    snprintf(left, sizeof left, "--%s%s%s", option->name, option->value ? " " : "", option->value ? option->value : "");
    printf("  %-18s %s\n", left, option->help);
}

static void print_command_help(const struct command *command)
{
    printf("Usage: aule-ctl %s%s%s [OPTION]...\n%s.\n\n", command->name, command->argument ? " " : "",
           command->argument ? command->argument : "", command->help);
    for (int i = 0; i < NUM_KNOWN; i++)
        if (strchr(command->options, known[i].letter))
            print_option(&known[i]);
}

static void print_help(void)
{
    puts("Usage: aule-ctl COMMAND [OPTION]...\nLooks into a running aule-daemon.\n");
    for (const struct command *command = commands; command->name; command++) {
        char left[40];
        snprintf(left, sizeof left, "%s%s%s", command->name, command->argument ? " " : "",
                 command->argument ? command->argument : "");
        printf("  %-18s %s\n", left, command->help);
    }
    putchar('\n');
    for (int i = 0; i < NUM_KNOWN; i++)
        print_option(&known[i]);
    puts("\nExit codes: 0 done, 1 failed or refused by the daemon, 2 the command line is wrong, 3 no daemon answers.");
}

// ---- parsing ----

static bool take_timeout(struct ctl *ctl, const char *text)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < 1 || value > INT_MAX) {
        complain(EXIT_CODE_USAGE, "--timeout %s: give milliseconds from 1 to %d", text, INT_MAX);
        return false;
    }
    ctl->timeout_ms = (int)value;
    return true;
}

static void take_socket(struct ctl *ctl, const char *path)
{
    static const char option[] = " --socket ";
    ctl->socket = path;
    strcpy(ctl->socket_option, option);
    quote(ctl->socket_option + strlen(option), sizeof ctl->socket_option - strlen(option), path);
}

static bool take_state(struct ctl *ctl, const char *text)
{
    if (block_kind_parse(text, &ctl->state))
        return true;
    complain(EXIT_CODE_USAGE,
             "--state %s is no state of a block; give free, leased, held, cached, quarantined or absent", text);
    return false;
}

static bool take(struct ctl *ctl, int letter, const char *value)
{
    switch (letter) {
    case 'j': ctl->json = true; return true;
    case 's': take_socket(ctl, value); return true;
    case 't': return take_timeout(ctl, value);
    case 'c': ctl->cache = value; return true;
    case 'a': return take_state(ctl, value);
    case 'h':
    case 'v': return true; // options_parse() looks whether they were given
    default: return false; // never: getopt_long() returns what is in the table
    }
}

// What getopt_long() did not take. Of a cluster of short options it tells the letter, of a long one nothing.
static bool wrong_option(int letter, const char *word)
{
    const char cluster[] = {'-', (char)optopt, '\0'};
    bool is_short = letter == '?' && optopt && !known_find(optopt);
    complain(EXIT_CODE_USAGE, "%s %s; aule-ctl --help lists the options", is_short ? cluster : word,
             letter == ':' ? "lacks its value" : "is no option, or one that takes no value");
    return false;
}

// Reads all options; `given` collects their letters.
static bool take_all(int argc, char **argv, struct ctl *ctl, char *given)
{
    struct option options[NUM_KNOWN + 1] = {{.name = NULL}};
    for (int i = 0; i < NUM_KNOWN; i++)
        options[i] = (struct option){
            .name = known[i].name, .has_arg = known[i].value ? required_argument : no_argument, .val = known[i].letter};
    for (int letter; (letter = getopt_long(argc, argv, ":h", options, NULL)) != -1;) {
        if (letter == '?' || letter == ':')
            return wrong_option(letter, argv[optind - 1]);
        if (!take(ctl, letter, optarg))
            return false;
        if (!strchr(given, letter))
            given[strlen(given)] = (char)letter;
    }
    return true;
}

static bool fits(const struct command *command, const char *given, int num_arguments)
{
    for (; *given; given++)
        if (!strchr(command->options, *given)) {
            complain(EXIT_CODE_USAGE, "\"%s\" takes no --%s; aule-ctl %s --help lists what it takes", command->name,
                     known_find(*given)->name, command->name);
            return false;
        }
    bool optional = command->argument && command->argument[0] == '[';
    if (num_arguments == (command->argument ? 1 : 0) || (optional && num_arguments == 0))
        return true;
    complain(EXIT_CODE_USAGE, "\"%s\" takes %s%s; there are %d", command->name,
             command->argument ? "one " : "no arguments", command->argument ? command->argument : "", num_arguments);
    return false;
}

static bool take_argument(struct ctl *ctl, const struct command *command, const char *text)
{
    ctl->argument = command->argument ? text : NULL;
    if (ctl->argument && strcmp(command->argument, "[ACTION]") == 0 && !tune_action_parse(text, &ctl->action)) {
        complain(EXIT_CODE_USAGE, "%s \"%s\": there are show, renew, clear, on and off", command->name, text);
        return false;
    }
    if (!command->argument || strcmp(command->argument, "ID") != 0 || parse_id(text, &ctl->id))
        return true;
    complain(EXIT_CODE_USAGE, "\"%s\" is no session's id; aule-ctl sessions%s lists them", text, ctl->socket_option);
    return false;
}

static bool unknown_command(const char *name)
{
    char list[256] = "";
    for (const struct command *command = commands; command->name; command++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", command->name);
    }
    if (name)
        complain(EXIT_CODE_USAGE, "\"%s\" is no command; there are %s", name, list);
    else
        complain(EXIT_CODE_USAGE, "name a command: %s", list);
    return false;
}

bool options_parse(int argc, char **argv, struct ctl *ctl, const struct command **command, enum exit_code *code)
{
    char given[NUM_KNOWN + 1] = "";
    *ctl = (struct ctl){.timeout_ms = DEFAULT_TIMEOUT_MS, .state = -1};
    *code = EXIT_CODE_USAGE;
    complaint_begin("aule-ctl", argc, argv);
    if (!take_all(argc, argv, ctl, given))
        return false;
    complaint_settle(ctl->json);
    const char *name = optind < argc ? argv[optind] : NULL;
    const bool help = strchr(given, 'h'), version = strchr(given, 'v');
    *command = name ? command_find(name) : NULL;
    if (name ? !*command : !help && !version)
        return unknown_command(name);
    if (help || version) {
        if (!help)
            puts("aule-ctl " AULE_VERSION_STRING);
        else if (name)
            print_command_help(*command);
        else
            print_help();
        *code = EXIT_CODE_DONE;
        return false;
    }
    return fits(*command, given, argc - optind - 1) && take_argument(ctl, *command, argv[optind + 1]);
}
