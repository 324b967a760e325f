// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options_misfit.c - an entry of each kind over the field that -DFIELD names. options_misfit.sh
// compiles it: the field must have a type that the kind -DKIND stores.

#include "base/options.h"

struct settings {
    bool flag;
    const char *text;
    char *changeable;
    double number;
    float narrow;
    uint16_t half;
    uint32_t word;
    uint64_t words;
    enum { A, B } choice;
};

#define ENTRY(kind, field)                                                                         \
    {                                                                                              \
        "name", "ARGUMENT", OPTION_FIELD(kind, struct settings, field)                             \
    }
const struct option entry = ENTRY(KIND, FIELD);
