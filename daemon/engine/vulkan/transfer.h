// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// transfer.h - small pieces of GPU work beside the submissions: zeroing new memory, copying a
// block. Knows buffers only. Any thread that may wait for the GPU.

#ifndef AULE_ENGINE_TRANSFER_H
#define AULE_ENGINE_TRANSFER_H

#include "buffer.h"

struct transfer {
    struct device *device;
    pthread_mutex_t lock; // held from transfer_begin() to transfer_end(): one transfer at a time
    bool lock_made;
    VkCommandPool pool;
    VkCommandBuffer commands; // record into it between begin and end
    VkFence fence;
    bool pending; // the GPU may still have `commands`
    // Set it between begin and end: this transfer may take so long at most, if that is less than
    // the device's watchdog. end resets it to 0 = the watchdog's time.
    uint64_t limit_ns;
};

enum status transfer_init(struct transfer *transfer, struct device *device, struct error *error);
void transfer_finish(struct transfer *transfer); // takes a zeroed and a half-built one

// Record commands between the two. They see what earlier submissions wrote. Later submissions see
// what they write, and after transfer_end() so does the CPU. If begin fails, do not call end.
enum status transfer_begin(struct transfer *transfer, struct error *error);
enum status transfer_end(struct transfer *transfer, struct error *error);

// Whether the GPU has finished the last transfer, or does so within `timeout_ns`. No transfer is
// being recorded.
bool transfer_at_rest(struct transfer *transfer, uint64_t timeout_ns);

// Zeroes all of `buffer` and waits.
enum status transfer_zero(struct transfer *transfer, const struct buffer *buffer,
                          struct error *error);

#endif
