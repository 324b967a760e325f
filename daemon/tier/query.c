// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// query.c - see query.h.

#include "query.h"

#include <string.h>

static int digit(char letter)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    const char *at = letter ? strchr(digits, letter) : NULL;
    return at ? (int)((at - digits) % 16) : -1;
}

// Decodes %XX in place. False: a % has no two hexadecimal digits, or stands for a NUL.
static bool decode(char *text)
{
    char *to = text;
    for (const char *from = text; *from; from++) {
        char letter = *from;
        if (letter == '%') {
            const int high = digit(from[1]), low = high < 0 ? -1 : digit(from[2]);
            if (low < 0 || high * 16 + low == 0)
                return false;
            letter = (char)(high * 16 + low);
            from += 2;
        }
        *to++ = letter;
    }
    *to = '\0';
    return true;
}

// `pair` is "key=value".
static enum status set(const struct options_program *keys, char *pair, void *settings,
                       struct error *error)
{
    char why[OPTIONS_ERROR_SIZE];
    char *value = strchr(pair, '=');
    if (value)
        *value++ = '\0';
    if (value && !decode(value))
        return error_set(error, STATUS_INVALID,
                         "%s: the value has a %% without two hexadecimal digits, or %%00", pair);
    return options_set(keys, pair, value, settings, why)
               ? STATUS_OK
               : error_set(error, STATUS_INVALID, "%s", why + strlen("--"));
}

enum status query_read(struct query *query, const char *text, const struct option *keys,
                       size_t num_keys, void *settings, struct error *error)
{
    const struct options_program program = {.options = keys, .num_options = num_keys};
    char why[OPTIONS_ERROR_SIZE];
    if (strlen(text) >= sizeof query->url)
        return error_set(error, STATUS_INVALID, "the URL has more than %zu bytes",
                         sizeof query->url - 1);
    strcpy(query->url, text);
    if (!options_set_defaults(&program, settings, why))
        return error_set(error, STATUS_INTERNAL, "%s", why);
    char *login = strrchr(query->url, '@'), *next = strchr(login ? login : query->url, '?');
    enum status status = STATUS_OK;
    if (next)
        *next++ = '\0';
    while (next && status == STATUS_OK) {
        char *pair = next;
        next = strchr(pair, '&');
        if (next)
            *next++ = '\0';
        status = set(&program, pair, settings, error);
    }
    return status;
}
