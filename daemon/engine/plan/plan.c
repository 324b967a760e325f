// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// plan.c - turns a submission's runs into as few dispatches as their pipelines allow. Records
// nothing, and computes no work list: choice.c and cut.c make those, encode.c writes what a
// shader reads. Submitter only, except plan_num_shares().
//
// Shares and groups. An attention whose sequences go to several kernels has a share for each. Each
// share is planned as a group of its own first. It then joins a group of its wave that needs the
// same pipelines, whatever session or layer it belongs to; a group is one ragged dispatch.
//
// Failure. A run joins with all of its shares or with none, so it fails alone. Memory for parts
// that is short fails the runs that need it, in their order. If a run of a company cannot be
// planned, all is planned again without companies (`apart`): a run never fails because of another
// session's run.
//
// Pipelines that are not there. The first run that lacks one asks the compiler for it and puts its
// line off: this run and all later ones of the session come back unstarted. Cascades and companies
// are optional: they are only asked for, and until they are there their runs go without.
//
// Repeats. The waves of a model step differ in layers and tensors alone. So the plan of a wave that
// is like the one before is a copy of that plan.

#include "plan.h"

#include "check.h"
#include "choice.h"
#include "company.h"
#include "encode.h"
#include "engine/memory/arena.h"
#include "engine/memory/slot.h"
#include "items.h"
#include "joint.h"
#include "run_geometry.h"
#include "slices.h"

#include <inttypes.h>
#include <string.h>

// ---- which pipelines ----

static bool writes(const struct engine_run *run)
{
    return ((run->kind == ENGINE_ATTEND && !run->is_written) || run->kind == ENGINE_WRITE) &&
           run->batch->address[BATCH_SLOT_MAPPING];
}

// The first that is neither OK nor BUSY; otherwise BUSY, if one is.
static enum status worse(enum status a, enum status b)
{
    return a == STATUS_OK || (a == STATUS_BUSY && b != STATUS_OK) ? b : a;
}

// The line that waits for the pipelines of run `index`. No line waits for those of a company: they
// are only asked for, and until they are there its runs go alone. So no run waits because of
// another session's run.
static struct line_name line_of(const struct submission *s, uint32_t index)
{
    const struct engine_run *run = &s->runs[index];
    const bool joint = run->line && s->planned[index].joint;
    return (struct line_name){joint ? PIPELINE_LATER : run->line, run->payer};
}

// Whether both groups need the same pipelines.
static bool alike(const struct group *one, const struct group *other)
{
    return one->kind == other->kind &&
           memcmp(&one->geometry, &other->geometry, sizeof one->geometry) == 0;
}

// A group like this one in the wave that begins at group `first`; NULL: none.
static const struct group *find_like(const struct submission *s, uint32_t first,
                                     const struct group *group)
{
    for (uint32_t i = first; i < s->num_groups; i++)
        if (alike(&s->groups[i], group))
            return &s->groups[i];
    return NULL;
}

// Gets the pipelines that the share of `run` needs in `group`: those that a like group of the wave
// has, and others by their keys. BUSY: some are not there yet, and all of these were asked for.
static enum status get_pipelines(struct submission *s, uint32_t first, uint32_t index,
                                 struct group *group, struct error *error)
{
    static const struct group no_group = {.num_runs = 0};
    const struct engine_run *run = &s->runs[index];
    const struct line_name line = line_of(s, index);
    const struct group *found = find_like(s, first, group), *like = found ? found : &no_group;
    struct geometry redo = group->geometry;
    const struct {
        bool wanted;
        enum pipeline_kind kind;
        VkPipeline *out, known;
        const struct geometry *geometry;
    } pipelines[] = {
        {group->num_writers > 0, PIPELINE_KV_WRITE, &group->write, like->write, &group->geometry},
        {run->kind == ENGINE_COPY, PIPELINE_COPY, &group->write, like->write, &group->geometry},
        {run->kind == ENGINE_ATTEND && !group->is_native, PIPELINE_ATTENTION, &group->read,
         like->read, &group->geometry},
        {run->kind == ENGINE_GATHER, PIPELINE_GATHER, &group->read, like->read, &group->geometry},
        {run->kind == ENGINE_MERGE, PIPELINE_MERGE, &group->read, like->read, &group->geometry},
        {group->num_merges > 0, PIPELINE_SPLITS, &group->merge, like->merge, &group->geometry},
        {group->num_doubtful > 0, PIPELINE_ATTENTION, &group->redo, like->redo, &redo},
    };
    enum status status = STATUS_OK;
    redo.spec[AULE_SPEC_FEATURES] |= AULE_FEATURE_REDO;
    for (size_t i = 0; i < sizeof pipelines / sizeof *pipelines; i++) {
        if (pipelines[i].wanted)
            *pipelines[i].out = pipelines[i].known;
        if (pipelines[i].wanted && !pipelines[i].known &&
            (status == STATUS_OK || status == STATUS_BUSY))
            status =
                worse(status, pipeline_get(&s->engine->pipelines, pipelines[i].kind,
                                           pipelines[i].geometry, line, pipelines[i].out, error));
    }
    if (group->is_native && (status == STATUS_OK || status == STATUS_BUSY))
        status = worse(status, pipeline_native(&s->engine->pipelines, &group->geometry, line,
                                               &group->native, error));
    return status;
}

