// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// client.h - a worker process of the bench: some sequences of a workload through libaule-client, started by fleet.c, which it talks with by
// its standard input and output: "ready", then it waits for a line; then a line a step, "wall_us gpu_us"; then
// "done elapsed_us rows worst".

#ifndef AULE_BENCH_CLIENT_H
#define AULE_BENCH_CLIENT_H

#include "options.h"
#include "workload.h"

struct client_params {
    const char *socket;
    const struct workload *workload; // whole
    enum dtype dtype, kv_dtype;
    uint32_t part, clients; // of its sequences this process has the part'th share
    uint32_t splits;
    uint64_t pool_bytes; // as in world_params, of all clients together
    double seconds;
    bool check; // check only
};

// False: standard error says why.
bool client_run(const struct client_params *params);

#endif
