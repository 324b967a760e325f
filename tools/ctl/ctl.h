// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ctl.h - what the sub-commands of aule-ctl share: the parsed command line, the monitor,
// complaints. One thread.

#ifndef AULE_CTL_H
#define AULE_CTL_H

#include "aule/aule.h"
#include "base/options.h"
#include "tools/complaint/complaint.h"

#include <stdbool.h>
#include <stdint.h>

enum { SOCKET_OPTION_SIZE = 512 }; // bytes; fits any path that a socket can have

struct ctl {
    bool json;
    const char *socket;                     // NULL = the library's default
    char socket_option[SOCKET_OPTION_SIZE]; // " --socket PATH" if it was given, else ""; for
                                            // commands that complaints suggest
    int timeout_ms;
    const char *cache;            // name or id; NULL = all
    int state;                    // enum aule_block_kind; -1 = all
    const char *argument;         // NULL = none
    int action;                   // enum aule_tune_action, if the argument is an [ACTION]
    uint64_t id;                  // the argument, if it is an ID
    struct aule_monitor *monitor; // NULL for a command that needs no daemon
};

// Groups of commands with the same options.
enum {
    COMMAND_ASKS = 1 << 0, // it asks the daemon; other commands need no daemon
    COMMAND_BLOCKS = 1 << 1,
};

struct command {
    struct options_command words; // argument: "ID" is a session's id; in [] the argument is
                                  // optional
    enum exit_code (*run)(struct ctl *ctl);
};
extern const struct command commands[]; // ends with a NULL name

// The sub-commands. Each prints to stdout and returns the exit code.
enum exit_code show_status(struct ctl *ctl);
enum exit_code show_metrics(struct ctl *ctl);
enum exit_code show_device(struct ctl *ctl);
enum exit_code show_sessions(struct ctl *ctl);
enum exit_code show_caches(struct ctl *ctl);
enum exit_code show_blocks(struct ctl *ctl);
enum exit_code close_session(struct ctl *ctl);
enum exit_code drop_cache(struct ctl *ctl);
enum exit_code tune(struct ctl *ctl);
enum exit_code ping(struct ctl *ctl);
enum exit_code show_version(struct ctl *ctl);

// "renew" to an enum aule_tune_action. False: no such action.
bool tune_action_parse(const char *word, int *action);

// report.c: says on stderr why a call of the library failed and what to do about it. Returns the
// exit code.
enum exit_code report(const struct ctl *ctl, enum aule_status status);

// Parses a decimal number up to 2^64 - 1; all of `text` must be digits.
bool parse_id(const char *text, uint64_t *id);

#endif
