// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// crews.c - see crews.h.

#include "crews.h"

#include "base/clock.h"

enum {
    PS_A_NS = 1000,
    PATIENCE = 2, // a session is waited for at least this part of the GPU's time for it
};

bool crews_same_prefix(const struct reading *a, const struct reading *b)
{
    return a->cache == b->cache && a->tenant == b->tenant && a->marks[0] == b->marks[0];
}

struct crew *crews_get(struct crews *crews, const struct reading *reading)
{
    if (!reading->cache)
        return NULL;
    uint32_t of_tenant = 0;
    for (uint32_t i = 0; i < crews->count; i++) {
        struct crew *crew = &crews->list[i];
        if (crew->reading.layer == reading->layer && crews_same_prefix(&crew->reading, reading))
            return crew;
        of_tenant += crew->reading.tenant == reading->tenant;
    }
    if (crews->count == CREWS_MOST || of_tenant == CREWS_OF_TENANT)
        return NULL;
    struct crew *crew = &crews->list[crews->count++];
    *crew = (struct crew){.reading = *reading};
    return crew;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void add(struct crew_part *part, const struct reading *reading, const struct habit *habit,
                const struct habit_gap *gap)
{
    if (!part->count++) {
        *part = (struct crew_part){
            1, *reading, gap->mean_ns, habit->gaps[1].mean_ns, habit->token_ps, habit->gpu_ns};
        return;
    }
    part->step_ns = most(part->step_ns, habit->gaps[1].mean_ns);
    part->mean_ns = most(part->mean_ns, gap->mean_ns);
    part->token_ps = least(part->token_ps, habit->token_ps);
    part->gpu_ns = least(part->gpu_ns, habit->gpu_ns);
}

void crews_add_ready(struct crews *crews, const struct reading *reading, const struct habit *habit,
                     bool held)
{
    struct reading next;
    struct crew *crew = crews_get(crews, reading);
    if (!crew)
        return;
    const struct habit_gap *gap = habit_next(habit, &next);
    crew->num_ready++;
    crew->num_held += held;
    if (gap)
        add(&crew->ready, reading, habit, gap);
}

// How long to wait for a session. Waiting for nothing costs the wait. Giving up too early costs a
// second read of the prefix, now and in the next few runs, because the sessions fall out of step.
static int64_t due_at(const struct habit *habit, const struct habit_gap *gap, int64_t ended_ns)
{
    return ended_ns == FOREVER ? FOREVER
                               : ended_ns + most(habit_gap_most_ns(gap), habit->gpu_ns / PATIENCE);
}

bool crews_add_expected(struct crews *crews, const struct habit *habit, int64_t ended_ns,
                        int64_t now_ns)
{
    struct reading next;
    const struct habit_gap *gap = habit_next(habit, &next);
    if (!gap)
        return false;
    const int64_t due_ns = due_at(habit, gap, ended_ns);
    if (due_ns <= now_ns)
        return false;
    struct crew *crew = crews_get(crews, &next);
    if (crew) {
        add(&crew->expected, &next, habit, gap);
        crew->ended_ns = most(crew->ended_ns, ended_ns);
        crew->due_ns = most(crew->due_ns, due_ns);
    }
    return true;
}

// True: `behind` will reach the layer of `crew`, or is in it.
static bool reaches(const struct crew *behind, const struct crew *crew)
{
    const struct reading *a = &crew->reading, *b = &behind->reading;
    if (!crews_same_prefix(a, b))
        return false;
    const uint32_t distance = (a->layer + a->num_layers - b->layer) % a->num_layers;
    return distance <= a->num_layers / 2;
}

// GPU time that one dispatch a layer saves over two: the shared tokens' in all layers of the runs,
// but at most that of a submission. 0: less than a wait would cost.
static int64_t gain(const struct crew *crew, const struct crew_part *part, int64_t prepares_ns)
{
    const uint64_t shared = reading_shared(&crew->reading, &part->reading);
    const int64_t num_read = least(crew->reading.num_read, part->reading.num_read),
                  saved_ns = least((int64_t)((double)shared * (double)num_read *
                                             (double)part->token_ps / PS_A_NS),
                                   part->gpu_ns);
    const bool ends_step = part->reading.layer > crew->reading.layer; // before it comes here
    const int64_t gap_ns = ends_step ? most(part->mean_ns, part->step_ns) : part->mean_ns;
    return part->count && gap_ns + prepares_ns <= saved_ns ? saved_ns : 0;
}

// True: another crew already waits for this one. Then this one waits for none that is behind it.
// Otherwise crews that lie all around the circle of layers would each wait a little, and none would
// reach another one.
static bool is_waited_for(const struct crew *crew, const struct crews *crews)
{
    for (uint32_t i = 0; i < crews->count; i++)
        if (&crews->list[i] != crew && crews->list[i].num_held && reaches(crew, &crews->list[i]))
            return true;
    return false;
}

static void wait_for_expected(struct crew *crew, const struct crews *crews, int64_t prepares_ns,
                              int64_t now_ns)
{
    const bool waited_for = is_waited_for(crew, crews);
    for (uint32_t i = 0; i < crews->count; i++) {
        const struct crew *other = &crews->list[i];
        const bool may = other == crew || (!waited_for && reaches(other, crew));
        const int64_t gain_ns = may ? gain(crew, &other->expected, prepares_ns) : 0;
        if (!gain_ns)
            continue;
        const int64_t until_ns =
            other->due_ns == FOREVER ? FOREVER : least(other->due_ns, other->ended_ns + gain_ns);
        if (until_ns > now_ns)
            crew->until_ns = most(crew->until_ns, until_ns);
    }
}

// A crew that waits is not waited for. So no circle of crews waits.
static void wait_for_ready(struct crew *crew, const struct crews *crews, int64_t prepares_ns)
{
    for (uint32_t i = 0; i < crews->count; i++) {
        const struct crew *other = &crews->list[i];
        if (other != crew && !other->until_ns && other->num_ready && reaches(other, crew) &&
            gain(crew, &other->ready, prepares_ns))
            crew->until_ns = FOREVER;
    }
}

void crews_decide(struct crews *crews, int64_t prepares_ns, int64_t now_ns)
{
    for (uint32_t i = 0; i < crews->count; i++)
        if (crews->list[i].num_ready)
            wait_for_expected(&crews->list[i], crews, prepares_ns, now_ns);
    for (uint32_t i = 0; i < crews->count; i++)
        if (crews->list[i].num_ready && !crews->list[i].until_ns &&
            !is_waited_for(&crews->list[i], crews))
            wait_for_ready(&crews->list[i], crews, prepares_ns);
}
