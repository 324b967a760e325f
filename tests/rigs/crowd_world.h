// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// crowd_world.h - a simulation for tests of the scheduler: sessions that decode over common
// prompts, layer by layer, with one run at a time each. Its GPU takes a fixed time for each prompt
// and layer that a submission reads, and for each run. The clock is simulated, so equal parameters
// give equal results. Asserts with check; one crowd a process.

#ifndef AULE_TESTS_CROWD_WORLD_H
#define AULE_TESTS_CROWD_WORLD_H

#include "core_world.h"
#include "dice.h"

enum {
    CROWD_MOST = 8, // members
    CROWD_LOOK_NS = 50000,
    // Times of the GPU, about an H200's: it starts when idle, reads a prompt in one layer, and does
    // the rest of a run.
    CROWD_START_NS = 10000,
    CROWD_PROMPT_NS = 150000,
    CROWD_OWN_NS = 5000,
};

struct member {
    struct worker worker;
    uint64_t batch, ticket;
    uint32_t prompt; // members with the same number and tenant share a prompt
    uint32_t tenant;
    uint32_t layer;  // of its next run
    uint32_t runs;   // that have ended
    int64_t back_ns; // it queues its next run then; FOREVER: a run is not over, or it stays away
    int64_t queued_ns, longest_ns; // the last run was queued then; longest time to a run's end
};

struct crowd {
    struct world world;
    struct member members[CROWD_MOST];
    uint32_t count, num_layers;
    bool whole; // a run is a whole step: it has all layers
    // Time from the end of a member's run to its next run; FOREVER: it stays away.
    int64_t (*gap_ns)(struct crowd *crowd, uint32_t member);
    struct dice dice; // for gap_ns
    // Submissions that have not ended, and when they will.
    struct {
        uint64_t sequence;
        int64_t end_ns;
    } in_flight[2];
    uint32_t num_in_flight;
    uint64_t seen;   // number of the newest submission so far
    int64_t free_ns; // end of the newest submission
    // Totals of submissions that have begun.
    int64_t busy_ns;
    uint32_t submissions, prompts; // prompts that they read, once for each layer
    uint32_t last_runs;            // in the newest one
    // The GPU was idle while a run was queued: longest time of one submission, and all of them.
    int64_t longest_idle_ns, idle_ns;
};

// `prompts[i]` is the prompt of member i. `hidden`: core sees no common prompt, because each member
// has copies of the blocks; the GPU still reads each prompt once. So core works as without the rule
// for common prompts.
void crowd_open(struct crowd *crowd, uint32_t count, uint32_t num_layers, const uint32_t *prompts,
                bool hidden);
// The same with several tenants: tenants[i] is that of member i.
void crowd_open_tenants(struct crowd *crowd, uint32_t count, uint32_t num_layers,
                        const uint32_t *prompts, const uint32_t *tenants);
void crowd_close(struct crowd *crowd);
// Simulates until `until_ns` of world.now_ns. Members come back as back_ns and gap_ns say.
void crowd_pass(struct crowd *crowd, int64_t until_ns);
// The next event: a member's run, the end of a submission, or core's own time. False: there is
// none before `until_ns`.
bool crowd_next(struct crowd *crowd, int64_t until_ns);
uint64_t crowd_runs(const struct crowd *crowd); // that have ended, of all members

#endif
