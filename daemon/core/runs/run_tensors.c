// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run_tensors.c - the tensors of a run: how many rows of each the run can touch, and which tensors
// it writes. Dispatcher thread.

#include "run_tensors.h"

#include "core/pool/session.h"
#include "run_check.h"
#include "tensor.h"

#include <inttypes.h>

enum {
    ATTENDS = 1 << ENGINE_ATTEND,
    WRITES = 1 << ENGINE_WRITE,
    GATHERS = 1 << ENGINE_GATHER,
    ANY = ATTENDS | WRITES | GATHERS,
};

// A tensor without an element type of its own must have that of the first tensor here that the run
// has.
static const struct role {
    const char *name;
    size_t offset, layer; // of the tensor, of its layer stride, in struct core_run_params
    enum {
        QUERY,
        FRESH,
        STORED
    } rows;                  // of queries; of new K and V; of K and V where they are kept
    bool is_v;               // head_dim_v, and not there if V is a part of K
    unsigned kinds, written; // by these kinds of run
} roles[] = {
#define FIELD(name)                                                                                \
#name, offsetof(struct core_run_params, entry.name),                                           \
        offsetof(struct core_run_params, layers.name)
    {FIELD(out), QUERY, true, ATTENDS, ATTENDS},
    {FIELD(q), QUERY, false, ATTENDS, 0},
    {FIELD(k), FRESH, false, ANY, GATHERS},
    {FIELD(v), FRESH, true, ANY, GATHERS},
    {FIELD(keys), STORED, false, ANY, ATTENDS | WRITES},
    {FIELD(values), STORED, true, ANY, ATTENDS | WRITES},
#undef FIELD
};
enum { NUM_ROLES = sizeof roles / sizeof *roles };

static const struct wire_tensor *tensor_of(const struct core_run_params *p, const struct role *role)
{
    return (const struct wire_tensor *)((const char *)p + role->offset);
}

static uint64_t layer_stride_of(const struct core_run_params *p, const struct role *role)
{
    return *(const uint64_t *)((const char *)p + role->layer);
}

static bool has_role(const struct batch *batch, const struct core_run_params *p,
                     const struct role *role)
{
    if (!(role->kinds >> p->entry.kind & 1) ||
        (role->is_v && role->rows != QUERY && batch->kv.v_is_k_prefix))
        return false;
    if (role->rows == FRESH)
        return batch->has_slots || p->entry.kind == ENGINE_GATHER;
    return role->rows == QUERY || !batch->table;
}

// ---- how many rows ----

static enum status outer_error(const char *name, uint64_t stride, const char *why,
                               struct error *error)
{
    return error_set(error, STATUS_INVALID, "%s has outer stride %" PRIu64 ", but %s", name, stride,
                     why);
}

static enum status extend_rows(const struct batch *batch, const struct core_run_params *p,
                               struct tensor_use *use, struct error *error)
{
    uint64_t outer = use->tensor->outer_stride;
    use->num_outer = 1;
    use->num_tokens = p->entry.kind == ENGINE_GATHER ? batch->all_keys : batch->num_tokens;
    if (!outer)
        return STATUS_OK;
    if (p->entry.kind == ENGINE_GATHER)
        return outer_error(use->name, outer, "a gather's rows lie one after the other", error);
    if (batch->has_token_rows)
        return outer_error(use->name, outer, "the batch has token_rows", error);
    if (!batch->num_seqs)
        return outer_error(use->name, outer, "the batch has no sequences", error);
    use->num_outer = batch->num_seqs;
    use->num_tokens = batch->max_rows;
    return STATUS_OK;
}

