// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// schema_messages.c - see schema_messages.h.

#include "schema_messages.h"

#include <stdlib.h>
#include <string.h>

// ---- contents ----

uint64_t random_state;

uint64_t random_u64(void)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 2685821657736338717u;
}

uint32_t random_below(uint32_t limit)
{
    return (uint32_t)(random_u64() >> 32) % limit;
}

// The memory that messages point into while they are written: a stack that each message empties.
static _Alignas(8) unsigned char heap[1 << 20];
size_t heap_used;

void *heap_random(size_t size)
{
    unsigned char *memory = heap + heap_used;
    heap_used += (size + 7) / 8 * 8;
    ck_assert_uint_le(heap_used, sizeof heap);
    for (size_t i = 0; i < size; i++)
        memory[i] = (unsigned char)random_u64();
    return memory;
}

static const char *random_text(uint32_t limit)
{
    uint32_t size = random_below(4) == 0 ? 0 : random_below(limit + 1);
    char *text = heap_random(size + 1u);
    for (uint32_t i = 0; i < size; i++)
        text[i] = text[i] ? text[i] : 'x';
    text[size] = '\0';
    return text;
}

static struct wire_names random_names(uint32_t count)
{
    const char **names = heap_random(count * sizeof *names);
    for (uint32_t i = 0; i < count; i++)
        names[i] = random_text(WIRE_MAX_NAME);
    return (struct wire_names){count ? names : NULL, count};
}

// Rules of wire.cc: a field of more bytes is refused.
static uint32_t limit_of(const struct field *field, uint32_t otherwise)
{
    static const struct {
        const char *field;
        uint32_t limit;
    } limits[] = {{"client_name", WIRE_MAX_NAME},
                  {"tenant", WIRE_MAX_NAME},
                  {"name", WIRE_MAX_NAME},
                  {"fingerprint", WIRE_MAX_FINGERPRINT},
                  {"extra_key", WIRE_MAX_EXTRA_KEY}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (strcmp(field->name, limits[i].field) == 0)
            return limits[i].limit;
    return otherwise;
}

enum { OWN_LENGTHS = -1 };
static int
    num_entries; // in each list of an answer, which must have one length; OWN_LENGTHS in a command

static void fill(const struct field *fields, void *base);

static void *random_list(const struct shape *shape, uint32_t count)
{
    char *entries = heap_random(count * shape->size);
    memset(entries, 0, count * shape->size);
    for (uint32_t i = 0; i < count; i++)
        fill(shape->fields, entries + i * shape->size);
    return count ? entries : NULL;
}

static void fill_table(const struct field *field, char *base)
{
    bool *has = (bool *)(base + field->has);
    *has = random_below(2);
    if (*has)
        fill(shapes[field->of].fields, base + field->offset);
}

// Rules that stand in wire.cc, too: these have as many entries as the lists beside them.
static bool is_column(const struct field *field)
{
    return strcmp(field->name, "kinds") == 0 || strcmp(field->name, "values") == 0;
}

// All kinds of vector have one layout: an address and a count.
static void fill_vector(const struct field *field, struct wire_bytes *vector, size_t element)
{
    uint32_t count = is_column(field)       ? (uint32_t)num_entries
                     : random_below(3) == 0 ? 0
                                            : random_below(limit_of(field, 39) + 1);
    *vector = (struct wire_bytes){count ? heap_random(count * element) : NULL, count};
}

static void fill_field(const struct field *field, char *base)
{
    void *at = base + field->offset;
    const uint32_t length = num_entries == OWN_LENGTHS ? random_below(40) : (uint32_t)num_entries;
    switch (field->kind) {
    case BOOL: *(bool *)at = random_below(2); break;
    case FLOAT: *(float *)at = (float)(int32_t)random_u64() / 1024; break;
    case STRING: *(const char **)at = random_text(limit_of(field, 400)); break;
    case INTS: fill_vector(field, at, 4); break;
    case LONGS: fill_vector(field, at, 8); break;
    case BYTES: fill_vector(field, at, 1); break;
    case STRINGS: *(struct wire_names *)at = random_names(length); break;
    case STRUCT: fill(shapes[field->of].fields, at); break;
    case LIST:
        *(struct wire_bytes *)at =
            (struct wire_bytes){random_list(&shapes[field->of], length), length};
        break;
    case TABLE: fill_table(field, base); break;
    default: memcpy(at, heap_random(field->size), field->size); break;
    }
}

static void fill(const struct field *fields, void *base)
{
    for (; fields->kind != LAST; fields++)
        fill_field(fields, base);
}

struct wire_request random_request(int command)
{
    heap_used = 0;
    num_entries = OWN_LENGTHS;
    struct wire_request request = {
        .session = random_u64(), .epoch = random_u64(), .command = (enum wire_command)command};
    fill(shapes[commands[command]].fields, &request.none);
    return request;
}

struct wire_reply random_reply(int answer)
{
    heap_used = 0;
    num_entries = (int)random_below(6);
    struct wire_reply reply = {.status = (int32_t)random_u64(),
                               .message = random_text(300),
                               .ticket = random_u64(),
                               .answer = (enum wire_answer)answer};
    fill(shapes[answers[answer]].fields, &reply.none);
    return reply;
}

// ---- comparing ----

static bool equal_vectors(const struct wire_bytes *a, const struct wire_bytes *b, size_t size)
{
    return a->count == b->count &&
           (a->count == 0 || memcmp(a->data, b->data, a->count * size) == 0);
}

static bool equal_names(const struct wire_names *a, const struct wire_names *b)
{
    bool equal = a->count == b->count;
    for (uint32_t i = 0; equal && i < a->count; i++)
        equal = strcmp(a->data[i], b->data[i]) == 0;
    return equal;
}

static const char *difference(const struct field *fields, const void *a, const void *b);

static bool equal_lists(const struct shape *shape, const struct wire_bytes *a,
                        const struct wire_bytes *b)
{
    bool equal = a->count == b->count;
    for (uint32_t i = 0; equal && i < a->count; i++)
        equal = !difference(shape->fields, a->data + i * shape->size, b->data + i * shape->size);
    return equal;
}

static bool equal_field(const struct field *field, const char *base_a, const char *base_b)
{
    const void *a = base_a + field->offset, *b = base_b + field->offset;
    switch (field->kind) {
    case STRING: return strcmp(*(const char *const *)a, *(const char *const *)b) == 0;
    case INTS: return equal_vectors(a, b, 4);
    case LONGS: return equal_vectors(a, b, 8);
    case BYTES: return equal_vectors(a, b, 1);
    case STRINGS: return equal_names(a, b);
    case LIST: return equal_lists(&shapes[field->of], a, b);
    case STRUCT: return !difference(shapes[field->of].fields, a, b);
    case TABLE:
        return base_a[field->has] == base_b[field->has] &&
               !difference(shapes[field->of].fields, a, b);
    default: return memcmp(a, b, field->size) == 0;
    }
}

// The name of the first field that differs; NULL: none does.
static const char *difference(const struct field *fields, const void *a, const void *b)
{
    for (; fields->kind != LAST; fields++)
        if (!equal_field(fields, a, b))
            return fields->name;
    return NULL;
}

const char *request_difference(const struct wire_request *a, const struct wire_request *b)
{
    if (a->session != b->session || a->epoch != b->epoch || a->command != b->command)
        return "session, epoch or command";
    return difference(shapes[commands[a->command]].fields, &a->none, &b->none);
}

const char *reply_difference(const struct wire_reply *a, const struct wire_reply *b)
{
    if (a->status != b->status || a->answer != b->answer || a->ticket != b->ticket ||
        strcmp(a->message, b->message) != 0)
        return "status, message, ticket or answer";
    return difference(shapes[answers[a->answer]].fields, &a->none, &b->none);
}

// ---- messages ----

struct wire_buffer encoded_request(const struct wire_request *request)
{
    struct wire_buffer buffer;
    struct error error = {0};
    enum status status = wire_encode_request(request, &buffer, &error);
    ck_assert_msg(status == STATUS_OK, "%s: %s", wire_command_name(request->command), error.text);
    return buffer;
}

struct wire_buffer encoded_reply(const struct wire_reply *reply)
{
    struct wire_buffer buffer;
    struct error error = {0};
    enum status status = wire_encode_reply(reply, &buffer, &error);
    ck_assert_msg(status == STATUS_OK, "answer %d: %s", reply->answer, error.text);
    return buffer;
}

void *exact_copy(const void *data, size_t size)
{
    void *copy = malloc(size ? size : 1);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, data, size);
    return copy;
}

