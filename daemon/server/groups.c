// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// groups.c - see groups.h.

#include "groups.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MEMBERS = 64, GROUP_NAME_MAX = 64 };

struct member {
    bool is_gid;
    uint32_t id;
};

struct group {
    char name[GROUP_NAME_MAX + 1];
    struct member members[MAX_MEMBERS];
    uint32_t num_members;
    struct core_limits limits;
    struct group_places places;
};

struct groups {
    uint32_t count;
    struct group *groups;    // [count]; owned
    struct core_group *core; // [count]; owned
    bool has_others;         // a spec named "*"
};

static bool parse_number(const char *text, size_t length, uint64_t most, uint64_t *out)
{
    char digits[24];
    if (length == 0 || length >= sizeof digits || strspn(text, "0123456789") < length)
        return false;
    memcpy(digits, text, length);
    digits[length] = '\0';
    errno = 0;
    *out = strtoull(digits, NULL, 10);
    return errno == 0 && *out <= most;
}

// "*" stands for each user of no group, with limits of its own.
static bool is_others(const struct group *group)
{
    return strcmp(group->name, "*") == 0;
}

static enum status add_member(struct group *group, bool is_gid, uint64_t id, struct error *error)
{
    if (group->num_members == MAX_MEMBERS)
        return error_set(error, STATUS_INVALID, "it has more than %d uids and gids", MAX_MEMBERS);
    group->members[group->num_members++] = (struct member){is_gid, (uint32_t)id};
    return STATUS_OK;
}

// One "KEY:NUMBER" of `length` bytes.
static enum status parse_part(struct group *group, const char *part, size_t length,
                              struct error *error)
{
    static const struct {
        const char *key;
        enum { UID, GID, PLACES, BLOCKS } kind; // "*" takes only BLOCKS
        size_t offset;
    } keys[] = {
        {"uid:", UID, 0},
        {"gid:", GID, 0},
        {"blocks:", BLOCKS, offsetof(struct group, limits.blocks)},
        {"cached:", BLOCKS, offsetof(struct group, limits.cached)},
        {"floor:", BLOCKS, offsetof(struct group, limits.floor)},
        {"connections:", PLACES, offsetof(struct group, places.connections)},
        {"sessions:", PLACES, offsetof(struct group, places.sessions)},
    };
    const int shown = length < 64 ? (int)length : 64;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        size_t key = strlen(keys[i].key);
        uint64_t number, most = keys[i].kind >= PLACES ? INT32_MAX : UINT32_MAX - 1;
        if ((is_others(group) && keys[i].kind != BLOCKS) || length < key ||
            memcmp(part, keys[i].key, key) != 0)
            continue;
        if (!parse_number(part + key, length - key, most, &number))
            return error_set(error, STATUS_INVALID,
                             "\"%.*s\" has no number from 0 to %" PRIu64 " behind the colon", shown,
                             part, most);
        if (keys[i].kind < PLACES)
            return add_member(group, keys[i].kind == GID, number, error);
        memcpy((char *)group + keys[i].offset, &number, sizeof number);
        return STATUS_OK;
    }
    return error_set(
        error, STATUS_INVALID,
        is_others(group)
            ? "\"%.*s\" is none of blocks:N, cached:N and floor:N; \"*\" takes no other"
            : "\"%.*s\" is none of uid:N, gid:N, blocks:N, cached:N, floor:N, "
              "connections:N and sessions:N",
        shown, part);
}

static enum status parse_name(const char *spec, struct group *group, struct error *error)
{
    const char *equals = strchr(spec, '=');
    const size_t length = equals ? (size_t)(equals - spec) : 0;
    if (length == 0)
        return error_set(error, STATUS_INVALID, "it does not begin with NAME=");
    if (length > GROUP_NAME_MAX)
        return error_set(error, STATUS_INVALID, "its name has %zu bytes; %d is the most", length,
                         GROUP_NAME_MAX);
    if (memchr(spec, ':', length) || memchr(spec, '/', length))
        return error_set(error, STATUS_INVALID, "a name has neither : nor /");
    memcpy(group->name, spec, length);
    return STATUS_OK;
}

