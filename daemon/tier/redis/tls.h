// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tls.h - TLS for one connection, over a socket that does not block. A server must prove its name
// or address by a certificate. Built if OpenSSL is there; without it tls_create() refuses. hiredis
// has TLS only from 1.0 on, and would copy all bytes once more. Only one thread at a time uses a
// connection.

#ifndef AULE_TIER_REDIS_TLS_H
#define AULE_TIER_REDIS_TLS_H

#include "schema/status.h"

#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

struct tls;      // what connections have in common
struct tls_conn; // a connection

// `ca_file`: certificates that vouch for servers; NULL: the system's. `own_file`: the client's own
// certificate and its key; NULL: none. STATUS_INVALID: a file; UNSUPPORTED: not built; NO_MEMORY.
enum status tls_create(const char *ca_file, const char *own_file, struct tls **out,
                       struct error *error);
void tls_destroy(struct tls *tls); // no connection is left; takes NULL

// `host`: the name or the address that the certificate must have. NULL: no memory.
struct tls_conn *tls_begin(const struct tls *tls, int fd, const char *host);
void tls_end(struct tls_conn *conn); // takes NULL
// Goes on with the handshake. TLS_AGAIN: call it when the socket has news.
enum tls_shaken { TLS_DONE, TLS_AGAIN, TLS_FAILED };
enum tls_shaken tls_shake(struct tls_conn *conn);
const char *tls_why(const struct tls_conn *conn); // why the handshake failed
// As stream_read() and stream_write(): they move as much as is possible now.
ssize_t tls_read(struct tls_conn *conn, const struct iovec *to, int count);
ssize_t tls_write(struct tls_conn *conn, const struct iovec *from, int count);
// TLS itself has something to send, so the socket's room is news.
bool tls_wants_room(const struct tls_conn *conn);
// Bytes have come that tls_read() has not given; the socket tells nothing of them.
bool tls_has_more(const struct tls_conn *conn);

#endif
