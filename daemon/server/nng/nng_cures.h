// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// nng_cures.h - how the daemon repairs nng before 1.6. A later nng is linked shared, as it is.
// Thread: any.

#ifndef AULE_SERVER_NNG_CURES_H
#define AULE_SERVER_NNG_CURES_H

#include <stdbool.h>

// nng before 1.6 crashes or hangs where some of its allocations fail. So those that fail get memory
// of a small reserve. True: half of it is used, and the daemon should take no more connections.
// Always false with a later nng. Any thread.
bool nng_reserve_is_short(void);
// The descriptor of a stream that an accept has just given, an nng_stream; nng owns it. Ask once
// for each stream, at once. -1: not known, as with a later nng. Any thread.
int nng_accepted_descriptor(const void *stream);

#endif
