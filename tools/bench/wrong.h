// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// wrong.h - remembers whether a result was wrong, in this process or in a client. The bench then
// ends with another exit code than if it could not measure. Any thread.

#ifndef AULE_BENCH_WRONG_H
#define AULE_BENCH_WRONG_H

#include <stdbool.h>

// Says on standard error what is wrong, and remembers it.
void wrong_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void wrong_note(void); // the finder has printed it already
bool wrong_noted(void);

#endif
