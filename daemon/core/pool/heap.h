// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// heap.h - a binary heap of nodes that live inside other objects: the smallest (key, order) first.
// Knows nothing of what it sorts. Memory is reserved ahead, so that adding never fails. Dispatcher
// thread only, as all of core.

#ifndef AULE_CORE_HEAP_H
#define AULE_CORE_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct heap_node {
    uint64_t key;
    uint64_t order; // who came first among equal keys; set by heap_add()
    size_t place;   // position + 1; 0 = in no heap
};

struct heap {
    struct heap_node **nodes; // owned; the nodes are their objects'
    size_t size, capacity;
    uint64_t added; // ever, for `order`
};

bool heap_reserve(struct heap *heap, size_t capacity); // room for that many nodes; false: no memory
void heap_finish(struct heap *heap);                   // the nodes stay as they are
struct heap_node *heap_first(const struct heap *heap); // NULL: empty
void heap_add(struct heap *heap, struct heap_node *node, uint64_t key);
void heap_remove(struct heap *heap,
                 struct heap_node *node); // a node that is in no heap is left alone
bool heap_sound(const struct heap *heap); // order and places are right; walks all

#endif
