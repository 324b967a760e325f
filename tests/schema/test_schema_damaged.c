// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_schema_damaged.c - messages that are truncated, changed in places, or random bytes. Each is
// refused or can be read to the last byte.

#include "rigs/check_main.h"
#include "schema_messages.h"

#include <stdlib.h>
#include <string.h>

// A truncated message is only accepted if the lost bytes were padding. Then it must have the same
// contents.
static void cut_request(const struct wire_request *request, const void *message, size_t size)
{
    void *copy = exact_copy(message, size);
    struct wire_request decoded;
    struct error error = {0};
    enum status status = wire_decode_request(copy, size, &decoded, &error);
    if (status == STATUS_OK) {
        ck_assert_ptr_null(request_difference(request, &decoded));
    } else {
        ck_assert_int_eq(status, STATUS_MALFORMED);
        ck_assert_int_eq(error.status, STATUS_MALFORMED);
        ck_assert_uint_gt(strlen(error.text), 10);
        ck_assert(is_zero(&decoded, sizeof decoded));
    }
    free(copy);
}

static void cut_reply(const struct wire_reply *reply, const void *message, size_t size)
{
    void *copy = exact_copy(message, size);
    struct wire_reply decoded;
    struct error error = {0};
    enum status status = wire_decode_reply(copy, size, &decoded, &error);
    if (status == STATUS_OK) {
        ck_assert_ptr_null(reply_difference(reply, &decoded));
    } else {
        ck_assert_int_eq(status, STATUS_MALFORMED);
        ck_assert_uint_gt(strlen(error.text), 10);
        ck_assert(is_zero(&decoded, sizeof decoded));
    }
    wire_reply_finish(&decoded);
    free(copy);
}

START_TEST(every_truncation_of_a_command_is_refused_or_harmless)
{
    random_state = 3000017u + (uint64_t)_i;
    struct wire_request request = random_request(_i);
    struct wire_buffer buffer = encoded_request(&request);
    for (size_t size = 0; size < buffer.size; size++)
        cut_request(&request, buffer.data, size);
    wire_buffer_finish(&buffer);
}
END_TEST

START_TEST(every_truncation_of_an_answer_is_refused_or_harmless)
{
    random_state = 4000037u + (uint64_t)_i;
    struct wire_reply reply = random_reply(_i);
    struct wire_buffer buffer = encoded_reply(&reply);
    for (size_t size = 0; size < buffer.size; size++)
        cut_reply(&reply, buffer.data, size);
    wire_buffer_finish(&buffer);
}
END_TEST

enum {
    MESSAGES = 25, // random ones of each type
    MESSAGES_LONG = 100,
    MUTATIONS_OF_ONE = 100
};

// Small numbers are the interesting bytes, so half of the mutations write one.
static void mutate(unsigned char *message, size_t size)
{
    static const unsigned char small[] = {0, 1, 2, 4, 8, 16, 127, 128, 255};
    for (uint32_t i = 0, count = 1 + random_below(4); i < count; i++) {
        size_t at = random_below(random_below(2) && size > 64 ? 64 : (uint32_t)size);
        message[at] =
            random_below(2) ? small[random_below(sizeof small)] : (unsigned char)random_u64();
    }
}

// An accepted message can be read to its last byte and encoded again.
static void mutated_request(const void *message, size_t size)
{
    void *copy = exact_copy(message, size);
    mutate(copy, size);
    struct wire_request decoded;
    if (wire_decode_request(copy, size, &decoded, NULL) == STATUS_OK) {
        ck_assert_int_gt(decoded.command, WIRE_COMMAND_NONE);
        ck_assert_int_lt(decoded.command, WIRE_COMMAND_COUNT);
        touch_request(&decoded);
        struct wire_buffer again;
        enum status status = wire_encode_request(&decoded, &again, NULL);
        ck_assert(status == STATUS_OK ||
                  status == STATUS_LIMIT); // several fields may have pointed to one string
        wire_buffer_finish(&again);
    }
    free(copy);
}

static void mutated_reply(const void *message, size_t size)
{
    void *copy = exact_copy(message, size);
    mutate(copy, size);
    struct wire_reply decoded;
    if (wire_decode_reply(copy, size, &decoded, NULL) == STATUS_OK) {
        ck_assert_int_gt(decoded.answer, WIRE_ANSWER_NONE);
        ck_assert_int_lt(decoded.answer, WIRE_ANSWER_COUNT);
        touch_reply(&decoded);
        struct wire_buffer again;
        enum status status = wire_encode_reply(&decoded, &again, NULL);
        ck_assert(status == STATUS_OK || status == STATUS_LIMIT);
        wire_buffer_finish(&again);
    }
    wire_reply_finish(&decoded);
    free(copy);
}

START_TEST(mutated_commands_are_refused_or_readable)
{
    random_state = 5000011u + (uint64_t)_i;
    for (int i = 0; i < (check_is_long() ? MESSAGES_LONG : MESSAGES); i++) {
        struct wire_request request = random_request(_i);
        struct wire_buffer buffer = encoded_request(&request);
        for (int k = 0; k < MUTATIONS_OF_ONE; k++)
            mutated_request(buffer.data, buffer.size);
        wire_buffer_finish(&buffer);
    }
}
END_TEST

START_TEST(mutated_answers_are_refused_or_readable)
{
    random_state = 6000011u + (uint64_t)_i;
    for (int i = 0; i < (check_is_long() ? MESSAGES_LONG : MESSAGES); i++) {
        struct wire_reply reply = random_reply(_i);
        struct wire_buffer buffer = encoded_reply(&reply);
        for (int k = 0; k < MUTATIONS_OF_ONE; k++)
            mutated_reply(buffer.data, buffer.size);
        wire_buffer_finish(&buffer);
    }
}
END_TEST

START_TEST(random_bytes_behind_the_identifier_are_refused_or_readable)
{
    random_state = 7000003;
    for (int i = 0; i < 20000; i++) {
        heap_used = 0;
        size_t size = 8 + random_below(200);
        unsigned char *message = heap_random(size);
        memcpy(message + 4, "AULE", 4);
        memcpy(message, (uint32_t[]){8 + 4 * random_below(8)}, 4);
        mutated_request(message, size);
        mutated_reply(message, size);
    }
}
END_TEST

void add_damage(Suite *suite)
{
    TCase *tests = tcase_create("damaged");
    tcase_add_loop_test(tests, every_truncation_of_a_command_is_refused_or_harmless, 1,
                        WIRE_COMMAND_COUNT);
    tcase_add_loop_test(tests, every_truncation_of_an_answer_is_refused_or_harmless, 1,
                        WIRE_ANSWER_COUNT);
    tcase_add_loop_test(tests, mutated_commands_are_refused_or_readable, 1, WIRE_COMMAND_COUNT);
    tcase_add_loop_test(tests, mutated_answers_are_refused_or_readable, 1, WIRE_ANSWER_COUNT);
    tcase_add_test(tests, random_bytes_behind_the_identifier_are_refused_or_readable);
    suite_add_tcase(suite, tests);
}
