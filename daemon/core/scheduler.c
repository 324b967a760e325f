// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// scheduler.c - builds submissions by fair queuing: the tenant with the least service is next, and
// within it the session with the least service. The cost of a link is weight.c's estimate in tokens
// attended. Does not compute costs (weight.c) and does not check for conflicts (beside.c).
// Dispatcher thread.
//
// Turns. Each link adds its weight to the `served` counts of its tenant and its session, which are
// virtual times. Tenants with queued runs wait in a heap ordered by served / TURNS_QUANTUM, and the
// sessions of a tenant in one of its own. So picking a link takes O(log tenants + log sessions).
// Idle tenants and sessions earn no credit. After a heavy link its tenant waits until the others
// were served as much. Sessions that read the same prefix in the same layer
// take their tenant's turn together, and the tenant pays for all of them.
//
// Layers. A run of several layers is scheduled layer by layer (struct layer_run). So a run of many
// layers delays other sessions no longer than the same layers in single runs.
//
// Slices. A layer that would take long is cut into slices (speed.h), each a link: slices of tiles
// of queries, of rows, or of blocks. A sliced link ends its submission unless all picked links fit
// into one slice's time. Some layers cannot be cut that small. Beside other sessions, only one such
// long slice is in flight. While no other session has runs on a GPU, slices are long. Each layer is
// cut anew, so that a run gets short slices when another session comes.
//
// Waves. Each session counts waves of its own. A link goes into its session's current wave if no
// link of the session there writes what it uses, or uses what it writes; otherwise into the next
// wave. Sessions share only sealed blocks, so they cannot conflict, and the order of picking does
// not matter. Sessions that run the same step share waves, and the engine merges their runs into
// one dispatch.
//
// Size. How much goes into one submission depends on the device: see learn_budget(). One to an idle
// GPU is small, if it would have many waves, and those behind it grow: most_waves().
//
// Delay. While the GPU is busy, new runs wait for the sessions that it just served, so that they
// share the next dispatch. The wait ends shortly before the GPU becomes idle (delay.h). If the GPU
// finishes earlier than predicted, it idles while the next submission is prepared. If the GPU is
// idle, or no session is expected, ready runs are submitted at once. Runs that share a prefix with
// sessions that are about to come back may wait longer, also while the GPU is idle (gather.h).
//
// Compiles. Only the engine's plan shows which pipelines a run needs. If one is not compiled
// yet, the engine gives the session's links back, from the first that needs it. They are queued as
// before, and the session has no turn until the compile has ended. Other sessions go on.

#include "scheduler.h"

#include "base/list.h"
#include "core/pool/zeroes.h"
#include "core/runs/beside.h"
#include "session_life.h"
#include "state.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <xxhash.h>

void scheduler_init(struct scheduler *scheduler, bool software, uint64_t slice_ns)
{
    scheduler->budget = SCHEDULER_BUDGET;
    speed_init(&scheduler->speed, software, slice_ns);
    gather_init(&scheduler->gather);
}

// ---- building a submission ----

// A run of the session is picked.
static void note_session(struct scheduler *scheduler, const struct core_session *session)
{
    if (scheduler->latest != session->id)
        scheduler->others_ns = scheduler->latest_ns;
    scheduler->latest = session->id;
    scheduler->latest_ns = session->ledger->now_ns;
}

// Takes the run's next link. It is its session's first queued run, and the session is ready.
// `number` is that of the submission.
static struct layer_run pick(struct scheduler *scheduler, struct run *run, uint64_t number)
{
    struct core_session *session = run->session;
    if (session->last_picked_in != number)
        beside_begin(session);
    session->last_picked_in = number;
    session->turn.held_ns = 0;
    note_session(scheduler, session);
    struct layer_run link = run_next_link(run);
    link.wave = beside_place(session, run);
    run_picked(run);
    if (run->num_picked == run->num_links)
        session->runs.queued = run_next_live(run);
    turns_serve(&session->turn, run_link_weight(&link), session->runs.queued);
    return link;
}

