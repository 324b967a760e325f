// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// places.c - see places.h.

#include "places.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

bool places_is_operator(uint32_t uid)
{
    return uid == 0 || uid == geteuid();
}

struct place_user places_user(const struct groups *groups, uint32_t uid, uint32_t gid)
{
    return (struct place_user){uid, gid, groups_places(groups, uid, gid)};
}

void places_count(struct places_taken *taken, const struct place_user *wants,
                  const struct place_user *has)
{
    const bool same_group = has->group == wants->group;
    taken->all++;
    taken->of_group += same_group;
    taken->of_user += same_group && has->uid == wants->uid;
}

enum status places_check_user(const struct groups *groups, const struct place_user *user,
                              struct error *error)
{
    if (places_is_operator(user->uid) || user->group)
        return STATUS_OK;
    return error_set(error, STATUS_DENIED,
                     "this daemon serves uid %u%s and root; the caller has uid %" PRIu32, geteuid(),
                     groups ? ", the members of its --tenant groups" : "", user->uid);
}

// What the group's --tenant gives it; 0 = nothing.
static uint64_t given(const struct places *places, const struct group_places *group)
{
    uint64_t count = 0;
    if (places->group_field)
        memcpy(&count, (const char *)group + places->group_field, sizeof count);
    return count;
}

// A sentence of a guest has the guest's own numbers and the daemon's options, no others.
static enum status check_group(const struct places *places, const struct places_taken *taken,
                               const struct place_user *user, struct error *error)
{
    const struct group_places *group = user->group;
    const uint64_t own = given(places, group), others = taken->all - taken->of_group,
                   of_group = own ? own : core_tenant_part(places->share, places->most, others);
    if (taken->of_group >= of_group)
        return error_set(
            error, STATUS_LIMIT,
            "tenant \"%s\" has %" PRIu64 " %s, which is its part (%s%s is %" PRIu64 ")",
            group->name, taken->of_group, places->what,
            own ? places->group_word : "--tenant-share; ", places->option, places->most);
    const uint64_t of_user =
        core_tenant_part(places->share, of_group, taken->of_group - taken->of_user);
    if (group->one_user || taken->of_user < of_user)
        return STATUS_OK;
    return error_set(error, STATUS_LIMIT,
                     "uid %" PRIu32 " has %" PRIu64 " %s, which is its part of those of tenant "
                     "\"%s\" (--tenant-share; %s is %" PRIu64 ")",
                     user->uid, taken->of_user, places->what, group->name, places->option,
                     places->most);
}

enum status places_check(const struct places *places, const struct places_taken *taken,
                         const struct place_user *user, struct error *error)
{
    if (taken->all >= places->most)
        return error_set(error, STATUS_LIMIT,
                         "the daemon has %" PRIu64 " %s already; %s is %" PRIu64, taken->all,
                         places->what, places->option, places->most);
    return user->group ? check_group(places, taken, user, error) : STATUS_OK;
}
