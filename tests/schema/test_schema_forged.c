// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_schema_forged.c - valid messages with one wrong thing, placed by FlatBuffers' own layout.
// Each is refused, and the error says why.

#include "schema_messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t load32(const unsigned char *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static void store32(unsigned char *at, uint32_t value)
{
    memcpy(at, &value, sizeof value);
}

static unsigned char *follow(unsigned char *at)
{
    return at + load32(at);
}

// The 16-bit vtable entry of field `index` of a table, and the field itself (NULL if it is absent).
static unsigned char *vtable_entry(unsigned char *table, int index)
{
    return table - (int32_t)load32(table) + 4 + (ptrdiff_t)2 * index;
}

static unsigned char *field_at(unsigned char *table, int index)
{
    uint16_t offset;
    memcpy(&offset, vtable_entry(table, index), sizeof offset);
    ck_assert_uint_ne(offset, 0);
    return table + offset;
}

static void forget_field(unsigned char *table, int index)
{
    memset(vtable_entry(table, index), 0, 2);
}

enum { REQUEST_TYPE = 2, REQUEST_COMMAND = 3, REPLY_MESSAGE = 1, REPLY_TYPE = 2, REPLY_ANSWER = 3 };

static unsigned char *command_of(struct wire_buffer *buffer)
{
    return follow(field_at(follow(buffer->data), REQUEST_COMMAND));
}

static unsigned char *answer_of(struct wire_buffer *buffer)
{
    return follow(field_at(follow(buffer->data), REPLY_ANSWER));
}

// The message must be refused as MALFORMED, with `words` in the error. Frees the buffer.
static void assert_request_refused(struct wire_buffer *buffer, const char *words)
{
    struct wire_request decoded;
    struct error error = {0};
    void *copy = exact_copy(buffer->data, buffer->size);
    ck_assert_int_eq(wire_decode_request(copy, buffer->size, &decoded, &error), STATUS_MALFORMED);
    ck_assert_msg(strstr(error.text, words) != NULL, "\"%s\" lacks \"%s\"", error.text, words);
    ck_assert(is_zero(&decoded, sizeof decoded));
    free(copy);
    wire_buffer_finish(buffer);
}

static void assert_reply_refused(struct wire_buffer *buffer, const char *words)
{
    struct wire_reply decoded;
    struct error error = {0};
    void *copy = exact_copy(buffer->data, buffer->size);
    ck_assert_int_eq(wire_decode_reply(copy, buffer->size, &decoded, &error), STATUS_MALFORMED);
    ck_assert_msg(strstr(error.text, words) != NULL, "\"%s\" lacks \"%s\"", error.text, words);
    ck_assert(is_zero(&decoded, sizeof decoded));
    free(copy);
    wire_buffer_finish(buffer);
}

START_TEST(a_union_with_a_type_but_no_value_is_refused)
{
    struct wire_request request = {.session = 1, .epoch = 1, .command = WIRE_COMMAND_WAIT};
    struct wire_buffer buffer = encoded_request(&request);
    forget_field(follow(buffer.data), REQUEST_COMMAND);
    assert_request_refused(&buffer, "no value");

    struct wire_reply reply = {.status = 1, .message = "x", .answer = WIRE_ANSWER_RUN};
    buffer = encoded_reply(&reply);
    forget_field(follow(buffer.data), REPLY_ANSWER);
    assert_reply_refused(&buffer, "no value");
}
END_TEST

START_TEST(an_unknown_or_missing_union_member_is_refused_with_its_number)
{
    struct wire_request request = {.session = 1, .epoch = 1, .command = WIRE_COMMAND_WAIT};
    struct wire_buffer buffer = encoded_request(&request);
    *field_at(follow(buffer.data), REQUEST_TYPE) = 255;
    assert_request_refused(&buffer, "unknown command 255");
    buffer = encoded_request(&request);
    *field_at(follow(buffer.data), REQUEST_TYPE) = 0;
    assert_request_refused(&buffer, "no command");

    struct wire_reply reply = {.status = 1, .answer = WIRE_ANSWER_RUN};
    buffer = encoded_reply(&reply);
    *field_at(follow(buffer.data), REPLY_TYPE) = 255;
    assert_reply_refused(&buffer, "unknown answer 255");
    buffer = encoded_reply(&reply);
    *field_at(follow(buffer.data), REPLY_TYPE) = 0;
    assert_reply_refused(&buffer, "no answer");
}
END_TEST