static enum status extend_stored(const struct batch *batch, struct tensor_use *use,
                                 struct error *error)
{
    uint64_t outer = use->tensor->outer_stride;
    if (batch->place == ENGINE_BLOCKS) {
        use->num_outer = batch->end_block;
        use->num_tokens = batch->kv.block_size;
        if (outer || batch->end_block < 2)
            return STATUS_OK;
        return error_set(error, STATUS_INVALID,
                         "%s has no outer stride, that of a block, but %" PRIu64 " blocks",
                         use->name, batch->end_block);
    }
    use->num_outer = outer ? batch->num_seqs : 1;
    use->num_tokens = outer ? batch->max_seq_len : batch->end_row;
    if (outer || batch->has_kv_starts)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "%s has no outer stride, that of a sequence, and batch %" PRIu64
                     " no kv_starts",
                     use->name, batch->id);
}

// ---- all of a run ----

static enum status describe_use(const struct batch *batch, const struct core_run_params *p,
                                const struct role *role, struct tensor_use *use,
                                struct error *error)
{
    const struct engine_kv *kv = &batch->kv;
    *use = (struct tensor_use){
        .name = role->name,
        .tensor = tensor_of(p, role),
        .heads = role->rows == QUERY ? p->entry.num_heads : kv->num_kv_heads,
        .head_dim = role->is_v ? kv->head_dim_v : kv->head_dim_k,
        .written = role->written >> p->entry.kind & 1,
        .layer_stride = layer_stride_of(p, role),
    };
    if (role->rows != STORED)
        return extend_rows(batch, p, use, error);
    use->dtype = role->is_v ? kv->v_dtype : kv->k_dtype;
    use->written &= batch->has_slots;
    return extend_stored(batch, use, error);
}

static enum status check_stored_absent(const struct batch *batch, const struct core_run_params *p,
                                       struct error *error)
{
    const char *given = p->entry.keys.dtype ? "keys" : p->entry.values.dtype ? "values" : NULL;
    if (!batch->table || !given)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "%s is given, but K and V of batch %" PRIu64 " lie in cache %" PRIu64, given,
                     batch->id, batch->table->cache_id);
}

struct engine_arena *run_arena(const struct core_session *session, enum tensor_memory memory)
{
    return memory == TENSOR_DEVICE ? session->device_arena : session->arena;
}

struct tensor_check run_tensor_check(const struct core_session *session)
{
    return (struct tensor_check){
        .arena_sizes =
            {[TENSOR_HOST] = session->arena_size, [TENSOR_DEVICE] = session->device_arena_size},
        .steps = TENSOR_STEPS,
    };
}

enum status run_check_tensors(const struct batch *batch, const struct core_run_params *p,
                              struct run_tensors *tensors, struct error *error)
{
    struct tensor_check check = run_tensor_check(batch->session);
    struct tensor_use uses[NUM_ROLES + 1];
    struct wire_tensor lse = p->entry.lse;
    uint32_t count = 0;
    check.num_layers = p->layers.num_layers;
    enum status status = check_stored_absent(batch, p, error);
    for (size_t i = 0; status == STATUS_OK && i < NUM_ROLES; i++) {
        if (has_role(batch, p, &roles[i]))
            status = describe_use(batch, p, &roles[i], &uses[count++], error);
    }
    if (status != STATUS_OK)
        return status;
    lse.head_stride = 0; // the heads of a token are one row
    if (p->entry.kind == ENGINE_ATTEND && lse.dtype)
        uses[count++] = (struct tensor_use){.name = "lse",
                                            .tensor = &lse,
                                            .num_outer = 1,
                                            .num_tokens = batch->num_tokens,
                                            .heads = 1,
                                            .head_dim = p->entry.num_heads,
                                            .dtype = DTYPE_F32,
                                            .written = true,
                                            .counts_elements = true,
                                            .layer_stride = p->layers.lse};
    status = tensor_check_all(&check, uses, count, error);
    if (status != STATUS_OK)
        return status;
    *tensors = (struct run_tensors){
        .memory = count ? (enum tensor_memory)uses[0].tensor->memory : TENSOR_HOST,
        .chained = check.chained,
        .num_extents = count,
    };
    for (uint32_t i = 0; i < count; i++)
        tensors->extents[i] = tensor_extent(&uses[i], p->layers.num_layers);
    return STATUS_OK;
}
