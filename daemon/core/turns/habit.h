// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// habit.h - what a session usually does between two of its runs: how long it is away, and what its
// next run reads. crews.h decides by this which runs wait for the session. Knows numbers only: no
// clock, no run. Dispatcher thread only.

#ifndef AULE_CORE_HABIT_H
#define AULE_CORE_HABIT_H

#include <stdbool.h>
#include <stdint.h>

enum {
    READING_MARKS = 16,
    // A session is waited for after it came back in time this often. A late return halves the
    // count, a very late or unexpected one clears it.
    HABIT_TRUST = 3,
};

// What a run reads of a cache in each of its layers. Two runs share a prefix if the first sequences
// of their batches begin with the same blocks, in the same layer.
struct reading {
    uint64_t cache;      // id; 0 = nothing that another session could read, too
    uint64_t tenant;     // id; a block of another tenant may have had the same number
    uint32_t layer;      // the first one; below num_layers
    uint32_t num_read;   // layers of the run
    uint32_t num_layers; // of the cache
    uint32_t block_size; // tokens
    uint64_t tokens;     // keys, each counted once
    // Blocks 0, 1, 3, 7, ... of the first sequence; -1: the sequence has fewer blocks.
    int32_t marks[READING_MARKS];
};

// Tokens that both read in any layer: those of 1, 2, 4, 8 ... blocks, rounded down. 0: none.
uint64_t reading_shared(const struct reading *a, const struct reading *b);

// Times from the end of a session's run to its next run.
struct habit_gap {
    int64_t mean_ns, spread_ns; // moving averages: of the times, and of their distance from these
    uint32_t on_time;           // returns in time, so counted
};

struct habit {
    struct reading last; // of the run that was queued last; cache 0 = there is none
    uint32_t stride;     // layers from the run before to that one, modulo num_layers
    int64_t ended_ns;    // when the last run ended; 0 = a run was queued since
    // [0]: to a higher layer. [1]: to the same or a lower one, where a model step ends.
    struct habit_gap gaps[2];
    int64_t gpu_ns;   // GPU time of the last submission that served the session; 0 = unknown
    int64_t token_ps; // GPU time in ps of a shared token; 0 = unknown
};

// A run was queued. `reading`: what its first layer reads.
void habit_queued(struct habit *habit, const struct reading *reading, int64_t now_ns);
// A submission with a run of the session ended, and the session has no run queued.
void habit_ended(struct habit *habit, int64_t now_ns);
// A submission with a run of the session took `gpu_ns` and read `tokens`, each once.
void habit_served(struct habit *habit, int64_t gpu_ns, uint64_t tokens);

// What the session's next run is expected to read, and after which gap. NULL: the session is not
// waited for, because it did not come back in time lately, or with another run than was expected.
const struct habit_gap *habit_next(const struct habit *habit, struct reading *next);
// The longest gap that is still in time.
int64_t habit_gap_most_ns(const struct habit_gap *gap);

#endif
