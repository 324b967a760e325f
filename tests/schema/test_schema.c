// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_schema.c - every message of wire.h encoded and decoded, what encoding refuses, and the lists
// of names. Damaged and forged messages have their own files. Contents come from a seeded
// generator.

#include "rigs/check_main.h"
#include "schema_messages.h"

#include <string.h>

// ---- allocations that fail on demand: the linker replaces malloc and calloc of the whole program
// (schema.cmake) ----

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);

static int allocations_left = -1; // allocations until one fails; -1: none fails

static bool allocation_fails(void)
{
    if (allocations_left < 0)
        return false;
    return allocations_left-- == 0;
}

void *__wrap_malloc(size_t size)
{
    return allocation_fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return allocation_fails() ? NULL : __real_calloc(count, size);
}

// ---- tables ----

// Between two fields there is only padding, less than an alignment.
static void assert_covers(const struct shape *shape)
{
    size_t end = 0;
    for (const struct field *field = shape->fields; field->kind != LAST; field++) {
        size_t start = field->kind == TABLE ? field->has : field->offset;
        ck_assert_msg(start >= end && start - end < sizeof(uint64_t),
                      "%s: a field before %s is missing", shape->name, field->name);
        end = field->offset + field->size;
    }
    ck_assert_msg(shape->size >= end && shape->size - end < sizeof(uint64_t),
                  "%s: its last field is missing", shape->name);
}

START_TEST(the_lists_of_fields_cover_every_struct)
{
    for (size_t i = 0; i < SHAPE_NONE; i++)
        if (i != SHAPE_Request && i != SHAPE_Reply) // the field lists leave out their unions
            assert_covers(&shapes[i]);
}
END_TEST

START_TEST(every_status_has_a_name_a_text_and_a_value_of_its_own)
{
    static const struct {
        const char *name;
        int value;
    } all[] = {
#define X(name, value, text) {#name, value},
        AULE_STATUS_MAP(X)
#undef X
    };
    size_t count = sizeof all / sizeof *all;
    for (size_t i = 0; i < count; i++) {
        ck_assert_int_eq(all[i].value, (int)i); // without gaps, so no value is used twice
        ck_assert_str_eq(status_name(all[i].value), all[i].name);
        ck_assert_uint_gt(strlen(status_text(all[i].value)), 3);
        for (size_t k = 0; k < i; k++) {
            ck_assert_str_ne(all[i].name, all[k].name);
            ck_assert_str_ne(status_text(all[i].value), status_text(all[k].value));
        }
    }
    ck_assert_str_eq(status_name((int)count), "UNKNOWN");
    ck_assert_str_eq(status_text(-1), "UNKNOWN");
    ck_assert_str_eq(status_name(STATUS_NOT_HELD), "NOT_HELD");
}
END_TEST

START_TEST(every_dtype_has_a_name_and_a_size)
{
    ck_assert_str_eq(dtype_name(DTYPE_F16), "f16");
    ck_assert_uint_eq(dtype_size(DTYPE_F32), 4);
    ck_assert_uint_eq(dtype_size(DTYPE_BF16), 2);
    ck_assert_uint_eq(dtype_size(DTYPE_INT8), 1);
    ck_assert_str_eq(dtype_name(0), "unknown");
    ck_assert_uint_eq(dtype_size(0), 0);
    ck_assert_uint_eq(dtype_size(99), 0);
}
END_TEST

START_TEST(every_command_has_its_name)
{
    ck_assert_str_eq(wire_command_name(WIRE_COMMAND_BLOCKS_LEASE), "BLOCKS_LEASE");
    ck_assert_str_eq(wire_command_name(WIRE_COMMAND_NONE), "UNKNOWN");
    ck_assert_str_eq(wire_command_name(WIRE_COMMAND_COUNT), "UNKNOWN");
    for (int i = 1; i < WIRE_COMMAND_COUNT; i++)
        for (int k = 0; k < i; k++)
            ck_assert_str_ne(wire_command_name(i), wire_command_name(k));
}
END_TEST

START_TEST(an_error_takes_its_sentence_and_a_long_one_looks_cut)
{
    struct error error;
    ck_assert_int_eq(error_set(&error, STATUS_NOT_HELD, "block %d of %s", 912, "a"),
                     STATUS_NOT_HELD);
    ck_assert_int_eq(error.status, STATUS_NOT_HELD);
    ck_assert_str_eq(error.text, "block 912 of a");
    ck_assert_int_eq(error_set(NULL, STATUS_LIMIT, "nobody listens"), STATUS_LIMIT);
    ck_assert_int_eq(error_set(&error, STATUS_INVALID, "%0500d", 1), STATUS_INVALID);
    ck_assert_uint_eq(strlen(error.text), sizeof error.text - 1);
    ck_assert_str_eq(error.text + sizeof error.text - 4, "...");
}
END_TEST

