// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run.h - an accepted run, copy or merge, from the queue to its reaped ticket. All three are `runs`
// in the queue: a run names a batch, a copy its blocks, a merge the session's arena alone.
// Dispatcher thread.

#ifndef AULE_CORE_RUN_H
#define AULE_CORE_RUN_H

#include "copy.h"
#include "core/steps/batch.h"
#include "core/turns/habit.h"
#include "run_check.h"
#include "speed.h"

// How a layer of a run is cut: slices [0, writes) of an attention write its K and V, and the
// `slices` behind them attend. A layer that is not cut has one slice.
struct layer_cut {
    uint32_t writes, slices;
};

struct run {
    UT_hash_handle hh;       // session->runs.tickets, unless detached
    struct run *prev, *next; // session->runs.list until delivered
    struct core_session *session;
    struct batch *batch; // ATTEND, WRITE, GATHER: referenced until the run is over
    struct copy *copy;   // COPY: owned until the run is over
    uint64_t ticket;
    int64_t queued_ns; // the caller's clock
    uint64_t attended; // tokens; this and the next two of each layer
    uint64_t weight;   // in the queue: tokens, or what moving bytes counts as
    uint64_t work;     // multiply-adds
    // Estimated work in multiply-adds. write_work: K/V writes. own_work: the rest, timed as
    // `speed`. saved_work: what a cascade saves of it, while the layer is not cut.
    uint64_t write_work, own_work, saved_work;
    uint64_t write_units, own_units; // parts that they can be cut into
    enum speed_kind speed;
    uint64_t bytes; // of `arrays` and the copy's pairs: they count for the session until run_free()
    struct wire_layers layers; // num_layers and layer_step are not 0, but a copy's and a merge's
    const float *k_scales, *v_scales; // [layers.num_layers], in `arrays`; NULL = none
    struct reading reading;           // of its first layer
    struct run_tensors tensors;       // what its layers touch in the arena
    // The scheduler picks a run link by link. A link is one slice of one layer. Each layer can be
    // cut anew until its first slice is picked. A copy and a merge count as one layer. Links are
    // picked in order, and a submission may have several.
    struct layer_cut cut; // of the layer that is picked next, and of those behind it
    uint32_t next_layer, next_slice;
    uint64_t layer_ns;   // GPU time of the slices of one kind, of the layer that ends next
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
struct layer_run {
    struct run *run;
    struct layer_cut cut;
    uint32_t number; // of the run's layers, from 0
    uint32_t slice;  // of the layer, from 0
    uint32_t wave;   // of the submission, from 0
};
// Cuts the layers from the next one on, of which nothing was picked yet. At least one slice attends
// or moves.
void run_slice(struct run *run, struct layer_cut cut);
uint32_t run_num_layers(const struct run *run);
bool run_is_sliced(const struct run *run); // its next link is a part of a layer
bool link_is_sliced(const struct layer_run *link);
struct layer_run run_next_link(struct run *run);             // the one that is picked next
void run_picked(struct run *run);                            // and it was picked
struct engine_run run_link(const struct layer_run *link);    // as the engine gets it
uint64_t run_link_weight(const struct layer_run *link);      // at least 1
uint64_t run_link_work(const struct layer_run *link);        // the same of run->work
uint64_t run_link_cost(const struct layer_run *link);        // multiply-adds that take time
enum speed_kind run_link_kind(const struct layer_run *link); // of these
// The link took so much GPU time; 0: unknown. True: it is the last one of its kind in the layer,
// whose work and time these are.
bool run_link_took(const struct layer_run *link, uint64_t ns, uint64_t *work, uint64_t *layer_ns);
// A link has failed, before or on the GPU. `why` is copied; NULL = no sentence. The run keeps its
// first failure, and no further link of it is picked.
void run_fail(struct run *run, enum status status, const char *why);
// Call this when the turn of its session's first queued run has come. True: the run waited at
// least its max_queue_ms and has ended; it may be freed.
bool run_expire(struct run *run);
// A link is over. The last one ends the run. run_deliver() shows a run when all earlier runs of the
// session are over, too.
void run_link_over(struct run *run);
// Undoes a pick, because the engine has put the link off, and all later ones of its run. The run is
// queued again, and its session has no turn until turns_ready().
void run_put_back(const struct layer_run *link);
// The session's run behind this one that is not over; NULL: none. Runs that are over may stand
// behind one that was put back.
struct run *run_next_live(const struct run *run);
void run_drop_queued(struct core_session *session,
                     enum status status); // ends what was not submitted
// Makes runs that are over reapable, in the order of tickets. Frees runs that are detached or whose
// session is closed: no call can reap these.
void run_deliver(struct core_session *session);

#endif
