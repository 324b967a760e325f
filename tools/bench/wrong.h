// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// wrong.h - whether a result was found wrong, in this process or in a client of its own: the bench
// ends with another code then than where a result could not be had. Any thread.

#ifndef AULE_BENCH_WRONG_H
#define AULE_BENCH_WRONG_H

#include <stdbool.h>

// Says on standard error what is wrong, and notes it.
void wrong_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void wrong_note(void); // who found it has said it
bool wrong_noted(void);

#endif
