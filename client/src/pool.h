// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pool.h - where this process's CUDA has mapped the memory of a cache. Any thread.

#ifndef AULE_CLIENT_POOL_H
#define AULE_CLIENT_POOL_H

struct pool;

void pool_close(struct pool *pool); // waits for CUDA's kernels and unmaps; takes NULL

#endif
