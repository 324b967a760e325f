// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// output.c - lays views out on stdout. Two passes over a list instead of a copy of its texts: it may have a million rows.

#include "output.h"

#include <stdio.h>
#include <stdlib.h>

// ---- for people ----

// Columns on a screen: characters, not the bytes that continue one.
static int width_of(const char *text)
{
    int width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static void print_cell(const char *text, int width, bool to_the_right, bool is_last)
{
    int padding = width - width_of(text);
    if (to_the_right)
        printf("%*s%s", padding, "", text);
    else
        printf("%s%*s", text, is_last ? 0 : padding, "");
    fputs(is_last ? "\n" : "  ", stdout);
}

static const struct column *next_shown(const struct column *column)
{
    while (column->key && !column->heading)
        column++;
    return column->key ? column : NULL;
}

static int column_width(const struct column *column, const struct output_list *list)
{
    char text[COLUMN_TEXT_SIZE];
    int width = width_of(column->heading);
    for (size_t i = 0; i < list->count; i++) {
        int cell = width_of(column_text(column, (const char *)list->array + i * list->entry_size, text));
        width = cell > width ? cell : width;
    }
    return width;
}

// One row; NULL = the headings.
static void print_row(const struct output_list *list, const int *widths, const void *object)
{
    char text[COLUMN_TEXT_SIZE];
    for (const struct column *column = next_shown(list->columns), *next; column; column = next) {
        next = next_shown(column + 1);
        print_cell(object ? column_text(column, object, text) : column->heading, *widths++, column_is_number(column),
                   !next);
    }
}

static enum exit_code print_list(const struct output_list *list)
{
    size_t count = 0;
    for (const struct column *column = list->columns; column->key; column++)
        count++;
    int *widths = calloc(count, sizeof *widths), *width = widths;
    if (!widths)
        return complain(EXIT_CODE_FAILED, "no memory for a table of %zu columns", count);
    for (const struct column *column = next_shown(list->columns); column; column = next_shown(column + 1))
        *width++ = column_width(column, list);
    print_row(list, widths, NULL);
    for (size_t i = 0; i < list->count; i++)
        print_row(list, widths, (const char *)list->array + i * list->entry_size);
    free(widths);
    return EXIT_CODE_DONE;
}

static enum exit_code print_object(const struct column *columns, const void *object)
{
    char text[COLUMN_TEXT_SIZE];
    int width = 0;
    for (const struct column *column = next_shown(columns); column; column = next_shown(column + 1))
        width = width_of(column->heading) > width ? width_of(column->heading) : width;
    for (const struct column *column = next_shown(columns); column; column = next_shown(column + 1)) {
        print_cell(column->heading, width, false, false);
        puts(column_text(column, object, text));
    }
    return EXIT_CODE_DONE;
}

// ---- JSON ----

cJSON *output_document(void)
{
    cJSON *document = cJSON_CreateObject();
    if (document && cJSON_AddNumberToObject(document, "schema_version", OUTPUT_SCHEMA_VERSION))
        return document;
    cJSON_Delete(document);
    return NULL;
}

static bool add_entry(const struct output_list *list, size_t index, cJSON *array)
{
    cJSON *entry = cJSON_CreateObject();
    if (entry && cJSON_AddItemToArray(array, entry))
        return columns_json(list->columns, (const char *)list->array + index * list->entry_size, entry);
    cJSON_Delete(entry);
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

// Prints and ends `document`; NULL = there was no memory for it.
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
    cJSON *all = output_document(), *array = output_entries(list);
    if (!all || !array || !cJSON_AddItemToObjectCS(all, list->name, array)) {
        cJSON_Delete(array);
        cJSON_Delete(all);
        all = NULL;
    }
    return print_document(all);
}

enum exit_code output_json(const struct column *columns, const void *object, const char *key, cJSON *more)
{
    cJSON *all = output_document();
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

enum exit_code output_object(const struct ctl *ctl, const struct column *columns, const void *object)
{
    return ctl->json ? output_json(columns, object, NULL, NULL) : print_object(columns, object);
}
