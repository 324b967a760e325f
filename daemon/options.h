// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.h - the command line of aule-daemon as struct server_params. Main thread, before others
// start.

#ifndef AULE_DAEMON_OPTIONS_H
#define AULE_DAEMON_OPTIONS_H

#include "base/options.h"
#include "server/params.h"

// Strings of *params point into argv, but `lines`, which the caller frees. OPTIONS_BAD: the reason
// was written to standard error.
enum options_result options_parse(int argc, char **argv, struct server_params *params);

#endif
