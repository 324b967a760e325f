// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.h - the command line of aule-daemon as a struct. One table makes parsing, limits and --help.

#ifndef AULE_DAEMON_OPTIONS_H
#define AULE_DAEMON_OPTIONS_H

#include "log.h"
#include "server.h"

struct options {
    struct server_params server;
    const char *cache_folder; // --cache-folder: a folder, "none", or NULL = the rule
    enum log_level log_level;
    bool list_devices, version, help;
};

// The strings of *out point into argv. INVALID with the option and its value.
enum status options_parse(int argc, char *const *argv, struct options *out, struct error *error);
void options_print_help(void); // on stdout, with the defaults

#endif
