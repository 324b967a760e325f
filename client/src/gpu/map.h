// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pool.h - where this process's CUDA has mapped the memory of a cache. Any thread.

#ifndef AULE_CLIENT_POOL_H
#define AULE_CLIENT_POOL_H

struct pool;

// Waits for CUDA's kernels and unmaps; nothing is mapped afterwards. Takes NULL.
void pool_end(struct pool *pool);
void pool_free(struct pool *pool); // no call may use it; takes NULL

#endif
