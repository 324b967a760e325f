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
    const bool guest = !places_is_operator(has->uid);
    taken->all++;
    taken->of_guests += guest;
    taken->of_group += guest && has->group && has->group == wants->group;
    taken->of_user += has->uid == wants->uid;
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

static uint64_t at_least_one(uint64_t count)
{
    return count ? count : 1;
}

static uint64_t group_most(const struct places *places, const struct group_places *group)
{
    uint64_t given = 0;
    if (places->group_field)
        memcpy(&given, (const char *)group + places->group_field, sizeof given);
    return given ? given : at_least_one(places->most / 2);
}

// A sentence of a guest has the guest's own numbers and the daemon's options, no others.
static enum status check_guest(const struct places *places, const struct places_taken *taken,
                               const struct place_user *user, struct error *error)
{
    const uint64_t of_guests = at_least_one(places->most - places->most / 4);
    const uint64_t of_group = group_most(places, user->group);
    const uint64_t of_user = user->group->one_user ? of_group : at_least_one(of_group / 2);
    if (taken->all >= places->most || taken->of_guests >= of_guests)
        return error_set(error, STATUS_LIMIT,
                         "no %s are left for users of --tenant groups; %s is %" PRIu64
                         ", of which they may have %" PRIu64,
                         places->what, places->option, places->most, of_guests);
    if (taken->of_group >= of_group)
        return error_set(error, STATUS_LIMIT,
                         "tenant \"%s\" has all of its %" PRIu64 " %s (%s%s is %" PRIu64 ")",
                         user->group->name, of_group, places->what, places->group_word,
                         places->option, places->most);
    if (taken->of_user >= of_user)
        return error_set(error, STATUS_LIMIT,
                         "uid %" PRIu32 " has %" PRIu64 " %s, which is all that one user of tenant "
                         "\"%s\" may have (%s%s is %" PRIu64 ")",
                         user->uid, of_user, places->what, user->group->name, places->group_word,
                         places->option, places->most);
    return STATUS_OK;
}

enum status places_check(const struct places *places, const struct places_taken *taken,
                         const struct place_user *user, struct error *error)
{
    if (!places_is_operator(user->uid))
        return check_guest(places, taken, user, error);
    if (taken->all < places->most)
        return STATUS_OK;
    return error_set(error, STATUS_LIMIT, "the daemon has %" PRIu64 " %s already; %s is %" PRIu64,
                     taken->all, places->what, places->option, places->most);
}
