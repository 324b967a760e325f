// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// nng_cures.c - functions of nng, wrapped by the linker (-Wl,--wrap; see CMakeLists.txt), because a static library is the only place where
// they can be mended. Built for nng before 1.6 alone: from there on nng itself has nni_plat_errno()'s cure, and is linked shared. But
// nni_aio_begin() has its defect still in sources of 2024, and with a shared nng nobody mends it.

#include <errno.h>
#include <nng/nng.h>
#include <stdbool.h>

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

// A pipe that is closed when a message's head has come and its body has not been asked for yet stops its stream's operation, nng then refuses
// to begin the next one without a word to whom waits for it, and the one thread that takes pipes apart waits for ever: no connection's end
// would be told from then on. So an operation of a stream that cannot begin is ended here, in nng's own way: its callback is told.
static _Thread_local bool of_stream;

int __real_nni_aio_begin(nng_aio *aio);
int __wrap_nni_aio_begin(nng_aio *aio);
void nni_aio_finish_error(nng_aio *aio, int reason);

int __wrap_nni_aio_begin(nng_aio *aio)
{
    int reason = __real_nni_aio_begin(aio);
    // The callback runs in a thread of nng's: locks that are held here do no harm.
    if (reason && of_stream)
        nni_aio_finish_error(aio, reason);
    return reason;
}

void __real_nng_stream_recv(nng_stream *stream, nng_aio *aio);
void __wrap_nng_stream_recv(nng_stream *stream, nng_aio *aio);

void __wrap_nng_stream_recv(nng_stream *stream, nng_aio *aio)
{
    of_stream = true;
    __real_nng_stream_recv(stream, aio);
    of_stream = false;
}

void __real_nng_stream_send(nng_stream *stream, nng_aio *aio);
void __wrap_nng_stream_send(nng_stream *stream, nng_aio *aio);

void __wrap_nng_stream_send(nng_stream *stream, nng_aio *aio)
{
    of_stream = true;
    __real_nng_stream_send(stream, aio);
    of_stream = false;
}
