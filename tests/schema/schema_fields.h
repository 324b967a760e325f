// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// schema_fields.h - the structs of wire.h as data: where each field lies and of which kind it is.
// Made of the lists in wire_fields.h and of the types in wire_types.h; a test checks that no byte
// of a struct is left out.

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
    ARRAY,
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
    enum shape_id of; // of STRUCT, LIST and TABLE: what they are made of
    size_t has;       // of TABLE: where the bool lies that says whether there is one
};
struct shape {
    const char *name;
    const struct field *fields; // ends with LAST
    size_t size;                // of the struct
};

extern const struct shape shapes[SHAPE_NONE];
extern const enum shape_id commands[WIRE_COMMAND_COUNT], answers[WIRE_ANSWER_COUNT];

#endif