// ---- groups ----

// A native kernel counts these in 32 bits, and its blocks count a little further.
static uint64_t units(const struct group *group)
{
    return (uint64_t)group->num_items * group->geometry.spec[AULE_SPEC_NUM_KV_HEADS];
}

// Whether `fresh`, a group of one share, can join `group`.
static bool joins(const struct submission *s, const struct group *group, const struct group *fresh)
{
    return alike(group, fresh) && group->kind != ENGINE_MERGE && !group->is_apart &&
           !fresh->is_apart && units(group) + units(fresh) <= INT32_MAX &&
           group->num_items <= INT32_MAX - fresh->num_items &&
           group->num_tokens <= INT32_MAX - fresh->num_tokens &&
           group->num_merges <= INT32_MAX - fresh->num_merges &&
           group->partial_bytes <= s->engine->max_scratch_bytes - fresh->partial_bytes;
}

static void add_to_group(struct group *group, const struct group *fresh)
{
    group->write = fresh->write ? fresh->write : group->write;
    group->merge = fresh->merge ? fresh->merge : group->merge;
    group->redo = fresh->redo ? fresh->redo : group->redo;
    group->num_runs++;
    group->num_writers += fresh->num_writers;
    group->num_split_runs += fresh->num_split_runs;
    group->num_tails += fresh->num_tails;
    group->num_items += fresh->num_items;
    group->num_tokens += fresh->num_tokens;
    group->num_merges += fresh->num_merges;
    group->num_doubtful += fresh->num_doubtful;
    group->partial_bytes += fresh->partial_bytes;
}

// Adds `fresh` to a group of the current wave, which begins at group `first`, or makes a new group.
static uint32_t join_group(struct submission *s, uint32_t first, const struct group *fresh)
{
    for (uint32_t i = first; i < s->num_groups; i++) {
        if (s->groups[i].helps || !joins(s, &s->groups[i], fresh))
            continue;
        add_to_group(&s->groups[i], fresh);
        return i;
    }
    s->groups[s->num_groups] = *fresh;
    return s->num_groups++;
}

// Adds `fresh` to the cascade of group `helped`, or makes this cascade. It writes its results into
// the memory of `helped`, so it serves no other group.
static uint32_t join_helper(struct submission *s, uint32_t helped, const struct group *fresh)
{
    uint32_t helper = s->groups[helped].helper;
    if (helper) {
        add_to_group(&s->groups[helper], fresh);
        return helper;
    }
    s->groups[s->num_groups] = *fresh;
    s->groups[s->num_groups].helps = true;
    s->groups[helped].helper = s->num_groups;
    return s->num_groups++;
}

// ---- shares ----

uint32_t plan_num_shares(const struct engine *engine, const struct engine_run *run)
{
    return run->kind == ENGINE_ATTEND ? engine->pipelines.variant->num_kernels : 1;
}

uint32_t plan_group(const struct submission *s, uint32_t run)
{
    const struct planned *planned = &s->planned[run];
    return planned->num_shares ? planned->shares[0].group : NO_GROUP;
}

