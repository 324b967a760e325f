// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// query.h - the options in a tier's URL, as in "redis://host?expire=3600&connections=4". A backend
// has a table of its keys. Knows no backend. Any thread; no state.

#ifndef AULE_TIER_QUERY_H
#define AULE_TIER_QUERY_H

#include "base/options.h"
#include "schema/status.h"

enum { QUERY_URL_SIZE = 4096 }; // bytes of a URL with its NUL

struct query {
    char url[QUERY_URL_SIZE]; // without its options; behind it lie the texts of the options
};

// Sets the fields of `settings` that have a default, then those that the URL `text` names. A value
// may have %XX. Texts point into *query. The options begin at the first "?" behind the last "@".
// STATUS_INVALID: the error names the key and the value, and shows nothing of a login.
enum status query_read(struct query *query, const char *text, const struct option *keys,
                       size_t num_keys, void *settings, struct error *error);

#endif
