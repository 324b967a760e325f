// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ring_end.h - a raw client that uses the rings of its session directly, beside the messages of
// raw_client.h. daemon_suite.h starts the daemon. Asserts (check).

#ifndef AULE_TESTS_RING_END_H
#define AULE_TESTS_RING_END_H

#include "raw_client.h"
#include "schema/ring.h"

enum { SLEEP_MS = 100000 };          // long enough for every answer
enum { PLACE = 32768, ROOM = 4096 }; // of a command, in the arena, behind the tensors of a step

// A raw session with its end of the rings.
struct ring_end {
    struct raw_client *raw;
    struct ring_client ring;
    int bell;
};

const char *bell_path(void);
struct ring_end open_end(void);
struct ring_end open_end_of(uint64_t arena_size);
void close_end(struct ring_end *end);

uint32_t put(struct ring_end *end, struct wire_submission submission); // returns its sequence
void ring_bell(struct ring_end *end);                                  // if the daemon sleeps
struct wire_completion get(struct ring_end *end); // the next answer, to whatever request
struct wire_completion call(struct ring_end *end, struct wire_submission submission);

struct wire_submission run_of(uint64_t batch); // as run_request(), with a wait of SLEEP_MS
struct wire_submission wait_of(uint64_t ticket);
// A block, and a batch that fills it. check_out() checks what a run of it wrote and read.
uint64_t fresh_batch(struct raw_client *raw, uint64_t cache);

// Puts the request into the arena, at PLACE or `offset`; the entry is the caller's to put.
struct wire_submission placed(struct ring_end *end, const struct wire_request *request);
struct wire_submission placed_at(struct ring_end *end, const struct wire_request *request,
                                 uint64_t offset, uint64_t room);
// The reply that the completion says lies at PLACE. Valid until the next call.
struct wire_reply reply_of(const struct ring_end *end, const struct wire_completion *completion);
// Places and puts the request, gets its completion, and returns the reply.
struct wire_reply ask_placed(struct ring_end *end, const struct wire_request *request);
struct wire_request lease_request(uint64_t cache, uint32_t count, int timeout_ms);

#endif