void plan_forget(struct submission *s, uint32_t run)
{
    s->planned[run].num_shares = 0;
}

void plan_break_slices(const struct engine_run *run)
{
    if (run->kind == ENGINE_ATTEND && run_is_slice(run))
        slices_break(run->batch);
}

// Takes a run whose plan is to be made; nothing of it is known yet.
static void begin_run(struct submission *s, uint32_t run)
{
    plan_forget(s, run);
    s->planned[run].joint = NULL;
}

// The run's share of `kernel`; NULL: it has none.
static const struct share *share_of(const struct planned *planned, uint32_t kernel)
{
    for (uint32_t i = 0; i < planned->num_shares; i++)
        if (planned->shares[i].kernel == kernel)
            return &planned->shares[i];
    return NULL;
}

static enum status check_scratch(const struct engine_run *run,
                                 const struct work works[MOST_KERNELS], struct error *error)
{
    struct partials partials = {0};
    for (uint32_t i = 0; i < MOST_KERNELS; i++) {
        partials.count += works[i].num_partials;
        if (works[i].num_partials)
            partials.bytes += batch_partial_bytes(run->batch, i, works[i].num_partials);
    }
    return scratch_check(run->batch, &partials, error);
}

// The company's lists are made already.
static enum status plan_jointly(struct submission *s, uint32_t index, uint64_t num_workgroups,
                                struct choice *choice, struct work works[MOST_KERNELS],
                                struct error *error)
{
    const struct planned *planned = &s->planned[index];
    choice_make(choice, s, &s->runs[index], num_workgroups, false);
    memcpy(works, planned->joint->works[planned->number], sizeof planned->joint->works[0]);
    return check_scratch(&s->runs[index], works, error);
}

// Sets works[] to the run's work for each kernel. Tries the choice for `num_workgroups` first. If
// memory or scratch space is short, it tries whole parts without a cascade.
static enum status plan_work(struct submission *s, const struct engine_run *run,
                             uint64_t num_workgroups, struct choice *choice,
                             struct work works[MOST_KERNELS], struct error *error)
{
    enum status status = STATUS_LIMIT;
    bool alone = s->alone || s->engine->helpers_refused || run_is_slice(run);
    // All slices must be cut alike, whatever their neighbours.
    num_workgroups = run_is_slice(run) ? UINT64_MAX : num_workgroups;
    for (int attempt = 0; attempt < 2 && (status == STATUS_LIMIT || status == STATUS_NO_MEMORY);
         attempt++) {
        choice_make(choice, s, run, attempt ? UINT64_MAX : num_workgroups, attempt > 0 || alone);
        status =
            run_is_slice(run)
                ? batch_slice(run->batch, &choice->cutting, run->slice, s->sequence, works, error)
                : batch_work(run->batch, &choice->cutting, s->sequence, works, error);
        if (status == STATUS_OK)
            status = check_scratch(run, works, error);
    }
    return status;
}

// Kernel of the share that writes the run's K and V: the first that has work. A run with tokens
// always has one.
static uint32_t first_share(const struct engine_run *run, uint32_t num_shares,
                            const struct work works[MOST_KERNELS])
{
    uint32_t first = 0;
    while (run->kind == ENGINE_ATTEND && first < num_shares - 1 && works[first].num_items == 0)
        first++;
    return first;
}

static const struct kernel *kernel_of(const struct submission *s, const struct share *share)
{
    return s->engine->pipelines.variant->kernels[share->kernel];
}

static bool share_merges(const struct submission *s, const struct share *share)
{
    return share->work.num_merges > 0 && !kernel_of(s, share)->merges;
}

bool plan_has_tail(const struct submission *s, const struct share *share)
{
    const struct work *work = &share->work;
    return work->num_large && work->num_large < work->num_items && kernel_of(s, share)->merges;
}

uint32_t plan_num_tails(const struct group *group)
{
    return group->num_runs > 1 ? group->num_tails : 0;
}