// The next run of the tenant that was served last, if its next link reads a prefix that the last
// link reads, too. NULL: it does not, or none was picked.
static struct run *companion(const struct scheduler *scheduler, uint32_t count)
{
    const struct layer_run *last = count ? &scheduler->picked[count - 1] : NULL;
    const struct core_session *beside =
        last ? session_of_turn(turns_first_beside(&last->run->session->turn)) : NULL;
    if (!beside)
        return NULL;
    const struct layer_run next = run_next_link(beside->runs.queued);
    return gather_shares(last, &next) ? next.run : NULL;
}

// Ends runs that waited too long. Returns the run whose turn it is then; NULL: none. `full`: only a
// companion of the last one.
static struct run *next_run(const struct scheduler *scheduler, uint32_t count, bool full)
{
    for (;;) {
        struct run *run = companion(scheduler, count);
        const struct core_session *first =
            run || full ? NULL : session_of_turn(turns_first(&scheduler->turns));
        run = first ? first->runs.queued : run;
        if (!run || !run_expire(run))
            return run;
    }
}

// How many waves a submission may have now.
static uint32_t most_waves(const struct scheduler *scheduler)
{
    const uint32_t ready = scheduler->turns.num_ready;
    if (scheduler->num_in_flight && scheduler->cut_at)
        return scheduler->cut_at * SCHEDULER_GROWTH;
    if (scheduler->num_in_flight || !ready)
        return UINT32_MAX;
    return ready < SCHEDULER_FIRST_LINKS ? SCHEDULER_FIRST_LINKS / ready : 1;
}

// The session has its part of the submission, but more runs or layers are queued.
static void halt(struct scheduler *scheduler, struct core_session *session)
{
    turns_leave(&session->turn);
    scheduler->halted[scheduler->num_halted++] = session;
}

static void end_halts(struct scheduler *scheduler)
{
    while (scheduler->num_halted)
        turns_rejoin(&scheduler->halted[--scheduler->num_halted]->turn);
}

// ---- slices ----

// GPU time that a slice of the session's run should take. Among other sessions' runs it is short.
// So it is on a software device, which may take minutes for a run.
static double slice_ns(const struct core *core, const struct core_session *session)
{
    const struct scheduler *s = &core->scheduler;
    const int64_t others_ns = s->latest == session->id ? s->others_ns : s->latest_ns;
    const bool alone = s->turns.num_ready < 2 &&
                       (!others_ns || core->ledger.now_ns - others_ns > SCHEDULER_LATELY_NS);
    return alone && !core->params.slice_ns && !engine_device(core->ledger.engine)->software
               ? fmax(s->speed.slice_ns, SPEED_ALONE_NS)
               : s->speed.slice_ns;
}

// Whether the next layer of the run takes no longer than one slice should.
static bool is_short(const struct speed *speed, const struct run *run, double slice_ns)
{
    const double longest =
        run->saved_work > run->own_work / 2 ? SPEED_CASCADE_SLICES * speed->slice_ns : slice_ns;
    return speed_ns(speed, run->speed, run->own_work) +
               speed_ns(speed, SPEED_WRITE, run->write_work) <=
           fmax(longest, slice_ns);
}

// Cuts the next layer of a run, if it is long and nothing of it was picked yet.
static void slice(const struct core *core, struct run *run)
{
    const struct speed *speed = &core->scheduler.speed;
    const bool mirrored = run->engine.arena && !engine_arena_imported(run->engine.arena);
    const double each_ns = slice_ns(core, run->session);
    if (run->next_slice)
        return;
    if (mirrored || run_num_layers(run) > UINT32_MAX / SPEED_MOST_SLICES / 2 ||
        is_short(speed, run, each_ns)) {
        run_slice(run, (struct layer_cut){0, 1});
        return;
    }
    run_slice(run, (struct layer_cut){
                       run->write_work ? speed_slices(speed, SPEED_WRITE, run->write_work,
                                                      run->write_units, each_ns)
                                       : 0,
                       speed_slices(speed, run->speed, run->own_work, run->own_units, each_ns)});
}

