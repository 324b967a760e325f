// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention.c - see attention.h: the table of paths.

#include "attention.h"

#include <stdarg.h>
#include <stdio.h>

typedef struct attention *create(const struct attention_params *params, struct failure *failure);

static const struct {
    const char *name;
    create *create;
} paths[] = {
    [ATTENTION_PAGED] = {"paged", attention_paged_create},
    [ATTENTION_CONTIGUOUS] = {"contiguous", attention_contiguous_create},
    [ATTENTION_REFERENCE] = {"reference", attention_reference_create},
};

struct attention *attention_create(const struct attention_params *params, struct failure *failure)
{
    return paths[params->path].create(params, failure);
}

bool failure_set(struct failure *failure, enum exit_code code, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(failure->text, sizeof failure->text, format, values);
    va_end(values);
    failure->code = code;
    failure->status = NULL;
    return false;
}

const char *attention_path_name(enum attention_path path)
{
    return paths[path].name;
}

bool attention_finds_nothing(struct attention *attention, const int32_t *tokens,
                             uint32_t num_tokens, uint32_t *hit_tokens)
{
    (void)tokens, (void)num_tokens;
    attention->hit_blocks = 0;
    *hit_tokens = 0;
    return true;
}

bool attention_offers_nothing(struct attention *attention, const int32_t *tokens,
                              uint32_t num_tokens)
{
    (void)attention, (void)tokens, (void)num_tokens;
    return true;
}