// A group with nothing but this share of run `index`.
static struct group group_of_share(const struct submission *s, uint32_t index,
                                   const struct share *share, const struct geometry *geometry)
{
    const struct engine_run *run = &s->runs[index];
    const struct work *work = &share->work;
    bool merges = share_merges(s, share);
    bool has_tokens = share->writes || run->kind == ENGINE_GATHER || run->kind == ENGINE_MERGE;
    return (struct group){
        .kind = run->kind,
        .geometry = *geometry,
        .run = index,
        .is_apart = run_is_slice(run) && (run->kind == ENGINE_WRITE || run->kind == ENGINE_GATHER),
        .is_native = run->kind == ENGINE_ATTEND && kernel_of(s, share)->is_native,
        .num_runs = 1,
        .num_writers = share->writes,
        .num_split_runs = merges,
        .num_tails = plan_has_tail(s, share),
        .num_items = work->num_items,
        .num_tokens = has_tokens ? (uint32_t)run_num_tokens(run) : 0,
        .num_merges = merges ? work->num_merges : 0,
        .num_doubtful = work->num_doubtful,
        .partial_bytes = work->num_partials
                             ? batch_partial_bytes(run->batch, share->kernel, work->num_partials)
                             : 0,
    };
}

// Index of the kernel that cascade `kernel` helps; it stands earlier in the list. NO_KERNEL: it is
// no cascade.
static uint32_t helped_by(const struct submission *s, uint32_t kernel)
{
    const struct variant *variant = s->engine->pipelines.variant;
    for (uint32_t i = 0; i < kernel; i++)
        if (variant->kernels[i] == variant->kernels[kernel]->helps)
            return i;
    return NO_KERNEL;
}

// The shares of a run, each as a group of its own before it joins another.
struct plan {
    struct group fresh[MOST_KERNELS]; // of planned.shares[0, count)
    uint32_t count;
};

// Plans each share of a run as a group of its own. *failed: the group whose pipelines could not be
// made; NULL: the failure, if any, has another reason. BUSY: the pipelines that are not there yet
// were asked for.
static enum status plan_shares(struct submission *s, uint32_t first, uint32_t index,
                               uint64_t num_workgroups, struct plan *plan,
                               const struct group **failed, struct error *error)
{
    const struct engine_run *run = &s->runs[index];
    struct share *shares = s->planned[index].shares;
    struct work works[MOST_KERNELS] = {{0}};
    struct choice choice;
    enum status status = STATUS_OK;
    plan->count = 0;
    *failed = NULL;
    if (run->kind != ENGINE_ATTEND)
        choice.geometries[0] = geometry_of_run(run);
    else if (s->planned[index].joint)
        status = plan_jointly(s, index, num_workgroups, &choice, works, error);
    else
        status = plan_work(s, run, num_workgroups, &choice, works, error);
    const bool may_be_idle = run->kind == ENGINE_ATTEND && run_is_slice(run);
    const uint32_t end = plan_num_shares(s->engine, run),
                   writer = status == STATUS_OK ? first_share(run, end, works) : 0;
    for (uint32_t i = writer; i < end && (status == STATUS_OK || status == STATUS_BUSY); i++) {
        if ((i != writer || may_be_idle) && !works[i].num_items && !works[i].joins)
            continue;
        struct share *share = &shares[plan->count];
        struct group *fresh = &plan->fresh[plan->count++];
        *share = (struct share){
            .kernel = i, .group = NO_GROUP, .writes = i == writer && writes(run), .work = works[i]};
        *fresh = group_of_share(s, index, share, &choice.geometries[i]);
        status = worse(status, get_pipelines(s, first, index, fresh, error));
        if (status != STATUS_OK && status != STATUS_BUSY)
            *failed = fresh;
    }
    return status;
}

// Cascade kernels are optional: without their pipeline, shared keys are read once for each
// sequence. If memory was short, this submission goes without them; after another failure, all
// later ones too.
static bool go_without_helpers(struct submission *s, const struct group *failed,
                               const struct error *error)
{
    if (!failed || helped_by(s, failed->geometry.kernel) == NO_KERNEL ||
        error->status == STATUS_DEVICE_LOST)
        return false;
    s->alone = true;
    s->engine->helpers_refused = error->status != STATUS_NO_MEMORY;
    device_log(&s->engine->device, 0,
               "shared keys are read once for each sequence, which is slower: %s", error->text);
    return true;
}

