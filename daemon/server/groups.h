// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// groups.h - the groups of users that --tenant names: who belongs to which, and their limits; and
// the limits of each user of no group.
// Constant after groups_create(). Thread: any.

#ifndef AULE_SERVER_GROUPS_H
#define AULE_SERVER_GROUPS_H

#include "core/core.h"

struct groups;

// What places.h has to know of a group.
struct group_places {
    const char *name;
    bool one_user;                  // its only member is one uid
    uint64_t connections, sessions; // that its users may have; 0 = --tenant-share
};

// Reads each "NAME=MEMBER,...,LIMIT:N,..." of specs[0 .. count). A member is uid:N or gid:N, a
// limit is blocks:N, cached:N, floor:N, connections:N or sessions:N. "*=LIMIT:N,..." takes the
// first three of these and is no group: *others gets them. *out is NULL without groups. INVALID
// names the spec.
enum status groups_create(const char *const *specs, uint32_t count, struct core_limits *others,
                          struct groups **out, struct error *error);
void groups_destroy(struct groups *groups); // takes NULL
// For core_params; they live as long as `groups`, which may be NULL.
const struct core_group *groups_core(const struct groups *groups, uint32_t *count);
// The first group that has the user; it lives as long as `groups`. NULL: none has.
const struct group_places *groups_places(const struct groups *groups, uint32_t uid, uint32_t gid);
// The group of a session whose client gives `name` as its tenant: the one of this name, else the
// first one that has the user; *out is NULL if none has. DENIED: `name` is a group without the
// user.
enum status groups_find(const struct groups *groups, uint32_t uid, uint32_t gid, const char *name,
                        const char **out, struct error *error);

#endif
