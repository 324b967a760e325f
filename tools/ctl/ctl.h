// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ctl.h - what the commands of aule-ctl share: the options, the parsed command line, the monitor,
// complaints. One thread.

#ifndef AULE_CTL_H
#define AULE_CTL_H

#include "aule/aule.h"
#include "base/options.h"
#include "tools/complaint/complaint.h"

#include <stdbool.h>
#include <stdint.h>

enum { SOCKET_OPTION_SIZE = 512 }; // longer than any socket's path

// Groups of commands with the same options.
enum {
    COMMAND_ASKS = 1 << 0,   // needs a daemon
    COMMAND_LOOKS = 1 << 1,  // changes nothing
    COMMAND_CACHE = 1 << 2,  // shows all caches or one
    COMMAND_TENANT = 1 << 3, // has a session
};

// The options of several commands, a line for each; base/options.h explains it. An option of one
// command stands in the command's file.
#define CTL_OPTIONS(OPTION)                                                                        \
    OPTION(bool, json, "json", NULL, OPTION_FLAG, .otherwise = "text",                             \
           .help =                                                                                 \
               "print one JSON document, also of a failure, with the key `\"schema_version\": 1`", \
           .details =                                                                              \
               "The version is raised when a key changes its meaning or goes, not when one is "    \
               "added. "                                                                           \
               "Lists are arrays under the command's name; the list of `device` is `variants`. "   \
               "64-bit numbers are written in full. The epoch is a string of hexadecimal digits.") \
    OPTION(const char *, socket, "socket", "PATH", OPTION_TEXT, .groups = COMMAND_ASKS,            \
           .otherwise = "`$AULE_SOCKET`, else the first device's in the runtime folder",           \
           .help = "the daemon's socket",                                                          \
           .details =                                                                              \
               "The runtime folder is $AULE_RUNTIME_DIR, $XDG_RUNTIME_DIR/aule or /run/aule.")     \
    OPTION(int, timeout_ms, "timeout", "MS", OPTION_COUNT, 1, INT_MAX, .groups = COMMAND_ASKS,     \
           .initial = "10000", .help = "how many milliseconds to wait for the daemon's answer")    \
    OPTION(double, watch_s, "watch", "S", OPTION_NUMBER, 0, 86400, .groups = COMMAND_LOOKS,        \
           .otherwise = "once", .help = "ask and print again, S seconds after each answer",        \
           .details =                                                                              \
               "Ends with the first failure, or when it is interrupted. An empty line stands "     \
               "between answers; with `--json` each is a document.")                               \
    OPTION(const char *, cache, "cache", "NAME|ID", OPTION_TEXT, .groups = COMMAND_CACHE,          \
           .otherwise = "all", .help = "with `blocks`, `prefix` and `save`: only this cache",      \
           .details = "If the value is a cache's name and another's id, it means the name. "       \
                      "`save` needs it if there are several.")                                     \
    OPTION(const char *, tenant, "tenant", "NAME", OPTION_TEXT, .groups = COMMAND_TENANT,          \
           .otherwise = "none", .help = "with `save` and `load`: whose prefixes, as a session",    \
           .details = "The value is the `tenant` that the sessions name. A session finds the "     \
                      "prefixes of its own user and tenant only.")

struct ctl {
    CTL_OPTIONS(OPTION_MEMBER)              // NULL or 0: not given
    char socket_option[SOCKET_OPTION_SIZE]; // " --socket PATH" for the commands that complaints
                                            // name; "" without one
    const char *argument;                   // NULL = none
    int choice;                             // the argument's place in command->choices; 0 = none
    uint64_t id;                            // the argument, where it is an ID
    struct aule_monitor *monitor;           // NULL for a command that needs no daemon
};

struct command {
    struct options_command words; // argument: "ID" is a session's id; in [] the argument is
                                  // optional
    enum exit_code (*run)(struct ctl *ctl);
    const char *const *choices; // what the argument may be, ends with NULL; NULL: anything
};
extern const struct options_command *const commands[]; // commands.c; each begins a struct command

// The commands that have files of their own. Each prints to stdout and returns the exit code.
extern const struct command status_command, metrics_command, sessions_command, caches_command,
    blocks_command, prefix_command, tenants_command, tiers_command, device_command,
    drop_cache_command, limit_command, save_command, load_command;

// view_lists.c. Calls `visit` for the cache of --cache, or for all, until one fails.
typedef enum exit_code (*cache_visitor)(const struct ctl *ctl, const struct aule_cache_view *cache,
                                        void *context);
enum exit_code each_cache(const struct ctl *ctl, const struct aule_cache_view *caches,
                          uint32_t count, cache_visitor visit, void *context);

// report.c. Says on stderr why a call of the library failed and what to do about it. Returns the
// exit code.
enum exit_code report(const struct ctl *ctl, enum aule_status status);

// Fills *id if `text` has digits only and is at most 2^64 - 1.
bool parse_id(const char *text, uint64_t *id);

#endif