// Whether `failed` is of a native kernel that was refused just now. Planned again, the run goes to
// GLSL.
static bool was_refused(const struct submission *s, const struct group *failed)
{
    return failed && failed->is_native &&
           pipeline_native_refused(&s->engine->pipelines, &failed->geometry);
}

// Whether this share of run `index`, a cascade, is in the group of those of its company that were
// planned before. A full group can part a company.
static bool stands_together(const struct submission *s, uint32_t index, const struct share *share)
{
    const struct planned *planned = s->planned;
    for (uint32_t other = planned[index].leader; other != NO_RUN; other = planned[other].next) {
        const struct share *before =
            other < index ? share_of(&planned[other], share->kernel) : NULL;
        if (before && before->work.joins)
            return before->group == share->group;
    }
    return true;
}

// Adds the planned shares of a run to the groups of the wave that begins at group `first`.
static void join_groups(struct submission *s, uint32_t first, uint32_t index,
                        const struct plan *plan)
{
    struct planned *planned = &s->planned[index];
    for (uint32_t i = 0; i < plan->count; i++) {
        struct share *share = &planned->shares[i];
        const uint32_t helped = helped_by(s, share->kernel);
        share->group = helped == NO_KERNEL
                           ? join_group(s, first, &plan->fresh[i])
                           : join_helper(s, share_of(planned, helped)->group, &plan->fresh[i]);
        planned->num_shares = i + 1;
        s->apart |= share->work.joins && !stands_together(s, index, share);
    }
}

// Adds run `index` to the groups of the wave that begins at group `first`: all its shares or none.
static enum status plan_run(struct submission *s, uint32_t first, uint32_t index,
                            uint64_t num_workgroups, struct error *error)
{
    struct plan plan;
    const struct group *failed = NULL;
    enum status status = engine_run_fits(s->engine, &s->runs[index], error);
    if (status == STATUS_OK)
        status = plan_shares(s, first, index, num_workgroups, &plan, &failed, error);
    if (status != STATUS_OK && !s->planned[index].joint && was_refused(s, failed))
        status = plan_shares(s, first, index, num_workgroups, &plan, &failed, error);
    if (status != STATUS_OK && status != STATUS_BUSY && go_without_helpers(s, failed, error) &&
        !s->planned[index].joint)
        status = plan_shares(s, first, index, num_workgroups, &plan, &failed, error);
    if (status == STATUS_OK)
        join_groups(s, first, index, &plan);
    return status;
}

// Takes a failed run's share out of `group`. The counts of items, tokens and merges stay, because
// place_groups() counts them again.
static void leave_group(const struct submission *s, struct group *group, const struct share *share)
{
    group->num_runs--;
    group->num_writers -= share->writes;
    group->num_split_runs -= share_merges(s, share);
    group->num_tails -= plan_has_tail(s, share);
    group->num_doubtful -= share->work.num_doubtful;
    if (group->num_runs == 0)
        *group = (struct group){.kind = group->kind,
                                .geometry = group->geometry,
                                .helper = group->helper,
                                .helps = group->helps};
    if (group->num_writers == 0)
        group->write = VK_NULL_HANDLE;
    if (group->num_split_runs == 0)
        group->merge = VK_NULL_HANDLE;
    if (group->num_doubtful == 0)
        group->redo = VK_NULL_HANDLE;
}

// A run of a company does not fail: all is planned again without companies.
static void fail_run(struct submission *s, uint32_t run, const struct error *error)
{
    if (s->planned[run].joint) {
        s->apart = true;
        return;
    }
    submission_fail(s, run, error);
    plan_break_slices(&s->runs[run]);
    for (uint32_t i = 0; i < s->planned[run].num_shares; i++) {
        const struct share *share = &s->planned[run].shares[i];
        leave_group(s, &s->groups[share->group], share);
    }
    plan_forget(s, run);
    device_log(&s->engine->device, 0, "submission %llu: run %u fails: %s",
               (unsigned long long)s->sequence, run, error->text);
}

// The run's line is put off: nothing of the run is done.
static void put_off(struct submission *s, uint32_t run)
{
    submission_fail(s, run, &(struct error){.status = STATUS_BUSY});
    plan_forget(s, run);
}

