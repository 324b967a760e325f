// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hopper_states.h - which native kernels work on this device. A kernel is translated and tested
// when a run first needs it. What comes of it is final: the same inputs must give the same bits, so
// the kernel may not change between two steps of one sequence.
//
// No device survives a kernel that hangs. So a file names the kernel while it is tested. If the
// process ends meanwhile, the next one finds the file and does not use the kernel, as long as the
// driver is the same. If the device was lost before the test was out of time, another session's
// work may be the cause, so the next process tests the kernel once more.

#ifndef AULE_ENGINE_HOPPER_STATES_H
#define AULE_ENGINE_HOPPER_STATES_H

#include "hopper.h"

#include <stdatomic.h>

enum native_state { NATIVE_UNTRIED, NATIVE_WORKS, NATIVE_REFUSED };
enum { NATIVE_REFUSAL = 224 }; // bytes of a sentence that says why

struct hopper_states {
    struct device *device;
    struct transfer *transfer;
    const char *path;                            // the files' names begin so; NULL = no files
    struct native natives[HOPPER_CODES];         // by hopper_code(), as are the next two
    char refusals[HOPPER_CODES][NATIVE_REFUSAL]; // complete before the state says so
    _Atomic(enum native_state) states[HOPPER_CODES];
};

// `path` must outlive *states. NULL: no file is written or read.
void hopper_states_init(struct hopper_states *states, struct device *device,
                        struct transfer *transfer, const char *path);
void hopper_states_finish(struct hopper_states *states); // takes a zeroed one
// Tries kernel `number`, which is untried. UNSUPPORTED: it is refused from now on. DEVICE_LOST: it
// did not end in time, or the device was lost meanwhile. One thread at a time for each kernel.
enum status hopper_states_try(struct hopper_states *states, uint32_t number, struct error *error);
// Writes why kernels are refused, as one sentence; "" = none is. Any thread.
void hopper_states_refusals(const struct hopper_states *states, char *text, size_t size);

#endif
