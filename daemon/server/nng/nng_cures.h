// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// nng_cures.h - how the daemon repairs nng before 1.6. A later nng is linked shared, as it is.

#ifndef AULE_SERVER_NNG_CURES_H
#define AULE_SERVER_NNG_CURES_H

#include <stdint.h>

// Allocations of nng that failed and got memory of a small reserve instead, and have it now. nng
// before 1.6 crashes or hangs where some of its allocations fail. While this is more than it was
// at the start, the daemon takes no more connections. Always 0 with a later nng. Any thread.
uint32_t nng_reserve_used(void);
// The descriptor of a stream that an accept has just given, an nng_stream; nng owns it. Ask once
// for each stream, at once. -1: not known, as with a later nng. Any thread.
int nng_accepted_descriptor(const void *stream);

#endif
