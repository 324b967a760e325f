// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// crowds.c - walks through the order of sequences part by part: neighbours that have a whole part
// in common are a crowd. Only the members of a crowd may share the next part, so the crowds of all
// parts form a tree. Any thread; no state.

#include "crowds.h"

#include <stdlib.h>
#include <string.h>

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

// A sequence, among those whose parts have the same length.
struct candidate {
    uint32_t seq, part_keys;
    uint32_t place; // index into sharing->places
    uint64_t alike; // leading keys in common with the candidate before
};

static int compare_candidates(const void *left, const void *right)
{
    const struct candidate *a = left, *b = right;
    if (a->part_keys != b->part_keys)
        return a->part_keys < b->part_keys ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

// Lists the sequences that may join a crowd, by length of parts, then by place.
static uint32_t find_candidates(struct candidate *candidates, const struct sharing *sharing,
                                const struct sharing_cut *cut)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < sharing->num_places; i++) {
        uint32_t seq = sharing->places[i].seq, keys = cut->part_keys[seq];
        if (keys && cut->whole_keys[seq] >= keys)
            candidates[count++] = (struct candidate){seq, keys, i, 0};
    }
    qsort(candidates, count, sizeof *candidates, compare_candidates);
    for (uint32_t i = 1; i < count; i++) {
        if (candidates[i].part_keys != candidates[i - 1].part_keys)
            continue;
        uint32_t blocks = UINT32_MAX;
        for (uint32_t place = candidates[i - 1].place + 1; place <= candidates[i].place; place++)
            blocks = smaller(blocks, sharing->places[place].alike);
        candidates[i].alike = (uint64_t)blocks * cut->block_size;
    }
    return count;
}

// Allocates for the worst case: every part of every candidate is shared.
static bool take_room(struct crowds *crowds, const struct candidate *candidates, uint32_t count,
                      const struct sharing_cut *cut)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < count; i++)
        most += cut->whole_keys[candidates[i].seq] / candidates[i].part_keys;
    if (most > UINT32_MAX)
        return false;
    crowds->crowds = most ? malloc(most / 2 * sizeof *crowds->crowds + 1) : NULL;
    crowds->members = most ? malloc(most * sizeof *crowds->members) : NULL;
    crowds->parts = calloc(cut->num_seqs ? cut->num_seqs : 1, sizeof *crowds->parts);
    return crowds->parts && (!most || (crowds->crowds && crowds->members));
}

static void add_crowd(struct crowds *crowds, uint32_t part, const struct candidate *candidates,
                      uint32_t count)
{
    crowds->crowds[crowds->num_crowds++] = (struct crowd){part, crowds->num_members, count};
    for (uint32_t i = 0; i < count; i++) {
        crowds->members[crowds->num_members++] = candidates[i].seq;
        crowds->parts[candidates[i].seq] = part + 1;
    }
}

// Keeps the candidates for which part `part` lies below whole_keys. Dropping one may reduce what
// its neighbours have in common.
static uint32_t keep_whole(struct candidate *candidates, uint32_t count, uint32_t part,
                           const struct sharing_cut *cut)
{
    uint32_t kept = 0;
    uint64_t alike = UINT64_MAX;
    for (uint32_t i = 0; i < count; i++) {
        alike = candidates[i].alike < alike ? candidates[i].alike : alike;
        if (cut->whole_keys[candidates[i].seq] / candidates[i].part_keys <= part)
            continue;
        candidates[kept] = candidates[i];
        candidates[kept++].alike = alike;
        alike = UINT64_MAX;
    }
    return kept;
}

// Finds the crowds of part `part`. All candidates have parts of the same length. Returns the number
// of candidates in a crowd; only these may share the next part.
static uint32_t find_part(struct crowds *crowds, struct candidate *candidates, uint32_t count,
                          uint32_t part, uint32_t least)
{
    uint32_t kept = 0, end;
    for (uint32_t first = 0; first < count; first = end) {
        uint64_t keys = (uint64_t)(part + 1) * candidates[first].part_keys;
        for (end = first + 1; end < count && candidates[end].alike >= keys;)
            end++;
        if (end - first < least)
            continue;
        add_crowd(crowds, part, candidates + first, end - first);
        memmove(candidates + kept, candidates + first, (end - first) * sizeof *candidates);
        candidates[kept].alike = 0;
        kept += end - first;
    }
    return kept;
}

bool crowds_find(struct crowds *crowds, const struct sharing *sharing,
                 const struct sharing_cut *cut)
{
    *crowds = (struct crowds){0};
    struct candidate *candidates =
        calloc(sharing->num_places ? sharing->num_places : 1, sizeof *candidates);
    if (!candidates)
        return false;
    uint32_t count = find_candidates(candidates, sharing, cut), end;
    bool found = take_room(crowds, candidates, count, cut);
    for (uint32_t first = 0; found && first < count; first = end) {
        for (end = first + 1;
             end < count && candidates[end].part_keys == candidates[first].part_keys;)
            end++;
        uint32_t left = end - first;
        for (uint32_t part = 0; left >= cut->least; part++) {
            left = keep_whole(candidates + first, left, part, cut);
            left = find_part(crowds, candidates + first, left, part, cut->least);
        }
    }
    free(candidates);
    if (!found)
        crowds_finish(crowds);
    return found;
}

void crowds_finish(struct crowds *crowds)
{
    free(crowds->crowds);
    free(crowds->members);
    free(crowds->parts);
    *crowds = (struct crowds){0};
}
