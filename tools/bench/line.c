// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// line.c - see line.h.

#include "line.h"

#include <stdio.h>

bool line_print(cJSON *json, bool complete)
{
    char *text = json && complete ? cJSON_PrintUnformatted(json) : NULL;
    const bool printed = text != NULL;
    if (printed)
        puts(text);
    else
        fprintf(stderr, "aule-bench: no host memory\n");
    fflush(stdout);
    cJSON_free(text);
    cJSON_Delete(json);
    return printed;
}
