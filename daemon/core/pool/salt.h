// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// salt.h - a number for each pair of tenant and client-given name. Sessions with equal numbers may
// share prefixes. The daemon never uses a number for a second pair, so a block can store it without
// a reference to the salt. Knows nothing of sessions or blocks. Dispatcher thread only.

#ifndef AULE_CORE_SALT_H
#define AULE_CORE_SALT_H

#include "base/hash.h"
#include "tier/stored.h"

#include <stdint.h>

struct tenant;

struct salt {
    UT_hash_handle hh;
    struct salt **table;                    // the table that has it, as given to salt_get()
    uint64_t id;                            // the number, from 1
    uint8_t name_in_tiers[STORED_ID_BYTES]; // stored_space.salt; session_life.c sets it
    uint32_t refs;                          // freed at 0
    uint32_t key_size;                      // bytes
    struct tenant *tenant;                  // referenced
    const char *label; // "uid:1000", "uid:1000/name", "group" or "group/name"; at most 255 bytes
    uint8_t key[];     // the tenant's id, then the name with its NUL, then the label
};

// Finds the pair in *table, or makes it with the id ++*last_id, and adds a reference. An empty
// table is NULL. NULL: no memory.
struct salt *salt_get(struct salt **table, uint64_t *last_id, struct tenant *tenant,
                      const char *name);
struct salt *salt_ref(struct salt *salt);
void salt_unref(struct salt *salt); // takes NULL

#endif
