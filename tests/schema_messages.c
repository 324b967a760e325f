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

// What messages point into while they are written: a stack that each message empties.
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

static uint32_t num_names; // of each list of names in one answer

static void fill_field(const struct field *field, char *at)
{
    uint32_t count = random_below(3) == 0 ? 0 : random_below(field->limit ? field->limit + 1 : 40);
    switch (field->kind) {
    case BOOL: *(bool *)at = random_below(2); break;
    case F32: *(float *)at = (float)(int32_t)random_u64() / 1024; break;
    case TEXT:
    case NAME: *(const char **)at = random_text(field->kind == NAME ? WIRE_MAX_NAME : 400); break;
    case INTS: *(struct wire_ints *)at = (struct wire_ints){count ? heap_random(count * 4) : NULL, count}; break;
    case LONGS: *(struct wire_longs *)at = (struct wire_longs){count ? heap_random(count * 8) : NULL, count}; break;
    case BYTES: *(struct wire_bytes *)at = (struct wire_bytes){count ? heap_random(count) : NULL, count}; break;
    case TENSORS:
        *(struct wire_tensors *)at = (struct wire_tensors){count ? heap_random(count * 40) : NULL, count};
        break;
    case NAME_LIST: *(struct wire_names *)at = random_names(num_names); break;
    default: memcpy(at, heap_random(kind_size[field->kind]), kind_size[field->kind]); break;
    }
}

static void fill(const struct field *fields, void *base)
{
    for (; fields->kind != LAST; fields++)
        fill_field(fields, (char *)base + fields->offset);
}

static void fill_list(const struct list *list, struct wire_reply *reply)
{
    uint32_t count = random_below(6);
    char *base = (char *)reply, *entries = heap_random(0);
    heap_used += count * list->entry_size;
    memset(entries, 0, count * list->entry_size);
    for (uint32_t i = 0; i < count; i++)
        fill(list->entry, entries + i * list->entry_size);
    *(uint32_t *)(base + list->total) = (uint32_t)random_u64();
    *(uint32_t *)(base + list->count) = count;
    *(const void **)(base + list->entries) = count ? entries : NULL;
    if (list->names)
        *(struct wire_names *)(base + list->names) = random_names(count);
    if (list->tenants)
        *(struct wire_names *)(base + list->tenants) = random_names(count);
}

struct wire_request random_request(int command)
{
    heap_used = 0;
    struct wire_request request = {
        .session = random_u64(), .epoch = random_u64(), .command = (enum wire_command)command};
    fill(commands[command].fields, &request.hello);
    if (request.command == WIRE_COMMAND_BATCH_CREATE && !request.batch_create.has_layout)
        request.batch_create.layout = (struct wire_kv_layout){0};
    return request;
}

struct wire_reply random_reply(int answer)
{
    heap_used = 0;
    struct wire_reply reply = {.status = (int32_t)random_u64(),
                               .message = random_text(300),
                               .ticket = random_u64(),
                               .answer = (enum wire_answer)answer};
    num_names = random_below(6);
    fill(answers[answer].fields, &reply.hello);
    if (lists[answer].entry)
        fill_list(&lists[answer], &reply);
    return reply;
}

// ---- comparing ----

static bool equal_vectors(const void *a, uint32_t num_a, const void *b, uint32_t num_b, size_t size)
{
    return num_a == num_b && (num_a == 0 || memcmp(a, b, num_a * size) == 0);
}

static const char *names_difference(const struct wire_names *a, const struct wire_names *b)
{
    if (a->count != b->count)
        return "the number of names";
    for (uint32_t i = 0; i < a->count; i++)
        if (strcmp(a->data[i], b->data[i]) != 0)
            return "a name";
    return NULL;
}

