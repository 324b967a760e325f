// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// output.c - lays views out on stdout. Goes over a list twice instead of copying its texts, because
// a list may have a million rows.

#include "output.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { GAP = 2 }; // between columns

// ---- for people ----

// Columns that the text before `end` takes on a screen. UTF-8's continuation bytes take none.
static int width_to(const char *text, const char *end)
{
    int width = 0;
    for (; text < end; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static int width_of(const char *text)
{
    return width_to(text, text + strlen(text));
}

int output_width(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : INT_MAX;
}

static void print_cell(const char *text, int width, bool to_the_right)
{
    int padding = width - width_of(text);
    printf("%*s%s%*s", to_the_right ? padding : 0, "", text, to_the_right ? 0 : padding, "");
}

// Prints the last cell of a line, which begins at column `indent`. Words that do not fit the screen
// go on below it.
static void print_words(const char *text, int indent)
{
    int room = output_width() - indent, left = room;
    for (const char *end; *text; text = end) {
        end = text + strspn(text, " ");
        end += strcspn(end, " ");
        if (width_to(text, end) > left && left < room) {
            printf("\n%*s", indent, "");
            text += strspn(text, " ");
            left = room;
        }
        printf("%.*s", (int)(end - text), text);
        left -= width_to(text, end);
    }
}

static const struct column *next_shown(const struct column *column)
{
    while (column->key && !column->heading)
        column++;
    return column->key ? column : NULL;
}

// A column of a list, with its width on the screen.
struct shown {
    const struct column *column;
    int width;
};

static const void *entry(const struct output_list *list, size_t index)
{
    return (const char *)list->array + index * list->entry_size;
}

static int column_width(const struct column *column, const struct output_list *list)
{
    char text[COLUMN_TEXT_SIZE];
    int width = width_of(column->heading);
    for (size_t i = 0; i < list->count; i++) {
        int cell = width_of(column_text(column, entry(list, i), text));
        width = cell > width ? cell : width;
    }
    return width;
}

// A column that is empty in all lines, or "no" in all.
static bool says_nothing(const struct column *column, const struct output_list *list)
{
    char text[COLUMN_TEXT_SIZE];
    const char *nothing = column->kind == COLUMN_BOOL ? "no" : "";
    bool silent = list->count && !column_is_number(column);
    for (size_t i = 0; silent && i < list->count; i++)
        silent = strcmp(column_text(column, entry(list, i), text), nothing) == 0;
    return silent;
}

static size_t find_shown(const struct output_list *list, struct shown *shown)
{
    size_t count = 0;
    for (const struct column *column = next_shown(list->columns); column;
         column = next_shown(column + 1))
        if (count < list->num_names || !says_nothing(column, list))
            shown[count++] = (struct shown){column, column_width(column, list)};
    return count;
}

// The end of the columns from `first` on that fit the screen beside those that name a line. At
// least one column is taken.
static size_t part_end(const struct output_list *list, const struct shown *shown, size_t count,
                       size_t first)
{
    int width = 0, most = output_width();
    for (size_t i = 0; i < list->num_names; i++)
        width += shown[i].width + GAP;
    for (size_t i = first; i < count; i++) {
        width += shown[i].width;
        if (width > most && i > first)
            return i;
        width += GAP;
    }
    return count;
}

// Prints one row: the columns that name it, and those in [first, end). NULL: the headings.
static void print_row(const struct output_list *list, const struct shown *shown, size_t first,
                      size_t end, const void *object)
{
    char text[COLUMN_TEXT_SIZE];
    int indent = 0;
    for (size_t i = 0; i < end; i = i + 1 == list->num_names ? first : i + 1) {
        const struct column *column = shown[i].column;
        const char *cell = object ? column_text(column, object, text) : column->heading;
        if (i)
            printf("%*s", GAP, "");
        if (i + 1 == end && !column_is_number(column))
            print_words(cell, indent);
        else
            print_cell(cell, shown[i].width, column_is_number(column));
        indent += shown[i].width + GAP;
    }
    putchar('\n');
}

// A table that is wider than the screen comes in parts below each other.
static void print_parts(const struct output_list *list, const struct shown *shown, size_t count)
{
    for (size_t first = list->num_names, end; first < count; first = end) {
        end = part_end(list, shown, count, first);
        if (first > list->num_names)
            putchar('\n');
        print_row(list, shown, first, end, NULL);
        for (size_t i = 0; i < list->count; i++)
            print_row(list, shown, first, end, entry(list, i));
    }
}

static enum exit_code print_list(const struct output_list *list)
{
    size_t count = 0;
    for (const struct column *column = list->columns; column->key; column++)
        count++;
    struct shown *shown = calloc(count, sizeof *shown);
    if (!shown)
        return complain(EXIT_CODE_FAILED, "no memory for a table of %zu columns", count);
    print_parts(list, shown, find_shown(list, shown));
    free(shown);
    return EXIT_CODE_DONE;
}

static enum exit_code print_object(const struct column *columns, const void *object)
{
    char text[COLUMN_TEXT_SIZE];
    int width = 0;
    for (const struct column *column = next_shown(columns); column; column = next_shown(column + 1))
        width = width_of(column->heading) > width ? width_of(column->heading) : width;
    for (const struct column *column = next_shown(columns); column;
         column = next_shown(column + 1)) {
        print_cell(column->heading, width + GAP, false);
        print_words(column_text(column, object, text), width + GAP);
        putchar('\n');
    }
    return EXIT_CODE_DONE;
}

// ---- JSON ----

// A document with its schema_version; NULL: no memory.
static cJSON *new_document(void)
{
    cJSON *document = cJSON_CreateObject();
    if (document && cJSON_AddNumberToObject(document, "schema_version", OUTPUT_SCHEMA_VERSION))
        return document;
    cJSON_Delete(document);
    return NULL;
}

static bool add_entry(const struct output_list *list, size_t index, cJSON *array)
{
    cJSON *object = cJSON_CreateObject();
    if (object && cJSON_AddItemToArray(array, object))
        return columns_json(list->columns, entry(list, index), object);
    cJSON_Delete(object);
    return false;
}

cJSON *output_entries(const struct output_list *list)
{
    cJSON *array = cJSON_CreateArray();
    for (size_t i = 0; array && i < list->count; i++) {
        if (add_entry(list, i, array))
            continue;
        cJSON_Delete(array);
        return NULL;
    }
    return array;
}

// Prints and frees `document`; NULL: there was no memory for it.
static enum exit_code print_document(cJSON *document)
{
    char *text = document ? cJSON_Print(document) : NULL;
    cJSON_Delete(document);
    if (!text)
        return complain(EXIT_CODE_FAILED, "no memory for the JSON document");
    puts(text);
    cJSON_free(text);
    return EXIT_CODE_DONE;
}

static enum exit_code print_json_list(const struct output_list *list)
{
    cJSON *all = new_document(), *array = output_entries(list);
    if (!all || !array || !cJSON_AddItemToObjectCS(all, list->name, array)) {
        cJSON_Delete(array);
        cJSON_Delete(all);
        all = NULL;
    }
    return print_document(all);
}

enum exit_code output_json(const struct column *columns, const void *object, const char *key,
                           cJSON *more)
{
    cJSON *all = new_document();
    bool done = all && columns_json(columns, object, all);
    if (more && (!done || !cJSON_AddItemToObjectCS(all, key, more))) {
        cJSON_Delete(more);
        done = false;
    }
    if (!done) {
        cJSON_Delete(all);
        all = NULL;
    }
    return print_document(all);
}

// ---- either ----

enum exit_code output_list(const struct ctl *ctl, const struct output_list *list)
{
    return ctl->json ? print_json_list(list) : print_list(list);
}

enum exit_code output_object(const struct ctl *ctl, const struct column *columns,
                             const void *object)
{
    return ctl->json ? output_json(columns, object, NULL, NULL) : print_object(columns, object);
}
