// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// open.c - redis://host:port?expire=3600&connections=4: opens the tier of a URL. url.c knows what
// stands before the "?". Caller's thread.

#include "redis.h"
#include "tier/query.h"
#include "url.h"

#include <string.h>

#define ONE_TIB (UINT64_C(1) << 40)

struct settings {
    const char *password_file, *ca, *cert;
    uint32_t expire_s, connections, absent_ms;
    uint64_t queue_bytes;
};

#define KEY(...) OPTION_ENTRY(struct settings, __VA_ARGS__)
static const struct option keys[] = {
    KEY(const char *, password_file, "password-file", "FILE", OPTION_TEXT,
        .least = 1) KEY(const char *, ca, "ca", "FILE", OPTION_TEXT, .least = 1)
        KEY(const char *, cert, "cert", "FILE", OPTION_TEXT, .least = 1)
            KEY(uint32_t, expire_s, "expire", "S", OPTION_COUNT, 0, INT32_MAX, .initial = "86400")
                KEY(uint32_t, connections, "connections", "N", OPTION_COUNT, 1, 512, .initial = "8")
                    KEY(uint32_t, absent_ms, "absent", "MS", OPTION_COUNT, 1, 3600000,
                        .initial = "2000") KEY(uint64_t, queue_bytes, "queue", "BYTES",
                                               OPTION_BYTES, 1 << 20, ONE_TIB, .initial = "256M")};

static enum status read_url(const char *url, struct query *query, struct settings *settings,
                            struct error *error)
{
    *settings = (struct settings){.password_file = NULL};
    return query_read(query, url, keys, sizeof keys / sizeof *keys, settings, error);
}

enum status redis_check_url(const char *url, struct error *error)
{
    struct query query;
    struct settings settings;
    struct redis_url parsed;
    enum status status = read_url(url, &query, &settings, error);
    if (status == STATUS_OK)
        status = redis_url_parse(query.url, &parsed, error);
    redis_url_forget(&parsed);
    explicit_bzero(&query, sizeof query);
    return status;
}

enum status redis_open(const char *url, const struct tier_opening *opening,
                       struct tier_backend **out, struct error *error)
{
    struct query query;
    struct settings settings;
    enum status status = read_url(url, &query, &settings, error);
    const struct redis_params params = {
        .url = query.url,
        .password_file = settings.password_file,
        .ca_file = settings.ca,
        .cert_file = settings.cert,
        .stall_ms = opening->deadline_ms,
        .expire_s = settings.expire_s,
        .never_expires = settings.expire_s == 0,
        .connections = settings.connections,
        .absent_ms = settings.absent_ms,
        .queue_bytes = settings.queue_bytes,
        .say = opening->say,
    };
    if (status == STATUS_OK)
        status = redis_create(&params, out, error);
    explicit_bzero(&query, sizeof query);
    return status;
}
