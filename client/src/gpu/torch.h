// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// torch.h - the device arena as an allocator for frameworks. torch's CUDAPluggableAllocator calls C
// functions that have no context. So a list of this process has the arenas, one for each CUDA
// device at a time. Any thread.

#ifndef AULE_CLIENT_TORCH_H
#define AULE_CLIENT_TORCH_H

struct device_arena;

// The arena's session has ended: nothing is allocated in it any more. Takes NULL.
void torch_ended(const struct device_arena *device);

#endif
