// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// status.c - names and texts of the two lists in status.h, and error_set(). No state; any thread.

#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *status_name(int status)
{
    switch (status) {
#define X(name, value, text)                                                                       \
    case value: return #name;
        AULE_STATUS_MAP(X)
#undef X
    default: return "UNKNOWN";
    }
}

const char *status_text(int status)
{
    switch (status) {
#define X(name, value, text)                                                                       \
    case value: return text;
        AULE_STATUS_MAP(X)
#undef X
    default: return "UNKNOWN";
    }
}

const char *dtype_name(int dtype)
{
    switch (dtype) {
#define X(name, value, text, size, largest)                                                        \
    case value: return #text;
        AULE_DTYPE_MAP(X)
#undef X
    default: return "unknown";
    }
}

uint32_t dtype_size(int dtype)
{
    switch (dtype) {
#define X(name, value, text, size, largest)                                                        \
    case value: return size;
        AULE_DTYPE_MAP(X)
#undef X
    default: return 0;
    }
}

enum status error_set(struct error *error, enum status status, const char *format, ...)
{
    if (!error)
        return status;
    va_list values;
    va_start(values, format);
    int length = vsnprintf(error->text, sizeof error->text, format, values);
    va_end(values);
    if (length < 0)
        error->text[0] = '\0';
    else if ((size_t)length >= sizeof error->text) // show that the sentence was cut
        memcpy(error->text + sizeof error->text - 4, "...", 4);
    error->status = status;
    return status;
}
