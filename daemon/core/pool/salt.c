// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// salt.c - see salt.h. A hash table by uid and tenant.

#include "salt.h"

#include <stdlib.h>
#include <string.h>

static struct salt *salt_create(uint32_t uid, const char *tenant)
{
    size_t size = strlen(tenant) + 1;
    struct salt *salt = calloc(1, sizeof *salt + sizeof uid + size);
    if (!salt)
        return NULL;
    salt->key_size = (uint32_t)(sizeof uid + size);
    memcpy(salt->key, &uid, sizeof uid);
    memcpy(salt->key + sizeof uid, tenant, size);
    return salt;
}

struct salt *salt_get(struct salt **table, uint64_t *last_id, uint32_t uid, const char *tenant)
{
    struct salt *salt = salt_create(uid, tenant ? tenant : ""), *known = NULL;
    if (!salt)
        return NULL;
    HASH_FIND(hh, *table, salt->key, salt->key_size, known);
    if (known) {
        free(salt);
        return salt_ref(known);
    }
    HASH_ADD_KEYPTR(hh, *table, salt->key, salt->key_size, salt);
    if (!HASH_ADDED(salt)) {
        free(salt);
        return NULL;
    }
    salt->table = table;
    salt->id = ++*last_id;
    return salt_ref(salt);
}

struct salt *salt_ref(struct salt *salt)
{
    salt->refs++;
    return salt;
}

void salt_unref(struct salt *salt)
{
    if (!salt || --salt->refs)
        return;
    HASH_DEL(*salt->table, salt);
    free(salt);
}
