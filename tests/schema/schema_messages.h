// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// schema_messages.h - messages for the suites of the schema: random contents from a seed, the
// difference between two messages, encoded messages, and reading all data of a decoded one. One
// thread.

#ifndef AULE_TESTS_SCHEMA_MESSAGES_H
#define AULE_TESTS_SCHEMA_MESSAGES_H

#include "schema_fields.h"

#include <check.h>

extern uint64_t random_state; // of xorshift64*; a test sets its own
uint64_t random_u64(void);
uint32_t random_below(uint32_t limit);

// Random contents are in one piece of memory, and each message reuses it from the start.
extern size_t heap_used;
void *heap_random(size_t size);
struct wire_request random_request(int command);
struct wire_reply random_reply(int answer);

// The name of the first field that differs; NULL: none does.
const char *request_difference(const struct wire_request *a, const struct wire_request *b);
const char *reply_difference(const struct wire_reply *a, const struct wire_reply *b);

// For a message that must be valid.
struct wire_buffer encoded_request(const struct wire_request *request);
struct wire_buffer encoded_reply(const struct wire_reply *reply);
// A malloc'd block of exactly this size, so that a sanitizer sees the first byte read beyond it.
void *exact_copy(const void *data, size_t size);

// Reads every byte that the message points to.
void touch_request(const struct wire_request *request);
void touch_reply(const struct wire_reply *reply);
bool is_zero(const void *data, size_t size);

void add_damage(Suite *suite);    // test_schema_damaged.c
void add_forgeries(Suite *suite); // test_schema_forged.c
void add_recorded(Suite *suite);  // test_schema_recorded.c

#endif
