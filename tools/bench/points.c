// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// points.c - see points.h.

#include "points.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void take_text(const cJSON *json, const char *name, char *text, size_t size)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, name);
    snprintf(text, size, "%s", cJSON_IsString(item) ? item->valuestring : "");
}

static double take_number(const cJSON *json, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, name);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static void take_point(const cJSON *json, struct point *point)
{
    *point = (struct point){
        .median_us = take_number(json, "median_us"),
        .gb_per_s = take_number(json, "gb_per_s"),
        .tflops = take_number(json, "tflops"),
        .ceiling_ratio = take_number(json, "ceiling_ratio"),
        .head_dim = take_number(json, "head_dim"),
        .alone_us = take_number(json, "alone_us"),
        .alone_p99_us = take_number(json, "alone_p99_us"),
        .alone_worst_us = take_number(json, "alone_worst_us"),
        .p99_us = take_number(json, "p99_us"),
        .worst_us = take_number(json, "worst_us"),
        .peer_us = take_number(json, "peer_us"),
        .checked = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, "checked")),
    };
    take_text(json, "workload", point->workload, sizeof point->workload);
    take_text(json, "variant", point->variant, sizeof point->variant);
    take_text(json, "dtype", point->dtype, sizeof point->dtype);
    take_text(json, "place", point->place, sizeof point->place);
    take_text(json, "via", point->via, sizeof point->via);
    take_text(json, "device", point->device, sizeof point->device);
    take_text(json, "driver", point->driver, sizeof point->driver);
    take_text(json, "case", point->name, sizeof point->name);
    take_text(json, "peer", point->peer, sizeof point->peer);
}

static bool add(struct points *points, const struct point *point)
{
    if (points->count == points->capacity) {
        uint32_t capacity = points->capacity ? 2 * points->capacity : 64;
        struct point *list = realloc(points->list, capacity * sizeof *list);
        if (!list) {
            fprintf(stderr, "aule-bench: no host memory\n");
            return false;
        }
        points->list = list;
        points->capacity = capacity;
    }
    points->list[points->count++] = *point;
    return true;
}

static bool read_line(const char *name, uint32_t number, const char *line, struct points *points)
{
    struct point point;
    cJSON *json = cJSON_Parse(line);
    take_point(json, &point);
    cJSON_Delete(json);
    if (point.workload[0] && point.median_us > 0)
        return add(points, &point);
    fprintf(stderr, "aule-bench: line %u of %s %s\n", number, name,
            point.workload[0] ? "was not measured" : "is no result");
    return false;
}

bool points_read(const char *name, struct points *points)
{
    bool standard = strcmp(name, "-") == 0, ok = true;
    FILE *file = standard ? stdin : fopen(name, "r");
    char *line = NULL;
    size_t size = 0;
    if (!file) {
        fprintf(stderr, "aule-bench: %s: %s\n", name, strerror(errno));
        return false;
    }
    for (uint32_t number = 1; ok && getline(&line, &size, file) > 0; number++) {
        if (line[strspn(line, " \n")])
            ok = read_line(name, number, line, points);
    }
    free(line);
    if (!standard)
        fclose(file);
    return ok;
}
