// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_schema_recorded.c - messages that protocol 3.0 wrote, one of each command and answer, must
// still decode to the same values. If a field of aule.fbs is renumbered or changes its type, both
// ends of today's code still agree, but this test fails. protocol_3_0.bin holds for each message
// whether it is an answer, its number and its size, 32 bits each, and its bytes. The value of a
// field depends on its name and that of the enclosing field, such as "q.offset"; the second entry
// of a list adds 1. AULE_TEST_RECORD=FILE records today's messages. Do so only for a new major: a
// record lacks the fields that were appended later, which come after all others of their table.

#include "schema_messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRIES = 2, PATH = 128 };

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

// ---- the values ----

static struct wire_bytes vector(size_t element, uint64_t number)
{
    uint8_t *data = heap_random(ENTRIES * element);
    for (uint32_t i = 0; i < ENTRIES; i++, number++)
        memcpy(data + i * element, &number, element); // the lowest bytes
    return (struct wire_bytes){data, ENTRIES};
}

static const char *text(const char *path, const char *suffix)
{
    const size_t size = strlen(path) + strlen(suffix) + 1;
    char *text = heap_random(size);
    snprintf(text, size, "%s%s", path, suffix);
    return text;
}

static struct wire_names names(const char *path)
{
    const char **data = heap_random(ENTRIES * sizeof *data);
    for (uint32_t i = 0; i < ENTRIES; i++)
        data[i] = text(path, i ? "1" : "0");
    return (struct wire_names){data, ENTRIES};
}

static void fill_field(const struct field *field, char *base, const char *parent, uint32_t entry);

static void fill_struct(const struct field *field, char *base, uint32_t entry)
{
    for (const struct field *part = shapes[field->of].fields; part->kind != LAST; part++)
        fill_field(part, base, field->name, entry);
}

static struct wire_bytes list(const struct field *field)
{
    const size_t size = shapes[field->of].size;
    char *data = heap_random(ENTRIES * size);
    memset(data, 0, ENTRIES * size);
    for (uint32_t i = 0; i < ENTRIES; i++)
        fill_struct(field, data + i * size, i);
    return (struct wire_bytes){(uint8_t *)data, ENTRIES};
}

static void fill_field(const struct field *field, char *base, const char *parent, uint32_t entry)
{
    void *at = base + field->offset;
    const struct origin origin = origin_of(parent, field->name, entry);
    switch (field->kind) {
    case BOOL: *(bool *)at = true; break;
    case FLOAT: *(float *)at = (float)(origin.number % 1000) + 0.5f; break;
    case STRING: *(const char **)at = text(origin.path, ""); break;
    case INTS: *(struct wire_bytes *)at = vector(4, origin.number); break;
    case LONGS: *(struct wire_bytes *)at = vector(8, origin.number); break;
    case BYTES: *(struct wire_bytes *)at = vector(1, origin.number); break;
    case STRINGS: *(struct wire_names *)at = names(origin.path); break;
    case LIST: *(struct wire_bytes *)at = list(field); break;
    case TABLE: base[field->has] = true; // falls through
    case STRUCT: fill_struct(field, at, entry); break;
    case FIXED:
    case ARRAY:
        for (size_t i = 0; i < field->size; i++)
            ((uint8_t *)at)[i] = (uint8_t)(origin.number + i);
        break;
    default: memcpy(at, &origin.number, field->size); break; // a number: its lowest bytes
    }
}

static bool is_absent(const struct field *field, const char *base)
{
    const char *at = base + field->offset;
    return field->kind == STRING ? **(const char *const *)at == 0 : is_zero(at, field->size);
}

// Fills the fields that the record has. `decoded` is what came of it: from the first absent field
// on, fields are younger than the record. NULL: all fields.
static void fill(const struct shape *shape, char *base, const char *decoded)
{
    bool appended = false;
    for (const struct field *field = shape->fields; field->kind != LAST; field++) {
        appended = appended || (decoded && field != shape->fields && is_absent(field, decoded));
        if (!appended)
            fill_field(field, base, "", 0);
        else if (field->kind == STRING)
            *(const char **)(base + field->offset) = "";
    }
}

