// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// view_tenants.c - the list of tenants, and the command that changes limits of a tenant or a
// session.

#include "output.h"
#include "tools/complaint/complaint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENANT(heading, kind, member)                                                              \
    {                                                                                              \
#member, heading, COLUMN_##kind, offsetof(struct aule_tenant_state, member)                \
    }
static const struct column tenant_columns[] = {
    TENANT("id", ID, tenant),
    TENANT("name", TEXT, name),
    TENANT("sessions", U32, sessions),
    TENANT("used", U64, used_blocks),
    TENANT("pinned", U64, pinned_blocks),
    TENANT("most used", U64, limit_blocks),
    TENANT("cached", U64, cached_blocks),
    TENANT("most cached", U64, limit_cached),
    TENANT("floor", U64, floor),
    TENANT(NULL, BYTES, used_bytes),
    TENANT(NULL, BYTES, cached_bytes),
    TENANT("evicted", U64, evicted_blocks),
    TENANT("full", U64, refused_no_blocks),
    TENANT("over limit", U64, refused_quota),
    {.key = NULL},
};

static enum exit_code show_tenants(struct ctl *ctl)
{
    struct aule_tenant_state *array = NULL;
    uint32_t count = 0;
    enum aule_status status = aule_monitor_tenants(ctl->monitor, &array, &count);
    if (status != AULE_OK)
        return report(ctl, status);
    struct output_list list = {"tenants", tenant_columns, array, count, sizeof *array, 2};
    enum exit_code code = output_list(ctl, &list);
    free(array);
    return code;
}

const struct command tenants_command = {
    .words = {.name = "tenants",
              .help = "list the tenants, their blocks and their limits",
              .groups = COMMAND_ASKS | COMMAND_LOOKS},
    .run = show_tenants,
};

// ---- limit WHO=LIMIT:N,... ----

// The names of limits, and their places in struct aule_tenant_state.
static const struct limit {
    const char *name;
    size_t offset;
} limits[] = {
    {"blocks", offsetof(struct aule_tenant_state, limit_blocks)},
    {"cached", offsetof(struct aule_tenant_state, limit_cached)},
    {"floor", offsetof(struct aule_tenant_state, floor)},
};
enum { NUM_LIMITS = sizeof limits / sizeof *limits, WHO_SIZE = 300 };

// Reads "blocks:100,floor:5" into *state. False: it is no such list.
static bool read_limits(const char *text, struct aule_tenant_state *state, unsigned *given)
{
    *given = 0;
    while (*text) {
        char digits[24];
        size_t i = 0, name = strcspn(text, ":");
        while (i < NUM_LIMITS &&
               (strlen(limits[i].name) != name || strncmp(text, limits[i].name, name) != 0))
            i++;
        if (i == NUM_LIMITS || !text[name])
            return false;
        text += name + 1;
        size_t length = strcspn(text, ",");
        if (length >= sizeof digits)
            return false;
        memcpy(digits, text, length);
        digits[length] = '\0';
        uint64_t *field = (uint64_t *)(void *)((char *)state + limits[i].offset);
        if (!parse_id(digits, field))
            return false;
        *given |= 1u << i;
        text += length + (text[length] == ',');
    }
    return *given != 0;
}

static const struct column limited_columns[] = {
    {"tenant", NULL, COLUMN_ID, offsetof(struct aule_tenant_state, tenant)},
    {"name", NULL, COLUMN_TEXT, offsetof(struct aule_tenant_state, name)},
    {"limit_blocks", NULL, COLUMN_U64, offsetof(struct aule_tenant_state, limit_blocks)},
    {"limit_cached", NULL, COLUMN_U64, offsetof(struct aule_tenant_state, limit_cached)},
    {"floor", NULL, COLUMN_U64, offsetof(struct aule_tenant_state, floor)},
    {.key = NULL},
};

static enum exit_code set_tenant(const struct ctl *ctl, struct aule_tenant_state *state,
                                 const char *list)
{
    unsigned given;
    read_limits(list, state, &given); // the others stay
    enum aule_status status = aule_monitor_limit_tenant(
        ctl->monitor, state->tenant, state->limit_blocks, state->limit_cached, state->floor);
    return status == AULE_OK ? output_object(ctl, limited_columns, state) : report(ctl, status);
}

static enum exit_code limit_tenant(const struct ctl *ctl, const char *who, const char *list)
{
    struct aule_tenant_state *array = NULL;
    uint32_t count = 0, at = 0;
    enum aule_status status = aule_monitor_tenants(ctl->monitor, &array, &count);
    if (status != AULE_OK)
        return report(ctl, status);
    while (at < count && strcmp(array[at].name, who) != 0)
        at++;
    enum exit_code code =
        at < count ? set_tenant(ctl, &array[at], list)
                   : complain(EXIT_CODE_FAILED,
                              "the daemon has no tenant \"%s\" among its %u; aule-ctl tenants%s "
                              "lists them",
                              who, count, ctl->socket_option);
    free(array);
    return code;
}

static const struct column session_columns[] = {
    {"session", NULL, COLUMN_ID, offsetof(struct aule_tenant_state, tenant)},
    {"limit_blocks", NULL, COLUMN_U64, offsetof(struct aule_tenant_state, limit_blocks)},
    {.key = NULL},
};

static enum exit_code limit_session(const struct ctl *ctl, uint64_t session,
                                    const struct aule_tenant_state *wanted)
{
    const struct aule_tenant_state row = {.tenant = session, .limit_blocks = wanted->limit_blocks};
    enum aule_status status =
        aule_monitor_limit_session(ctl->monitor, session, wanted->limit_blocks);
    return status == AULE_OK ? output_object(ctl, session_columns, &row) : report(ctl, status);
}

// A tenant's name may have an equals sign, so the last one counts.
static enum exit_code limit(struct ctl *ctl)
{
    static const char session[] = "session:";
    char who[WHO_SIZE];
    struct aule_tenant_state wanted = {.tenant = 0};
    unsigned given = 0;
    uint64_t id;
    const char *equals = strrchr(ctl->argument, '=');
    if (!equals || equals == ctl->argument || equals - ctl->argument >= WHO_SIZE ||
        !read_limits(equals + 1, &wanted, &given))
        return complain(
            EXIT_CODE_USAGE,
            "\"%s\" is not TENANT=LIMIT:N,... with the limits blocks, cached and floor, "
            "nor session:ID=blocks:N",
            ctl->argument);
    snprintf(who, sizeof who, "%.*s", (int)(equals - ctl->argument), ctl->argument);
    if (strncmp(who, session, strlen(session)) != 0)
        return limit_tenant(ctl, who, equals + 1);
    if (!parse_id(who + strlen(session), &id) || given != 1)
        return complain(EXIT_CODE_USAGE, "\"%s\" is not session:ID=blocks:N", ctl->argument);
    return limit_session(ctl, id, &wanted);
}

const struct command limit_command = {
    .words = {.name = "limit",
              .argument = "WHO=LIMITS",
              .help = "change the limits of a tenant (NAME=blocks:N,cached:N,floor:N) or a session "
                      "(session:ID=blocks:N)",
              .groups = COMMAND_ASKS},
    .run = limit,
};
