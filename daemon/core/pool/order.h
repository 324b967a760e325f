// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// order.h - a queue of nodes that live inside other objects: the smallest key first. Most keys come
// in rising order, because they are times of use. So a node goes to an end of a list, in constant
// time and without touching more than that end; only a key between the two ends goes into a heap.
// The two highest bits of a key are its class, and each class has a list. Keys are unique. Knows
// nothing of what it sorts. Memory is reserved ahead, so that adding never fails. No lock:
// dispatcher thread only.

#ifndef AULE_CORE_ORDER_H
#define AULE_CORE_ORDER_H

#include "base/prefetch.h"
#include "core/turns/heap.h"

enum { ORDER_CLASSES = 4 };

// 24 bytes. The word that stray.order and `prev` share tells where the node is: 0 nowhere,
// ORDER_STRAY in the heap, any other value in a list.
struct order_node {
    union {
        struct heap_node stray; // begins with the key, too
        struct {
            uint64_t key;
            struct order_node *prev, *next;
        };
    };
};
_Static_assert(sizeof(struct order_node) == sizeof(struct heap_node), "pointers have 64 bits");
#define ORDER_STRAY UINT64_C(1) // no node has this address

struct order {
    struct order_node ends[ORDER_CLASSES]; // next: the class's first node; prev: its last one;
                                           // themselves: none; NULL: nothing was reserved yet
    struct heap strays;
    size_t size; // nodes in all
};

// Makes room for `capacity` nodes in all. False: no memory.
bool order_reserve(struct order *order, size_t capacity);
void order_finish(struct order *order);                    // does not touch the nodes
struct order_node *order_first(const struct order *order); // NULL: empty
// The node is in no queue, and there is room.
void order_add(struct order *order, struct order_node *node, uint64_t key);
void order_remove(struct order *order, struct order_node *node); // does nothing if it is in none
static inline bool order_is_in(const struct order_node *node)    // in some queue
{
    return node->stray.order;
}
static inline bool order_is_listed(const struct order_node *node)
{
    return node->stray.order > ORDER_STRAY;
}
// The node behind this one in its list. NULL: it is in no list, or the last one.
static inline const struct order_node *order_next(const struct order *order,
                                                  const struct order_node *node)
{
    const bool listed = order_is_listed(node);
    return listed && node->next != &order->ends[node->key >> 62] ? node->next : NULL;
}
// Prefetches what order_remove() will write beside the node.
static inline void order_fetch(const struct order_node *node)
{
    if (!order_is_listed(node))
        return;
    prefetch(node->prev);
    prefetch(node->next);
}
bool order_has(const struct order *order, const struct order_node *node); // for tests
bool order_sound(const struct order *order); // checks keys, links and places; for tests

#endif
