// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ledger.c - see ledger.h. Text beyond 511 bytes is cut.

#include "ledger.h"

#include "base/list.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void ledger_log(const struct ledger *ledger, int level, const char *format, ...)
{
    if (!ledger->params->log)
        return;
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ledger->params->log(ledger->params->context, level, format, text);
}

// Giving that much back to the system takes a millisecond.
enum { LARGE_MEMORY = 1 << 20 };

void ledger_free(const struct ledger *ledger, void *memory)
{
    if (ledger->params->free_later && malloc_usable_size(memory) >= LARGE_MEMORY)
        ledger->params->free_later(ledger->params->context, memory);
    else
        free(memory);
}

void ledger_name(struct ledger *ledger, struct core_wait *wait)
{
    if (!wait || wait->woken)
        return;
    LIST_APPEND_BY(ledger->woken, wait, woken_prev, woken_next);
    wait->woken = true;
}

void ledger_wake(struct ledger *ledger, struct core_wait *wait)
{
    if (!wait || wait->woken)
        return;
    ledger_name(ledger, wait);
    ledger->news = true;
}

void ledger_unwake(struct ledger *ledger, struct core_wait *wait)
{
    if (!wait || !wait->woken)
        return;
    LIST_DELETE_BY(ledger->woken, wait, woken_prev, woken_next);
    wait->woken = false;
}

uint64_t ledger_hash64(const struct ledger *ledger, const void *key, size_t size)
{
    return ledger->hash(ledger->params->hash_seed, key, size);
}

unsigned ledger_hash(const struct ledger *ledger, const void *key, size_t size)
{
    uint64_t hash = ledger_hash64(ledger, key, size);
    return (unsigned)(hash ^ (hash >> 32));
}
