// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// exit_code.h - the exit codes of aule-daemon, aule-ctl, aule-worker and aule-bench. One rule holds
// for all, so a script or a supervisor need not know which program ended.

#ifndef AULE_EXIT_CODE_H
#define AULE_EXIT_CODE_H

enum exit_code {
    EXIT_CODE_DONE = 0,
    EXIT_CODE_FAILED = 1, // it could not be done, was refused, or came out wrong
    EXIT_CODE_USAGE = 2,  // the command line is wrong; nothing was begun
    // No daemon answers, or the GPU was lost: start the daemon. aule-bench: nothing could be
    // measured.
    EXIT_CODE_GONE = 3,
};

#endif
