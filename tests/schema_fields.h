// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// schema_fields.h - every struct of wire.h as a table of fields, by command and by answer: so that a test can fill, compare and read each of
// them without knowing it. Written from wire.h, not from wire.cc; a test checks that no byte of a struct is left out.

#ifndef AULE_TESTS_SCHEMA_FIELDS_H
#define AULE_TESTS_SCHEMA_FIELDS_H

#include "wire.h"

#include <stddef.h>

enum kind { U32, I32, U64, BOOL, F32, TEXT, NAME, INTS, LONGS, BYTES, TENSORS, NAME_LIST, SPAN, TENSOR, UUID, LAST };

struct field {
    const char *name;
    enum kind kind;
    size_t offset;
    uint32_t limit; // of BYTES; 0 = none
};
struct shape {
    const char *name;
    const struct field *fields; // ends with LAST, whose offset is the size of the struct
};

// An answer that lists structs: where its parts lie in struct wire_reply; 0 = it has no such part.
struct list {
    const struct field *entry;
    size_t entry_size, total, count, entries, names, tenants;
};

extern const struct shape commands[WIRE_COMMAND_COUNT], answers[WIRE_ANSWER_COUNT];
extern const struct list lists[WIRE_ANSWER_COUNT];
extern const size_t kind_size[LAST + 1];
size_t kind_alignment(enum kind kind);

#endif
