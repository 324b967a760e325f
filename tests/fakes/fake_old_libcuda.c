// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fake_old_libcuda.c - the libcuda of an old driver: a shared library that lacks functions which
// client/src/gpu/cuda.c takes.

__attribute__((visibility("default"))) int cuInit(unsigned flags);

int cuInit(unsigned flags)
{
    return (int)flags;
}