// What a submission may still take.
struct left {
    uint64_t budget, beyond; // tokens; `beyond` only for links that share a prefix
    uint64_t room;           // multiply-adds
    double ns;               // time, if a slice is among its links
    bool has_slice;
};

static struct left left_at_first(const struct core *core)
{
    const uint64_t budget = core->scheduler.budget;
    return (struct left){.budget = budget,
                         .beyond = budget,
                         .room = core->params.max_run_work ? core->params.max_run_work : UINT64_MAX,
                         .ns = core->scheduler.speed.slice_ns};
}

static double link_ns(const struct core *core, const struct layer_run *link)
{
    return speed_ns(&core->scheduler.speed, run_link_kind(link), run_link_cost(link));
}

// A slice that takes longer than it should among other sessions' runs.
static bool is_long(const struct core *core, const struct layer_run *link)
{
    return link_is_sliced(link) &&
           link_ns(core, link) > SPEED_LONG * core->scheduler.speed.slice_ns;
}

static bool has_long_in_flight(const struct scheduler *s)
{
    for (uint32_t i = 0; i < s->num_in_flight; i++)
        if (s->in_flight[(s->first_in_flight + i) % SCHEDULER_MAX_IN_FLIGHT].is_long)
            return true;
    return false;
}

// Otherwise a new run of another session would wait for two long slices.
static bool is_one_too_many(const struct core *core, struct run *run)
{
    const struct layer_run next = run_next_link(run);
    return is_long(core, &next) && has_long_in_flight(&core->scheduler) &&
           slice_ns(core, run->session) <= core->scheduler.speed.slice_ns;
}

// A sliced link joins a submission only if all its links fit into one slice's time.
static bool has_room(const struct core *core, const struct left *left, struct run *run)
{
    const struct layer_run next = run_next_link(run);
    return run_link_work(&next) <= left->room &&
           ((!left->has_slice && !run_is_sliced(run)) || link_ns(core, &next) <= left->ns);
}

static void take(const struct core *core, struct left *left, const struct layer_run *link)
{
    const uint64_t weight = run_link_weight(link), work = run_link_work(link);
    uint64_t *tokens = left->budget ? &left->budget : &left->beyond;
    *tokens -= weight < *tokens ? weight : *tokens;
    left->room -= work < left->room ? work : left->room;
    left->ns -= link_ns(core, link);
    left->has_slice |= link_is_sliced(link);
}

// A submission that is full also takes links that share a prefix with the last one, up to twice its
// budget. Otherwise sessions in step would be parted within a layer, and it would be read twice.
static uint32_t pick_links(struct core *core, uint64_t number)
{
    struct scheduler *scheduler = &core->scheduler;
    uint32_t count = 0;
    bool cut = false;
    struct left left = left_at_first(core);
    const uint32_t waves = most_waves(scheduler);
    struct run *run;
    while (count < SCHEDULER_MAX_RUNS && scheduler->num_halted < SCHEDULER_MAX_RUNS &&
           left.beyond && (run = next_run(scheduler, count, !left.budget))) {
        slice(core, run);
        if (count && !has_room(core, &left, run))
            break;
        if (is_one_too_many(core, run)) {
            halt(scheduler, run->session);
            continue;
        }
        const struct layer_run link = pick(scheduler, run, number);
        take(core, &left, &link);
        scheduler->picked[count++] = link;
        if (link.wave + 1 >= waves && link.run->session->runs.queued) {
            halt(scheduler, link.run->session);
            cut = true;
        }
    }
    scheduler->cut_at = cut ? waves : 0;
    end_halts(scheduler);
    return count;
}

