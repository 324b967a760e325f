// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// transfer.h - small pieces of work beside the submissions: zeroing new memory, copying a block out
// or in.

#ifndef AULE_ENGINE_TRANSFER_H
#define AULE_ENGINE_TRANSFER_H

#include "buffer.h"

struct transfer {
    struct device *device;
    pthread_mutex_t lock; // held from begin to end: one transfer at a time
    bool lock_made;
    VkCommandPool pool;
    VkCommandBuffer commands; // to record into, between begin and end
    VkFence fence;
    bool pending; // the GPU has `commands`, for all we know
};

enum status transfer_init(struct transfer *transfer, struct device *device, struct error *error);
void transfer_finish(struct transfer *transfer); // takes a zeroed and a half-built one

// Any thread that may wait for the GPU. What earlier submissions wrote is visible to the commands,
// and what the commands write to later submissions and, after transfer_end(), to the CPU. If begin
// fails there is no end.
enum status transfer_begin(struct transfer *transfer, struct error *error);
enum status transfer_end(struct transfer *transfer, struct error *error);

// Whether the GPU is past the last transfer, or gets there in time. No transfer is under way.
bool transfer_at_rest(struct transfer *transfer, uint64_t timeout_ns);

// All of `buffer`.
enum status transfer_zero(struct transfer *transfer, const struct buffer *buffer,
                          struct error *error);

#endif