START_TEST(a_run_without_its_entry_is_refused)
{
    struct wire_request request = {
        .session = 1, .command = WIRE_COMMAND_RUN, .run = {.timeout_ms = 5}};
    struct wire_buffer buffer = encoded_request(&request);
    forget_field(command_of(&buffer), 0);
    assert_request_refused(&buffer, "message");
}
END_TEST

START_TEST(a_wrong_identifier_is_refused_with_its_bytes)
{
    struct wire_request request = {.command = WIRE_COMMAND_METRICS};
    struct wire_buffer buffer = encoded_request(&request);
    memcpy((char *)buffer.data + 4, "AULF", 4);
    assert_request_refused(&buffer, "41 55 4c 46");
}
END_TEST

START_TEST(an_oversized_message_is_refused_with_both_sizes)
{
    struct wire_request request = {.command = WIRE_COMMAND_METRICS};
    struct wire_buffer buffer = encoded_request(&request);
    size_t size = WIRE_MAX_MESSAGE + 8;
    unsigned char *large = calloc(1, size);
    ck_assert_ptr_nonnull(large);
    memcpy(large, buffer.data, buffer.size);
    struct wire_request decoded;
    ck_assert_int_eq(wire_decode_request(large, WIRE_MAX_MESSAGE, &decoded, NULL), STATUS_OK);
    wire_buffer_finish(&buffer);
    buffer = (struct wire_buffer){large, size};
    assert_request_refused(&buffer, "1048584 bytes; at most 1048576");
}
END_TEST

START_TEST(a_message_at_an_odd_address_is_invalid)
{
    struct wire_request request = {.command = WIRE_COMMAND_METRICS}, decoded;
    struct wire_buffer buffer = encoded_request(&request);
    char *copy = malloc(buffer.size + 4);
    memcpy(copy + 4, buffer.data, buffer.size);
    ck_assert_int_eq(wire_decode_request(copy + 4, buffer.size, &decoded, NULL), STATUS_INVALID);
    free(copy);
    wire_buffer_finish(&buffer);
    ck_assert_int_eq(wire_decode_request(NULL, 0, &decoded, NULL), STATUS_MALFORMED);
}
END_TEST

START_TEST(a_vector_that_claims_more_than_the_message_is_refused)
{
    static const uint32_t lengths[] = {4,          5,          256,        0x3fffffff,
                                       0x40000000, 0x7fffffff, 0x80000000, 0xffffffff};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct wire_request request = {.session = 1,
                                       .command = WIRE_COMMAND_BLOCKS_RELEASE,
                                       .blocks_release = {1, {(int32_t[]){1, 2, 3}, 3}}};
        struct wire_buffer buffer = encoded_request(&request);
        store32(follow(field_at(command_of(&buffer), 1)), lengths[i]);
        assert_request_refused(&buffer, "outside");
    }
}
END_TEST

