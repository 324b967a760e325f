// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tls_unbuilt.c - stands for tls.c in a build without OpenSSL: tls_create() refuses, so there is
// no connection for the other functions.

#include "tls.h"

#include <errno.h>

enum status tls_create(const char *ca_file, const char *own_file, struct tls **out,
                       struct error *error)
{
    (void)ca_file;
    (void)own_file;
    *out = NULL;
    return error_set(
        error, STATUS_UNSUPPORTED,
        "rediss:// needs TLS, and this build has none, because libssl-dev was missing; "
        "use redis://");
}

void tls_destroy(struct tls *tls)
{
    (void)tls;
}

struct tls_conn *tls_begin(const struct tls *tls, int fd, const char *host)
{
    (void)tls;
    (void)fd;
    (void)host;
    return NULL;
}

void tls_end(struct tls_conn *conn)
{
    (void)conn;
}

enum tls_shaken tls_shake(struct tls_conn *conn)
{
    (void)conn;
    return TLS_FAILED;
}

const char *tls_why(const struct tls_conn *conn)
{
    (void)conn;
    return "this build has no TLS";
}

ssize_t tls_read(struct tls_conn *conn, const struct iovec *to, int count)
{
    (void)conn;
    (void)to;
    (void)count;
    errno = ENOTSUP;
    return -1;
}

ssize_t tls_write(struct tls_conn *conn, const struct iovec *from, int count)
{
    return tls_read(conn, from, count);
}

bool tls_wants_room(const struct tls_conn *conn)
{
    (void)conn;
    return false;
}

bool tls_has_more(const struct tls_conn *conn)
{
    (void)conn;
    return false;
}
