// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// complaint.h - reports a failure on stderr: a sentence for people, or one JSON document for
// programs. All programs with --json use the same form. It has process-wide state, for one thread,
// because complaints may come before the command line is parsed.

#ifndef AULE_COMPLAINT_H
#define AULE_COMPLAINT_H

#include "base/exit_code.h"

#include <stdbool.h>

enum { COMPLAINT_SIZE = 1024 }; // bytes of a sentence; a longer one is cut

// Call this first. Until complaint_settle(), complaints are documents if --json is among the words
// before "--". `program` is kept, not copied.
void complaint_begin(const char *program, int argc, char *const *argv);
// Call this when the command line is parsed: says whether it asked for documents.
void complaint_settle(bool json);

// Prints "program: WHAT (STATUS); HINT", or a document with the keys schema_version, error, status
// and hint. `status` is the library's or the daemon's, as "NOT_FOUND". `status` and `hint` may be
// NULL = none.
void complaint_say(const char *what, const char *status, const char *hint);

// The same without status and hint. Returns `code`.
enum exit_code complain(enum exit_code code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
