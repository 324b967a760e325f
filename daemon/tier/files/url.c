// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// url.c - files:///folder?size=64G: opens the tier of a URL. Caller's thread.

#include "files.h"
#include "folder.h"
#include "tier/query.h"

#include <string.h>

#define ONE_TIB (UINT64_C(1) << 40)

struct settings {
    uint64_t size; // bytes
};

static const struct option keys[] = {OPTION_ENTRY(struct settings, uint64_t, size, "size", "BYTES",
                                                  OPTION_BYTES, 1 << 20, 1024 * ONE_TIB,
                                                  .initial = "64G")};

static enum status read_url(const char *url, struct query *query, struct settings *settings,
                            struct error *error)
{
    const enum status status =
        query_read(query, url, keys, sizeof keys / sizeof *keys, settings, error);
    return status == STATUS_OK ? folder_check_path(query->url + strlen("files://"), error) : status;
}

enum status files_check_url(const char *url, struct error *error)
{
    struct query query;
    struct settings settings;
    return read_url(url, &query, &settings, error);
}

enum status files_open(const char *url, const struct tier_opening *opening,
                       struct tier_backend **out, struct error *error)
{
    struct query query;
    struct settings settings;
    const enum status status = read_url(url, &query, &settings, error);
    if (status != STATUS_OK)
        return status;
    const struct files_params params = {
        .path = query.url + strlen("files://"),
        .limit_bytes = settings.size,
        .say = opening->say,
    };
    return files_create(&params, out, error);
}
