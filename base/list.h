// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// list.h - linked lists whose links are fields of the items, so that adding one cannot fail. A list
// is a pointer to its first item; NULL is the empty list, so a zeroed object needs no constructor.
// Knows no lock: what guards the list is its owner's affair.
//
// The first item's `prev` is the last item; the last item's `next` is NULL. So both ends and any
// item are reached without a walk. An item in several lists has a pair of links for each; the
// macros with _BY name the pair.

#ifndef AULE_LIST_H
#define AULE_LIST_H

#include <stddef.h>

#define LIST_EACH_BY(head, item, next) for ((item) = (head); (item); (item) = (item)->next)
#define LIST_EACH(head, item)          for ((item) = (head); (item); (item) = (item)->next)

// The body may delete or free `item`, but not `after`, the item behind it.
#define LIST_EACH_SAFE_BY(head, item, after, next)                                                 \
    for ((item) = (head); (item) && ((after) = (item)->next, 1); (item) = (after))
#define LIST_EACH_SAFE(head, item, after)                                                          \
    for ((item) = (head); (item) && ((after) = (item)->next, 1); (item) = (after))

#define LIST_PREPEND_BY(head, item, prev, next)                                                    \
    do {                                                                                           \
        (item)->prev = (head) ? (head)->prev : (item);                                             \
        (item)->next = (head);                                                                     \
        if (head)                                                                                  \
            (head)->prev = (item);                                                                 \
        (head) = (item);                                                                           \
    } while (0)
#define LIST_PREPEND(head, item) LIST_PREPEND_BY(head, item, prev, next)

// Behind `place`, an item of the list; NULL: at the front.
#define LIST_INSERT_BY(head, place, item, prev, next)                                              \
    do {                                                                                           \
        if (!(place)) {                                                                            \
            LIST_PREPEND_BY(head, item, prev, next);                                               \
            break;                                                                                 \
        }                                                                                          \
        (item)->prev = (place);                                                                    \
        (item)->next = (place)->next;                                                              \
        ((item)->next ? (item)->next : (head))->prev = (item);                                     \
        (place)->next = (item);                                                                    \
    } while (0)
#define LIST_INSERT(head, place, item) LIST_INSERT_BY(head, place, item, prev, next)

#define LIST_APPEND_BY(head, item, prev, next)                                                     \
    do {                                                                                           \
        if (!(head)) {                                                                             \
            LIST_PREPEND_BY(head, item, prev, next);                                               \
            break;                                                                                 \
        }                                                                                          \
        (item)->prev = (head)->prev;                                                               \
        (item)->next = NULL;                                                                       \
        (item)->prev->next = (item);                                                               \
        (head)->prev = (item);                                                                     \
    } while (0)
#define LIST_APPEND(head, item) LIST_APPEND_BY(head, item, prev, next)

// `item` keeps its links, so a walk may delete the item that it stands on.
#define LIST_DELETE_BY(head, item, prev, next)                                                     \
    do {                                                                                           \
        if ((item)->next)                                                                          \
            (item)->next->prev = (item)->prev;                                                     \
        else                                                                                       \
            (head)->prev = (item)->prev;                                                           \
        if ((item) == (head))                                                                      \
            (head) = (item)->next;                                                                 \
        else                                                                                       \
            (item)->prev->next = (item)->next;                                                     \
    } while (0)
#define LIST_DELETE(head, item) LIST_DELETE_BY(head, item, prev, next)

#endif
