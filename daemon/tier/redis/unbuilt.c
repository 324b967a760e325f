// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// unbuilt.c - stands for redis.c in a build without hiredis: it refuses with a sentence.

#include "redis.h"

bool redis_is_built(void)
{
    return false;
}

const struct tier_ops redis_ops = {.name = "redis"};

enum status redis_create(const struct redis_params *params, struct tier_backend **out,
                         struct error *error)
{
    (void)params;
    *out = NULL;
    return error_set(error, STATUS_UNSUPPORTED,
                     "this build has no redis tier, because libhiredis-dev was missing");
}
