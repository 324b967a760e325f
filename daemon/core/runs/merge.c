// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// merge.c - core_merge(): merges partial results in the arena by their LSE. Knows no batch and no
// block. Dispatcher thread.

#include "core/pool/session.h"
#include "run.h"
#include "run_check.h"
#include "tensor.h"
#include "weight.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MERGE_MAX_PARTS = 65535,
    MERGE_MAX_HEADS = 65535, // workgroups in a row
    MERGE_MAX_HEAD_DIM = 512,
};

static enum status check_shape(const struct core_merge_params *p, struct error *error)
{
    if (p->num_parts == 0)
        return error_set(error, STATUS_INVALID, "a merge of 0 parts");
    if (p->num_parts > MERGE_MAX_PARTS)
        return error_set(error, STATUS_LIMIT,
                         "a merge of %" PRIu32 " parts; at most %d are allowed: merge in steps",
                         p->num_parts, MERGE_MAX_PARTS);
    if (p->num_heads == 0 || p->num_heads > MERGE_MAX_HEADS)
        return error_set(error, STATUS_INVALID, "num_heads is %" PRIu32 "; a merge has 1 to %d",
                         p->num_heads, MERGE_MAX_HEADS);
    if (p->head_dim == 0 || p->head_dim % 8 || p->head_dim > MERGE_MAX_HEAD_DIM)
        return error_set(error, STATUS_UNSUPPORTED,
                         "head_dim %" PRIu32 " is not a multiple of 8 from 8 to %d", p->head_dim,
                         MERGE_MAX_HEAD_DIM);
    if (p->num_tokens > INT32_MAX)
        return error_set(error, STATUS_INVALID, "num_tokens is %" PRIu32 "; at most %d are allowed",
                         p->num_tokens, INT32_MAX);
    return STATUS_OK;
}

static enum status check_outer(const char *name, const struct wire_tensor *tensor,
                               struct error *error)
{
    if (!tensor->outer_stride)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "%s has outer stride %" PRIu64 "; a merge has no outer dimension", name,
                     tensor->outer_stride);
}

static struct tensor_use use_out(const struct core_merge_params *p, const char *name,
                                 const struct wire_tensor *tensor)
{
    return (struct tensor_use){.name = name,
                               .tensor = tensor,
                               .num_outer = 1,
                               .num_tokens = p->num_tokens,
                               .heads = p->num_heads,
                               .head_dim = p->head_dim};
}

static struct tensor_use use_lse(const struct core_merge_params *p, const char *name,
                                 const struct wire_tensor *tensor)
{
    return (struct tensor_use){.name = name,
                               .tensor = tensor,
                               .num_outer = 1,
                               .num_tokens = p->num_tokens,
                               .heads = 1,
                               .head_dim = p->num_heads,
                               .dtype = DTYPE_F32,
                               .counts_elements = true};
}

// The two tensors of a part against the two of the result. A result may lie in place of the part's
// own tensor.
static enum status check_part(const struct core_merge_params *p, const struct wire_tensor *lse,
                              uint32_t index, struct tensor_check *check, struct error *error)
{
    const struct engine_part *part = &p->parts[index];
    struct wire_tensor part_lse = part->lse;
    struct tensor_use uses[4];
    uint32_t count = 0;
    char out_name[24], lse_name[24];
    snprintf(out_name, sizeof out_name, "outs[%" PRIu32 "]", index);
    snprintf(lse_name, sizeof lse_name, "lses[%" PRIu32 "]", index);
    enum status status = check_outer(out_name, &part->out, error);
    if (status == STATUS_OK)
        status = run_check_lse(&part->lse, error);
    if (status != STATUS_OK)
        return status;
    part_lse.head_stride = 0; // the heads of a token are one row
    uses[count] = use_out(p, "out", &p->out);
    uses[count++].written = true;
    uses[count] = use_out(p, out_name, &part->out);
    uses[count++].twin = &p->out;
    if (lse->dtype) {
        uses[count] = use_lse(p, "lse", lse);
        uses[count++].written = true;
    }
    uses[count] = use_lse(p, lse_name, &part_lse);
    uses[count++].twin = lse;
    return tensor_check_all(check, uses, count, error);
}