// Sorts the picked links by wave, and within a wave in the order of picking. Returns the number of
// waves. This is a counting sort: wave_ends[w] is first the size, then the begin, then the end of
// wave w.
static uint32_t lay_waves(struct scheduler *scheduler, struct submission *submission)
{
    uint32_t *ends = scheduler->wave_ends, waves = 0;
    for (uint32_t i = 0; i < submission->num_links; i++) {
        uint32_t wave = scheduler->picked[i].wave;
        while (waves <= wave)
            ends[waves++] = 0;
        ends[wave]++;
    }
    for (uint32_t w = 0, before = 0; w < waves; w++) { // sizes become begins
        uint32_t size = ends[w];
        ends[w] = before;
        before += size;
    }
    for (uint32_t i = 0; i < submission->num_links; i++) { // begins become ends
        const struct layer_run *link = &scheduler->picked[i];
        uint32_t place = ends[link->wave]++;
        submission->links[place] = *link;
        scheduler->engine_runs[place] = run_link(link);
    }
    return waves;
}

static void end_links(struct submission *submission)
{
    for (uint32_t i = 0; i < submission->num_links; i++)
        run_link_over(submission->links[i].run);
}

static void end_all(struct submission *submission, enum status status, const struct error *error)
{
    for (uint32_t i = 0; i < submission->num_links; i++)
        run_fail(submission->links[i].run, status, error->text);
    end_links(submission);
}

// Gives a session whose links have all come back its turns again, if the engine has what they need.
// It earns no credit for the time of the compile.
static void resume(struct core_session *session)
{
    if (!session->runs.put_off || session->runs.num_in_flight ||
        !engine_line_resume(session->ledger->engine, session->id))
        return;
    session->runs.put_off = false;
    turns_ready(&session->turn);
}

// Notes the sessions first, because run_deliver() may free runs and session_passed() a session.
static void deliver(struct scheduler *scheduler, struct submission *submission)
{
    for (uint32_t i = 0; i < submission->num_links; i++)
        scheduler->served[i] = submission->links[i].run->session;
    for (uint32_t i = 0; i < submission->num_links; i++) {
        struct core_session *session = scheduler->served[i];
        run_deliver(session);
        session->runs.num_in_flight--;
        resume(session);
        session_passed(session);
    }
}

static void count_in_flight(struct submission *submission)
{
    for (uint32_t i = 0; i < submission->num_links; i++)
        submission->links[i].run->session->runs.num_in_flight++;
}

// After a submission was refused: if the device is lost, all other runs fail, too.
static void refused(struct core *core, enum status status, const struct error *error)
{
    if (status != STATUS_DEVICE_LOST)
        return;
    core->ledger.lost_why = *error;
    scheduler_lost(core);
}

static struct submission *next_submission(struct scheduler *s)
{
    struct submission *next =
        &s->in_flight[(s->first_in_flight + s->num_in_flight) % SCHEDULER_MAX_IN_FLIGHT];
    next->is_long = false;
    return next;
}

static enum status submit(struct core *core, const struct engine_submission *order,
                          struct submission *submission, struct error *error)
{
    enum status status = engine_submit(core->ledger.engine, order, &submission->sequence, error);
    if (status == STATUS_OK) {
        core->scheduler.num_in_flight++;
        core->ledger.metrics[METRIC_SUBMISSIONS]++;
        submission->zeroes = order->num_zeroes > 0;
        if (submission->zeroes)
            core->scheduler.last_zeroes = submission->sequence;
        core->pool.zeroes_submitted += submission->zeroes;
    }
    return status;
}

static void fail_runs(struct core *core, struct submission *submission, enum status status,
                      const struct error *error)
{
    ledger_log(&core->ledger, CORE_LOG_ERROR, "a submission of %" PRIu32 " runs failed: %s",
               submission->num_links, error->text);
    end_all(submission, status, error);
    deliver(&core->scheduler, submission);
    refused(core, status, error);
}

