// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// handle_tune.c - the handler of Tune: shows what tuning has measured, and renews, clears,
// enables or disables it. Knows the engine's table of measurements, not how it measures. Dispatcher
// thread.

#include "page.h"

#include <string.h>

enum { TUNE_PAGE = 128 }; // entries of a page, with two names of up to 255 bytes each

_Static_assert((int)WIRE_TUNE_WAITING == ENGINE_TUNE_WAITING &&
                   (int)WIRE_TUNE_MEASURED == ENGINE_TUNE_MEASURED &&
                   (int)WIRE_TUNE_FAILED == ENGINE_TUNE_FAILED,
               "one numbering");

static enum status act(struct call *call, uint32_t action)
{
    static const enum engine_tune_action actions[] = {
        [WIRE_TUNE_RENEW] = ENGINE_TUNE_RENEW,
        [WIRE_TUNE_CLEAR] = ENGINE_TUNE_CLEAR,
        [WIRE_TUNE_OFF] = ENGINE_TUNE_DISABLE,
        [WIRE_TUNE_ON] = ENGINE_TUNE_ENABLE,
    };
    if (action >= sizeof actions / sizeof *actions)
        return error_set(&call->error, STATUS_UNSUPPORTED, "tune has no action %u", action);
    if (action != WIRE_TUNE_SHOW)
        engine_tune(call->server->engine, actions[action]);
    return STATUS_OK;
}

// There may be fewer entries than the total by now, because tuning goes on.
static enum status fill_entry(struct call *call, struct page *page, uint32_t i)
{
    struct engine_tuned *tuned = call_alloc(call, 1, sizeof *tuned);
    if (!tuned)
        return STATUS_NO_MEMORY;
    if (!engine_tuned_at(call->server->engine, page->first + i, tuned))
        return STATUS_NOT_FOUND;
    ((struct wire_tune_entry *)page->entries)[i] = (struct wire_tune_entry){
        .num_workgroups = tuned->num_workgroups,
        .num_keys = tuned->num_keys,
        .local_size = tuned->local_size,
        .rule_local_size = tuned->rule_local_size,
        .gpu_ns = tuned->gpu_ns,
        .rule_gpu_ns = tuned->rule_gpu_ns,
        .num_ways = tuned->num_candidates,
        .num_samples = tuned->num_samples,
        .state = tuned->state,
    };
    page->names[0][i] = tuned->kernel;
    page->names[1][i] = tuned->geometry;
    return STATUS_OK;
}

enum status handle_tune(struct call *call)
{
    static const struct page_list list = {TUNE_PAGE, 2, sizeof(struct wire_tune_entry), fill_entry};
    const struct wire_tune *tune = &call->request->tune;
    struct wire_tune_reply *out = &call->reply.tune;
    struct engine_tuning *tuning = call_alloc(call, 1, sizeof *tuning);
    enum status status = tuning ? act(call, tune->action) : STATUS_NO_MEMORY;
    if (status != STATUS_OK)
        return status;
    engine_tuning(call->server->engine, tuning);
    struct page page = {.total = tuning->num_entries};
    status = page_fill(call, &list, tune->first, tune->max, &page);
    call->reply.answer = WIRE_ANSWER_TUNE;
    *out = (struct wire_tune_reply){
        .enabled = tuning->enabled,
        .software = engine_device(call->server->engine)->software,
        .num_waiting = tuning->num_waiting,
        .time_ms = tuning->time_ms,
        .max_entries = tuning->max_entries,
        .path = tuning->path,
        .note = tuning->note,
        .total = page.total,
        .entries = {page.entries, page.count},
        .kernels = page_names(&page, 0),
        .geometries = page_names(&page, 1),
    };
    return status;
}
