// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// page.h - a list that an answer has page by page: a client asks again from first + count until it
// has `total`. Knows no list: each brings a function that fills one entry. Thread: dispatcher.

#ifndef AULE_SERVER_PAGE_H
#define AULE_SERVER_PAGE_H

#include "server/dispatch.h"

// Bytes of a page's entries. Many answers may be queued for a client that does not read them
// (listener.h), so a page is far smaller than WIRE_MAX_MESSAGE.
enum {
    PAGE_BYTES = 8192,
    PAGE_NAME_BYTES = WIRE_MAX_NAME + 9, // of a name: length, terminator, padding
    PAGE_MAX_NAMES = 2,
};

struct page {
    uint32_t first, count, total;
    void *entries;                      // [count] of the list's wire struct, in the call's memory
    const char **names[PAGE_MAX_NAMES]; // [count] each; the same
    const void *context;                // for the list's own function
};

struct page_list {
    uint32_t most;      // entries of a page
    uint32_t num_names; // lists of names beside the entries
    size_t entry_size;  // bytes of the wire's struct
    // Fills entry `i` of the page, which is entry first + i of the list. NOT_FOUND ends the list.
    enum status (*fill)(struct call *call, struct page *page, uint32_t i);
};

// Fills the page from `first`, with at most `max` entries; 0: as many as fit. page->total and
// page->context are the caller's. On failure call->error says why.
enum status page_fill(struct call *call, const struct page_list *list, uint32_t first, uint32_t max,
                      struct page *page);
struct wire_names page_names(const struct page *page, uint32_t which);

#endif
