// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// layout.h - how a compiler that reads one of the headers lays its structs out, and what its enumerators are.

#ifndef AULE_TESTS_LAYOUT_H
#define AULE_TESTS_LAYOUT_H

#include <stddef.h>

struct layout {
    const char *name; // "aule_daemon_state", "aule_daemon_state.epoch", "AULE_OK"; NULL = the end
    size_t offset;    // bytes; of a struct what 0.1's size was, of an enumerator its value
    size_t size;      // bytes; of an enumerator 0
};
// The same names in the same order: those of 0.1.
extern const struct layout layout_0_1[], layout_now[];

#endif