// False: all that was ready had waited too long, or is to wait.
static bool submit_runs(struct core *core)
{
    struct scheduler *s = &core->scheduler;
    struct submission *submission = next_submission(s);
    struct error error = {0};
    submission->num_links = pick_links(core, ++s->submissions);
    if (!submission->num_links)
        return false;
    submission->is_long = is_long(core, &s->picked[submission->num_links - 1]);
    const struct engine_submission order = {
        .runs = s->engine_runs,
        .num_runs = submission->num_links,
        .wave_ends = s->wave_ends,
        .num_waves = lay_waves(s, submission),
    };
    count_in_flight(submission);
    enum status status = submit(core, &order, submission, &error);
    if (status != STATUS_OK)
        fail_runs(core, submission, status, &error);
    return true;
}

// Submits the zeroing of new blocks. Zeroing has submissions of its own, so that no run fails if
// one of them is refused for lack of memory. Then fewer blocks are tried. If not even one fits, the
// runs wait until submissions in flight end. If none is in flight, nothing would ever wake the
// runs, so the runs of the next submission fail. After any other error they fail, too. The blocks
// stay in the list of blocks to zero.
static void submit_zeroes(struct core *core)
{
    struct scheduler *s = &core->scheduler;
    struct submission *submission = next_submission(s);
    struct error error = {0};
    enum status status = STATUS_NO_MEMORY;
    submission->num_links = 0;
    for (uint32_t count = zeroes_slice(&core->pool); count && status == STATUS_NO_MEMORY;
         count /= 2) {
        const struct engine_submission order = {.zeroes = core->pool.zeroes, .num_zeroes = count};
        status = submit(core, &order, submission, &error);
        if (status == STATUS_OK)
            zeroes_drop(&core->pool, count);
    }
    if (status == STATUS_OK || (status == STATUS_NO_MEMORY && s->num_in_flight))
        return;
    submission->num_links = pick_links(core, ++s->submissions);
    lay_waves(s, submission);
    count_in_flight(submission);
    fail_runs(core, submission, status, &error);
}

// A submission without work. Its end says that the queue has passed the deaths of processes that
// were proven before.
static void submit_fence(struct core *core)
{
    struct submission *submission = next_submission(&core->scheduler);
    const struct engine_submission nothing = {.num_runs = 0};
    struct error error = {0};
    submission->num_links = 0;
    enum status status = submit(core, &nothing, submission, &error);
    if (status == STATUS_OK)
        session_fence(core, submission->sequence);
    else
        refused(core, status, &error); // without memory the next step tries again
}

// Keeps the four highest bits, so that a sequence that grows by some tokens stays of one kind.
static uint64_t about(uint64_t number)
{
    int rest = number >> 4 ? 60 - __builtin_clzll(number) : 0;
    return number >> rest << rest;
}

// Submissions of one kind take about the same time: they have as many links, and about as many
// tokens attended and multiply-adds.
static uint64_t kind_of(const struct submission *submission)
{
    uint64_t tokens = 0, work = 0; // a sum that wraps still makes a kind
    for (uint32_t i = 0; i < submission->num_links; i++) {
        tokens += run_link_weight(&submission->links[i]);
        work += run_link_work(&submission->links[i]);
    }
    const uint64_t kind[] = {submission->num_links, about(tokens), about(work)};
    return XXH3_64bits(kind, sizeof kind);
}

// Tells `delay` which submission ends next, if that has changed.
static void watch_first(struct core *core)
{
    const struct scheduler *s = &core->scheduler;
    const struct submission *first = s->num_in_flight ? &s->in_flight[s->first_in_flight] : NULL;
    const uint64_t sequence = first ? first->sequence : 0;
    if (sequence == core->delay.sequence)
        return;
    if (core->delay.sequence && s->prepared_ns)
        delay_prepared(&core->delay, (int64_t)s->prepared_ns);
    delay_next(&core->delay, sequence, first ? kind_of(first) : 0, core->ledger.now_ns,
               core->woken);
}

