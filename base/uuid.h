// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// uuid.h - a device's UUID as text. Logs, tools, JSON and names of files share this form.

#ifndef AULE_UUID_H
#define AULE_UUID_H

#include <stdint.h>
#include <stdio.h>

enum { UUID_TEXT_SIZE = 37 }; // 32 digits, 4 dashes, NUL

// Writes "00112233-4455-6677-8899-aabbccddeeff" and the like to `to`, and returns `to`.
static inline const char *uuid_text(const uint8_t uuid[16], char to[UUID_TEXT_SIZE])
{
    for (int i = 0, used = 0; i < 16; i++)
        used +=
            sprintf(to + used, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
    return to;
}

#endif
