// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// actions.c - the small commands: ping, close-session, version.

#include "output.h"
#include "units.h"

#include <inttypes.h>
#include <stdio.h>

#define PING(kind, member)                                                                         \
    {                                                                                              \
#member, NULL, COLUMN_##kind, offsetof(struct aule_ping_info, member)                      \
    }
static const struct column ping_columns[] = {
    PING(TEXT, version),       PING(HEX, epoch),          PING(U64, round_trip_ns),
    PING(U32, protocol_major), PING(U32, protocol_minor), {.key = NULL},
};

enum exit_code ping(struct ctl *ctl)
{
    struct aule_ping_info info;
    char time[UNITS_SIZE];
    enum aule_status status = aule_monitor_ping(ctl->monitor, &info);
    if (status != AULE_OK)
        return report(ctl, status);
    if (ctl->json)
        return output_json(ping_columns, &info, NULL, NULL);
    printf("aule-daemon %s answered in %s (protocol %u.%u, epoch %016" PRIx64 ")\n", info.version,
           units_ns(info.round_trip_ns, time), info.protocol_major, info.protocol_minor,
           info.epoch);
    return EXIT_CODE_DONE;
}

static const struct column closed_columns[] = {{"closed_session", NULL, COLUMN_ID, 0},
                                               {.key = NULL}};

enum exit_code close_session(struct ctl *ctl)
{
    enum aule_status status = aule_monitor_close_session(ctl->monitor, ctl->id);
    if (status != AULE_OK)
        return report(ctl, status);
    if (ctl->json)
        return output_json(closed_columns, &ctl->id, NULL, NULL);
    printf("session %" PRIu64 " is closed\n", ctl->id);
    return EXIT_CODE_DONE;
}

struct versions {
    const char *version, *library;
};
static const struct column version_columns[] = {
    {"version", "aule-ctl", COLUMN_POINTER, offsetof(struct versions, version)},
    {"library", "libaule-client", COLUMN_POINTER, offsetof(struct versions, library)},
    {.key = NULL},
};

enum exit_code show_version(struct ctl *ctl)
{
    struct versions versions = {AULE_VERSION_STRING, aule_version()};
    return output_object(ctl, version_columns, &versions);
}