// True: ready runs wait for sessions that are expected soon.
static bool keeps_back(struct core *core)
{
    const struct scheduler *s = &core->scheduler;
    if (!s->num_in_flight || !s->turns.num_expected || core->pool.num_zeroes)
        return false;
    watch_first(core);
    return delay_keep_back(&core->delay, core->ledger.now_ns);
}

// Blocks that a haul writes are zeroed before. If that is refused and nothing is in flight, nothing
// would wake the hauls, so they fail.
static void submit_hauls(struct core *core)
{
    struct scheduler *s = &core->scheduler;
    if (core->ledger.lost || !s->turns.hauling)
        return;
    if (core->pool.num_zeroes && hauls_go_in(core) && s->num_in_flight < SCHEDULER_MAX_IN_FLIGHT)
        submit_zeroes(core);
    if (core->pool.num_zeroes && !s->num_in_flight)
        hauls_refuse(core);
    hauls_submit(core);
}

void scheduler_submit(struct core *core)
{
    struct scheduler *s = &core->scheduler;
    submit_hauls(core);
    delay_begin_step(&core->delay);
    gather_begin_step(&s->gather, s->turns.num_ready > 0);
    if (core->num_proven && !core->ledger.lost && s->num_in_flight < SCHEDULER_MAX_IN_FLIGHT)
        submit_fence(core);
    while (!core->ledger.lost && s->num_in_flight < SCHEDULER_MAX_IN_FLIGHT && s->turns.num_ready &&
           !keeps_back(core)) {
        uint32_t zeroes = core->pool.num_zeroes, waiting = s->num_in_flight;
        bool some = gather_part(core);
        if (zeroes)
            submit_zeroes(core);
        else if (some)
            some = submit_runs(core);
        gather_rejoin(core);
        if (!some || (zeroes && zeroes == core->pool.num_zeroes && waiting))
            return; // all wait, or no memory for zeroes; the submissions in flight free some
    }
}

int64_t scheduler_wake_ns(struct core *core)
{
    watch_first(core);
    const int64_t end_ns = delay_wake_ns(&core->delay, core->ledger.now_ns),
                  wait_ns = core->scheduler.gather.wake_ns;
    return end_ns < wait_ns ? end_ns : wait_ns;
}

// ---- after the GPU ----

static int by_dispatch(const void *a, const void *b, void *results)
{
    const struct engine_run_result *all = results;
    uint32_t x = all[*(const uint32_t *)a].dispatch, y = all[*(const uint32_t *)b].dispatch;
    return (x > y) - (x < y);
}

// The counter for a dispatch that served `sessions` sessions: 1, 2, 3 to 4, 5 to 8, or more.
static enum metric served_class(uint32_t sessions)
{
    uint32_t class = sessions > 1 ? 32 - (uint32_t)__builtin_clz(sessions - 1) : 0,
             last = METRIC_DISPATCHES_OF_MORE;
    return METRIC_DISPATCHES_OF_1 + class < last ? METRIC_DISPATCHES_OF_1 + class : last;
}

