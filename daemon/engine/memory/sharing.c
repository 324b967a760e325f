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
    return tables->rows[seq];
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

// Places that are being sorted: sorted runs one after another.
struct sorting {
    struct sharing_place *places, *others; // [count]; the result is in `places`
    uint32_t *ends;                        // [num_runs]: where each run ends
    uint32_t count, num_runs;
};

static bool sorting_init(struct sorting *sorting, uint32_t most)
{
    *sorting = (struct sorting){0};
    sorting->places = malloc((size_t)most * 2 * sizeof *sorting->places);
    sorting->ends = malloc(most * sizeof *sorting->ends);
    sorting->others = sorting->places ? sorting->places + most : NULL;
    return sorting->places && sorting->ends;
}

// Adds a run of one place.
static void sorting_add(struct sorting *sorting, uint32_t seq)
{
    sorting->places[sorting->count++] = (struct sharing_place){.seq = seq};
    sorting->ends[sorting->num_runs++] = sorting->count;
}

// Merges neighbouring runs until one is left.
static void sort(struct sorting *sorting, const struct sharing_tables *tables)
{
    while (sorting->num_runs > 1) {
        uint32_t first = 0, merged = 0;
        for (uint32_t i = 0; i < sorting->num_runs; i += 2) {
            uint32_t middle = sorting->ends[i],
                     end = i + 1 < sorting->num_runs ? sorting->ends[i + 1] : middle;
            const struct sharing_place *places = sorting->places;
            merge(tables, (struct run){places + first, places + middle, 0},
                  (struct run){places + middle, places + end, 0}, sorting->others + first);
            sorting->ends[merged++] = first = end;
        }
        struct sharing_place *sorted = sorting->others;
        sorting->others = sorting->places;
        sorting->places = sorted;
        sorting->num_runs = merged;
    }
}

static void sorting_finish(struct sorting *sorting)
{
    free(sorting->places < sorting->others ? sorting->places : sorting->others);
    free(sorting->ends);
}

static bool is_alike(const struct sorting *sorting, uint32_t i)
{
    return sorting->places[i].alike > 0 ||
           (i + 1 < sorting->count && sorting->places[i + 1].alike > 0);
}

// Appends the places that have something in common with a neighbour.
static void keep_alike(struct sharing *sharing, const struct sorting *sorting)
{
    for (uint32_t i = 0; i < sorting->count; i++)
        if (is_alike(sorting, i))
            sharing->places[sharing->num_places++] = sorting->places[i];
    sharing->num_all = sharing->num_places;
}

// ---- the filter: a sequence whose first entry is unique needs no sorting ----

// Bits of the filter for each first entry. At most one unique entry in 16 passes by chance.
enum { BITS_EACH = 16 };

// A hash filter of first entries.
struct marks {
    uint64_t *once, *again; // hashes seen once, and more than once; [size / 64]; owned, one
                            // allocation
    uint64_t size;          // bits, a power of two
};

static bool marks_init(struct marks *marks, uint64_t count)
{
    marks->size = 64;
    while (marks->size < BITS_EACH * count)
        marks->size *= 2;
    marks->once = calloc(marks->size / 64 * 2, sizeof *marks->once);
    marks->again = marks->once ? marks->once + marks->size / 64 : NULL;
    return marks->once;
}

static uint64_t mark_of(const struct marks *marks, int32_t entry)
{
    return ((uint32_t)entry * UINT64_C(0x9e3779b97f4a7c15)) >> 32 & (marks->size - 1);
}

static void marks_add(struct marks *marks, int32_t entry)
{
    uint64_t at = mark_of(marks, entry), bit = UINT64_C(1) << (at % 64);
    marks->again[at / 64] |= marks->once[at / 64] & bit;
    marks->once[at / 64] |= bit;
}

static bool marks_has_again(const struct marks *marks, int32_t entry)
{
    uint64_t at = mark_of(marks, entry);
    return marks->again[at / 64] >> (at % 64) & 1;
}

static void marks_finish(struct marks *marks)
{
    free(marks->once);
}

// ---- one batch ----

static uint32_t count_used(const struct sharing_tables *tables)
{
    uint32_t count = 0;
    for (uint32_t seq = 0; seq < tables->num_seqs; seq++)
        count += tables->used[seq] > 0;
    return count;
}

static void mark_all(struct marks *marks, const struct sharing_tables *tables)
{
    for (uint32_t seq = 0; seq < tables->num_seqs; seq++)
        if (tables->used[seq])
            marks_add(marks, row_of(tables, seq)[0]);
}

// Appends the sequences that share nothing: those that the filter has stopped, and those that the
// sorting has left alone.
static void keep_others(struct sharing *sharing, const struct sorting *sorting,
                        const struct marks *marks, const struct sharing_tables *tables)
{
    for (uint32_t i = 0; i < sorting->count; i++)
        if (!is_alike(sorting, i))
            sharing->places[sharing->num_all++] = sorting->places[i];
    for (uint32_t seq = 0; seq < tables->num_seqs; seq++)
        if (tables->used[seq] && !marks_has_again(marks, row_of(tables, seq)[0]))
            sharing->places[sharing->num_all++] = (struct sharing_place){.seq = seq};
}

