// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_schema_recorded.c - messages that protocol 2.4 wrote, one of each command and answer, must
// still decode to the same values. If a field of aule.fbs is renumbered or changes its type, both
// ends of today's code still agree, but this test fails. protocol_2_4.bin holds for each message
// whether it is an answer, its number and its size, 32 bits each, and its bytes. The value of a
// field depends on its name and that of the enclosing field, such as "q.offset"; the second entry
// of a list adds 1. Do not record the file again: it lacks the fields that were appended later,
// which come after all others of their table.

#include "schema_messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VECTOR = 3, ENTRIES = 2, PATH = 128 };

// The value of a field depends on this.
struct origin {
    char path[PATH];
    uint64_t number;
};

static struct origin origin_of(const char *parent, const char *name, uint32_t entry)
{
    struct origin origin = {.number = 14695981039346656037u}; // FNV-1a
    snprintf(origin.path, sizeof origin.path, "%s%s%s", parent, *parent ? "." : "", name);
    for (const char *at = origin.path; *at; at++)
        origin.number = (origin.number ^ (unsigned char)*at) * 1099511628211u;
    origin.number += entry;
    return origin;
}

static bool right_vector(const struct wire_bytes *vector, size_t element, uint64_t number)
{
    bool right = vector->count == VECTOR;
    for (uint32_t i = 0; right && i < VECTOR; i++, number++)
        right = memcmp(vector->data + i * element, &number, element) == 0; // the lowest bytes
    return right;
}

static bool right_names(const struct wire_names *names, const char *path)
{
    bool right = names->count == ENTRIES;
    for (uint32_t i = 0; right && i < ENTRIES; i++) {
        char text[PATH + 16];
        snprintf(text, sizeof text, "%s%u", path, i);
        right = strcmp(names->data[i], text) == 0;
    }
    return right;
}

static bool right_bytes(const uint8_t *bytes, size_t count, uint64_t number)
{
    bool right = true;
    for (size_t i = 0; right && i < count; i++)
        right = bytes[i] == (uint8_t)(number + i);
    return right;
}

static bool right_field(const struct field *field, const char *base, const char *parent,
                        uint32_t entry);

static bool right_struct(const struct field *field, const void *base, uint32_t entry)
{
    bool right = true;
    for (const struct field *part = shapes[field->of].fields; right && part->kind != LAST; part++)
        right = right_field(part, base, field->name, entry);
    return right;
}

static bool right_list(const struct field *field, const struct wire_bytes *list)
{
    bool right = list->count == ENTRIES;
    for (uint32_t i = 0; right && i < ENTRIES; i++)
        right = right_struct(field, list->data + i * shapes[field->of].size, i);
    return right;
}

static bool right_field(const struct field *field, const char *base, const char *parent,
                        uint32_t entry)
{
    const void *at = base + field->offset;
    const struct origin origin = origin_of(parent, field->name, entry);
    switch (field->kind) {
    case BOOL: return *(const bool *)at;
    case FLOAT: return *(const float *)at == (float)(origin.number % 1000) + 0.5f;
    case STRING: return strcmp(*(const char *const *)at, origin.path) == 0;
    case INTS: return right_vector(at, 4, origin.number);
    case LONGS: return right_vector(at, 8, origin.number);
    case BYTES: return right_vector(at, 1, origin.number);
    case STRINGS: return right_names(at, origin.path);
    case FIXED: return right_bytes(at, field->size, origin.number);
    case STRUCT: return right_struct(field, at, entry);
    case TABLE: return base[field->has] && right_struct(field, at, entry);
    case LIST: return right_list(field, at);
    default: return memcmp(at, &origin.number, field->size) == 0; // a number: its lowest bytes
    }
}

static bool is_absent(const struct field *field, const char *base)
{
    const char *at = base + field->offset;
    return field->kind == STRING ? **(const char *const *)at == 0 : is_zero(at, field->size);
}