// ---- there and back ----

enum { ROUNDS = 300 };

START_TEST(every_command_comes_back_as_it_was)
{
    random_state = 1000003u + (uint64_t)_i;
    for (int round = 0; round < ROUNDS; round++) {
        struct wire_request request = random_request(_i), decoded;
        struct wire_buffer buffer = encoded_request(&request);
        struct error error = {0};
        enum status status = wire_decode_request(buffer.data, buffer.size, &decoded, &error);
        ck_assert_msg(status == STATUS_OK, "%s: %s", shapes[commands[_i]].name, error.text);
        const char *found = request_difference(&request, &decoded);
        ck_assert_msg(!found, "%s: %s differs", shapes[commands[_i]].name, found ? found : "");
        wire_buffer_finish(&buffer);
        ck_assert_ptr_null(buffer.data);
    }
}
END_TEST

START_TEST(every_answer_comes_back_as_it_was)
{
    random_state = 2000003u + (uint64_t)_i;
    for (int round = 0; round < ROUNDS; round++) {
        struct wire_reply reply = random_reply(_i), decoded;
        struct wire_buffer buffer = encoded_reply(&reply);
        struct error error = {0};
        enum status status = wire_decode_reply(buffer.data, buffer.size, &decoded, &error);
        ck_assert_msg(status == STATUS_OK, "%s: %s", shapes[answers[_i]].name, error.text);
        const char *found = reply_difference(&reply, &decoded);
        ck_assert_msg(!found, "%s: %s differs", shapes[answers[_i]].name, found ? found : "");
        wire_reply_finish(&decoded);
        ck_assert(is_zero(decoded.owned, sizeof decoded.owned));
        wire_buffer_finish(&buffer);
    }
}
END_TEST

START_TEST(a_run_in_a_ring_is_the_run_of_a_message)
{
    uint64_t entry[WIRE_SUBMISSION_SIZE / 8];
    random_state = 3000017;
    for (int round = 0; round < ROUNDS; round++) {
        struct wire_request request = random_request(WIRE_COMMAND_RUN), decoded = request;
        struct wire_submission back, submission = {.command = WIRE_COMMAND_RUN};
        request.run.scales.count &= UINT32_MAX;
        submission.run = request.run;
        wire_put_submission(&submission, entry);
        wire_get_submission(entry, &back);
        decoded.run = back.run;
        const char *found = request_difference(&request, &decoded);
        ck_assert_msg(!found, "%s differs", found ? found : "");
    }
}
END_TEST

START_TEST(an_entry_says_where_another_command_lies)
{
    enum { MESSAGE = 576 }; // where it stands in an entry
    uint64_t entry[WIRE_SUBMISSION_SIZE / 8];
    const struct wire_submission submission = {
        .command = WIRE_COMMAND_BATCH_ADVANCE, .message = {0x123456789a8, 0x4321}, .room = 1 << 20};
    struct wire_submission back;
    wire_put_submission(&submission, entry);
    ck_assert_uint_eq(entry[MESSAGE / 8], submission.message.offset);
    wire_get_submission(entry, &back);
    ck_assert_uint_eq(back.command, submission.command);
    ck_assert_mem_eq(&back.message, &submission.message, sizeof back.message);
    ck_assert_uint_eq(back.room, submission.room);
}
END_TEST

static void expect_room(const struct wire_request *request, const struct wire_reply *reply)
{
    struct wire_buffer buffer = encoded_reply(reply);
    ck_assert_msg(buffer.size <= wire_reply_room(request),
                  "%s: a reply of %zu bytes, but room for %ju", wire_command_name(request->command),
                  buffer.size, (uintmax_t)wire_reply_room(request));
    wire_buffer_finish(&buffer);
}