static void note_firsts(struct sharing *sharing, const struct sharing_tables *tables)
{
    for (uint32_t i = 0; i < sharing->num_all; i++)
        if (sharing->places[i].alike == 0)
            sharing->firsts[sharing->num_firsts++] = row_of(tables, sharing->places[i].seq)[0];
}

static bool take_places(struct sharing *sharing, uint32_t count)
{
    sharing->places = malloc(count * sizeof *sharing->places);
    sharing->firsts = malloc(count * sizeof *sharing->firsts);
    return sharing->places && sharing->firsts;
}

bool sharing_find(struct sharing *sharing, const struct sharing_tables *tables)
{
    uint32_t count = count_used(tables);
    struct marks marks = {0};
    struct sorting sorting = {0};
    *sharing = (struct sharing){0};
    if (count == 0)
        return true;
    bool found =
        take_places(sharing, count) && marks_init(&marks, count) && sorting_init(&sorting, count);
    if (found) {
        mark_all(&marks, tables);
        for (uint32_t seq = 0; seq < tables->num_seqs; seq++)
            if (tables->used[seq] && marks_has_again(&marks, row_of(tables, seq)[0]))
                sorting_add(&sorting, seq);
        sort(&sorting, tables);
        keep_alike(sharing, &sorting);
        keep_others(sharing, &sorting, &marks, tables);
        note_firsts(sharing, tables);
    } else {
        sharing_finish(sharing);
    }
    sorting_finish(&sorting);
    marks_finish(&marks);
    return found;
}

bool sharing_copy(struct sharing *to, const struct sharing *from)
{
    *to = (struct sharing){0};
    if (from->num_all == 0)
        return true;
    if (!take_places(to, from->num_all)) {
        sharing_finish(to);
        return false;
    }
    memcpy(to->places, from->places, from->num_all * sizeof *to->places);
    memcpy(to->firsts, from->firsts, from->num_firsts * sizeof *to->firsts);
    to->num_places = from->num_places;
    to->num_all = from->num_all;
    to->num_firsts = from->num_firsts;
    return true;
}

void sharing_finish(struct sharing *sharing)
{
    free(sharing->places);
    free(sharing->firsts);
    *sharing = (struct sharing){0};
}

// ---- several batches ----

static uint64_t count_firsts(const struct sharing_part *parts, uint32_t count)
{
    uint64_t firsts = 0;
    for (uint32_t i = 0; i < count; i++)
        firsts += parts[i].sharing->num_firsts;
    return firsts;
}

// Marks the first entries of all batches. Those of one batch differ, so an entry that comes again
// is in two batches.
static bool marks_of_parts(struct marks *marks, const struct sharing_part *parts, uint32_t count,
                           bool *meet)
{
    uint64_t again = 0;
    if (!marks_init(marks, count_firsts(parts, count)))
        return false;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < parts[i].sharing->num_firsts; j++)
            marks_add(marks, parts[i].sharing->firsts[j]);
    for (uint64_t i = 0; i < marks->size / 64; i++)
        again |= marks->again[i];
    *meet = again;
    return true;
}

bool sharing_meet(const struct sharing_part *parts, uint32_t count, bool *meet)
{
    struct marks marks;
    *meet = false;
    if (!marks_of_parts(&marks, parts, count, meet))
        return false;
    marks_finish(&marks);
    return true;
}

// Adds the sequences of a batch whose first entry is in another batch, too, or that share entries
// within the batch. These are sorted already.
static void add_part(struct sorting *sorting, const struct sharing_part *part,
                     const struct marks *marks, const struct sharing_tables *tables)
{
    const struct sharing *sharing = part->sharing;
    bool wanted = false;
    uint32_t first = 0;
    for (uint32_t i = 0; i < sharing->num_all; i++) {
        const struct sharing_place *place = &sharing->places[i];
        if (place->alike == 0)
            wanted = marks_has_again(marks, sharing->firsts[first++]);
        uint32_t seq = part->first_seq + place->seq;
        if (i < sharing->num_places) {
            sorting->places[sorting->count++] = (struct sharing_place){seq, place->alike};
            if (i + 1 == sharing->num_places)
                sorting->ends[sorting->num_runs++] = sorting->count;
        } else if (wanted && tables->used[seq]) {
            sorting_add(sorting, seq);
        }
    }
}

bool sharing_join(struct sharing *sharing, const struct sharing_tables *tables,
                  const struct sharing_part *parts, uint32_t count)
{
    struct marks marks = {0};
    struct sorting sorting = {0};
    uint32_t most = 0;
    bool meet;
    *sharing = (struct sharing){0};
    for (uint32_t i = 0; i < count; i++)
        most += parts[i].sharing->num_all;
    if (most == 0)
        return true;
    bool found = marks_of_parts(&marks, parts, count, &meet) && sorting_init(&sorting, most);
    if (found) {
        for (uint32_t i = 0; i < count; i++)
            add_part(&sorting, &parts[i], &marks, tables);
        sort(&sorting, tables);
        sharing->places = malloc((size_t)most * sizeof *sharing->places);
        found = sharing->places;
    }
    if (found)
        keep_alike(sharing, &sorting);
    sorting_finish(&sorting);
    marks_finish(&marks);
    return found;
}