static enum status parse_group(const char *spec, struct group *group, struct error *error)
{
    enum status status = parse_name(spec, group, error);
    const char *part = spec + strlen(group->name) + 1;
    while (status == STATUS_OK && *part) {
        size_t length = strcspn(part, ",");
        status = parse_part(group, part, length, error);
        part += length + (part[length] == ',');
    }
    if (status == STATUS_OK && !group->num_members && !is_others(group))
        status = error_set(error, STATUS_INVALID, "it names no user: it needs uid:N or gid:N");
    if (status == STATUS_OK && group->limits.cached && group->limits.floor > group->limits.cached)
        status = error_set(error, STATUS_INVALID, "floor:%" PRIu64 " exceeds cached:%" PRIu64,
                           group->limits.floor, group->limits.cached);
    group->places.name = group->name;
    group->places.one_user = group->num_members == 1 && !group->members[0].is_gid;
    return status;
}

static const struct group *find_name(const struct groups *groups, const char *name)
{
    for (uint32_t i = 0; groups && i < groups->count; i++) {
        if (strcmp(groups->groups[i].name, name) == 0)
            return &groups->groups[i];
    }
    return NULL;
}

static enum status add_group(struct groups *groups, const char *spec, struct core_limits *others,
                             struct error *error)
{
    struct group *group = &groups->groups[groups->count];
    struct error why;
    *group = (struct group){.num_members = 0};
    enum status status = parse_group(spec, group, &why);
    if (status == STATUS_OK &&
        (is_others(group) ? groups->has_others : find_name(groups, group->name) != NULL))
        status = error_set(&why, STATUS_INVALID, "an earlier --tenant has this name");
    if (status != STATUS_OK)
        return error_set(error, status, "--tenant \"%.200s\": %s", spec, why.text);
    if (is_others(group)) {
        groups->has_others = true;
        *others = group->limits;
    } else {
        groups->core[groups->count++] = (struct core_group){group->name, group->limits};
    }
    return STATUS_OK;
}

enum status groups_create(const char *const *specs, uint32_t count, struct core_limits *others,
                          struct groups **out, struct error *error)
{
    *out = NULL;
    *others = (struct core_limits){0};
    if (!count)
        return STATUS_OK;
    struct groups *groups = calloc(1, sizeof *groups);
    if (groups) {
        groups->groups = calloc(count, sizeof *groups->groups);
        groups->core = calloc(count, sizeof *groups->core);
    }
    if (!groups || !groups->groups || !groups->core) {
        groups_destroy(groups);
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u tenants", count);
    }
    enum status status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < count; i++)
        status = add_group(groups, specs[i], others, error);
    if (status == STATUS_OK && groups->count)
        *out = groups;
    else
        groups_destroy(groups);
    return status;
}

void groups_destroy(struct groups *groups)
{
    if (!groups)
        return;
    free(groups->groups);
    free(groups->core);
    free(groups);
}

const struct core_group *groups_core(const struct groups *groups, uint32_t *count)
{
    *count = groups ? groups->count : 0;
    return groups ? groups->core : NULL;
}

static bool has(const struct group *group, uint32_t uid, uint32_t gid)
{
    for (uint32_t i = 0; i < group->num_members; i++) {
        if (group->members[i].id == (group->members[i].is_gid ? gid : uid))
            return true;
    }
    return false;
}

static const struct group *first_with(const struct groups *groups, uint32_t uid, uint32_t gid)
{
    for (uint32_t i = 0; groups && i < groups->count; i++) {
        if (has(&groups->groups[i], uid, gid))
            return &groups->groups[i];
    }
    return NULL;
}

const struct group_places *groups_places(const struct groups *groups, uint32_t uid, uint32_t gid)
{
    const struct group *group = first_with(groups, uid, gid);
    return group ? &group->places : NULL;
}

enum status groups_find(const struct groups *groups, uint32_t uid, uint32_t gid, const char *name,
                        const char **out, struct error *error)
{
    const struct group *named = find_name(groups, name);
    const struct group *group = named ? named : first_with(groups, uid, gid);
    *out = NULL;
    if (named && !has(named, uid, gid))
        return error_set(error, STATUS_DENIED,
                         "tenant \"%s\" is a group (--tenant) without uid %" PRIu32
                         " and gid %" PRIu32,
                         name, uid, gid);
    *out = group ? group->name : NULL;
    return STATUS_OK;
}
