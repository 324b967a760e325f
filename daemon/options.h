// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.h - the command line of aule-daemon as a struct.

#ifndef AULE_DAEMON_OPTIONS_H
#define AULE_DAEMON_OPTIONS_H

#include "base/options.h"
#include "server/log.h"
#include "server/server.h"

struct options {
    struct server_params server;
    const char *cache_folder; // --cache-folder: a folder, "none", or NULL = the rule
    enum log_level log_level;
    bool list_devices;
};

// Strings point into argv. OPTIONS_BAD: standard error says why.
enum options_result options_parse(int argc, char **argv, struct options *options);

#endif
