// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// clean.h - text of another process or of a user, fit for a document or a terminal. No state.

#ifndef AULE_CLEAN_H
#define AULE_CLEAN_H

#include <stdbool.h>
#include <stddef.h>

// As much of `from` as fits, with '?' for what is no UTF-8 and, for a terminal, for control
// characters: names come from other processes.
void clean_text(char *to, size_t size, const char *from, bool for_terminal);

#endif