static bool equal_field(const struct field *field, const char *a, const char *b)
{
    const struct wire_ints *x = (const void *)a, *y = (const void *)b; // all kinds of vector have one layout
    switch (field->kind) {
    case TEXT:
    case NAME: return strcmp(*(const char *const *)a, *(const char *const *)b) == 0;
    case INTS: return equal_vectors(x->data, x->count, y->data, y->count, 4);
    case LONGS: return equal_vectors(x->data, x->count, y->data, y->count, 8);
    case BYTES: return equal_vectors(x->data, x->count, y->data, y->count, 1);
    case TENSORS: return equal_vectors(x->data, x->count, y->data, y->count, 40);
    case NAME_LIST: return !names_difference((const void *)a, (const void *)b);
    default: return memcmp(a, b, kind_size[field->kind]) == 0;
    }
}

// The name of the first field that differs, NULL if none does.
static const char *difference(const struct field *fields, const void *a, const void *b)
{
    for (; fields->kind != LAST; fields++)
        if (!equal_field(fields, (const char *)a + fields->offset, (const char *)b + fields->offset))
            return fields->name;
    return NULL;
}

static const char *list_difference(const struct list *list, const struct wire_reply *ra, const struct wire_reply *rb)
{
    const char *a = (const char *)ra, *b = (const char *)rb, *found = NULL;
    uint32_t count = *(const uint32_t *)(a + list->count);
    if (count != *(const uint32_t *)(b + list->count))
        return "count";
    if (*(const uint32_t *)(a + list->total) != *(const uint32_t *)(b + list->total))
        return "total";
    for (uint32_t i = 0; i < count && !found; i++)
        found = difference(list->entry, *(char *const *)(a + list->entries) + i * list->entry_size,
                           *(char *const *)(b + list->entries) + i * list->entry_size);
    if (!found && list->names)
        found = names_difference((const void *)(a + list->names), (const void *)(b + list->names));
    if (!found && list->tenants)
        found = names_difference((const void *)(a + list->tenants), (const void *)(b + list->tenants));
    return found;
}

const char *request_difference(const struct wire_request *a, const struct wire_request *b)
{
    if (a->session != b->session || a->epoch != b->epoch || a->command != b->command)
        return "session, epoch or command";
    return difference(commands[a->command].fields, &a->hello, &b->hello);
}

const char *reply_difference(const struct wire_reply *a, const struct wire_reply *b)
{
    if (a->status != b->status || a->answer != b->answer || a->ticket != b->ticket ||
        strcmp(a->message, b->message) != 0)
        return "status, message, ticket or answer";
    const char *found = difference(answers[a->answer].fields, &a->hello, &b->hello);
    return found || !lists[a->answer].entry ? found : list_difference(&lists[a->answer], a, b);
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

static volatile uint64_t touched; // keeps the compiler from dropping the reads

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

void touch_fields(const struct field *fields, const void *base)
{
    for (; fields->kind != LAST; fields++) {
        const char *at = (const char *)base + fields->offset;
        const struct wire_ints *vector = (const void *)at;
        static const size_t element[] = {[INTS] = 4, [LONGS] = 8, [BYTES] = 1, [TENSORS] = 40, [LAST] = 0};
        if (fields->kind == TEXT || fields->kind == NAME)
            touch(*(const char *const *)at, strlen(*(const char *const *)at));
        else if (fields->kind == NAME_LIST)
            touch_names((const void *)at);
        else if (element[fields->kind])
            touch(vector->data, vector->count * element[fields->kind]);
    }
}

void touch_reply(const struct wire_reply *reply)
{
    const struct list *list = &lists[reply->answer];
    const char *base = (const char *)reply;
    touch(reply->message, strlen(reply->message));
    touch_fields(answers[reply->answer].fields, &reply->hello);
    if (list->entry)
        touch(*(void *const *)(base + list->entries), *(const uint32_t *)(base + list->count) * list->entry_size);
    if (list->names)
        touch_names((const void *)(base + list->names));
    if (list->tenants)
        touch_names((const void *)(base + list->tenants));
}

bool is_zero(const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (((const unsigned char *)data)[i])
            return false;
    return true;
}
