// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// joint.c - see joint.h. Batches never change, so a joint is right for as long as anybody asks for
// it. The submitter adds, the maker frees when the GPU has finished.

#include "joint.h"

#include "base/container_of.h"
#include "base/list.h"
#include "engine/state/state.h"
#include "items.h"

#include <stdlib.h>
#include <string.h>

// Workers at different layers or steps meet in different companies. With more of them than this,
// lists are made again.
enum { MOST_JOINTS = 8 };

static void joint_free(struct joint *joint)
{
    if (!joint)
        return;
    slab_give(joint->slabs, &joint->piece);
    free(joint->serials);
    free(joint->works);
    free(joint);
}

static void run_joint_end(struct engine *engine, struct job *job)
{
    (void)engine;
    joint_free(container_of(job, struct joint, end));
}

static bool is_of(const struct joint *joint, struct engine_batch *const *batches,
                  uint32_t num_batches, const struct cutting *cutting)
{
    if (joint->num_batches != num_batches || !cutting_same(&joint->cutting, cutting))
        return false;
    for (uint32_t i = 0; i < num_batches; i++)
        if (joint->serials[i] != batches[i]->serial)
            return false;
    return true;
}

static struct joint *joint_find(struct engine *engine, struct engine_batch *const *batches,
                                uint32_t num_batches, const struct cutting *cutting)
{
    struct joint *joint;
    LIST_EACH(engine->joints, joint)
        if (is_of(joint, batches, num_batches, cutting))
            break;
    if (!joint)
        return NULL;
    LIST_DELETE(engine->joints, joint);
    LIST_PREPEND(engine->joints, joint);
    return joint;
}

// Whether a crowd has members of different batches.
static bool shares(const struct cuts *cuts)
{
    for (uint32_t i = 0; i < cuts->crowds.num_crowds; i++) {
        const struct crowd *crowd = &cuts->crowds.crowds[i];
        const uint32_t *members = cuts->crowds.members + crowd->first;
        for (uint32_t j = 1; j < crowd->count; j++)
            if (cuts_batch_of(cuts, members[j]) != cuts_batch_of(cuts, members[0]))
                return true;
    }
    return false;
}

static struct joint *joint_create(struct engine *engine, struct engine_batch *const *batches,
                                  uint32_t num_batches, const struct cutting *cutting)
{
    struct joint *joint = calloc(1, sizeof *joint);
    struct cuts cuts = {0};
    struct error error;
    if (!joint)
        return NULL;
    joint->slabs = &engine->slabs;
    joint->cutting = *cutting;
    joint->num_batches = num_batches;
    joint->serials = calloc(num_batches, sizeof *joint->serials);
    joint->works = calloc(num_batches, sizeof *joint->works);
    bool made = joint->serials && joint->works && cuts_make(&cuts, batches, num_batches, cutting);
    for (uint32_t i = 0; made && i < num_batches; i++)
        joint->serials[i] = batches[i]->serial;
    joint->shares = made && shares(&cuts);
    if (joint->shares)
        made = items_make(&cuts, cutting, joint->works, NULL, &joint->piece, &error) == STATUS_OK;
    cuts_finish(&cuts);
    if (made)
        return joint;
    joint_free(joint);
    return NULL;
}

// Adds `joint` as the most recent. If there are too many, the least recently used one is freed when
// the GPU has finished with it.
static void joints_add(struct engine *engine, struct joint *joint)
{
    struct joint *each, *oldest;
    int count = 0;
    LIST_PREPEND(engine->joints, joint);
    LIST_EACH(engine->joints, each)
        count++;
    if (count <= MOST_JOINTS)
        return;
    oldest = engine->joints->prev;
    LIST_DELETE(engine->joints, oldest);
    oldest->end = (struct job){.after = oldest->last_sequence, .run = run_joint_end};
    pthread_mutex_lock(&engine->lock);
    job_post(engine, &oldest->end);
    pthread_mutex_unlock(&engine->lock);
}

const struct joint *joint_get(struct engine *engine, struct engine_batch *const *batches,
                              uint32_t num_batches, const struct cutting *cutting,
                              uint64_t sequence)
{
    struct joint *joint = joint_find(engine, batches, num_batches, cutting);
    if (!joint) {
        joint = joint_create(engine, batches, num_batches, cutting);
        if (!joint)
            return NULL;
        joints_add(engine, joint);
    }
    joint->last_sequence = sequence;
    return joint;
}

void joints_finish(struct engine *engine)
{
    while (engine->joints) {
        struct joint *joint = engine->joints;
        LIST_DELETE(engine->joints, joint);
        joint_free(joint);
    }
}
