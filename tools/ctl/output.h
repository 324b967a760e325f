// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// output.h - a view on stdout: an aligned table, a block of lines, or one JSON document. One
// thread.

#ifndef AULE_CTL_OUTPUT_H
#define AULE_CTL_OUTPUT_H

#include "column.h"
#include "ctl.h"

enum {
    OUTPUT_SCHEMA_VERSION = 1
}; // of the documents: raised when a key changes its meaning or goes

// A list: a table with headings, or {"schema_version": 1, "`name`": [...]}. Of a table, columns of
// words that say nothing in any line are left out, and what a terminal has no room for comes in
// parts below each other.
struct output_list {
    const char *name; // "sessions"
    const struct column *columns;
    const void *array;
    size_t count, entry_size;
    size_t num_names; // columns, the first ones, that name a line: they are in each part; at least
                      // one, fewer than all
};
enum exit_code output_list(const struct ctl *ctl, const struct output_list *list);

// One object as "heading  value" lines, or as one document with its keys beside schema_version.
enum exit_code output_object(const struct ctl *ctl, const struct column *columns,
                             const void *object);

// The document of an object alone; `more` (may be NULL) is added to it and taken over.
enum exit_code output_json(const struct column *columns, const void *object, const char *key,
                           cJSON *more);

cJSON *output_entries(const struct output_list *list); // an array of objects; NULL without memory

#endif
