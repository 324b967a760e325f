// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// complaint.c - see complaint.h.

#include "complaint.h"

#include "clean.h"

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { SCHEMA_VERSION = 1 }; // of the document: raised when a key is removed or changes its meaning

static const char *program;
static bool as_json;

static bool asks_for_json(int argc, char *const *argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--json") == 0)
            return true;
    return false;
}

void complaint_begin(const char *name, int argc, char *const *argv)
{
    program = name;
    as_json = asks_for_json(argc, argv);
}

void complaint_settle(bool json)
{
    as_json = json;
}

static bool add_text(cJSON *document, const char *key, const char *text)
{
    char clean[COMPLAINT_SIZE];
    if (!text)
        return cJSON_AddNullToObject(document, key) != NULL;
    clean_text(clean, sizeof clean, text, false);
    return cJSON_AddStringToObject(document, key, clean) != NULL;
}

// False: no memory.
static bool say_json(const char *what, const char *status, const char *hint)
{
    cJSON *document = cJSON_CreateObject();
    bool done = document && cJSON_AddNumberToObject(document, "schema_version", SCHEMA_VERSION) &&
                add_text(document, "error", what) && add_text(document, "status", status) &&
                add_text(document, "hint", hint);
    char *text = done ? cJSON_Print(document) : NULL;
    if (text)
        fprintf(stderr, "%s\n", text);
    cJSON_free(text);
    cJSON_Delete(document);
    return text != NULL;
}

void complaint_say(const char *what, const char *status, const char *hint)
{
    if (as_json && say_json(what, status, hint))
        return;
    fprintf(stderr, "%s: %s", program, what);
    if (status)
        fprintf(stderr, " (%s)", status);
    fprintf(stderr, hint ? "; %s\n" : "\n", hint);
}

enum exit_code complain(enum exit_code code, const char *format, ...)
{
    char what[COMPLAINT_SIZE];
    va_list values;
    va_start(values, format);
    vsnprintf(what, sizeof what, format, values);
    va_end(values);
    complaint_say(what, NULL, NULL);
    return code;
}
