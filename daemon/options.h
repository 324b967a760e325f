// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.h - the command line of aule-daemon as a struct. Knows names, ranges and defaults, not
// what an option does. Main thread, before others start.

#ifndef AULE_DAEMON_OPTIONS_H
#define AULE_DAEMON_OPTIONS_H

#include "base/options.h"
#include "server/log.h"
#include "server/server.h"

struct options {
    struct server_params server;
    const char *cache_folder; // --cache-folder: a folder, or "none"; NULL = the default
    enum log_level log_level;
    bool list_devices;
};

// Strings of *options point into argv. OPTIONS_BAD: the reason was written to standard error.
enum options_result options_parse(int argc, char **argv, struct options *options);

#endif
