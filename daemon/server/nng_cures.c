// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// nng_cures.c - fixes for defects of nng. The linker wraps the functions (-Wl,--wrap; see
// CMakeLists.txt), which works only with a static library. Knows nng's internals, nothing of aule
// but listener_max_replies(). nng's threads run it.
// It is built only for nng before 1.6. Later versions have the fix of nni_plat_errno() and are
// linked shared. The defect of nni_aio_begin() is still in sources of 2024; with a shared nng it is
// not fixed.

#include "listener.h"

#include <errno.h>
#include <nng/nng.h>
#include <stdbool.h>

int __real_nni_plat_errno(int reason);
int __wrap_nni_plat_errno(int reason);
int __wrap_nni_plat_ncpu(void);

// nng 1.5 turns EPIPE into NNG_ECLOSED, and its listener takes that for its own close. So one
// client that connects and closes at once would stop it from ever accepting again.
int __wrap_nni_plat_errno(int reason)
{
    return reason == EPIPE ? NNG_ECONNRESET : __real_nni_plat_errno(reason);
}

// nng starts three threads for each core. The daemon's messages are small and one dispatcher
// answers them, so threads for two cores are enough.
int __wrap_nni_plat_ncpu(void)
{
    return 2;
}

// If an asynchronous operation (aio) was stopped, nng refuses to begin it and does not call its
// callback. When a pipe is closed, that has two effects:
// - If a message's head was read and its body was not, nng's one thread that destroys pipes waits
//   for the stream's aio forever. No end of a connection is reported from then on.
// - A message that is being handed to a queue or a pipe leaks, because the callback would free it.
// So if one of the functions below cannot begin an aio, it ends the aio as nng does elsewhere: with
// a call of its callback.
static _Thread_local bool tells; // this thread is inside one of the functions below

int __real_nni_aio_begin(nng_aio *aio);
int __wrap_nni_aio_begin(nng_aio *aio);
void nni_aio_finish_error(nng_aio *aio, int reason);

int __wrap_nni_aio_begin(nng_aio *aio)
{
    int reason = __real_nni_aio_begin(aio);
    // The callback runs on another thread, so it cannot deadlock on locks that are held here.
    if (reason && tells)
        nni_aio_finish_error(aio, reason);
    return reason;
}

#define TELLS(FUNCTION)                                                                            \
    void __real_##FUNCTION(void *to, nng_aio *aio);                                                \
    void __wrap_##FUNCTION(void *to, nng_aio *aio);                                                \
    void __wrap_##FUNCTION(void *to, nng_aio *aio)                                                 \
    {                                                                                              \
        tells = true;                                                                              \
        __real_##FUNCTION(to, aio);                                                                \
        tells = false;                                                                             \
    }

TELLS(nng_stream_recv)
TELLS(nng_stream_send)
TELLS(nni_msgq_aio_put)
TELLS(nni_pipe_send)

// nng queues 64 answers for a peer and drops further ones. The daemon can give answers faster than
// nng sends them. So a burst lost some even if the peer reads, and its threads waited forever.
// Here a full queue grows, up to listener_max_replies(), and does not shrink again. It does not
// grow beyond GROWN_BYTES of answers of this size, because a peer that does not read could make the
// daemon keep much memory. nng calls nni_msgq_tryput() only to move answers to the peers' queues.
enum { GROWN_BYTES = 2 << 20 };
struct nni_msgq;
int __real_nni_msgq_tryput(struct nni_msgq *queue, nng_msg *message);
int __wrap_nni_msgq_tryput(struct nni_msgq *queue, nng_msg *message);
int nni_msgq_cap(struct nni_msgq *queue);
int nni_msgq_resize(struct nni_msgq *queue, int capacity);

static bool grow(struct nni_msgq *queue, size_t size)
{
    int capacity = nni_msgq_cap(queue), most = (int)listener_max_replies();
    if (capacity >= most || (size_t)capacity * size > GROWN_BYTES)
        return false;
    return nni_msgq_resize(queue, capacity < most / 2 ? capacity * 2 : most) == 0;
}

int __wrap_nni_msgq_tryput(struct nni_msgq *queue, nng_msg *message)
{
    int reason = __real_nni_msgq_tryput(queue, message);
    if (reason == NNG_EAGAIN && grow(queue, nng_msg_len(message)))
        reason = __real_nni_msgq_tryput(queue, message);
    return reason;
}