// Plans a run, unless an earlier run of its line is put off. A run without tokens needs no
// pipeline, but it may not overtake others.
static void plan_or_put_off(struct submission *s, uint32_t first, uint32_t run,
                            uint64_t num_workgroups)
{
    struct error error = {.status = STATUS_OK};
    enum status status = STATUS_BUSY;
    if (!line_is_put_off(&s->engine->pipelines.compiler, s->runs[run].line))
        status = run_num_tokens(&s->runs[run]) > 0 ? plan_run(s, first, run, num_workgroups, &error)
                                                   : STATUS_OK;
    if (status == STATUS_BUSY && !s->planned[run].joint)
        put_off(s, run);
    else if (status != STATUS_OK)
        fail_run(s, run, &error);
}

// A line that is not put off has had its turn: its pipelines need not be kept for it any more.
static void end_lines(struct submission *s)
{
    struct compiler *compiler = &s->engine->pipelines.compiler;
    for (uint32_t i = 0; i < s->num_runs; i++)
        if (!line_is_put_off(compiler, s->runs[i].line))
            line_end(compiler, s->runs[i].line);
}

// ---- a wave that repeats the one before ----
// A model step that is submitted as a whole has a wave for each layer. Its waves differ in layers
// and tensors alone, so the plan of the first one is right for all.

// Copies the fields that the plan does not depend on. The layer is one of them, but only runs of
// one layer can form a company.
static void take_place(struct engine_run *to, const struct engine_run *from)
{
    struct wire_tensor *const places[] = {&to->q, &to->k, &to->v, &to->out, &to->lse};
    const struct wire_tensor *const others[] = {&from->q, &from->k, &from->v, &from->out,
                                                &from->lse};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        places[i]->offset = others[i]->offset;
    to->layer = from->layer;
    to->slopes = to->slopes && from->slopes ? from->slopes : to->slopes;
    to->sinks = to->sinks && from->sinks ? from->sinks : to->sinks;
    if (to->rope.frequencies && from->rope.frequencies)
        to->rope.frequencies = from->rope.frequencies;
}

static bool run_repeats(const struct engine_run *run, const struct engine_run *before)
{
    struct engine_run same = *before;
    take_place(&same, run);
    // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): other padding costs only time
    return run->kind == ENGINE_ATTEND && memcmp(&same, run, sizeof same) == 0;
}

// Whether runs [begin, begin + count) can be planned as the `count` runs before them. All of those
// were planned, and the layers of all runs are the same distance away.
static bool wave_repeats(const struct submission *s, uint32_t begin, uint32_t count)
{
    const struct engine_run *runs = s->runs + begin, *before = runs - count;
    for (uint32_t i = 0; i < count; i++)
        if (runs[i].layer - before[i].layer != runs[0].layer - before[0].layer ||
            s->results[begin - count + i].status != STATUS_OK || !run_repeats(&runs[i], &before[i]))
            return false;
    return true;
}

static void repeat_groups(struct submission *s, uint32_t first, uint32_t num_runs)
{
    const uint32_t count = s->num_groups - first;
    for (uint32_t i = 0; i < count; i++) {
        struct group *group = &s->groups[s->num_groups + i];
        *group = s->groups[first + i];
        group->run += num_runs;
        group->helper += group->helper ? count : 0;
    }
    s->num_groups += count;
}

static void repeat_run(const struct submission *s, uint32_t run, uint32_t before,
                       uint32_t num_groups)
{
    struct planned *planned = &s->planned[run];
    const struct planned *same = &s->planned[before];
    memcpy(planned, same,
           offsetof(struct planned, shares) + same->num_shares * sizeof *same->shares);
    for (uint32_t i = 0; i < planned->num_shares; i++)
        planned->shares[i].group += num_groups;
    if (!planned->joint)
        return;
    planned->leader += run - before;
    planned->next += planned->next == NO_RUN ? 0 : run - before;
}

// Plans the wave as the one before. False: it does not repeat that one.
static bool repeat_wave(struct submission *s, uint32_t wave)
{
    const uint32_t begin = wave ? s->wave_ends[wave - 1] : 0, count = s->wave_ends[wave] - begin,
                   before = wave > 1 ? s->wave_ends[wave - 2] : 0, first = s->num_groups;
    if (!wave || begin - before != count || !wave_repeats(s, begin, count))
        return false;
    s->wave_groups[wave] = first;
    repeat_groups(s, s->wave_groups[wave - 1], count);
    for (uint32_t i = 0; i < count; i++)
        repeat_run(s, begin + i, before + i, s->num_groups - first);
    return true;
}

