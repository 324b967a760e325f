// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// sharing.c - sorts sequences by their block tables, as strings are sorted, by merging sorted runs.
// Each place in a run knows how many leading entries it shares with the place before. So a merge
// never compares these entries again. Most sequences share nothing; only their first entry is read.
// Any thread; no state.

#include "sharing.h"

#include <stdlib.h>
#include <string.h>

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

// ---- the order ----

static const int32_t *row_of(const struct sharing_tables *tables, uint32_t seq)
{
    return tables->table + (uint64_t)seq * tables->max_blocks;
}

// Leading entries that two sequences have in common; the first `known` are known to be equal.
static uint32_t count_alike(const struct sharing_tables *tables, uint32_t a, uint32_t b,
                            uint32_t known)
{
    const int32_t *row_a = row_of(tables, a), *row_b = row_of(tables, b);
    uint32_t end = smaller(tables->used[a], tables->used[b]);
    while (known < end && row_a[known] == row_b[known])
        known++;
    return known;
}

// Whether `a` comes first. Exactly `alike` leading entries are equal.
static bool comes_first(const struct sharing_tables *tables, uint32_t a, uint32_t b, uint32_t alike)
{
    if (alike == tables->used[a] || alike == tables->used[b])
        return tables->used[a] <= tables->used[b];
    return row_of(tables, a)[alike] < row_of(tables, b)[alike];
}

// A sorted run that is being merged.
struct run {
    const struct sharing_place *at, *end;
    uint32_t alike; // leading entries that *at has in common with the last place of the output
};

static void put(struct run *from, struct sharing_place **to)
{
    *(*to)++ = (struct sharing_place){from->at->seq, from->alike};
    from->at++;
    from->alike = from->at < from->end ? from->at->alike : 0;
}

// The run whose next place has more in common with the output's last place goes first: its entries
// sort closer to that place. If both have as many in common, the next entries decide.
static void merge(const struct sharing_tables *tables, struct run a, struct run b,
                  struct sharing_place *to)
{
    while (a.at < a.end && b.at < b.end) {
        if (a.alike != b.alike) {
            put(a.alike > b.alike ? &a : &b, &to);
            continue;
        }
        uint32_t alike = count_alike(tables, a.at->seq, b.at->seq, a.alike);
        bool a_first = comes_first(tables, a.at->seq, b.at->seq, alike);
        put(a_first ? &a : &b, &to);
        *(a_first ? &b.alike : &a.alike) = alike;
    }
    while (a.at < a.end)
        put(&a, &to);
    while (b.at < b.end)
        put(&b, &to);
}

// Sorts places[0, count). `others` has room for as many. Returns the one of the two that has the
// result.
static struct sharing_place *sort(const struct sharing_tables *tables, struct sharing_place *places,
                                  struct sharing_place *others, uint32_t count)
{
    for (uint64_t width = 1; width < count; width *= 2) {
        for (uint64_t first = 0; first < count; first += 2 * width) {
            const struct sharing_place *middle =
                places + (first + width < count ? first + width : count);
            const struct sharing_place *end =
                places + (first + 2 * width < count ? first + 2 * width : count);
            merge(tables, (struct run){places + first, middle, 0}, (struct run){middle, end, 0},
                  others + first);
        }
        struct sharing_place *sorted = others;
        others = places;
        places = sorted;
    }
    return places;
}

// Keeps the places that have something in common with a neighbour.
static uint32_t keep_alike(struct sharing_place *to, const struct sharing_place *places,
                           uint32_t count)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++)
        if (places[i].alike || (i + 1 < count && places[i + 1].alike))
            to[kept++] = places[i];
    return kept;
}

// ---- the filter: a sequence whose first entry is unique needs no sorting ----

// Bits of the filter for each sequence. At most one unique sequence in 16 passes by chance.
enum { BITS_EACH = 16 };

// A hash filter of first entries.
struct marks {
    uint64_t *once, *again; // hashes seen once, and more than once; [size / 64]; owned, one
                            // allocation
    uint64_t size;          // bits, a power of two
};

static bool marks_init(struct marks *marks, uint32_t count)
{
    marks->size = 64;
    while (marks->size < (uint64_t)BITS_EACH * count)
        marks->size *= 2;
    marks->once = calloc(marks->size / 64 * 2, sizeof *marks->once);
    marks->again = marks->once ? marks->once + marks->size / 64 : NULL;
    return marks->once;
}

static uint64_t mark_of(const struct marks *marks, const struct sharing_tables *tables,
                        uint32_t seq)
{
    uint32_t entry = (uint32_t)row_of(tables, seq)[0];
    return (entry * UINT64_C(0x9e3779b97f4a7c15)) >> 32 & (marks->size - 1);
}

// Puts the sequences whose first entry may occur twice into `places`, which has room for *count.
// Sets *count to their number. false: no memory.
static bool find_alike(const struct sharing_tables *tables, struct sharing_place *places,
                       uint32_t *count)
{
    struct marks marks;
    if (!marks_init(&marks, *count))
        return false;
    for (uint32_t seq = 0; seq < tables->num_seqs; seq++) {
        if (!tables->used[seq])
            continue;
        uint64_t at = mark_of(&marks, tables, seq), bit = UINT64_C(1) << (at % 64);
        marks.again[at / 64] |= marks.once[at / 64] & bit;
        marks.once[at / 64] |= bit;
    }
    *count = 0;
    for (uint32_t seq = 0; seq < tables->num_seqs; seq++) {
        if (!tables->used[seq])
            continue;
        uint64_t at = mark_of(&marks, tables, seq);
        if (marks.again[at / 64] >> (at % 64) & 1)
            places[(*count)++] = (struct sharing_place){.seq = seq};
    }
    free(marks.once);
    return true;
}

bool sharing_find(struct sharing *sharing, const struct sharing_tables *tables)
{
    uint32_t count = 0;
    *sharing = (struct sharing){0};
    for (uint32_t seq = 0; seq < tables->num_seqs; seq++)
        count += tables->used[seq] > 0;
    if (count < 2)
        return true;
    struct sharing_place *places = calloc((size_t)count * 2, sizeof *places);
    if (!places || !find_alike(tables, places, &count)) {
        free(places);
        return false;
    }
    const struct sharing_place *sorted = sort(tables, places, places + count, count);
    sharing->num_places = keep_alike(places, sorted, count);
    if (sharing->num_places)
        sharing->places = places;
    else
        free(places);
    return true;
}

bool sharing_copy(struct sharing *to, const struct sharing *from)
{
    *to = (struct sharing){.num_places = from->num_places};
    if (from->num_places == 0)
        return true;
    to->places = malloc(from->num_places * sizeof *to->places);
    if (to->places)
        memcpy(to->places, from->places, from->num_places * sizeof *to->places);
    return to->places != NULL;
}

void sharing_finish(struct sharing *sharing)
{
    free(sharing->places);
    *sharing = (struct sharing){0};
}

// ---- crowds: sequences that share one part ----

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
