// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// notice.h - makes a descriptor readable while a session has tickets that have ended and are not
// reaped. Tickets of a session end in order, so one request at a time is enough: it asks for the
// oldest ticket that has not ended, and the answer names the last one that has. The connection's
// reader thread gets the answer, so there is no further thread. Both lanes are served alike,
// because the request is a message on either. Knows ids, not what they are for. Any thread.

#ifndef AULE_CLIENT_NOTICE_H
#define AULE_CLIENT_NOTICE_H

#include "connection.h"

struct notice;

struct notice_params {
    struct connection *connection; // lent until connection_close()
    uint64_t session, epoch;
    int fd; // an eventfd that does not block; lent until connection_close()
};
// Begins to keep `fd` up to date. It is readable, too, once the connection has ended.
// AULE_NO_MEMORY.
enum aule_status notice_create(const struct notice_params *params, struct notice **out);
void notice_destroy(struct notice *notice); // after connection_close(); takes NULL

void notice_add(struct notice *notice, uint64_t ticket); // the program has got this ticket
// It is reaped, or the program will not wait for it. An unknown ticket does nothing.
void notice_remove(struct notice *notice, uint64_t ticket);

#endif
