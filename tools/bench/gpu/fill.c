// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fill.c - see fill.h.

#include "fill.h"

#include "fill_spv.h"

enum { GROUPS = 1024 };

// Mirrors fill.comp.
struct push {
    uint64_t to, first_quad, k_stream, v_stream;
    uint32_t quads, part_quads, parts, dtype;
};

enum status fill_init(struct fill *fill, struct device *device, struct error *error)
{
    const struct program_params params = {
        .code = fill_spv, .size = sizeof fill_spv, .push_size = sizeof(struct push)};
    return program_init(&fill->program, device, &params, error);
}

void fill_finish(struct fill *fill)
{
    program_finish(&fill->program);
}

enum status fill_run(const struct fill *fill, struct transfer *transfer,
                     const struct fill_params *params, struct error *error)
{
    uint32_t parts = params->v_stream ? 2 : 1;
    const struct push push = {
        .to = params->address,
        .first_quad = params->first / 4,
        .k_stream = params->k_stream,
        .v_stream = params->v_stream,
        .quads = (uint32_t)(params->num_parts * parts * (params->part_elements / 4)),
        .part_quads = (uint32_t)(params->part_elements / 4),
        .parts = parts,
        .dtype = params->dtype,
    };
    enum status status = transfer_begin(transfer, error);
    if (status != STATUS_OK)
        return status;
    program_dispatch(&fill->program, transfer->commands, &push, GROUPS);
    return transfer_end(transfer, error);
}
