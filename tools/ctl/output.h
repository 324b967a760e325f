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
}; // of the documents: raised when a key is removed or changes its meaning

// A list: a table with headings, or {"schema_version": 1, "`name`": [...]}. A table leaves out text
// columns that are empty in each line. A table wider than the terminal is printed in parts, one
// below the other.
struct output_list {
    const char *name; // "sessions"
    const struct column *columns;
    const void *array;
    size_t count, entry_size;
    size_t num_names; // the first columns, which name a line and are repeated in each part; at
                      // least one, fewer than all
};
enum exit_code output_list(const struct ctl *ctl, const struct output_list *list);

// One object: "heading  value" lines, or one document with its keys beside schema_version.
enum exit_code output_object(const struct ctl *ctl, const struct column *columns,
                             const void *object);

// Only the document of an object. Adds `more` (may be NULL) to it and takes ownership of it.
enum exit_code output_json(const struct column *columns, const void *object, const char *key,
                           cJSON *more);

cJSON *output_entries(const struct output_list *list); // an array of objects; NULL: no memory

#endif
