// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// places.h - who may take one more of something that has a limit: a connection, a session, a place
// on the export socket. Root and the daemon's own user are its operators. A guest is another user,
// whom a group of --tenant has. Knows numbers, not what they count. Thread: any.
//
// A group has at most the part that core_tenant_part() says, or what its --tenant says. One user of
// several has at most that part of the group's.

#ifndef AULE_SERVER_PLACES_H
#define AULE_SERVER_PLACES_H

#include "groups.h"

struct places {
    const char *what;   // "connections"
    const char *option; // "--max-connections"
    uint64_t most;      // the option's value
    double share;       // --tenant-share
    // The word of --tenant that limits a group, and its field in struct group_places; "" and 0:
    // none.
    const char *group_word;
    size_t group_field;
};

struct place_user {
    uint32_t uid, gid;
    const struct group_places *group; // NULL: the user is in no group
};

// Places that are taken: call places_count() for the user of each. Zeroed at first.
struct places_taken {
    uint64_t all, of_group, of_user; // of_user: in this group
};

bool places_is_operator(uint32_t uid);
struct place_user places_user(const struct groups *groups, uint32_t uid, uint32_t gid);
void places_count(struct places_taken *taken, const struct place_user *wants,
                  const struct place_user *has);
// DENIED: the daemon does not serve the user.
enum status places_check_user(const struct groups *groups, const struct place_user *user,
                              struct error *error);
// LIMIT: there is no place for `user`; the error names the option. A guest reads nothing of others.
enum status places_check(const struct places *places, const struct places_taken *taken,
                         const struct place_user *user, struct error *error);

#endif
