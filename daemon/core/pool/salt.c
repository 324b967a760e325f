// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// salt.c - see salt.h. A hash table by tenant and name.

#include "salt.h"

#include "tenant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct salt *salt_create(const struct tenant *tenant, const char *name)
{
    enum { LABEL_ROOM = 256 };
    const size_t size = strlen(name) + 1, key_size = sizeof tenant->id + size;
    struct salt *salt = calloc(1, sizeof *salt + key_size + LABEL_ROOM);
    if (!salt)
        return NULL;
    char *label = (char *)salt->key + key_size;
    salt->key_size = (uint32_t)key_size;
    memcpy(salt->key, &tenant->id, sizeof tenant->id);
    memcpy(salt->key + sizeof tenant->id, name, size);
    snprintf(label, LABEL_ROOM, "%s%s%s", tenant->label, *name ? "/" : "", name);
    salt->label = label;
    return salt;
}

struct salt *salt_get(struct salt **table, uint64_t *last_id, struct tenant *tenant,
                      const char *name)
{
    struct salt *salt = salt_create(tenant, name ? name : ""), *known = NULL;
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
    salt->tenant = tenant_ref(tenant);
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
    tenant_unref(salt->tenant);
    free(salt);
}
