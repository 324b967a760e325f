// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// clean.h - makes text from another process or from a user fit for a document or a terminal. No
// state.

#ifndef AULE_CLEAN_H
#define AULE_CLEAN_H

#include <stdbool.h>
#include <stddef.h>

// Copies as much of `from` as fits. Invalid UTF-8 becomes '?'; for a terminal, so do control
// characters.
void clean_text(char *to, size_t size, const char *from, bool for_terminal);

#endif
