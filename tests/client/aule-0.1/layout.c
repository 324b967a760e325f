// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// layout.c - see layout.h. Compiled twice: by 0.1's header as layout_0_1, with NOW by today's as layout_now.

#include "layout.h"

#ifdef NOW
#include "client/src/v0_1.h"
#else
#include <aule/aule.h>
#define SIZE_0_1(name) sizeof(struct name)
#endif
#include "names.h"

#define GROWING(name)      {#name, SIZE_0_1(name), sizeof(struct name)},
#define FIXED(name)        {#name, sizeof(struct name), sizeof(struct name)},
#define FIELD(name, field) {#name "." #field, offsetof(struct name, field), sizeof(((struct name *)NULL)->field)},
#define VALUE(name)        {#name, (size_t)(name), 0},

const struct layout LAYOUT[] = {GROWING_STRUCTS_0_1(GROWING) FIXED_STRUCTS_0_1(FIXED) FIELDS_0_1(FIELD)
                                    VALUES_0_1(VALUE){NULL, 0, 0}};
