// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// stub.c - a library with the names of 0.1's functions and its soname, to link a program as it was linked then. Never called.

#include "names.h"

#define STUB(name)                                                                                                     \
    void name(void);                                                                                                   \
    void name(void)                                                                                                    \
    {                                                                                                                  \
    }
FUNCTIONS_0_1(STUB)
