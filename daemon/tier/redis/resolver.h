// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// resolver.h - looks up a server's name without blocking: a thread of its own does it, and ends
// with it. One thread.

#ifndef AULE_TIER_REDIS_RESOLVER_H
#define AULE_TIER_REDIS_RESOLVER_H

#include <stdbool.h>

enum { RESOLVER_IP_SIZE = 48 };

struct resolver;

// Whether it is an address already.
bool resolver_is_numeric(const char *host);
struct resolver *resolver_begin(const char *host); // NULL: no memory
// -1: it is still under way. Else how many addresses there are, up to `most`; 0: none.
int resolver_poll(struct resolver *resolver, char (*ips)[RESOLVER_IP_SIZE], int most);
// Does not wait for one that is under way. Takes NULL.
void resolver_end(struct resolver *resolver);

#endif