static void plan_wave(struct submission *s, uint32_t wave)
{
    uint32_t first = s->num_groups, begin = wave ? s->wave_ends[wave - 1] : 0;
    uint64_t num_workgroups = 0; // of the wave's runs, which share the device
    s->wave_groups[wave] = first;
    for (uint32_t i = begin; i < s->wave_ends[wave]; i++) {
        begin_run(s, i);
        num_workgroups += s->runs[i].kind == ENGINE_ATTEND ? batch_workgroups(s->runs[i].batch) : 0;
    }
    company_find(s, begin, s->wave_ends[wave], num_workgroups);
    for (uint32_t i = begin; i < s->wave_ends[wave]; i++)
        plan_or_put_off(s, first, i, num_workgroups);
}

// ---- memory for splits: counters of kernels that merge splits themselves; partial results ----

// A cascade's share uses the counters of the share that it helps.
uint64_t plan_counters(const struct submission *s, uint32_t run, const struct share *share)
{
    if (s->groups[share->group].helps || share->work.num_merges == 0 || share->work.kept_counters ||
        !kernel_of(s, share)->merges)
        return 0;
    return (uint64_t)share->work.num_merges * s->runs[run].batch->kv.num_kv_heads;
}

static uint64_t count_counters(const struct submission *s, uint32_t run)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < s->planned[run].num_shares; i++)
        count += plan_counters(s, run, &s->planned[run].shares[i]);
    return count;
}

// Gives out the counters that there are, in the order of runs. A run that does not get enough
// fails.
static void fail_runs_without_counters(struct submission *s, const struct error *why)
{
    uint64_t there = s->slot->counters_size / sizeof(uint32_t), used = 0;
    for (uint32_t i = 0; i < s->num_runs; i++) {
        struct error error = {0};
        uint64_t count = count_counters(s, i);
        if (count > there - used) {
            error_set(&error, why->status,
                      "its splits want %" PRIu64 " counters and %" PRIu64 " are left: %.160s",
                      count, there - used, why->text);
            fail_run(s, i, &error);
        }
        used += count_counters(s, i);
    }
}

static void plan_all_counters(struct submission *s)
{
    struct error error = {0};
    uint64_t count = 0;
    for (uint32_t i = 0; i < s->num_runs; i++)
        count += count_counters(s, i);
    if (slot_reserve_counters(s->engine, s->slot, count, &error) != STATUS_OK)
        fail_runs_without_counters(s, &error);
}

// Gives each group of a wave its place in scratch memory. When the memory is full, the next group
// uses it from offset 0, after the merges of the groups before it.
static void place_partials(struct submission *s, uint32_t wave)
{
    uint64_t used = 0;
    for (uint32_t i = s->wave_groups[wave]; i < s->wave_groups[wave + 1]; i++) {
        struct group *group = &s->groups[i];
        group->scratch_anew =
            used > 0 && group->partial_bytes > s->engine->max_scratch_bytes - used;
        if (group->scratch_anew)
            used = 0;
        group->partials_at = used;
        used += group->partial_bytes;
        if (used > s->scratch_bytes)
            s->scratch_bytes = used;
    }
}

// Whether the run needs memory of the submission for its parts. A slice of one tile has kept ones.
static bool is_split(const struct planned *planned)
{
    for (uint32_t i = 0; i < planned->num_shares; i++)
        if (planned->shares[i].work.num_merges > 0 && !planned->shares[i].work.kept_partials)
            return true;
    return false;
}

// Without scratch memory, runs with splits fail and write nothing. A group may be left without
// runs.
static void fail_split_runs(struct submission *s, const struct error *error)
{
    for (uint32_t i = 0; i < s->num_runs; i++)
        if (is_split(&s->planned[i]))
            fail_run(s, i, error);
    for (uint32_t i = 0; i < s->num_groups; i++)
        s->groups[i].scratch_anew = false;
}

