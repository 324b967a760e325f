// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// exit_code.h - what aule-daemon, aule-ctl, aule-worker and aule-bench end with: one rule, so that
// a script or a supervisor need not ask which it was.

#ifndef AULE_EXIT_CODE_H
#define AULE_EXIT_CODE_H

enum exit_code {
    EXIT_CODE_DONE = 0,
    EXIT_CODE_FAILED = 1, // it could not be done, was refused, or came out wrong
    EXIT_CODE_USAGE = 2,  // the command line is wrong; nothing was begun
    // Who does the work is not there: no daemon answers, or the GPU was lost; start the daemon. Of
    // aule-bench: it could not be measured.
    EXIT_CODE_GONE = 3,
};

#endif