static void count_dispatch(struct core *core, uint32_t sessions)
{
    uint64_t *metrics = core->ledger.metrics;
    metrics[METRIC_SESSIONS_SERVED] += sessions;
    metrics[served_class(sessions)]++;
    if (sessions > metrics[METRIC_MAX_SESSIONS_SERVED])
        metrics[METRIC_MAX_SESSIONS_SERVED] = sessions;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

// Adds one dispatch to the result of a run, which may have had others.
static void add_result(struct run *run, uint64_t gpu_ns, uint32_t runs, uint32_t sessions)
{
    if (run->result.status != STATUS_OK)
        return;
    run->result.gpu_ns += gpu_ns;
    run->result.num_runs = max_u32(run->result.num_runs, runs);
    run->result.num_sessions = max_u32(run->result.num_sessions, sessions);
}

// Adds one dispatch to the results of its runs, with the numbers of runs and sessions that shared
// it. Its links are order[0 .. count); a single link may also have had no dispatch.
static void read_dispatch(struct core *core, const struct submission *submission,
                          const struct engine_event *event, const uint32_t *order, uint32_t count)
{
    uint32_t sessions = 0, runs = 0;
    uint64_t stamp = ++core->ledger.last_stamp;
    for (uint32_t i = 0; i < count; i++) {
        struct run *run = submission->links[order[i]].run;
        sessions += run->session->stamp != stamp;
        runs += run->stamp != stamp;
        run->session->stamp = run->stamp = stamp;
    }
    stamp = ++core->ledger.last_stamp;
    for (uint32_t i = 0; i < count; i++) {
        struct run *run = submission->links[order[i]].run;
        // All layers of a run in this dispatch report the same gpu_ns: add it once.
        if (run->stamp != stamp)
            add_result(run, event->results[order[i]].gpu_ns, runs, sessions);
        run->stamp = stamp;
    }
    if (event->results[order[0]].dispatch < event->num_dispatches)
        count_dispatch(core, sessions);
}

static void learn_speed(struct speed *speed, const struct layer_run *link, uint64_t ns)
{
    uint64_t work, layer_ns;
    if (run_link_took(link, ns, &work, &layer_ns))
        speed_learn(speed, run_link_kind(link), work, layer_ns);
}

// Takes over the results of a submission. Returns the GPU time of the links that succeeded, in ns.
static uint64_t read_results(struct core *core, struct submission *submission,
                             const struct engine_event *event)
{
    uint64_t gpu_ns = 0;
    uint32_t *order = core->scheduler.order, good = 0;
    for (uint32_t i = 0; i < submission->num_links; i++) {
        enum status status = i < event->num_results ? event->results[i].status : STATUS_INTERNAL;
        if (status == STATUS_BUSY) {
            continue; // put off
        } else if (status == STATUS_OK) {
            order[good++] = i;
            gpu_ns += event->results[i].own_ns;
            submission->links[i].run->session->totals.gpu_ns += event->results[i].own_ns;
            learn_speed(&core->scheduler.speed, &submission->links[i], event->results[i].own_ns);
        } else {
            run_fail(submission->links[i].run, status,
                     i < event->num_results ? event->results[i].message : NULL);
        }
    }
    qsort_r(order, good, sizeof *order, by_dispatch, (void *)event->results);
    for (uint32_t first = 0, end; first < good; first = end) {
        uint32_t dispatch = event->results[order[first]].dispatch;
        // From num_dispatches on, a link had no dispatch and shares none.
        for (end = first + 1; end < good && dispatch < event->num_dispatches; end++) {
            if (event->results[order[end]].dispatch != dispatch)
                break;
        }
        read_dispatch(core, submission, event, order + first, end - first);
    }
    return gpu_ns;
}

// Adapts the budget to the device. After a submission that took longer than SCHEDULER_TIME_NS, the
// budget becomes what would have taken that long at the same speed. After one that was at least
// half full and took less than half that time, the budget doubles. It stays between TURNS_QUANTUM
// and SCHEDULER_BUDGET.
static void learn_budget(struct scheduler *scheduler, const struct submission *submission,
                         uint64_t gpu_ns)
{
    const uint64_t least = TURNS_QUANTUM, most = SCHEDULER_BUDGET, budget = scheduler->budget;
    uint64_t weight = 0;
    for (uint32_t i = 0; i < submission->num_links; i++)
        if (__builtin_add_overflow(weight, run_link_weight(&submission->links[i]), &weight))
            weight = UINT64_MAX;
    if (gpu_ns > SCHEDULER_TIME_NS) {
        uint64_t would_do = (uint64_t)((double)weight * SCHEDULER_TIME_NS / (double)gpu_ns);
        scheduler->budget = would_do > budget ? budget : would_do > least ? would_do : least;
    } else if (gpu_ns < SCHEDULER_TIME_NS / 2 && weight >= budget / 2) {
        scheduler->budget = budget < most / 2 ? budget * 2 : most;
    }
}

// Moves the links that the engine has put off behind the others, and queues them again. Returns the
// number of the others.
static uint32_t put_back(struct scheduler *scheduler, struct submission *submission,
                         const struct engine_event *event)
{
    uint32_t kept = 0, back = 0;
    for (uint32_t i = 0; i < submission->num_links; i++) {
        const struct layer_run link = submission->links[i];
        if (i < event->num_results && event->results[i].status == STATUS_BUSY)
            scheduler->picked[back++] = link;
        else
            submission->links[kept++] = link;
    }
    for (uint32_t i = 0; i < back; i++) {
        submission->links[kept + i] = scheduler->picked[i];
        run_put_back(&scheduler->picked[i]);
    }
    return kept;
}

static struct submission *take_first(struct scheduler *scheduler)
{
    struct submission *submission = &scheduler->in_flight[scheduler->first_in_flight];
    scheduler->first_in_flight = (scheduler->first_in_flight + 1) % SCHEDULER_MAX_IN_FLIGHT;
    scheduler->num_in_flight--;
    return submission;
}

// Notes the sessions that `submission` served, that are open and that have no queued run. Their
// next step is likely to come soon.
static void expect_back(struct scheduler *scheduler, const struct submission *submission,
                        int64_t now_ns)
{
    scheduler->turns.last_ended = submission->sequence;
    scheduler->turns.num_expected = 0;
    for (uint32_t i = 0; i < submission->num_links; i++) {
        struct core_session *session = submission->links[i].run->session;
        if (session->runs.queued || session->closed || turns_expects(&session->turn))
            continue;
        turns_away(&session->turn, now_ns);
        session->turn.expected = scheduler->turns.last_ended;
        scheduler->turns.num_expected++;
    }
}

static void end_zeroes(struct core *core, const struct submission *submission)
{
    if (!submission->zeroes)
        return;
    core->pool.zeroes_ended++;
    core->ledger.news = true; // a lease may wait for it, or a take of an attached session
    takers_wake_all(&core->offers);
}

void scheduler_done(struct core *core, const struct engine_event *event)
{
    struct scheduler *s = &core->scheduler;
    if (!s->num_in_flight || s->in_flight[s->first_in_flight].sequence != event->sequence) {
        if (!core->ledger.lost) // scheduler_lost() has ended all submissions
            ledger_log(&core->ledger, CORE_LOG_ERROR,
                       "submission %" PRIu64 " is done, but is not the next one", event->sequence);
        return;
    }
    struct submission *submission = take_first(s);
    const uint64_t gpu_ns = read_results(core, submission, event);
    const uint32_t num_links = submission->num_links;
    submission->num_links = put_back(s, submission, event);
    learn_budget(s, submission, gpu_ns);
    gather_learn(core, submission, gpu_ns);
    core->ledger.metrics[METRIC_DISPATCHES] += event->num_dispatches;
    s->prepared_ns = event->prepared_ns;
    expect_back(s, submission, core->ledger.now_ns);
    end_links(submission);
    submission->num_links = num_links;
    deliver(s, submission);
    end_zeroes(core, submission);
    session_fenced(core, event->sequence);
}

void scheduler_compiled(struct core *core)
{
    struct core_session *session;
    LIST_EACH(core->sessions, session)
        resume(session);
}

void scheduler_lost(struct core *core)
{
    struct core_session *session, *next;
    core->ledger.lost = true;
    core->ledger.news = true;
    while (core->scheduler.num_in_flight) {
        struct submission *submission = take_first(&core->scheduler);
        end_all(submission, STATUS_DEVICE_LOST, &core->ledger.lost_why);
        deliver(&core->scheduler, submission);
        end_zeroes(core, submission);
    }
    hauls_lost(core);
    session_fenced(core, UINT64_MAX);
    LIST_EACH_SAFE(core->sessions, session, next) {
        run_drop_queued(session, STATUS_DEVICE_LOST);
        run_deliver(session);
    }
    zeroes_drop(&core->pool, core->pool.num_zeroes);
}
