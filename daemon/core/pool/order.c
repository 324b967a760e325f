// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// order.c - see order.h.

#include "order.h"

#include "base/container_of.h"

static unsigned class_of(uint64_t key)
{
    return (unsigned)(key >> 62);
}

bool order_reserve(struct order *order, size_t capacity)
{
    for (unsigned class = 0; class < ORDER_CLASSES && !order->ends[class].next; class ++)
        order->ends[class].prev = order->ends[class].next = &order->ends[class];
    return heap_reserve(&order->strays, capacity);
}

void order_finish(struct order *order)
{
    heap_finish(&order->strays);
    *order = (struct order){0};
}

static struct order_node *first_listed(const struct order *order)
{
    for (unsigned class = 0; class < ORDER_CLASSES; class ++) {
        if (order->ends[class].next != &order->ends[class])
            return order->ends[class].next;
    }
    return NULL;
}

struct order_node *order_first(const struct order *order)
{
    if (!order->size)
        return NULL;
    struct heap_node *stray = heap_first(&order->strays);
    struct order_node *first = first_listed(order);
    return stray && (!first || stray->key < first->key)
               ? container_of(stray, struct order_node, stray)
               : first;
}

static void insert(struct order_node *node, struct order_node *prev, struct order_node *next)
{
    node->prev = prev;
    node->next = next;
    prev->next = next->prev = node;
}

void order_add(struct order *order, struct order_node *node, uint64_t key)
{
    struct order_node *end = &order->ends[class_of(key)];
    order->size++;
    node->key = key;
    if (end->prev == end || key > end->prev->key)
        insert(node, end->prev, end);
    else if (key < end->next->key)
        insert(node, end, end->next);
    else
        heap_add_as(&order->strays, &node->stray, key, ORDER_STRAY);
}

void order_remove(struct order *order, struct order_node *node)
{
    if (!node->stray.order)
        return;
    if (order_is_listed(node)) {
        node->prev->next = node->next;
        node->next->prev = node->prev;
    } else {
        heap_remove(&order->strays, &node->stray);
    }
    node->prev = NULL;
    order->size--;
}

bool order_has(const struct order *order, const struct order_node *node)
{
    const struct heap *strays = &order->strays;
    if (order_is_listed(node))
        return node->prev->next == node && node->next->prev == node;
    return node->stray.order == ORDER_STRAY && node->stray.place &&
           node->stray.place <= strays->size &&
           strays->entries[node->stray.place - 1].node == &node->stray;
}

bool order_sound(const struct order *order)
{
    size_t size = order->strays.size;
    for (unsigned class = 0; class < ORDER_CLASSES && order->ends[0].next; class ++) {
        const struct order_node *end = &order->ends[class];
        for (const struct order_node *node = end->next; node != end; node = node->next, size++) {
            if (class_of(node->key) != class || !order_has(order, node) ||
                (node->next != end && node->key >= node->next->key))
                return false;
        }
    }
    return size == order->size && heap_sound(&order->strays);
}
