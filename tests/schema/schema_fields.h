// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// schema_fields.h - the structs of wire.h as data: the place and kind of each field. It is made
// from the lists in wire_fields.h and the types in wire_types.h. A test checks that the fields
// cover every byte of a struct.

#ifndef AULE_TESTS_SCHEMA_FIELDS_H
#define AULE_TESTS_SCHEMA_FIELDS_H

#include "schema/wire.h"

#include "schema/wire_fields.h"

#include <stddef.h>

// As wire_fields.h names them.
enum kind {
    BOOL,
    INT,
    UINT,
    ULONG,
    FLOAT,
    STRING,
    INTS,
    LONGS,
    BYTES,
    STRINGS,
    FIXED,
    STRUCT,
    LIST,
    TABLE,
    LAST
};

#define SHAPE(packed, plain, FIELDS) SHAPE_##packed,
enum shape_id { WIRE_STRUCTS(SHAPE) WIRE_TABLES(SHAPE) WIRE_EMPTY_TABLES(SHAPE) SHAPE_NONE };
#undef SHAPE

struct field {
    const char *name;
    enum kind kind;
    size_t offset, size;
    enum shape_id of; // of STRUCT, LIST and TABLE: the struct that they contain
    size_t has;       // of TABLE: offset of the bool that says whether there is one
};
struct shape {
    const char *name;
    const struct field *fields; // ends with LAST
    size_t size;                // of the struct
};

extern const struct shape shapes[SHAPE_NONE];
extern const enum shape_id commands[WIRE_COMMAND_COUNT], answers[WIRE_ANSWER_COUNT];

#endif
