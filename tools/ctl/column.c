// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// column.c - turns one field into text or JSON, by the kind of its column. No state.

#include "column.h"

#include "aule/aule.h"
#include "base/uuid.h"
#include "tools/complaint/clean.h"
#include "units.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

const char *const block_kind_names[] = {
    [AULE_BLOCK_FREE] = "free",
    [AULE_BLOCK_LEASED] = "leased",
    [AULE_BLOCK_HELD] = "held",
    [AULE_BLOCK_CACHED] = "cached",
    [AULE_BLOCK_QUARANTINED] = "quarantined",
    [AULE_BLOCK_ABSENT] = "absent",
    NULL,
};
enum { NUM_BLOCK_KINDS = sizeof block_kind_names / sizeof *block_kind_names - 1 };

static const char *const scale_modes[] = {[AULE_SCALE_NONE] = "none",
                                          [AULE_SCALE_PER_TENSOR] = "tensor",
                                          [AULE_SCALE_PER_TOKEN_HEAD] = "token_head"};
enum { NUM_SCALE_MODES = sizeof scale_modes / sizeof *scale_modes };

static const char *name_of(const char *const *names, int count, int index)
{
    return index >= 0 && index < count ? names[index] : "unknown";
}

const char *block_kind_name(int kind)
{
    return name_of(block_kind_names, NUM_BLOCK_KINDS, kind);
}

// ---- reading a field ----

static const void *field(const struct column *column, const void *object)
{
    return (const char *)object + column->offset;
}

static uint64_t number(const struct column *column, const void *object)
{
    const void *at = field(column, object);
    bool is_short = column->kind == COLUMN_U32 || column->kind == COLUMN_BYTES_U32;
    return is_short ? *(const uint32_t *)at : *(const uint64_t *)at;
}

static int enumerator(const struct column *column, const void *object)
{
    return *(const int *)field(column, object);
}

// ---- text ----

// Kinds whose text is the same for people and in JSON. False: the kind is none of these.
static bool common_text(const struct column *column, const void *object, char *text)
{
    const void *at = field(column, object);
    switch (column->kind) {
    case COLUMN_HEX:
        snprintf(text, COLUMN_TEXT_SIZE, "%016" PRIx64, *(const uint64_t *)at);
        return true;
    case COLUMN_DTYPE: {
        const enum aule_dtype dtype = (enum aule_dtype)enumerator(column, object);
        snprintf(text, COLUMN_TEXT_SIZE, "%s", dtype ? aule_dtype_name(dtype) : "none");
        return true;
    }
    case COLUMN_SCALE_MODE:
        snprintf(text, COLUMN_TEXT_SIZE, "%s",
                 name_of(scale_modes, NUM_SCALE_MODES, enumerator(column, object)));
        return true;
    case COLUMN_BLOCK_KIND:
        snprintf(text, COLUMN_TEXT_SIZE, "%s", block_kind_name(enumerator(column, object)));
        return true;
    case COLUMN_UUID: uuid_text(at, text); return true;
    case COLUMN_API_VERSION: {
        uint32_t version = *(const uint32_t *)at;
        snprintf(text, COLUMN_TEXT_SIZE, "%u.%u.%u", version >> 22 & 0x7f, version >> 12 & 0x3ff,
                 version & 0xfff);
        return true;
    }
    default: return false;
    }
}

static const char *string_of(const struct column *column, const void *object)
{
    const void *at = field(column, object);
    return column->kind == COLUMN_TEXT      ? (const char *)at
           : column->kind == COLUMN_POINTER ? *(const char *const *)at
                                            : NULL;
}

const char *column_text(const struct column *column, const void *object,
                        char text[COLUMN_TEXT_SIZE])
{
    const void *at = field(column, object);
    const char *string = string_of(column, object);
    if (string)
        clean_text(text, COLUMN_TEXT_SIZE, string, true);
    else if (!common_text(column, object, text))
        switch (column->kind) {
        case COLUMN_I32: snprintf(text, COLUMN_TEXT_SIZE, "%" PRId32, *(const int32_t *)at); break;
        case COLUMN_ID: snprintf(text, COLUMN_TEXT_SIZE, "%" PRIu64, number(column, object)); break;
        case COLUMN_BYTES:
        case COLUMN_BYTES_U32: units_bytes(number(column, object), text); break;
        case COLUMN_MS: units_ms(number(column, object), text); break;
        case COLUMN_NS: units_ns(number(column, object), text); break;
        case COLUMN_BOOL:
            snprintf(text, COLUMN_TEXT_SIZE, "%s", *(const bool *)at ? "yes" : "no");
            break;
        default: units_count(number(column, object), text); break;
        }
    return text;
}

bool column_is_number(const struct column *column)
{
    return column->kind <= COLUMN_NS && column->kind != COLUMN_HEX;
}

// ---- JSON ----

// As raw digits: cJSON's numbers are doubles, which round large integers.
static cJSON *json_number(const struct column *column, const void *object)
{
    char digits[32];
    if (column->kind == COLUMN_I32)
        snprintf(digits, sizeof digits, "%" PRId32, *(const int32_t *)field(column, object));
    else
        snprintf(digits, sizeof digits, "%" PRIu64, number(column, object));
    return cJSON_CreateRaw(digits);
}

static cJSON *json_value(const struct column *column, const void *object)
{
    char text[COLUMN_TEXT_SIZE];
    const char *string = string_of(column, object);
    if (string)
        clean_text(text, sizeof text, string, false);
    if (string || common_text(column, object, text))
        return cJSON_CreateString(text);
    if (column->kind == COLUMN_BOOL)
        return cJSON_CreateBool(*(const bool *)field(column, object));
    return json_number(column, object);
}

bool columns_json(const struct column *columns, const void *object, cJSON *to)
{
    for (; columns->key; columns++) {
        cJSON *value = json_value(columns, object);
        if (!value || !cJSON_AddItemToObjectCS(to, columns->key, value)) {
            cJSON_Delete(value);
            return false;
        }
    }
    return true;
}
