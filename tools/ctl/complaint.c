// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// complaint.c - what went wrong, on stderr: a sentence for people or one JSON document for programs, and the exit code that goes with it.

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "column.h"
#include "ctl.h"
#include "output.h"

enum { SENTENCE_SIZE = 1024 };

static bool as_json; // of the process: complaints come before the command line is understood, too

void complaints_as_json(bool json)
{
    as_json = json;
}

// A status that is not here is a failure, without a hint.
struct meaning {
    enum aule_status status;
    enum exit_code code;
    const char *hint; // NULL = none
};
static const struct meaning meanings[] = {
    {AULE_DAEMON_GONE, EXIT_CODE_GONE, "--socket or $AULE_SOCKET names the socket of one that listens elsewhere"},
    {AULE_TIMEOUT, EXIT_CODE_GONE, "give it longer with --timeout"},
    {AULE_DEVICE_LOST, EXIT_CODE_GONE, "start the daemon again"},
    {AULE_STOPPING, EXIT_CODE_GONE, "start the daemon again"},
    {AULE_INVALID, EXIT_CODE_USAGE, "aule-ctl --help shows what is expected"},
    {AULE_NO_MEMORY, EXIT_CODE_FAILED, "free some of it and ask again"},
    {AULE_MALFORMED, EXIT_CODE_FAILED, "use an aule-ctl of the daemon's version"},
    {AULE_FORKED, EXIT_CODE_FAILED, "this is a defect in aule-ctl; please report it"},
    {AULE_VERSION, EXIT_CODE_FAILED, "use an aule-ctl of the daemon's version"},
    {AULE_DENIED, EXIT_CODE_FAILED, "ask as the daemon's own user or as root"},
    {AULE_NOT_FOUND, EXIT_CODE_FAILED, "aule-ctl sessions and aule-ctl caches list what there is"},
    {AULE_BUSY, EXIT_CODE_FAILED, "aule-ctl sessions lists who may use it; try again when their work is done"},
    {AULE_UNSUPPORTED, EXIT_CODE_FAILED, "use a daemon of aule-ctl's version"},
};

static struct meaning meaning_of(enum aule_status status)
{
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (meanings[i].status == status)
            return meanings[i];
    return (struct meaning){status, EXIT_CODE_FAILED, NULL};
}

// ---- saying it ----

static bool add_text(cJSON *document, const char *key, const char *text)
{
    char clean[SENTENCE_SIZE];
    if (!text)
        return cJSON_AddNullToObject(document, key) != NULL;
    clean_text(clean, sizeof clean, text, false);
    return cJSON_AddStringToObject(document, key, clean) != NULL;
}

// False: there was no memory for it.
static bool say_json(const char *status, const char *what, const char *hint)
{
    cJSON *document = output_document();
    bool done = document && add_text(document, "error", what) && add_text(document, "status", status) &&
                add_text(document, "hint", hint);
    char *text = done ? cJSON_Print(document) : NULL;
    if (text)
        fprintf(stderr, "%s\n", text);
    cJSON_free(text);
    cJSON_Delete(document);
    return text != NULL;
}

// `status` and `hint` NULL = none.
static void say(const char *status, const char *what, const char *hint)
{
    if (as_json && say_json(status, what, hint))
        return;
    fprintf(stderr, "aule-ctl: %s", what);
    if (status)
        fprintf(stderr, " (%s)", status);
    fprintf(stderr, hint ? "; %s\n" : "\n", hint);
}

enum exit_code complain(enum exit_code code, const char *format, ...)
{
    char what[SENTENCE_SIZE];
    va_list values;
    va_start(values, format);
    vsnprintf(what, sizeof what, format, values);
    va_end(values);
    say(NULL, what, NULL);
    return code;
}

enum exit_code report(enum aule_status status)
{
    const struct meaning meaning = meaning_of(status);
    const char *what = aule_error();
    say(aule_status_name(status), *what ? what : aule_status_text(status), meaning.hint);
    return meaning.code;
}
