// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// native.cu - whether a compiler makes PTX of CUDA source without a CUDA toolkit: an instruction of
// compute capability 9.0.

extern "C" __attribute__((global)) void probe()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