static void expect_table(const struct shape *shape, const char *base)
{
    bool appended = false;
    for (const struct field *field = shape->fields; field->kind != LAST; field++) {
        appended = appended || (field != shape->fields && is_absent(field, base));
        ck_assert_msg(appended ? is_absent(field, base) : right_field(field, base, "", 0),
                      "%s.%s is not what 2.4 wrote", shape->name, field->name);
    }
}

static void expect_request(const void *message, size_t size, uint32_t command)
{
    struct wire_request request;
    struct error error = {0};
    ck_assert_msg(!wire_decode_request(message, size, &request, &error), "command %u: %s", command,
                  error.text);
    ck_assert_uint_eq(request.command, command);
    ck_assert_uint_eq(request.session, 1);
    ck_assert_uint_eq(request.epoch, 2);
    expect_table(&shapes[commands[command]], (const char *)&request.none);
}

static void expect_reply(const void *message, size_t size, uint32_t answer)
{
    struct wire_reply reply;
    struct error error = {0};
    ck_assert_msg(!wire_decode_reply(message, size, &reply, &error), "answer %u: %s", answer,
                  error.text);
    ck_assert_uint_eq(reply.answer, answer);
    ck_assert_int_eq(reply.status, 3);
    ck_assert_str_eq(reply.message, "message");
    ck_assert_uint_eq(reply.ticket, 4);
    expect_table(&shapes[answers[answer]], (const char *)&reply.none);
    wire_reply_finish(&reply);
}

enum { COMMANDS_2_4 = 26, ANSWERS_2_4 = 17 };

static void each_message(void (*on_request)(const void *, size_t, uint32_t),
                         void (*on_reply)(const void *, size_t, uint32_t))
{
    uint32_t head[3], count = 0;
    FILE *file = fopen(RECORDED, "rb");
    ck_assert_msg(file != NULL, "%s cannot be opened", RECORDED);
    for (; fread(head, sizeof head, 1, file) == 1; count++) {
        void *message = malloc(head[2]);
        ck_assert_ptr_nonnull(message);
        ck_assert_uint_eq(fread(message, 1, head[2], file), head[2]);
        (head[0] ? on_reply : on_request)(message, head[2], head[1]);
        free(message);
    }
    fclose(file);
    ck_assert_uint_eq(count, COMMANDS_2_4 + ANSWERS_2_4);
}

START_TEST(messages_of_protocol_2_4_say_the_same)
{
    each_message(expect_request, expect_reply);
}
END_TEST

static bool commands_grew;

// The last field of a table is the one that was appended last.
static void look_for_growth(const void *message, size_t size, uint32_t command)
{
    const struct field *field = shapes[commands[command]].fields;
    struct wire_request request;
    ck_assert_int_eq(wire_decode_request(message, size, &request, NULL), STATUS_OK);
    if (field->kind == LAST)
        return;
    while (field[1].kind != LAST)
        field++;
    commands_grew |= is_absent(field, (const char *)&request.none);
}

static void pass_over(const void *message, size_t size, uint32_t answer)
{
    (void)message, (void)size, (void)answer;
}

// A client learns from the minor what the daemon understands. A new field of an answer does not
// raise it.
START_TEST(commands_that_grew_raised_the_minor)
{
    commands_grew = WIRE_COMMAND_COUNT - 1 > COMMANDS_2_4;
    each_message(look_for_growth, pass_over);
    ck_assert_msg(
        !commands_grew || WIRE_PROTOCOL_MINOR > 4,
        "a command or a field of one is younger than protocol 2.4, which is still the last");
}
END_TEST

void add_recorded(Suite *suite)
{
    TCase *tests = tcase_create("recorded");
    tcase_add_test(tests, messages_of_protocol_2_4_say_the_same);
    tcase_add_test(tests, commands_that_grew_raised_the_minor);
    suite_add_tcase(suite, tests);
}