static volatile uint64_t touched; // keeps the compiler from removing the reads

static void touch(const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        touched += ((const unsigned char *)data)[i];
}

static void touch_names(const struct wire_names *names)
{
    for (uint32_t i = 0; i < names->count; i++)
        touch(names->data[i], strlen(names->data[i]));
}

static void touch_field(const struct field *field, const void *at)
{
    const struct wire_bytes *vector = at;
    switch (field->kind) {
    case STRING: touch(*(const char *const *)at, strlen(*(const char *const *)at)); break;
    case INTS: touch(vector->data, vector->count * 4u); break;
    case LONGS: touch(vector->data, vector->count * 8u); break;
    case BYTES: touch(vector->data, vector->count); break;
    case STRINGS: touch_names(at); break;
    case LIST: touch(vector->data, vector->count * shapes[field->of].size); break;
    default: break; // not an address
    }
}

static void touch_fields(const struct field *fields, const void *base)
{
    for (; fields->kind != LAST; fields++)
        touch_field(fields, (const char *)base + fields->offset);
}

void touch_request(const struct wire_request *request)
{
    touch_fields(shapes[commands[request->command]].fields, &request->none);
}

void touch_reply(const struct wire_reply *reply)
{
    touch(reply->message, strlen(reply->message));
    touch_fields(shapes[answers[reply->answer]].fields, &reply->none);
}

bool is_zero(const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (((const unsigned char *)data)[i])
            return false;
    return true;
}
