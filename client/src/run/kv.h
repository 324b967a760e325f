// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// kv.h - writes keys and values into blocks without attention.

#ifndef AULE_CLIENT_KV_H
#define AULE_CLIENT_KV_H

#include "client/src/cache.h"
#include "client/src/ticket.h"

// aule_kv_import() of at most INT32_MAX rows, between life_enter() and life_leave().
// *id is the daemon's ticket; `id` NULL: no call will wait for it.
enum aule_status kv_write(struct life *life, const struct aule_cache *cache,
                          const struct aule_kv_import *params, int timeout_ms, uint64_t *id);

#endif
