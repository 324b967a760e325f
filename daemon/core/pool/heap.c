// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// heap.c - see heap.h. Every node knows its place, so heap_remove() takes O(log size), too.

#include "heap.h"

#include <stdlib.h>

static bool before(const struct heap_node *a, const struct heap_node *b)
{
    return a->key != b->key ? a->key < b->key : a->order < b->order;
}

static void put(struct heap *heap, size_t at, struct heap_node *node)
{
    heap->nodes[at] = node;
    node->place = at + 1;
}

static void rise(struct heap *heap, size_t at, struct heap_node *node)
{
    while (at > 0 && before(node, heap->nodes[(at - 1) / 2])) {
        put(heap, at, heap->nodes[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put(heap, at, node);
}

static void sink(struct heap *heap, size_t at, struct heap_node *node)
{
    for (size_t child; (child = 2 * at + 1) < heap->size; at = child) {
        if (child + 1 < heap->size && before(heap->nodes[child + 1], heap->nodes[child]))
            child++;
        if (!before(heap->nodes[child], node))
            break;
        put(heap, at, heap->nodes[child]);
    }
    put(heap, at, node);
}

bool heap_reserve(struct heap *heap, size_t capacity)
{
    if (capacity <= heap->capacity)
        return true;
    size_t wanted = heap->capacity * 2 > capacity ? heap->capacity * 2 : capacity;
    struct heap_node **nodes = realloc(heap->nodes, wanted * sizeof(struct heap_node *));
    if (!nodes)
        return false;
    heap->nodes = nodes;
    heap->capacity = wanted;
    return true;
}

void heap_finish(struct heap *heap)
{
    free(heap->nodes);
    *heap = (struct heap){0};
}

struct heap_node *heap_first(const struct heap *heap)
{
    return heap->size ? heap->nodes[0] : NULL;
}

void heap_add(struct heap *heap, struct heap_node *node, uint64_t key)
{
    node->key = key;
    node->order = heap->added++;
    rise(heap, heap->size++, node);
}

void heap_remove(struct heap *heap, struct heap_node *node)
{
    if (!node->place)
        return;
    size_t at = node->place - 1;
    struct heap_node *last = heap->nodes[--heap->size];
    node->place = 0;
    if (last == node)
        return;
    if (at > 0 && before(last, heap->nodes[(at - 1) / 2]))
        rise(heap, at, last);
    else
        sink(heap, at, last);
}

bool heap_sound(const struct heap *heap)
{
    for (size_t i = 0; i < heap->size; i++) {
        if (heap->nodes[i]->place != i + 1)
            return false;
        if (i > 0 && before(heap->nodes[i], heap->nodes[(i - 1) / 2]))
            return false;
    }
    return true;
}
