// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// nng_cures.c - two functions of nng before 1.6, wrapped by the linker (-Wl,--wrap; see CMakeLists.txt), because a static library is the
// only place where they can be mended. From nng 1.6 on this file is not built.

#include <errno.h>
#include <nng/nng.h>

int __real_nni_plat_errno(int reason);
int __wrap_nni_plat_errno(int reason);
int __wrap_nni_plat_ncpu(void);

// nng 1.5 turns EPIPE into NNG_ECLOSED, and its listener takes that for its own end: one client that connects and closes at once would
// stop it from accepting for good.
int __wrap_nni_plat_errno(int reason)
{
    return reason == EPIPE ? NNG_ECONNRESET : __real_nni_plat_errno(reason);
}

// nng starts three threads a core. The daemon's messages are small and one dispatcher answers them: two cores' worth is plenty.
int __wrap_nni_plat_ncpu(void)
{
    return 2;
}
