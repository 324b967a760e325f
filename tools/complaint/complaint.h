// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// complaint.h - what went wrong, on stderr: a sentence for people or one JSON document for
// programs, the same form for each program that has
// --json. State of the process, for one thread: complaints come before the command line is
// understood, too.

#ifndef AULE_COMPLAINT_H
#define AULE_COMPLAINT_H

#include "base/exit_code.h"

#include <stdbool.h>

enum { COMPLAINT_SIZE = 1024 }; // bytes of a sentence; what is longer is cut

// First of all. Until complaint_settle() complaints are documents if --json is among the words
// before "--", wherever it stands. `program` is kept.
void complaint_begin(const char *program, int argc, char *const *argv);
// The command line is understood: it asked for documents, or not.
void complaint_settle(bool json);

// "program: WHAT (STATUS); HINT", or a document with the keys schema_version, error, status and
// hint. `status` is the library's or the daemon's, as "NOT_FOUND"; it and `hint` may be NULL =
// none.
void complaint_say(const char *what, const char *status, const char *hint);

// Without status and hint; returns `code`.
enum exit_code complain(enum exit_code code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
