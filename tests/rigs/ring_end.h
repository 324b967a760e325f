// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ring_end.h - a raw client that works the rings of its session itself, beside the messages of
// raw_client.h. The daemon is daemon_suite.h's. Asserts (check).

#ifndef AULE_TESTS_RING_END_H
#define AULE_TESTS_RING_END_H

#include "raw_client.h"
#include "schema/ring.h"

enum { SLEEP_MS = 100000 }; // long enough for every answer

// A raw session with its end of the rings.
struct ring_end {
    struct raw_client *raw;
    struct ring_client ring;
    int bell;
};

const char *bell_path(void);
struct ring_end open_end(void);
void close_end(struct ring_end *end);

uint32_t put(struct ring_end *end, struct wire_submission submission); // its sequence
void ring_bell(struct ring_end *end);                                  // if the daemon sleeps
struct wire_completion get(struct ring_end *end); // the next answer, whatever it answers
struct wire_completion call(struct ring_end *end, struct wire_submission submission);

struct wire_submission run_of(uint64_t batch); // as run_request(), of SLEEP_MS
struct wire_submission wait_of(uint64_t ticket);
// A block, and a batch that fills it; what it wrote and read is looked at by check_out().
uint64_t fresh_batch(struct raw_client *raw, uint64_t cache);

#endif
