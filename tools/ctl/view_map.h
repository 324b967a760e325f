// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// view_map.h - blocks of caches as a drawing of characters. One thread.

#ifndef AULE_CTL_VIEW_MAP_H
#define AULE_CTL_VIEW_MAP_H

#include "ctl.h"

struct block_row {
    uint64_t cache;
    const char *cache_name; // borrowed from the list of caches
    struct aule_block_state block;
};

// The blocks of one cache follow one another, by their ids.
struct block_rows {
    struct block_row *array; // owned
    size_t count;
};

// On a terminal a map has its width, and colours unless $NO_COLOR is set.
enum exit_code map_print(const struct block_rows *rows);

#endif
