// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// schema_fields.c - see schema_fields.h.

#include "schema_fields.h"

// clang-format off
#define MEMBER_SIZE(owner, f)           sizeof ((struct wire_##owner *)0)->f
#define FIELD(owner, f, kind, of)                                                                  \
    {#f, kind, offsetof(struct wire_##owner, f), MEMBER_SIZE(owner, f), SHAPE_##of, 0},
#define FIELD_TABLE(owner, f, kind, of)                                                            \
    {#f, kind, offsetof(struct wire_##owner, f), MEMBER_SIZE(owner, f), SHAPE_##of,                \
     offsetof(struct wire_##owner, has_##f)},
#define NO_FIELD(owner, f, kind, of)    // the union of a request or a reply
#define END                             {"end", LAST, 0, 0, SHAPE_NONE, 0}

#define STRUCT_FIELDS(packed, plain, FIELDS)                                                       \
    static const struct field plain##_fields[] = {FIELDS(FIELD, FIELD) END};
#define TABLE_FIELDS(packed, plain, FIELDS)                                                        \
    static const struct field plain##_fields[] = {FIELDS(FIELD, FIELD_TABLE, FIELD, NO_FIELD) END};
WIRE_STRUCTS(STRUCT_FIELDS)
WIRE_TABLES(TABLE_FIELDS)
static const struct field no_fields[] = {END};

#define FULL_SHAPE(packed, plain, FIELDS)                                                          \
    [SHAPE_##packed] = {#packed, plain##_fields, sizeof(struct wire_##plain)},
#define EMPTY_SHAPE(packed, plain, FIELDS) [SHAPE_##packed] = {#packed, no_fields, 0},
const struct shape shapes[SHAPE_NONE] = {
    WIRE_STRUCTS(FULL_SHAPE) WIRE_TABLES(FULL_SHAPE) WIRE_EMPTY_TABLES(EMPTY_SHAPE)
};

#define COMMAND(name, member, table) [WIRE_COMMAND_##name] = SHAPE_##table,
#define ANSWER(name, member, table)  [WIRE_ANSWER_##name] = SHAPE_##table,
const enum shape_id commands[WIRE_COMMAND_COUNT] = {WIRE_COMMAND_MAP(COMMAND)};
const enum shape_id answers[WIRE_ANSWER_COUNT] = {WIRE_ANSWER_MAP(ANSWER)};
// clang-format on
