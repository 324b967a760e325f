// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// merge.c - merges partial results of attention on the GPU. Any thread.

#include "client/src/caller.h"
#include "client/src/error.h"
#include "client/src/session.h"
#include "client/src/tensor.h"
#include "client/src/work.h"

#include <inttypes.h>
#include <stdlib.h>

static enum aule_status check_lives(const struct life *life, const struct aule_merge_params *params)
{
    enum aule_status status = life_check(life, params->out.life, "out");
    if (status == AULE_OK)
        status = life_check(life, params->lse.life, "lse");
    for (uint32_t n = 0; status == AULE_OK && n < params->num_parts; n++) {
        status = life_check(life, params->outs[n].life, "a tensor of outs");
        if (status == AULE_OK)
            status = life_check(life, params->lses[n].life, "a tensor of lses");
    }
    return status;
}

static enum aule_status check_rows(const struct aule_merge_params *params)
{
    struct tensor_use use = {.num_rows = params->num_tokens};
    enum aule_status status = AULE_OK;
    for (uint32_t n = 0; status == AULE_OK && n < 2 * params->num_parts; n++) {
        bool is_lse = n >= params->num_parts;
        use.name = is_lse ? "a tensor of lses" : "a tensor of outs";
        use.tensor = is_lse ? &params->lses[n - params->num_parts] : &params->outs[n];
        use.num_heads = is_lse ? 1 : params->num_heads;
        status = tensor_check_rows(&use);
    }
    use.name = "out";
    use.tensor = &params->out;
    use.num_heads = params->num_heads;
    if (status == AULE_OK)
        status = tensor_check_rows(&use);
    use.name = "lse";
    use.tensor = &params->lse;
    use.num_heads = 1;
    return status == AULE_OK ? tensor_check_rows(&use) : status;
}

// Checks the count here, so that the sentence names parts. The encoder would only name bytes.
static enum aule_status check_params(const struct life *life,
                                     const struct aule_merge_params *params)
{
    uint64_t most = life_room(life) / (2 * sizeof(struct wire_tensor));
    if (params->num_parts == 0)
        return fail(AULE_INVALID, "num_parts = 0: there is nothing to merge");
    if (params->num_parts > most)
        return fail(AULE_LIMIT,
                    "a merge of %u parts: a message of %" PRIu64 " bytes holds %" PRIu64,
                    params->num_parts, life->info.max_message, most);
    if (!params->outs || !params->lses)
        return fail(AULE_INVALID, "%s is NULL, but num_parts is %u", params->outs ? "lses" : "outs",
                    params->num_parts);
    return check_lives(life, params);
}

// An array of the outs, then the lses.
static enum aule_status list_tensors(const struct aule_merge_params *params,
                                     struct wire_tensor **out)
{
    struct wire_tensor *tensors = calloc(params->num_parts, 2 * sizeof *tensors);
    if (!tensors)
        return fail(AULE_NO_MEMORY, "no memory for a merge of %u parts", params->num_parts);
    for (uint32_t n = 0; n < params->num_parts; n++) {
        tensors[n] = work_tensor(&params->outs[n]);
        tensors[params->num_parts + (size_t)n] = work_tensor(&params->lses[n]);
    }
    *out = tensors;
    return AULE_OK;
}

static enum aule_status merge(struct life *life, const struct aule_merge_params *params,
                              int timeout_ms, struct aule_ticket *ticket)
{
    struct wire_tensor *tensors = NULL;
    enum aule_status status = check_params(life, params);
    if (status == AULE_OK)
        status = check_rows(params);
    if (status == AULE_OK)
        status = list_tensors(params, &tensors);
    if (status != AULE_OK)
        return status;
    struct call_work work = {
        .request = {.command = WIRE_COMMAND_MERGE,
                    .merge = {.num_tokens = params->num_tokens,
                              .num_heads = params->num_heads,
                              .head_dim = params->head_dim,
                              .outs = {.data = tensors, .count = params->num_parts},
                              .lses = {.data = tensors + params->num_parts,
                                       .count = params->num_parts},
                              .out = work_tensor(&params->out),
                              .lse = work_tensor(&params->lse),
                              .lse_base2 = params->lse_base2}},
    };
    work.timeout_ms = &work.request.merge.timeout_ms;
    work.flags = &work.request.merge.flags;
    status = work_queue(life, &work, timeout_ms, ticket);
    free(tensors);
    return status;
}

enum aule_status aule_merge_submit_sized(struct aule_session *session,
                                         const struct aule_merge_params *params, size_t params_size,
                                         int timeout_ms, struct aule_ticket *ticket)
{
    REQUIRE(session);
    REQUIRE(params);
    struct aule_merge_params whole;
    struct life *life;
    enum aule_status status = TAKE(&whole, params, params_size);
    if (status == AULE_OK)
        status = session_get(session, &life);
    if (status != AULE_OK)
        return status;
    status = merge(life, &whole, timeout_ms, ticket);
    session_put(life);
    return status;
}
