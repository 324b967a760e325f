// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// units.h - numbers as people read them. Each fills `text` and returns it. No state.

#ifndef AULE_CTL_UNITS_H
#define AULE_CTL_UNITS_H

#include <stddef.h>
#include <stdint.h>

enum { UNITS_SIZE = 32 }; // bytes that each of these functions needs

const char *units_bytes(uint64_t bytes, char text[UNITS_SIZE]); // "512 B", "1.5 GiB"
const char *units_count(uint64_t count, char text[UNITS_SIZE]); // "9999", "12.3 k", "4.5 M"
const char *units_ms(uint64_t milliseconds,
                     char text[UNITS_SIZE]); // "750 ms", "12.3 s", "3 min 20 s", "5 d 4 h"
const char *units_ns(uint64_t nanoseconds, char text[UNITS_SIZE]); // "850 ns", "12.3 us", ...

#endif
