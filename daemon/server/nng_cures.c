// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// nng_cures.c - functions of nng, wrapped by the linker (-Wl,--wrap; see CMakeLists.txt), because a
// static library is the only place where they can be mended. Built for nng before 1.6 alone: from
// there on nng itself has nni_plat_errno()'s cure, and is linked shared. But nni_aio_begin() has
// its defect still in sources of 2024, and with a shared nng nobody mends it.

#include "listener.h"

#include <errno.h>
#include <nng/nng.h>
#include <stdbool.h>

int __real_nni_plat_errno(int reason);
int __wrap_nni_plat_errno(int reason);
int __wrap_nni_plat_ncpu(void);

// nng 1.5 turns EPIPE into NNG_ECLOSED, and its listener takes that for its own end: one client
// that connects and closes at once would stop it from accepting for good.
int __wrap_nni_plat_errno(int reason)
{
    return reason == EPIPE ? NNG_ECONNRESET : __real_nni_plat_errno(reason);
}

// nng starts three threads a core. The daemon's messages are small and one dispatcher answers them:
// two cores' worth is plenty.
int __wrap_nni_plat_ncpu(void)
{
    return 2;
}

// nng refuses to begin an operation that was stopped without a word to its callback, which leaves
// two things behind when a pipe is closed. Between a message's head and its body, the stream's
// operation is one that somebody waits for: the one thread that takes pipes apart would wait for
// ever, and no connection's end be told from then on. And a message that is handed over to a queue
// or to the pipe, whose callback would have freed it, is lost. So where one of these cannot begin,
// it is ended in nng's own way: its callback is told.
static _Thread_local bool tells;

int __real_nni_aio_begin(nng_aio *aio);
int __wrap_nni_aio_begin(nng_aio *aio);
void nni_aio_finish_error(nng_aio *aio, int reason);

int __wrap_nni_aio_begin(nng_aio *aio)
{
    int reason = __real_nni_aio_begin(aio);
    // The callback runs in a thread of nng's: locks that are held here do no harm.
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

// nng keeps 64 answers for a peer and frees what comes beyond. Answers come faster than it sends
// them, so that of many that are given at once some were lost even to a peer that reads, whose
// threads would wait for ever. So a full queue grows, as far as the listener wants it to; but not
// for a large answer, of which a peer that does not read would make the daemon keep much. It does
// not shrink again. Only the one operation that moves answers to the peers' queues comes by here.
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
