// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// column.h - shows a field of a struct of aule.h as text for people and as JSON. A view is one
// table of columns for both, so text and JSON cannot drift apart. No state.

#ifndef AULE_CTL_COLUMN_H
#define AULE_CTL_COLUMN_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

enum column_kind {
    COLUMN_U32,
    COLUMN_U64,
    COLUMN_I32,
    COLUMN_ID,        // uint64_t whose digits all count, as those of an id: never shortened
    COLUMN_HEX,       // uint64_t; a string in JSON, because a reader's double would round it
    COLUMN_BYTES,     // uint64_t
    COLUMN_BYTES_U32, // uint32_t
    COLUMN_MS,        // uint64_t
    COLUMN_NS,        // uint64_t
    COLUMN_BOOL,
    COLUMN_TEXT,    // char []
    COLUMN_POINTER, // const char *
    COLUMN_DTYPE,
    COLUMN_SCALE_MODE,
    COLUMN_BLOCK_KIND,
    COLUMN_UUID,
    COLUMN_API_VERSION, // VK_MAKE_API_VERSION
};

struct column {
    const char *key;     // in JSON
    const char *heading; // for people; NULL = in JSON only
    enum column_kind kind;
    size_t offset; // in the struct
};
enum { COLUMN_TEXT_SIZE = 300 }; // bytes that column_text() needs: a name of 255 and its end

// The field as people read it. Control characters become '?'.
const char *column_text(const struct column *column, const void *object,
                        char text[COLUMN_TEXT_SIZE]);
bool column_is_number(const struct column *column); // is aligned to the right

// Adds the fields of `object` to `to`; a column without a key ends `columns`. False: no memory.
bool columns_json(const struct column *columns, const void *object, cJSON *to);

extern const char *const block_kind_names[]; // by enum aule_block_kind; ends with NULL
const char *block_kind_name(int kind);       // "leased"; "unknown" if it is none

#endif