static void plan_scratch(struct submission *s)
{
    struct error error = {0};
    plan_all_counters(s);
    for (uint32_t wave = 0; wave < s->num_waves; wave++)
        place_partials(s, wave);
    if (slot_reserve_scratch(s->engine, s->slot, s->scratch_bytes, &error) != STATUS_OK)
        fail_split_runs(s, &error);
}

// ---- ranges ----

// Where one side of a copy has its bytes of a layer. 0: the block has no memory.
static uint64_t side_address(struct engine_cache *cache, const struct engine_arena *arena,
                             uint64_t offset, int32_t block, uint32_t layer)
{
    if (block == ENGINE_COPY_ARENA) {
        const struct buffer *buffer = arena_buffer(arena, &offset);
        return buffer->address + offset + layer * cache->layer_block_bytes;
    }
    return cache_block_address(cache, layer, block);
}

static void place_range(struct submission *s, struct engine_cache *cache,
                        const struct engine_arena *arena, const struct engine_copy *copy,
                        uint32_t layer)
{
    const bool zeroes = copy->from == ENGINE_COPY_ZEROES;
    uint64_t source = zeroes ? 0 : side_address(cache, arena, copy->offset, copy->from, layer);
    uint64_t target = side_address(cache, arena, copy->offset, copy->to, layer);
    // A chunk without memory needs no zeroes: it is zeroed when it is made again.
    if (target && (source || zeroes))
        s->ranges[s->num_ranges++] = (struct gpu_range){source, target, cache->layer_block_bytes};
}

static void place_copies(struct submission *s, const struct engine_run *run)
{
    const struct run_span span = run_span(run);
    const uint32_t num_layers = run->cache->params.num_layers;
    for (uint64_t i = span.first; i < span.first + span.count; i++)
        place_range(s, run->cache, run->arena, &run->copies[i / num_layers],
                    (uint32_t)(i % num_layers));
}

// A wave has at most one group of copies, and groups are in the order of waves. So the ranges of a
// group are contiguous.
static void place_ranges(struct submission *s)
{
    for (uint32_t i = 0; i < s->num_zeroes; i++) {
        const struct engine_copy zero = {ENGINE_COPY_ZEROES, s->zeroes[i].block, 0};
        for (uint32_t layer = 0; layer < s->zeroes[i].cache->params.num_layers; layer++)
            place_range(s, s->zeroes[i].cache, NULL, &zero, layer);
    }
    s->num_zero_ranges = s->num_ranges;
    for (uint32_t i = 0; i < s->num_runs; i++) {
        const struct engine_run *run = &s->runs[i];
        if (run->kind != ENGINE_COPY || plan_group(s, i) == NO_GROUP)
            continue;
        struct group *group = &s->groups[plan_group(s, i)];
        if (group->num_ranges == 0)
            group->first_range = s->num_ranges;
        place_copies(s, run);
        group->num_ranges = s->num_ranges - group->first_range;
    }
}

// Runs without a dispatch get numbers above those of the groups.
static void number_dispatches(struct submission *s)
{
    uint32_t next = s->num_groups;
    for (uint32_t i = 0; i < s->num_runs; i++) {
        uint32_t group = plan_group(s, i);
        s->results[i].dispatch = group == NO_GROUP ? next++ : group;
    }
}

static void plan_waves(struct submission *s)
{
    for (uint32_t wave = 0; wave < s->num_waves; wave++)
        if (!repeat_wave(s, wave))
            plan_wave(s, wave);
    s->wave_groups[s->num_waves] = s->num_groups;
    plan_scratch(s);
}

// Forgets what an earlier attempt has planned.
static void plan_begin_again(struct submission *s)
{
    s->num_groups = 0;
    s->scratch_bytes = 0;
    for (uint32_t i = 0; i < s->num_runs; i++) {
        begin_run(s, i);
        submission_fail(s, i, &(struct error){.status = STATUS_OK});
    }
}

void plan_build(struct submission *s)
{
    bool apart = s->apart;
    plan_waves(s);
    if (s->apart != apart) {
        plan_begin_again(s);
        plan_waves(s);
    }
    end_lines(s);
    place_ranges(s);
    encode_measure(s);
    number_dispatches(s);
}