static struct wire_request request_of(uint32_t command, const char *decoded)
{
    struct wire_request request = {.session = 1, .epoch = 2, .command = (enum wire_command)command};
    heap_used = 0;
    fill(&shapes[commands[command]], (char *)&request.none, decoded);
    return request;
}

static struct wire_reply reply_of(uint32_t answer, const char *decoded)
{
    struct wire_reply reply = {
        .status = 3, .message = "message", .ticket = 4, .answer = (enum wire_answer)answer};
    heap_used = 0;
    fill(&shapes[answers[answer]], (char *)&reply.none, decoded);
    return reply;
}

// ---- the record ----

static void record(FILE *file, bool is_answer, uint32_t number, struct wire_buffer *buffer)
{
    const uint32_t head[] = {is_answer, number, (uint32_t)buffer->size};
    ck_assert_uint_eq(fwrite(head, sizeof head, 1, file), 1);
    ck_assert_uint_eq(fwrite(buffer->data, 1, buffer->size, file), buffer->size);
    wire_buffer_finish(buffer);
}

static void record_all(const char *path)
{
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    for (uint32_t command = 1; command < WIRE_COMMAND_COUNT; command++) {
        const struct wire_request request = request_of(command, NULL);
        struct wire_buffer buffer = encoded_request(&request);
        record(file, false, command, &buffer);
    }
    for (uint32_t answer = 1; answer < WIRE_ANSWER_COUNT; answer++) {
        const struct wire_reply reply = reply_of(answer, NULL);
        struct wire_buffer buffer = encoded_reply(&reply);
        record(file, true, answer, &buffer);
    }
    ck_assert_int_eq(fclose(file), 0);
}

static uint32_t num_commands, num_answers; // of the record

static void each_message(void (*on_request)(const void *, size_t, uint32_t),
                         void (*on_reply)(const void *, size_t, uint32_t))
{
    uint32_t head[3];
    FILE *file = fopen(RECORDED, "rb");
    ck_assert_msg(file != NULL, "%s cannot be opened", RECORDED);
    while (fread(head, sizeof head, 1, file) == 1) {
        void *message = malloc(head[2]);
        ck_assert_ptr_nonnull(message);
        ck_assert_uint_eq(fread(message, 1, head[2], file), head[2]);
        ck_assert_uint_eq(head[1], head[0] ? ++num_answers : ++num_commands);
        (head[0] ? on_reply : on_request)(message, head[2], head[1]);
        free(message);
    }
    fclose(file);
    ck_assert_uint_gt(num_commands, 0);
    ck_assert_uint_gt(num_answers, 0);
}

static void expect_request(const void *message, size_t size, uint32_t command)
{
    struct wire_request request;
    struct error error = {0};
    ck_assert_msg(!wire_decode_request(message, size, &request, &error), "command %u: %s", command,
                  error.text);
    const struct wire_request wanted = request_of(command, (const char *)&request.none);
    const char *found = request_difference(&wanted, &request);
    ck_assert_msg(!found, "%s: %s is not what 3.0 wrote", wire_command_name((int)command), found);
}

static void expect_reply(const void *message, size_t size, uint32_t answer)
{
    struct wire_reply reply;
    struct error error = {0};
    ck_assert_msg(!wire_decode_reply(message, size, &reply, &error), "answer %u: %s", answer,
                  error.text);
    const struct wire_reply wanted = reply_of(answer, (const char *)&reply.none);
    const char *found = reply_difference(&wanted, &reply);
    ck_assert_msg(!found, "%s: %s is not what 3.0 wrote", shapes[answers[answer]].name, found);
    wire_reply_finish(&reply);
}

START_TEST(messages_of_protocol_3_0_say_the_same)
{
    const char *path = getenv("AULE_TEST_RECORD");
    if (path)
        record_all(path);
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
    each_message(look_for_growth, pass_over);
    commands_grew |= WIRE_COMMAND_COUNT - 1 > num_commands;
    ck_assert_msg(
        !commands_grew || WIRE_PROTOCOL_MINOR > 0,
        "a command or a field of one is younger than protocol 3.0, which is still the last");
}
END_TEST

void add_recorded(Suite *suite)
{
    TCase *tests = tcase_create("recorded");
    tcase_add_test(tests, messages_of_protocol_3_0_say_the_same);
    tcase_add_test(tests, commands_that_grew_raised_the_minor);
    suite_add_tcase(suite, tests);
}
