// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// page.c - see page.h.

#include "page.h"

static uint32_t size_of(const struct page_list *list, uint32_t total, uint32_t first, uint32_t max)
{
    uint32_t rest = first < total ? total - first : 0,
             most = max && max < list->most ? max : list->most;
    return rest < most ? rest : most;
}

enum status page_fill(struct call *call, const struct page_list *list, uint32_t first, uint32_t max,
                      struct page *page)
{
    const uint32_t most = size_of(list, page->total, first, max);
    enum status status = STATUS_OK;
    page->first = first;
    page->entries =
        call_alloc(call, most + (size_t)1, list->entry_size); // an empty list is no NULL
    if (!page->entries)
        return STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < list->num_names; i++) {
        page->names[i] = call_alloc(call, most + (size_t)1, sizeof *page->names[i]);
        if (!page->names[i])
            return STATUS_NO_MEMORY;
    }
    for (page->count = 0; page->count < most && status == STATUS_OK;) {
        status = list->fill(call, page, page->count);
        page->count += status == STATUS_OK;
    }
    return status == STATUS_NOT_FOUND ? STATUS_OK : status;
}

struct wire_names page_names(const struct page *page, uint32_t which)
{
    return (struct wire_names){page->names[which], page->count};
}
