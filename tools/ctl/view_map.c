// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// view_map.c - see view_map.h. A cell is one character. It stands for as many blocks as
// keep a cache within MOST_LINES lines, and shows the state that most of these blocks have.

#include "view_map.h"

#include "column.h"
#include "output.h"
#include "tools/complaint/clean.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MOST_LINES = 48,                 // of a cache
    FILE_CELLS = 64,                 // in a line where there is no terminal
    ID_WIDTH = 9,                    // of the first block's id before each line
    UNKNOWN = AULE_BLOCK_ABSENT + 1, // any state that only a newer daemon knows
    NUM_KINDS
};

static const struct {
    char letter;
    const char *escape; // of a terminal
} looks[NUM_KINDS] = {
    [AULE_BLOCK_FREE] = {'.', "\033[2m"},
    [AULE_BLOCK_LEASED] = {'L', "\033[33m"},
    [AULE_BLOCK_HELD] = {'H', "\033[32m"},
    [AULE_BLOCK_CACHED] = {'c', "\033[36m"},
    [AULE_BLOCK_QUARANTINED] = {'Q', "\033[31m"},
    [AULE_BLOCK_ABSENT] = {' ', ""},
    [UNKNOWN] = {'?', ""},
};

// The blocks of one cache, and how they are drawn.
struct area {
    const struct block_row *rows; // [num_blocks]
    size_t num_blocks;
    size_t counts[NUM_KINDS];
    uint32_t line; // cells in a line
    size_t cell;   // blocks in a cell, a power of two
    size_t num_lines;
};

// Where `looks` and counts have the row's state.
static int kind_of(const struct block_row *row)
{
    const unsigned state = (unsigned)row->block.state;
    return state < UNKNOWN ? (int)state : UNKNOWN;
}

static struct area next_area(const struct block_rows *rows, size_t first, uint32_t line)
{
    struct area area = {.rows = rows->array + first, .line = line, .cell = 1};
    while (first + area.num_blocks < rows->count &&
           area.rows[area.num_blocks].cache == area.rows[0].cache)
        area.counts[kind_of(&area.rows[area.num_blocks++])]++;
    while (area.num_blocks > area.cell * line * MOST_LINES)
        area.cell *= 2;
    const size_t blocks = area.cell * line;
    area.num_lines = (area.num_blocks + blocks - 1) / blocks;
    return area;
}

// The state that most blocks of the cell have; of states that as many have, the last one.
static int cell_kind(const struct area *area, size_t first)
{
    size_t counts[NUM_KINDS] = {0};
    int kind = AULE_BLOCK_FREE;
    for (size_t i = first; i < first + area->cell && i < area->num_blocks; i++)
        counts[kind_of(&area->rows[i])]++;
    for (int i = 0; i < NUM_KINDS; i++)
        if (counts[i] >= counts[kind])
            kind = i;
    return kind;
}

// "cache 1 "kv": 512 blocks, 16 to a character; free 500, held 12".
static void print_counts(const struct area *area)
{
    char name[COLUMN_TEXT_SIZE];
    clean_text(name, sizeof name, area->rows[0].cache_name, true);
    printf("cache %" PRIu64 " \"%s\": %zu blocks, %zu to a character", area->rows[0].cache, name,
           area->num_blocks, area->cell);
    const char *gap = "; ";
    for (int i = 0; i < NUM_KINDS; i++) {
        if (area->counts[i] == 0)
            continue;
        printf("%s%s %zu", gap, block_kind_name(i), area->counts[i]);
        gap = ", ";
    }
    putchar('\n');
}

static bool has_colors(void)
{
    const char *none = getenv("NO_COLOR"), *terminal = getenv("TERM");
    return isatty(STDOUT_FILENO) && !(none && *none) && terminal && strcmp(terminal, "dumb") != 0;
}

static void print_key(bool colors)
{
    for (int i = 0; i < AULE_BLOCK_ABSENT; i++)
        printf("%s%s%c%s %s", i ? "  " : "", colors ? looks[i].escape : "", looks[i].letter,
               colors ? "\033[0m" : "", block_kind_name(i));
    putchar('\n');
}

static void print_line(const struct area *area, size_t line, bool colors)
{
    int last = AULE_BLOCK_ABSENT;
    size_t first = line * area->line * area->cell;
    printf("%*" PRId32 "  ", ID_WIDTH - 2, area->rows[first].block.block);
    for (size_t i = 0; i < area->line && first < area->num_blocks; i++, first += area->cell) {
        const int kind = cell_kind(area, first);
        if (colors && kind != last)
            printf("\033[0m%s", looks[kind].escape);
        putchar(looks[kind].letter);
        last = kind;
    }
    puts(colors ? "\033[0m" : "");
}

// Ids at the beginning of lines are round.
static uint32_t cells_in_line(void)
{
    const int width = output_width();
    if (width >= FILE_CELLS + ID_WIDTH + FILE_CELLS)
        return 2 * FILE_CELLS;
    return width >= FILE_CELLS + ID_WIDTH ? FILE_CELLS
           : width >= 32 + ID_WIDTH       ? 32
           : width >= 16 + ID_WIDTH       ? 16
                                          : 8;
}

enum exit_code map_print(const struct block_rows *rows)
{
    const bool colors = has_colors();
    const uint32_t line = isatty(STDOUT_FILENO) ? cells_in_line() : FILE_CELLS;
    print_key(colors);
    for (size_t first = 0; first < rows->count;) {
        const struct area area = next_area(rows, first, line);
        print_counts(&area);
        for (size_t i = 0; i < area.num_lines; i++)
            print_line(&area, i, colors);
        first += area.num_blocks;
    }
    return EXIT_CODE_DONE;
}
