// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// salt.h - (peer uid, tenant) as one number: equal for those who may share prefixes. A number is
// never used again for another pair in the daemon's life, so a block may remember it without
// keeping the salt alive.

#ifndef AULE_CORE_SALT_H
#define AULE_CORE_SALT_H

#include "base/hash.h"

#include <stdint.h>

struct salt {
    UT_hash_handle hh;
    struct salt **table; // the first of all: where it was made
    uint64_t id;         // from 1
    uint32_t refs;
    uint32_t key_size;
    uint8_t key[]; // uid, then the tenant with its NUL
};

// A new reference, in a table that begins as NULL; a new salt has the next number after *last_id.
// NULL: no memory.
struct salt *salt_get(struct salt **table, uint64_t *last_id, uint32_t uid, const char *tenant);
struct salt *salt_ref(struct salt *salt);
void salt_unref(struct salt *salt); // takes NULL

#endif
