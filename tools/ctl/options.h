// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.h - the command line of aule-ctl as struct ctl. One thread.

#ifndef AULE_CTL_OPTIONS_H
#define AULE_CTL_OPTIONS_H

#include "ctl.h"

// Fills *ctl and *command. False: help or a complaint was printed, and *code is the exit code.
bool options_parse(int argc, char **argv, struct ctl *ctl, const struct command **command,
                   enum exit_code *code);

#endif
