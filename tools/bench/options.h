// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.h - the command line.

#ifndef AULE_BENCH_OPTIONS_H
#define AULE_BENCH_OPTIONS_H

#include "base/options.h"
#include "schema/status.h"

enum via { VIA_ENGINE, VIA_NNG, VIA_RING }; // the last two: lanes of a daemon

struct options {
    const char *command; // "list", "run", "plot" or "client" (started by `run --via nng`)
    char **names;        // [num_names] names of workloads or files; they point into argv
    int num_names;
    const char *device, *variant; // NULL = the best
    enum dtype dtype, kv_dtype;   // kv_dtype 0: as dtype
    enum via via;
    uint32_t clients, part; // processes that share a workload; the number of this one
    uint32_t head_dim;      // of Q, K and V; 0: the workload's own
    uint32_t splits;
    uint32_t in_flight;          // steps of a client in flight
    uint32_t completion_poll_us; // as engine_params has it
    double seconds;              // a workload
    uint32_t prompt;             // study share: common tokens; 0: by `full`
    bool full;                   // study share: the sizes for a GPU
    const char *cache;           // of a worker of the study share
    double pool_gib;             // K and V that are read in turn; 0: by the device
    bool force_staging;          // not an option of the command line
    bool append;                 // a client's runs also write K and V of each sequence's last token
    bool check, json, contiguous, no_cascade, token_scales, baseline, verbose;
    const char *daemon, *socket; // aule-daemon; socket of the running daemon
    const char *output;          // file; NULL: standard output
    struct options_line line;    // which options were given: options_gave()
};

// Strings point into argv. OPTIONS_BAD: standard error says why.
enum options_result options_parse(int argc, char **argv, struct options *options);
bool options_gave(const struct options *options, const char *name); // "pool": --pool was given
const char *via_name(enum via via);

#endif
