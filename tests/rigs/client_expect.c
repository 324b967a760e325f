// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// client_expect.c - see client_expect.h.

#include "client_expect.h"

#include "check_main.h"

#include <string.h>

void ok(enum aule_status status)
{
    ck_assert_msg(status == AULE_OK, "%s: %s", aule_status_name(status), aule_error());
}

void expect(enum aule_status status, enum aule_status expected, const char *words)
{
    ck_assert_msg(status == expected, "%s instead of %s: %s", aule_status_name(status),
                  aule_status_name(expected), aule_error());
    ck_assert_msg(strstr(aule_error(), words) != NULL, "\"%s\" lacks \"%s\"", aule_error(), words);
}

float value_at(uint32_t seed, uint32_t i)
{
    uint32_t x = seed * 2654435761u + i * 40503u + 12345u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (float)(x & 0xffff) / 32768 - 1;
}