// With `count` blocks, if the command has some.
static void expect_room_for(enum wire_command command, uint32_t count)
{
    static const int32_t ids[5000];
    struct wire_request request = {.command = command};
    struct wire_reply reply = {.answer = WIRE_ANSWER_RUN, .ticket = 1, .run = {.ticket = 1}};
    if (command == WIRE_COMMAND_BLOCKS_LEASE) {
        request.blocks_lease.count = count;
        reply.answer = WIRE_ANSWER_BLOCKS_LEASE;
        reply.blocks_lease.blocks = (struct wire_ints){ids, count};
    } else if (command == WIRE_COMMAND_PREFIX_PUBLISH) {
        request.prefix_publish.blocks = (struct wire_ints){ids, count};
        reply.answer = WIRE_ANSWER_PREFIX_PUBLISH;
        reply.prefix_publish = (struct wire_prefix_publish_reply){{ids, count}, count, UINT64_MAX};
    } else if (command == WIRE_COMMAND_BATCH_CREATE) {
        reply.answer = WIRE_ANSWER_BATCH_CREATE;
        reply.batch_create = (struct wire_batch_create_reply){1, 2};
    } else if (command == WIRE_COMMAND_CACHE_REPORT) {
        reply.answer = WIRE_ANSWER_CACHE_REPORT;
        reply.cache_report.mark = 3;
    }
    expect_room(&request, &reply);
}

