// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// nng_uncured.c - in place of nng_cures.c where nng is linked shared: it has no reserve, and its
// descriptors are its own.

#include "nng_cures.h"

bool nng_reserve_is_short(void)
{
    return false;
}

int nng_accepted_descriptor(const void *stream)
{
    (void)stream;
    return -1;
}
