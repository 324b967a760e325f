// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// beside.c - see beside.h. A range is a whole tensor, from its first byte to its last, over all
// layers of the run. So links that interleave count as a conflict, which costs one barrier.

#include "beside.h"

#include "core/pool/session.h"
#include "run.h"

// Runs of one session in one wave. Each new one is compared with all of them, so this bounds the
// time.
enum { MOST_BESIDE = 64 };

static bool extents_meet(const struct run *a, const struct run *b)
{
    if (a->tensors.memory != b->tensors.memory)
        return false;
    for (uint32_t i = 0; i < a->tensors.num_extents; i++) {
        const struct tensor_extent *x = &a->tensors.extents[i];
        for (uint32_t j = 0; j < b->tensors.num_extents; j++) {
            const struct tensor_extent *y = &b->tensors.extents[j];
            if ((x->written || y->written) && x->begin < y->end && y->begin < x->end)
                return true;
        }
    }
    return false;
}

static const struct hold_table *table_of(const struct run *run)
{
    return run->batch ? run->batch->table : run->copy ? run->copy->table : NULL;
}

static bool writes_blocks(const struct run *run)
{
    return run->copy || (run->batch->has_slots && run->engine.kind != ENGINE_GATHER);
}

// True if the runs share a layer, or may share one. Layers of equal layer_step are compared
// exactly, others by their first and last layer.
static bool layers_meet(const struct run *a, const struct run *b)
{
    uint32_t a_first = a->engine.layer, b_first = b->engine.layer, step = a->layers.layer_step;
    uint32_t a_last = a_first + (a->layers.num_layers - 1) * step;
    uint32_t b_last = b_first + (b->layers.num_layers - 1) * b->layers.layer_step;
    if (a->copy || b->copy)
        return true;
    if (a_last < b_first || b_last < a_first)
        return false;
    return step != b->layers.layer_step || a_first % step == b_first % step;
}

static bool blocks_meet(const struct run *a, const struct run *b)
{
    const struct hold_table *table = table_of(a);
    return table && table == table_of(b) && (writes_blocks(a) || writes_blocks(b)) &&
           layers_meet(a, b);
}

static bool may_lie_beside(const struct core_session *session, const struct run *run)
{
    // Slices of one layer share a work list and its partial results.
    if (session->wave.runs && (run_is_sliced(run) || run_is_sliced(session->wave.runs)))
        return false;
    for (const struct run *other = session->wave.runs; other; other = other->beside) {
        if (extents_meet(run, other) || blocks_meet(run, other))
            return false;
    }
    return session->wave.num_runs < MOST_BESIDE;
}

void beside_begin(struct core_session *session)
{
    session->wave.number = 0;
    session->wave.runs = NULL;
    session->wave.num_runs = 0;
}

static void next_wave(struct core_session *session)
{
    session->wave.number++;
    session->wave.runs = NULL;
    session->wave.num_runs = 0;
}

uint32_t beside_place(struct core_session *session, struct run *run)
{
    // The run's previous layer was placed last, and its layers do not touch each other's ranges.
    if (session->wave.runs == run && !run->tensors.chained && !run_is_sliced(run))
        return session->wave.number;
    if (session->wave.runs == run || !may_lie_beside(session, run))
        next_wave(session);
    run->beside = session->wave.runs;
    session->wave.runs = run;
    session->wave.num_runs++;
    return session->wave.number;
}
