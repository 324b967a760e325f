// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// heap.h - a heap of nodes that live inside other objects: the smallest (key, order) first.
// Knows nothing of what it sorts. Memory is reserved ahead, so that adding never fails. No lock:
// dispatcher thread only.

#ifndef AULE_CORE_HEAP_H
#define AULE_CORE_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct heap_node {
    uint64_t key;
    uint64_t order; // set by heap_add(): among equal keys the smallest comes first
    size_t place;   // position in heap->entries + 1; 0 = in no heap
};

struct heap_entry {
    uint64_t key, order; // the node's
    struct heap_node *node;
};

struct heap {
    struct heap_entry *entries; // [capacity], the first `size` used; owned; the nodes are not
    size_t size, capacity;
    uint64_t added; // calls of heap_add() so far, for `order`
};

// Makes room for `capacity` nodes in all. False: no memory.
bool heap_reserve(struct heap *heap, size_t capacity);
void heap_finish(struct heap *heap);                   // does not touch the nodes
struct heap_node *heap_first(const struct heap *heap); // NULL: empty
// The one that would be first without `node`. NULL: there is no other one.
struct heap_node *heap_first_beside(const struct heap *heap, const struct heap_node *node);
// There is room. Among equal keys the node that was added first comes first.
void heap_add(struct heap *heap, struct heap_node *node, uint64_t key);
// The same with an order of the caller's, which all nodes of the heap must have.
void heap_add_as(struct heap *heap, struct heap_node *node, uint64_t key, uint64_t order);
void heap_remove(struct heap *heap, struct heap_node *node); // does nothing if it is in no heap
bool heap_sound(const struct heap *heap); // checks order and places of all nodes; for tests

#endif