// The verifier of FlatBuffers 2.0.8 accepts it, because it checks only the place of the length.
START_TEST(elements_at_an_odd_address_are_refused)
{
    int64_t slots[4] = {1, 2, 3, 4};
    struct wire_request request = {.command = WIRE_COMMAND_BATCH_CREATE,
                                   .batch_create = {.slot_mapping = {slots, 4}}};
    struct wire_buffer buffer = encoded_request(&request);
    unsigned char *field = field_at(command_of(&buffer), 6);
    store32(field, load32(field) + 4);
    store32(follow(field), 1);
    assert_request_refused(&buffer, "slot_mapping do not lie at a multiple of 8");

    struct wire_tensor tensors[3] = {{.dtype = DTYPE_F16}};
    request = (struct wire_request){.command = WIRE_COMMAND_MERGE,
                                    .merge = {.outs = {tensors, 3}, .lses = {tensors, 3}}};
    for (int part = 3; part <= 4; part++) {
        buffer = encoded_request(&request);
        field = field_at(command_of(&buffer), part);
        store32(field, load32(field) + 4);
        store32(follow(field), 1);
        assert_request_refused(&buffer, part == 3 ? "outs do not lie at a multiple of 8"
                                                  : "lses do not lie");
    }

    struct wire_session_state sessions[2] = {{.session = 1}};
    const char *names[] = {"a", "b"};
    struct wire_reply reply = {.answer = WIRE_ANSWER_INSPECT_SESSIONS,
                               .inspect_sessions = {2, {sessions, 2}, {names, 2}, {names, 2}}};
    buffer = encoded_reply(&reply);
    field = field_at(answer_of(&buffer), 1);
    store32(field, load32(field) + 4);
    store32(follow(field), 1);
    assert_reply_refused(&buffer, "sessions do not lie at a multiple of 8");
}
END_TEST

