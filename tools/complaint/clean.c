// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// clean.c - see clean.h.

#include "clean.h"

#include <string.h>

// Bytes of the UTF-8 character at `text`, 0 if it is none.
static size_t utf8_length(const unsigned char *text)
{
    size_t length = *text < 0x80                    ? 1
                    : *text >= 0xc2 && *text < 0xe0 ? 2
                    : (*text & 0xf0) == 0xe0        ? 3
                    : *text >= 0xf0 && *text < 0xf5 ? 4
                                                    : 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (*text == 0xe0 && text[1] < 0xa0) || (*text == 0xf0 && text[1] < 0x90);
    bool outside = (*text == 0xed && text[1] > 0x9f) || (*text == 0xf4 && text[1] > 0x8f);
    return overlong || outside ? 0 : length;
}

static bool is_control(const unsigned char *text)
{
    return *text < 0x20 || *text == 0x7f || (*text == 0xc2 && text[1] < 0xa0);
}

void clean_text(char *to, size_t size, const char *from, bool for_terminal)
{
    const unsigned char *at = (const unsigned char *)from;
    while (*at) {
        size_t length = utf8_length(at);
        bool bad = length == 0 || (for_terminal && is_control(at));
        size_t step = length ? length : 1, out = bad ? 1 : length;
        if (out >= size)
            break;
        memcpy(to, bad ? (const void *)"?" : at, out);
        to += out, size -= out, at += step;
    }
    *to = '\0';
}