static enum status check_tensors(const struct core_session *session,
                                 const struct core_merge_params *p, struct error *error)
{
    struct tensor_check check = run_tensor_check(session);
    struct wire_tensor lse = p->lse;
    enum status status = check_outer("out", &p->out, error);
    if (status == STATUS_OK)
        status = run_check_lse(&p->lse, error);
    lse.head_stride = 0;
    for (uint32_t i = 0; status == STATUS_OK && i < p->num_parts; i++)
        status = check_part(p, &lse, i, &check, error);
    return status;
}

// Bytes moved: all parts are read, one result is written. No factor has more than 32 bits, so 128
// bits hold the product.
static unsigned __int128 moved_bytes(const struct core_merge_params *p)
{
    uint64_t row = (uint64_t)p->head_dim * dtype_size((int)p->out.dtype);
    return (unsigned __int128)p->num_tokens * p->num_heads * row * ((uint64_t)p->num_parts + 1);
}

// Each head of a token has a workgroup. For each part it waits about as long as another workgroup
// takes: its LSE is read three times, one part after the other.
static unsigned __int128 groups(const struct core_merge_params *p)
{
    return (unsigned __int128)p->num_tokens * p->num_heads * ((uint64_t)p->num_parts + 1);
}

static enum status check_all(const struct core_session *session, const struct core_merge_params *p,
                             struct error *error)
{
    enum status status = session_usable(session, error);
    if (status == STATUS_OK)
        status = check_shape(p, error);
    if (status == STATUS_OK)
        status = check_tensors(session, p, error);
    if (status == STATUS_OK)
        status = run_check_work(session, weight_moved_work(moved_bytes(p), groups(p)), "the merge",
                                "merge fewer tokens at once", error);
    return run_check_tickets(session, status, error);
}

static struct tensor_extent both(struct tensor_extent a, struct tensor_extent b)
{
    if (a.begin == a.end || b.begin == b.end)
        return a.begin == a.end ? b : a;
    return (struct tensor_extent){a.begin < b.begin ? a.begin : b.begin,
                                  a.end > b.end ? a.end : b.end, a.written};
}

// The outs of all parts count as one range, their lses as another.
static struct run_tensors tensors_of(const struct core_merge_params *p)
{
    enum { OUT, LSE, OUTS, LSES, COUNT };
    struct run_tensors tensors = {.memory = (enum tensor_memory)p->out.memory,
                                  .num_extents = COUNT};
    struct tensor_use out = use_out(p, "out", &p->out), lse = use_lse(p, "lse", &p->lse);
    out.written = lse.written = true;
    tensors.extents[OUT] = tensor_extent(&out, 1);
    if (p->lse.dtype)
        tensors.extents[LSE] = tensor_extent(&lse, 1);
    for (uint32_t i = 0; i < p->num_parts; i++) {
        out = use_out(p, "outs", &p->parts[i].out);
        lse = use_lse(p, "lses", &p->parts[i].lse);
        tensors.extents[OUTS] = both(tensors.extents[OUTS], tensor_extent(&out, 1));
        tensors.extents[LSES] = both(tensors.extents[LSES], tensor_extent(&lse, 1));
    }
    return tensors;
}

static void describe(struct run *run, const struct core_merge_params *p)
{
    struct engine_part *parts = (struct engine_part *)run->arrays;
    memcpy(parts, p->parts, p->num_parts * sizeof *parts);
    run->engine = (struct engine_run){
        .kind = ENGINE_MERGE,
        .arena = run_arena(run->session, run->tensors.memory),
        .num_heads = p->num_heads,
        .out = p->out,
        .lse = p->lse,
        .parts = parts,
        .num_parts = p->num_parts,
        .num_tokens = p->num_tokens,
        .head_dim = p->head_dim,
        .options = {.lse_base2 = p->lse_base2},
    };
}

enum status core_merge(struct core_session *session, const struct core_merge_params *params,
                       uint64_t *ticket, struct error *error)
{
    enum status status = check_all(session, params, error);
    if (status != STATUS_OK)
        return status;
    struct run *run;
    status = run_create(session, params->num_parts * sizeof(struct engine_part), 0, &run, error);
    if (status != STATUS_OK)
        return status;
    run->weight = weight_moved_in_queue(moved_bytes(params), groups(params));
    run->speed = SPEED_MERGE;
    run->work = run->own_work = weight_moved_work(moved_bytes(params), groups(params));
    run->own_units = params->num_tokens;
    run->tensors = tensors_of(params);
    describe(run, params);
    status = run_queue(run, params->detached, ticket, error);
    if (status != STATUS_OK)
        run_free(run);
    return status;
}
