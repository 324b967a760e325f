// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// status.c - the public statuses and element types. Asserts that aule.h has the same lists as
// schema/status.h. Any thread.

#include "schema/status.h"
#include "aule/aule.h"

#define X(name, value, text)                                                                       \
    _Static_assert((int)AULE_##name == (value) && (int)STATUS_##name == (value),                   \
                   "aule.h and status.h: " #name);
AULE_STATUS_MAP(X)
#undef X

#define X(name, value, text, size, largest)                                                        \
    _Static_assert((int)AULE_##name == (value) && (int)DTYPE_##name == (value),                    \
                   "aule.h and status.h: " #name);
AULE_DTYPE_MAP(X)
#undef X

const char *aule_version(void)
{
    return AULE_VERSION_STRING;
}

const char *aule_status_name(enum aule_status status)
{
    return status_name((int)status);
}

const char *aule_status_text(enum aule_status status)
{
    return status_text((int)status);
}

const char *aule_dtype_name(enum aule_dtype dtype)
{
    return dtype_name((int)dtype);
}

size_t aule_dtype_size(enum aule_dtype dtype)
{
    return dtype_size((int)dtype);
}
