// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// heap.c - see heap.h. Every node knows its place, so heap_remove() takes O(log size), too.

#include "heap.h"

#include <stdlib.h>

// Each node has up to eight children, which lie side by side, so a path has few steps. Keys are
// compared in the array; the nodes themselves are only told their places.
enum { WIDTH = 8 };

static bool before(const struct heap_entry *a, const struct heap_entry *b)
{
    return a->key != b->key ? a->key < b->key : a->order < b->order;
}

static void put(struct heap *heap, size_t at, struct heap_entry entry)
{
    heap->entries[at] = entry;
    entry.node->place = at + 1;
}

static void rise(struct heap *heap, size_t at, struct heap_entry entry)
{
    while (at > 0 && before(&entry, &heap->entries[(at - 1) / WIDTH])) {
        put(heap, at, heap->entries[(at - 1) / WIDTH]);
        at = (at - 1) / WIDTH;
    }
    put(heap, at, entry);
}

// The first one among the children of `at`; heap->size: it has none.
static size_t first_child(const struct heap *heap, size_t at)
{
    size_t first = WIDTH * at + 1, end = first + WIDTH;
    if (first >= heap->size)
        return heap->size;
    end = end < heap->size ? end : heap->size;
    size_t least = first;
    for (size_t child = first + 1; child < end; child++) {
        if (before(&heap->entries[child], &heap->entries[least]))
            least = child;
    }
    return least;
}

static void sink(struct heap *heap, size_t at, struct heap_entry entry)
{
    for (size_t child; (child = first_child(heap, at)) < heap->size; at = child) {
        if (!before(&heap->entries[child], &entry))
            break;
        put(heap, at, heap->entries[child]);
    }
    put(heap, at, entry);
}

bool heap_reserve(struct heap *heap, size_t capacity)
{
    if (capacity <= heap->capacity)
        return true;
    size_t wanted = heap->capacity * 2 > capacity ? heap->capacity * 2 : capacity;
    struct heap_entry *entries = realloc(heap->entries, wanted * sizeof *entries);
    if (!entries)
        return false;
    heap->entries = entries;
    heap->capacity = wanted;
    return true;
}

void heap_finish(struct heap *heap)
{
    free(heap->entries);
    *heap = (struct heap){0};
}

struct heap_node *heap_first(const struct heap *heap)
{
    return heap->size ? heap->entries[0].node : NULL;
}

struct heap_node *heap_first_beside(const struct heap *heap, const struct heap_node *node)
{
    if (heap_first(heap) != node)
        return heap_first(heap);
    const size_t second = first_child(heap, 0);
    return second < heap->size ? heap->entries[second].node : NULL;
}

void heap_add_as(struct heap *heap, struct heap_node *node, uint64_t key, uint64_t order)
{
    node->key = key;
    node->order = order;
    rise(heap, heap->size++, (struct heap_entry){key, order, node});
}

void heap_add(struct heap *heap, struct heap_node *node, uint64_t key)
{
    heap_add_as(heap, node, key, heap->added++);
}

void heap_remove(struct heap *heap, struct heap_node *node)
{
    if (!node->place)
        return;
    size_t at = node->place - 1;
    const struct heap_entry last = heap->entries[--heap->size];
    node->place = 0;
    if (last.node == node)
        return;
    if (at > 0 && before(&last, &heap->entries[(at - 1) / WIDTH]))
        rise(heap, at, last);
    else
        sink(heap, at, last);
}

bool heap_sound(const struct heap *heap)
{
    for (size_t i = 0; i < heap->size; i++) {
        const struct heap_entry *entry = &heap->entries[i];
        if (entry->node->place != i + 1 || entry->node->key != entry->key)
            return false;
        if (i > 0 && before(entry, &heap->entries[(i - 1) / WIDTH]))
            return false;
    }
    return true;
}