START_TEST(each_reply_fits_the_room_for_it)
{
#define EXPECT(NAME, name, rules, since)                                                           \
    if ((rules)&WIRE_BY_RING)                                                                      \
        expect_room_for(WIRE_COMMAND_##NAME, count);
    for (uint32_t count = 0; count <= 5000; count = count * 3 + 1) {
        WIRE_RULES_MAP(EXPECT)
    }
#undef EXPECT
}
END_TEST

START_TEST(what_is_absent_decodes_to_empty)
{
    struct wire_request request = {.command = WIRE_COMMAND_CACHE_OPEN}, decoded;
    struct wire_buffer buffer = encoded_request(&request);
    ck_assert_int_eq(wire_decode_request(buffer.data, buffer.size, &decoded, NULL), STATUS_OK);
    ck_assert_str_eq(decoded.cache_open.name, "");
    ck_assert_ptr_null(decoded.cache_open.fingerprint.data);
    ck_assert_uint_eq(decoded.cache_open.fingerprint.count, 0);
    wire_buffer_finish(&buffer);

    request = (struct wire_request){.command = WIRE_COMMAND_MERGE};
    buffer = encoded_request(&request);
    ck_assert_int_eq(wire_decode_request(buffer.data, buffer.size, &decoded, NULL), STATUS_OK);
    ck_assert_ptr_null(decoded.merge.outs.data);
    ck_assert(is_zero(&decoded.merge.lse, sizeof decoded.merge.lse));
    wire_buffer_finish(&buffer);

    struct wire_reply reply = {.answer = WIRE_ANSWER_INSPECT_SESSIONS}, answer;
    buffer = encoded_reply(&reply);
    ck_assert_int_eq(wire_decode_reply(buffer.data, buffer.size, &answer, NULL), STATUS_OK);
    ck_assert_str_eq(answer.message, "");
    ck_assert_ptr_null(answer.inspect_sessions.sessions.data);
    ck_assert_uint_eq(answer.inspect_sessions.names.count, 0);
    wire_reply_finish(&answer);
    wire_buffer_finish(&buffer);
    wire_buffer_finish(NULL);
    wire_reply_finish(NULL);
}
END_TEST

// FlatBuffers aligns the elements of a vector, but not the place of an empty one.
START_TEST(empty_vectors_are_absent_wherever_they_lie)
{
    static const struct wire_tensor tensors[1];
    static const int64_t slots[1];
    char name[8];
    // changes the place of what is written after it
    for (size_t length = 0; length < sizeof name; length++) {
        memset(name, 'n', length);
        name[length] = '\0';
        struct wire_request request = {.command = WIRE_COMMAND_MERGE,
                                       .merge = {.outs = {tensors, 0}, .lses = {tensors, 0}}};
        struct wire_request decoded;
        for (int i = 0; i < 2; i++) {
            struct wire_buffer buffer = encoded_request(&request);
            struct error error = {0};
            ck_assert_msg(!wire_decode_request(buffer.data, buffer.size, &decoded, &error), "%s",
                          error.text);
            ck_assert(i || (!decoded.merge.outs.data && !decoded.merge.lses.data));
            ck_assert(!i || !decoded.batch_create.slot_mapping.data);
            wire_buffer_finish(&buffer);
            request = (struct wire_request){
                .command = WIRE_COMMAND_BATCH_CREATE,
                .batch_create = {.slot_mapping = {slots, 0},
                                 .mask = {(const uint8_t *)name, (uint32_t)length}}};
        }
    }
}
END_TEST

// A layout whose numbers are all 0 differs from no layout.
START_TEST(an_empty_layout_is_not_an_absent_one)
{
    struct wire_request request = {.command = WIRE_COMMAND_BATCH_CREATE}, decoded;
    for (int given = 0; given < 2; given++) {
        request.batch_create.has_layout = given;
        struct wire_buffer buffer = encoded_request(&request);
        ck_assert_int_eq(wire_decode_request(buffer.data, buffer.size, &decoded, NULL), STATUS_OK);
        ck_assert_int_eq(decoded.batch_create.has_layout, given);
        wire_buffer_finish(&buffer);
    }
}
END_TEST

// ---- what encoding refuses ----

static void assert_not_encoded(const struct wire_request *request, enum status expected,
                               const char *words)
{
    struct wire_buffer buffer = {&buffer, 1};
    struct error error = {0};
    ck_assert_int_eq(wire_encode_request(request, &buffer, &error), expected);
    ck_assert_msg(strstr(error.text, words) != NULL, "\"%s\" lacks \"%s\"", error.text, words);
    ck_assert_ptr_null(buffer.data);
    ck_assert_uint_eq(buffer.size, 0);
}

START_TEST(encoding_refuses_what_is_no_command_or_too_long)
{
    char name[WIRE_MAX_NAME + 2];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    unsigned char bytes[300] = {0};
    struct wire_request request = {.command = WIRE_COMMAND_NONE};
    assert_not_encoded(&request, STATUS_INVALID, "no command");
    request.command = (enum wire_command)255;
    assert_not_encoded(&request, STATUS_INVALID, "unknown command 255");
    request = (struct wire_request){.command = WIRE_COMMAND_HELLO, .hello = {.client_name = name}};
    assert_not_encoded(&request, STATUS_INVALID, "client_name has 256 bytes");
    request = (struct wire_request){.command = WIRE_COMMAND_CACHE_OPEN,
                                    .cache_open = {.fingerprint = {bytes, 65}}};
    assert_not_encoded(&request, STATUS_INVALID, "fingerprint has 65 bytes");
    request = (struct wire_request){.command = WIRE_COMMAND_PREFIX_PUBLISH,
                                    .prefix_publish = {.extra_key = {bytes, 300}}};
    assert_not_encoded(&request, STATUS_INVALID, "extra_key has 300 bytes");
    request = (struct wire_request){.command = WIRE_COMMAND_BLOCKS_RELEASE,
                                    .blocks_release = {1, {NULL, 3}}};
    assert_not_encoded(&request, STATUS_INVALID, "3 elements has no data");
    request = (struct wire_request){.command = WIRE_COMMAND_MERGE, .merge = {.lses = {NULL, 2}}};
    assert_not_encoded(&request, STATUS_INVALID, "2 elements has no data");
    struct wire_reply reply = {.answer = WIRE_ANSWER_NONE};
    struct wire_buffer buffer;
    ck_assert_int_eq(wire_encode_reply(&reply, &buffer, NULL), STATUS_INVALID);
    const char *names[] = {"plain", name}, *shorts[] = {"", ""};
    struct error error = {0};
    reply = (struct wire_reply){.answer = WIRE_ANSWER_INSPECT_DEVICE,
                                .inspect_device = {.variants = {shorts, 2},
                                                   .variant_needs = {names, 2},
                                                   .variant_missing = {shorts, 2}}};
    ck_assert_int_eq(wire_encode_reply(&reply, &buffer, &error), STATUS_INVALID);
    ck_assert_msg(strstr(error.text, "variant_needs has 256 bytes") != NULL, "%s", error.text);
}
END_TEST

START_TEST(encoding_stops_at_the_largest_message_and_says_by_how_much)
{
    enum { ROOM = 1 << 18 };
    int32_t *blocks = calloc(ROOM, sizeof *blocks);
    ck_assert_ptr_nonnull(blocks);
    struct wire_request request = {.command = WIRE_COMMAND_BLOCKS_RELEASE,
                                   .blocks_release = {1, {blocks, 1000}}};
    struct wire_buffer buffer = encoded_request(&request);
    uint32_t frame = (uint32_t)buffer.size - 4000, most = (WIRE_MAX_MESSAGE - frame) / 4 & ~1u;
    wire_buffer_finish(&buffer);

    request.blocks_release.blocks.count = most;
    buffer = encoded_request(&request);
    ck_assert_uint_le(buffer.size, WIRE_MAX_MESSAGE);
    ck_assert_uint_gt(buffer.size, WIRE_MAX_MESSAGE - 16);
    struct wire_request decoded;
    ck_assert_int_eq(wire_decode_request(buffer.data, buffer.size, &decoded, NULL), STATUS_OK);
    ck_assert_uint_eq(decoded.blocks_release.blocks.count, most);
    wire_buffer_finish(&buffer);

    request.blocks_release.blocks.count = most + 4;
    assert_not_encoded(&request, STATUS_LIMIT, " more than a message may have (1048576)");
    request.blocks_release.blocks.count = UINT32_MAX; // not read: the count alone is too large
    assert_not_encoded(&request, STATUS_LIMIT, "at least 17179869180 bytes");
    free(blocks);
}
END_TEST

START_TEST(an_allocation_that_fails_gives_no_memory_and_leaks_nothing)
{
    struct wire_session_state sessions[2] = {{.session = 1}};
    const char *names[] = {"a", "b"};
    struct wire_reply reply = {.answer = WIRE_ANSWER_INSPECT_SESSIONS,
                               .inspect_sessions = {2, {sessions, 2}, {names, 2}, {names, 2}}};
    struct wire_reply decoded;
    struct wire_buffer buffer;
    struct error error = {0};
    for (int i = 0; i < 3; i++) { // the message, the two lists of offsets
        allocations_left = i;
        enum status status = wire_encode_reply(&reply, &buffer, &error);
        allocations_left = -1;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_ptr_null(buffer.data);
    }
    buffer = encoded_reply(&reply);
    for (int i = 0; i < 3; i++) { // sessions, names, tenants
        allocations_left = i;
        enum status status = wire_decode_reply(buffer.data, buffer.size, &decoded, &error);
        allocations_left = -1;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert(is_zero(&decoded, sizeof decoded));
    }
    wire_buffer_finish(&buffer);
}
END_TEST

START_TEST(the_largest_reply_without_names_needs_no_memory_where_there_is_room)
{
    enum { FRAME = 256, MOST = (WIRE_MAX_MESSAGE - FRAME) / 4 };
    int32_t *blocks = calloc(MOST, sizeof *blocks);
    uint8_t *room = aligned_alloc(8, WIRE_ENCODE_ROOM);
    const struct wire_reply reply = {.answer = WIRE_ANSWER_PREFIX_PUBLISH,
                                     .message = "",
                                     .prefix_publish = {.blocks = {blocks, MOST}}};
    struct error error = {0};
    size_t size = 0;
    struct wire_buffer buffer = encoded_reply(&reply);
    allocations_left = 0;
    enum status status = wire_encode_reply_in(&reply, room, WIRE_ENCODE_ROOM, &size, &error);
    allocations_left = -1;
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    ck_assert_uint_eq(size, buffer.size);
    ck_assert_int_eq(memcmp(room, buffer.data, size), 0);
    ck_assert_int_eq(wire_encode_reply_in(&reply, room, size, &size, &error), STATUS_LIMIT);
    ck_assert_msg(strstr(error.text, "has room for 1048"), "%s", error.text);
    wire_buffer_finish(&buffer);
    free(room);
    free(blocks);
}
END_TEST

static void add_rest(Suite *suite)
{
    TCase *tests = tcase_create("lists");
    tcase_add_test(tests, the_lists_of_fields_cover_every_struct);
    tcase_add_test(tests, every_status_has_a_name_a_text_and_a_value_of_its_own);
    tcase_add_test(tests, every_dtype_has_a_name_and_a_size);
    tcase_add_test(tests, every_command_has_its_name);
    tcase_add_test(tests, an_error_takes_its_sentence_and_a_long_one_looks_cut);
    suite_add_tcase(suite, tests);

    tests = tcase_create("there and back");
    tcase_add_loop_test(tests, every_command_comes_back_as_it_was, 1, WIRE_COMMAND_COUNT);
    tcase_add_loop_test(tests, every_answer_comes_back_as_it_was, 1, WIRE_ANSWER_COUNT);
    tcase_add_test(tests, a_run_in_a_ring_is_the_run_of_a_message);
    tcase_add_test(tests, an_entry_says_where_another_command_lies);
    tcase_add_test(tests, each_reply_fits_the_room_for_it);
    tcase_add_test(tests, what_is_absent_decodes_to_empty);
    tcase_add_test(tests, empty_vectors_are_absent_wherever_they_lie);
    tcase_add_test(tests, an_empty_layout_is_not_an_absent_one);
    tcase_add_test(tests, encoding_refuses_what_is_no_command_or_too_long);
    tcase_add_test(tests, encoding_stops_at_the_largest_message_and_says_by_how_much);
    tcase_add_test(tests, an_allocation_that_fails_gives_no_memory_and_leaks_nothing);
    tcase_add_test(tests, the_largest_reply_without_names_needs_no_memory_where_there_is_room);
    suite_add_tcase(suite, tests);
}

int main(void)
{
    Suite *suite = suite_create("schema");
    add_rest(suite);
    add_damage(suite);
    add_forgeries(suite);
    add_recorded(suite);
    return check_main(suite);
}
