// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run.h - an accepted run, copy or merge, from the queue to its reaped ticket. All three are `runs`
// in the queue: a run names a batch, a copy its blocks, a merge the session's arena alone.
// Dispatcher thread.

#ifndef AULE_CORE_RUN_H
#define AULE_CORE_RUN_H

#include "copy.h"
#include "core/pool/habit.h"
#include "core/steps/batch.h"
#include "run_check.h"
#include "speed.h"

struct run {
    UT_hash_handle hh;       // session->tickets, unless detached
    struct run *prev, *next; // session->runs until delivered
    struct core_session *session;
    struct batch *batch; // ATTEND, WRITE, GATHER: referenced until the run is over
    struct copy *copy;   // COPY: owned until the run is over
    uint64_t ticket;
    int64_t queued_ns; // the caller's clock
    uint64_t attended; // tokens; this and the next two of each layer
    uint64_t weight;   // in the queue: tokens, or what moving bytes counts as
    uint64_t work;     // multiply-adds
    // What takes time, in multiply-adds: an attention's K/V writes, and all else, of kind `speed`.
    uint64_t write_work, own_work;
    enum speed_kind speed;
    uint64_t bytes; // of `arrays` and the copy's pairs: they count for the session until run_free()
    struct wire_layers layers; // num_layers and layer_step are not 0, but a copy's and a merge's
    const float *k_scales, *v_scales; // [layers.num_layers], in `arrays`; NULL = none
    struct reading reading;           // of its first layer
    struct run_tensors tensors;       // what its layers touch in the arena
    // The scheduler picks a run link by link. A link is one slice of one layer; a short layer has
    // one slice, and so have all layers until the first one is picked. Slices [0, write_slices) of
    // an attention that is cut write its K and V, and the `slices` behind them attend. A copy and a
    // merge count as one layer. Links are picked in order, and a submission may have several.
    uint32_t write_slices, slices;
    uint32_t num_links;  // the run ends after so many; if it fails, only those that were picked
    uint32_t num_picked; // links in submissions, ended ones too
    uint32_t num_over;   // links that have ended
    struct run *beside;  // scratch: another run of its session in the same wave
    uint64_t stamp;      // scratch: counted already
    bool detached;
    bool over;      // `result` is final
    bool delivered; // and every earlier ticket of the session is over too
    struct core_ticket_result result;
    char *why; // why the run failed, in a sentence; owned; NULL = the status says it
    struct engine_run engine;
    uint64_t arrays[]; // what the arrays of `engine` point to
};

// BUSY if the session has all its tickets.
enum status run_check_tickets(const struct core_session *session, enum status so_far,
                              struct error *error);
// LIMIT if `work` exceeds --max-run-work; `what` is the sentence's subject, `advice` its end.
enum status run_check_work(const struct core_session *session, uint64_t work, const char *what,
                           const char *advice, struct error *error);
// Makes a zeroed run with room for `arrays_size` bytes of arrays. These bytes and `beside` count
// for the session. LIMIT names --max-batch-memory. run_free() ends the run.
enum status run_create(struct core_session *session, size_t arrays_size, size_t beside,
                       struct run **out, struct error *error);
void run_free(struct run *run);
// Puts the run into the queue. NO_MEMORY: the run is as it was. After OK the caller takes the
// references, which cannot fail.
enum status run_queue(struct run *run, bool detached, uint64_t *ticket, struct error *error);

// A slice of one layer of a run. The engine takes it as a run of its own.
struct link {
    struct run *run;
    uint32_t number; // of the run's layers, from 0
    uint32_t slice;  // of the layer, from 0
    uint32_t wave;   // of the submission, from 0
};
// Cuts the layers of a run, of which nothing was picked yet. At least one slice attends or moves.
void run_slice(struct run *run, uint32_t write_slices, uint32_t slices);
bool run_is_sliced(const struct run *run);
struct link run_next_link(struct run *run);             // the one that is picked next
struct engine_run run_link(const struct link *link);    // as the engine gets it
uint64_t run_link_weight(const struct run *run);        // of one link; at least 1
uint64_t run_link_work(const struct run *run);          // the same of run->work
uint64_t run_link_cost(const struct link *link);        // multiply-adds that take time
enum speed_kind run_link_kind(const struct link *link); // of these
// A link has failed, before or on the GPU. `why` is copied; NULL = no sentence. The run keeps its
// first failure, and no further link of it is picked.
void run_fail(struct run *run, enum status status, const char *why);
// Call this when the turn of its session's first queued run has come. True: the run waited at
// least its max_queue_ms and has ended; it may be freed.
bool run_expire(struct run *run);
// A link is over. The last one ends the run. run_deliver() shows a run when all earlier runs of the
// session are over, too.
void run_link_over(struct run *run);
// Undoes the last pick of the run, because the engine has put that link off. The run is queued
// again, and its session has no turn until turns_ready().
void run_put_back(struct run *run);
// The session's run behind this one that is not over; NULL: none. Runs that are over may stand
// behind one that was put back.
struct run *run_next_live(const struct run *run);
void run_drop_queued(struct core_session *session,
                     enum status status); // ends what was not submitted
// Makes runs that are over reapable, in the order of tickets. Frees runs that are detached or whose
// session is closed: no call can reap these.
void run_deliver(struct core_session *session);

#endif
