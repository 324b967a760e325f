// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// absent.c - see absent.h. An entry is a hash and a time; the time's lowest bit says whether the
// block was stored then, or missing.

#include "absent.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { WAYS = 4, LOCKS = 16 };

struct entry {
    uint64_t hash;
    int64_t time; // ns, with STORED; 0 = empty
};
#define STORED INT64_C(1)

struct set {
    struct entry entries[WAYS];
};

struct absent {
    pthread_mutex_t locks[LOCKS]; // lock i: sets whose number is i modulo LOCKS
    uint64_t num_sets;            // a power of two
    int64_t age_ns;
    struct set *sets;
};

struct absent *absent_create(uint32_t num_entries, int64_t age_ns)
{
    struct absent *absent = calloc(1, sizeof *absent);
    if (!absent)
        return NULL;
    absent->num_sets = LOCKS;
    while (absent->num_sets * WAYS < num_entries)
        absent->num_sets *= 2;
    absent->age_ns = age_ns;
    absent->sets = aligned_alloc(sizeof(struct set), absent->num_sets * sizeof(struct set));
    if (!absent->sets) {
        free(absent);
        return NULL;
    }
    memset(absent->sets, 0, absent->num_sets * sizeof(struct set));
    for (int i = 0; i < LOCKS; i++)
        pthread_mutex_init(&absent->locks[i], NULL);
    return absent;
}

void absent_destroy(struct absent *absent)
{
    if (!absent)
        return;
    for (int i = 0; i < LOCKS; i++)
        pthread_mutex_destroy(&absent->locks[i]);
    free(absent->sets);
    free(absent);
}

uint64_t absent_hash(const struct stored_space *space, const struct stored_chain *chain)
{
    uint8_t key[3 * STORED_ID_BYTES];
    memcpy(key, space->fingerprint, STORED_ID_BYTES);
    memcpy(key + STORED_ID_BYTES, space->salt, STORED_ID_BYTES);
    memcpy(key + 2 * STORED_ID_BYTES, chain->id, STORED_ID_BYTES);
    return XXH3_64bits(key, sizeof key);
}

static struct set *lock_set(struct absent *absent, uint64_t hash)
{
    uint64_t number = hash & (absent->num_sets - 1);
    pthread_mutex_lock(&absent->locks[number % LOCKS]);
    return &absent->sets[number];
}

static void unlock_set(struct absent *absent, uint64_t hash)
{
    pthread_mutex_unlock(&absent->locks[(hash & (absent->num_sets - 1)) % LOCKS]);
}

// The entry of the hash, or NULL.
static struct entry *find(struct set *set, uint64_t hash)
{
    for (int i = 0; i < WAYS; i++)
        if (set->entries[i].time != 0 && set->entries[i].hash == hash)
            return &set->entries[i];
    return NULL;
}

static struct entry *oldest(struct set *set)
{
    struct entry *entry = &set->entries[0];
    for (int i = 1; i < WAYS; i++)
        if (set->entries[i].time < entry->time)
            entry = &set->entries[i];
    return entry;
}

// The later of two notes about a block holds.
static void note(struct absent *absent, uint64_t hash, int64_t time)
{
    struct set *set = lock_set(absent, hash);
    struct entry *entry = find(set, hash);
    if (!entry) {
        entry = oldest(set);
        *entry = (struct entry){.hash = hash};
    }
    if (time > entry->time)
        entry->time = time;
    unlock_set(absent, hash);
}

void absent_note_missing(struct absent *absent, uint64_t hash, int64_t asked_ns)
{
    note(absent, hash, asked_ns & ~STORED);
}

void absent_note_stored(struct absent *absent, uint64_t hash, int64_t stored_ns)
{
    note(absent, hash, stored_ns | STORED);
}

bool absent_has(struct absent *absent, uint64_t hash, int64_t now_ns)
{
    struct set *set = lock_set(absent, hash);
    const struct entry *entry = find(set, hash);
    bool has = entry && !(entry->time & STORED) && now_ns - entry->time < absent->age_ns;
    unlock_set(absent, hash);
    return has;
}
