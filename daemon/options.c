// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.c - reads the command line by the table of server/params.h.

#include "options.h"

#include "schema/ring.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ONE_TIB (UINT64_C(1) << 40)
#define AUTO    .word = "auto", .word_value = SERVER_UNSET, .initial = "auto"

#define ENTRY(...) OPTION_ENTRY(struct server_params, __VA_ARGS__)
static const struct option entries[] = {DAEMON_OPTIONS(OPTION_HEADING, ENTRY, ENTRY)};

static const struct options_program program = {
    .name = "aule-daemon",
    .usage = "aule-daemon [OPTION]...",
    .about = "Owns one GPU's attention shaders and one paged KV cache, and serves them to worker "
             "processes.",
    .epilogue = "Exit codes: 0 ended as asked, 1 could not start, 2 the command line is wrong, 3 "
                "the GPU was lost. See aule-daemon(8).",
    .options = entries,
    .num_options = sizeof entries / sizeof *entries,
};

// NULL: no memory.
static char *lines_of(const struct server_params *params, const struct options_line *line)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return NULL;
    options_print_values(&program, line, params, out);
    const bool failed = ferror(out);
    if (fclose(out) == 0 && !failed)
        return text;
    free(text);
    return NULL;
}

// A tier's URL may have a login, and other users can read a process's arguments: there the login
// becomes asterisks. A path has none. `copies` gets the URLs as they were. False: no memory.
static bool hide_logins(const struct option_texts *urls, const char *copies[OPTION_MAX_TEXTS])
{
    for (uint32_t i = 0; i < urls->count; i++) {
        char *shown = (char *)urls->texts[i]; // of argv
        const char *at = strncmp(shown, "files://", 8) ? strrchr(shown, '@') : NULL;
        char *scheme = strstr(shown, "://");
        char *login = scheme && at && scheme < at ? scheme + strlen("://") : shown;
        copies[i] = strdup(shown);
        if (!copies[i])
            return false;
        if (at)
            memset(login, '*', (size_t)(at - login));
    }
    return true;
}

// The lines are made of what is shown; the server gets the URLs as they were.
static bool finish(struct server_params *params, const struct options_line *line)
{
    static const char *urls[OPTION_MAX_TEXTS]; // until the process ends
    if (!hide_logins(&params->tiers, urls) || !(params->lines = lines_of(params, line)))
        return false;
    memcpy(params->tiers.texts, urls, sizeof urls);
    return true;
}

enum options_result options_parse(int argc, char **argv, struct server_params *params)
{
    struct options_line line;
    *params = (struct server_params){.device = NULL};
    enum options_result result = options_read(&program, argc, argv, params, &line);
    if (result == OPTIONS_RUN && line.num_operands) {
        snprintf(line.error, sizeof line.error, "\"%s\" is no option; see aule-daemon --help",
                 line.operands[0]);
        result = OPTIONS_BAD;
    }
    if (result == OPTIONS_RUN && !finish(params, &line)) {
        snprintf(line.error, sizeof line.error, "no memory for the options");
        result = OPTIONS_BAD;
    }
    if (result == OPTIONS_BAD)
        fprintf(stderr, "aule-daemon: %s\n", line.error);
    return result;
}