// In Hello the tenant's string comes first. A tenant whose length covers the client's name, too, is
// a longer name.
START_TEST(names_that_are_too_long_are_refused_with_their_length)
{
    char longest[WIRE_MAX_NAME + 1];
    memset(longest, 'n', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    struct wire_request request = {.command = WIRE_COMMAND_HELLO,
                                   .hello = {1, 2, longest, "abcd", 0}};
    struct wire_buffer buffer = encoded_request(&request);
    unsigned char *tenant = follow(field_at(command_of(&buffer), 3)),
                  *end = (unsigned char *)buffer.data + buffer.size;
    while (end[-2] == 0)
        end--;
    uint32_t length = (uint32_t)(end - 1 - (tenant + 4));
    store32(tenant, length);
    memset(tenant + 4, 'n', length);
    forget_field(command_of(&buffer), 2); // its length is overwritten
    ck_assert_uint_gt(length, WIRE_MAX_NAME);
    char words[64];
    snprintf(words, sizeof words, "tenant has %u bytes", length);
    assert_request_refused(&buffer, words);
}
END_TEST

START_TEST(a_nul_byte_inside_a_name_is_refused)
{
    struct wire_request request = {.command = WIRE_COMMAND_CACHE_OPEN,
                                   .cache_open = {.name = "model"}};
    struct wire_buffer buffer = encoded_request(&request);
    follow(field_at(command_of(&buffer), 0))[4 + 2] = '\0';
    assert_request_refused(&buffer, "name holds a NUL");
}
END_TEST

START_TEST(fingerprints_and_extra_keys_that_are_too_long_are_refused)
{
    unsigned char bytes[WIRE_MAX_EXTRA_KEY] = {0};
    int32_t tokens[8] = {0};
    struct wire_request request = {.command = WIRE_COMMAND_CACHE_OPEN,
                                   .cache_open = {.name = "a model with a long name",
                                                  .fingerprint = {bytes, WIRE_MAX_FINGERPRINT}}};
    struct wire_buffer buffer = encoded_request(&request);
    store32(follow(field_at(command_of(&buffer), 10)), WIRE_MAX_FINGERPRINT + 1);
    assert_request_refused(&buffer, "fingerprint has 65 bytes; at most 64");

    request = (struct wire_request){
        .command = WIRE_COMMAND_PREFIX_LOOKUP,
        .prefix_lookup = {.cache = 1, .tokens = {tokens, 8}, .extra_key = {bytes, 256}}};
    buffer = encoded_request(&request);
    store32(follow(field_at(command_of(&buffer), 4)), 257);
    assert_request_refused(&buffer, "extra_key has 257 bytes; at most 256");

    request = (struct wire_request){
        .command = WIRE_COMMAND_PREFIX_PUBLISH,
        .prefix_publish = {.cache = 1, .tokens = {tokens, 8}, .extra_key = {bytes, 256}}};
    buffer = encoded_request(&request);
    store32(follow(field_at(command_of(&buffer), 4)), 257);
    assert_request_refused(&buffer, "extra_key has 257 bytes; at most 256");
}
END_TEST

START_TEST(lists_of_unequal_length_are_refused_with_both)
{
    struct wire_session_state sessions[3] = {{.session = 1}};
    const char *names[] = {"a", "b", "c"};
    struct wire_reply reply = {.answer = WIRE_ANSWER_INSPECT_SESSIONS,
                               .inspect_sessions = {3, {sessions, 3}, {names, 3}, {names, 3}}};
    for (int part = 2; part <= 3; part++) {
        struct wire_buffer buffer = encoded_reply(&reply);
        store32(follow(field_at(answer_of(&buffer), part)), 2);
        assert_reply_refused(&buffer, part == 2 ? "names has 2 entries beside 3"
                                                : "tenants has 2 entries beside 3");
    }
    struct wire_cache_counts caches[2] = {{.cache = 1}};
    reply = (struct wire_reply){.answer = WIRE_ANSWER_INSPECT_CACHES,
                                .inspect_caches = {2, {caches, 2}, {names, 2}, {names, 2}}};
    struct wire_buffer buffer = encoded_reply(&reply);
    forget_field(answer_of(&buffer), 2);
    assert_reply_refused(&buffer, "names has 0 entries beside 2");
    buffer = encoded_reply(&reply);
    store32(follow(field_at(answer_of(&buffer), 3)), 1);
    assert_reply_refused(&buffer, "fingerprints has 1 entries beside 2 of caches");

    reply = (struct wire_reply){.answer = WIRE_ANSWER_INSPECT_DEVICE,
                                .inspect_device = {.variants = {names, 3},
                                                   .variant_needs = {names, 3},
                                                   .variant_missing = {names, 3}}};
    for (int part = 17; part <= 18; part++) {
        buffer = encoded_reply(&reply);
        store32(follow(field_at(answer_of(&buffer), part)), 2);
        assert_reply_refused(&buffer, part == 17
                                          ? "variant_needs has 2 entries beside 3 of variants"
                                          : "variant_missing has 2 entries beside 3 of variants");
    }
    static const uint8_t kinds[3];
    static const int64_t values[3];
    struct wire_reply counted = {.answer = WIRE_ANSWER_METRICS,
                                 .metrics = {.names = {names, 3},
                                             .units = {names, 3},
                                             .helps = {names, 3},
                                             .kinds = {kinds, 3},
                                             .values = {values, 3}}};
    static const char *const columns[] = {"units", "helps", "kinds", "values"};
    for (int part = 1; part <= 4; part++) {
        char words[80];
        snprintf(words, sizeof words, "%s has 2 entries beside 3 of names", columns[part - 1]);
        buffer = encoded_reply(&counted);
        store32(follow(field_at(answer_of(&buffer), part)), 2);
        assert_reply_refused(&buffer, words);
    }
    reply.inspect_device.variant_missing.count = 1;
    ck_assert_int_eq(wire_encode_reply(&reply, &buffer, NULL), STATUS_INVALID);
}
END_TEST

// 100,000 names that are all the same long string. Reading each to its end would read 50 GB.
START_TEST(many_names_that_share_one_long_string_are_refused_quickly)
{
    enum { NAMES = 100000, TEXT_SIZE = 500000 };
    char *text = malloc(TEXT_SIZE + 1);
    const char **names = calloc(NAMES, sizeof *names);
    ck_assert(text && names);
    memset(text, 't', TEXT_SIZE);
    text[TEXT_SIZE] = '\0';
    for (int i = 0; i < NAMES; i++)
        names[i] = "";
    struct wire_reply reply = {.message = "",
                               .answer = WIRE_ANSWER_INSPECT_CACHES,
                               .inspect_caches = {.names = {names, 10}}};
    struct wire_buffer buffer;
    ck_assert_int_eq(wire_encode_reply(&reply, &buffer, NULL),
                     STATUS_INVALID); // the lists' lengths differ, so build it from a valid one
    struct wire_cache_counts *caches = calloc(10, sizeof *caches);
    ck_assert_ptr_nonnull(caches);
    reply = (struct wire_reply){.answer = WIRE_ANSWER_INSPECT_CACHES,
                                .inspect_caches = {10, {caches, 10}, {names, 10}, {names, 10}}};
    buffer = encoded_reply(&reply);
    // A larger copy: the same message, then a vector of NAMES offsets, then the one string that all
    // of them point to.
    size_t start = (buffer.size + 7) / 8 * 8,
           size = start + 4 + sizeof(uint32_t) * NAMES + 4 + TEXT_SIZE + 4;
    unsigned char *forged = calloc(1, size);
    ck_assert_ptr_nonnull(forged);
    memcpy(forged, buffer.data, buffer.size);
    unsigned char *string = forged + start + 4 + sizeof(uint32_t) * NAMES;
    store32(forged + start, NAMES);
    for (uint32_t i = 0; i < NAMES; i++) {
        unsigned char *at = forged + start + 4 + sizeof(uint32_t) * i;
        store32(at, (uint32_t)(string - at));
    }
    store32(string, TEXT_SIZE);
    memcpy(string + 4, text, TEXT_SIZE);
    wire_buffer_finish(&buffer);
    buffer = (struct wire_buffer){forged, size};
    unsigned char *field = field_at(answer_of(&buffer), 2);
    store32(field, (uint32_t)(forged + start - field));
    assert_reply_refused(&buffer, "an entry of names has 500000 bytes");
    free(caches);
    free(names);
    free(text);
}
END_TEST

START_TEST(a_uuid_of_another_length_is_refused)
{
    struct wire_reply reply = {.answer = WIRE_ANSWER_INSPECT_DEVICE,
                               .inspect_device = {.name = "x"}};
    struct wire_buffer buffer = encoded_reply(&reply);
    store32(follow(field_at(answer_of(&buffer), 3)), 15);
    assert_reply_refused(&buffer, "uuid has 15 bytes, not 16");
}
END_TEST

START_TEST(a_status_outside_the_list_passes_through)
{
    struct wire_reply reply = {.status = 4711,
                               .message = "from a newer daemon",
                               .answer = WIRE_ANSWER_EMPTY},
                      decoded;
    struct wire_buffer buffer = encoded_reply(&reply);
    ck_assert_int_eq(wire_decode_reply(buffer.data, buffer.size, &decoded, NULL), STATUS_OK);
    ck_assert_int_eq(decoded.status, 4711);
    wire_reply_finish(&decoded);
    wire_buffer_finish(&buffer);
}
END_TEST

void add_forgeries(Suite *suite)
{
    TCase *tests = tcase_create("forged");
    tcase_add_test(tests, a_union_with_a_type_but_no_value_is_refused);
    tcase_add_test(tests, an_unknown_or_missing_union_member_is_refused_with_its_number);
    tcase_add_test(tests, a_run_without_its_entry_is_refused);
    tcase_add_test(tests, a_wrong_identifier_is_refused_with_its_bytes);
    tcase_add_test(tests, an_oversized_message_is_refused_with_both_sizes);
    tcase_add_test(tests, a_message_at_an_odd_address_is_invalid);
    tcase_add_test(tests, a_vector_that_claims_more_than_the_message_is_refused);
    tcase_add_test(tests, elements_at_an_odd_address_are_refused);
    tcase_add_test(tests, names_that_are_too_long_are_refused_with_their_length);
    tcase_add_test(tests, a_nul_byte_inside_a_name_is_refused);
    tcase_add_test(tests, fingerprints_and_extra_keys_that_are_too_long_are_refused);
    tcase_add_test(tests, lists_of_unequal_length_are_refused_with_both);
    tcase_add_test(tests, many_names_that_share_one_long_string_are_refused_quickly);
    tcase_add_test(tests, a_uuid_of_another_length_is_refused);
    tcase_add_test(tests, a_status_outside_the_list_passes_through);
    suite_add_tcase(suite, tests);
}
