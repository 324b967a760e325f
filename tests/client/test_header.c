// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_header.c - aule.h and sequence.h by themselves, compiled as C11 and as C++17 with -Wall
// -Wextra -Wpedantic -Werror. No other header: it has to bring what it needs.

#include "aule/sequence.h"

int main(void)
{
    struct aule_session_params params;
    params.arena_size = UINT64_C(1) << 20;
    return aule_error()[0] == '\0' && params.arena_size > 0 && aule_dtype_size(AULE_F16) == 2 ? 0
                                                                                              : 1;
}
