// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// output.h - prints a view: an aligned table, a block of lines, or one JSON document. One thread.

#ifndef AULE_CTL_OUTPUT_H
#define AULE_CTL_OUTPUT_H

#include "column.h"
#include "ctl.h"

enum {
    OUTPUT_SCHEMA_VERSION = 1
}; // of the documents: raised when a key is removed or changes its meaning

// A list: a table with headings, or {"schema_version": 1, "`name`": [...]}. A table leaves out
// columns of words that are empty in all lines. If the terminal is too narrow, the table comes in
// parts below each other.
struct output_list {
    const char *name; // "sessions"
    const struct column *columns;
    const void *array;
    size_t count, entry_size;
    size_t num_names; // the first columns, which name a line and stand in each part; 1 or more, but
                      // not all
};
enum exit_code output_list(const struct ctl *ctl, const struct output_list *list);

// One object: lines of "heading  value", or a document with its keys beside schema_version.
enum exit_code output_object(const struct ctl *ctl, const struct column *columns,
                             const void *object);

// The document of an object. Takes `more`, unless it is NULL, and adds it as `key`.
enum exit_code output_json(const struct column *columns, const void *object, const char *key,
                           cJSON *more);

// Columns of the terminal; INT_MAX if output goes to none.
int output_width(void);

cJSON *output_entries(const struct output_list *list); // an array of objects; NULL: no memory

#endif
