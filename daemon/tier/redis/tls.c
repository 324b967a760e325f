// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tls.c - see tls.h. OpenSSL's queue of errors belongs to the thread; each call clears it first.

#include "tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tls {
    SSL_CTX *context;
};

struct tls_conn {
    SSL *ssl;
    bool wants_room;
    char why[96];
};

// ---- the context ----

static enum status refuse_file(const char *what, const char *path, struct error *error)
{
    const char *why = ERR_reason_error_string(ERR_peek_last_error());
    return error_set(error, STATUS_INVALID, "%s %.200s: %s", what, path,
                     why ? why : "it cannot be read");
}

static enum status read_files(SSL_CTX *context, const char *ca_file, const char *own_file,
                              struct error *error)
{
    if (ca_file ? !SSL_CTX_load_verify_file(context, ca_file)
                : !SSL_CTX_set_default_verify_paths(context))
        return refuse_file("the file of certificates (ca)", ca_file ? ca_file : "", error);
    if (own_file && (SSL_CTX_use_certificate_chain_file(context, own_file) != 1 ||
                     SSL_CTX_use_PrivateKey_file(context, own_file, SSL_FILETYPE_PEM) != 1 ||
                     SSL_CTX_check_private_key(context) != 1))
        return refuse_file("the file with certificate and key (cert)", own_file, error);
    return STATUS_OK;
}

// A daemon has no terminal to ask for a key's password.
static int has_no_password(char *buffer, int size, int writes, void *user)
{
    (void)buffer;
    (void)size;
    (void)writes;
    (void)user;
    return 0;
}

enum status tls_create(const char *ca_file, const char *own_file, struct tls **out,
                       struct error *error)
{
    struct tls *tls = calloc(1, sizeof *tls);
    ERR_clear_error();
    *out = NULL;
    if (tls)
        tls->context = SSL_CTX_new(TLS_client_method());
    if (!tls || !tls->context) {
        free(tls);
        return error_set(error, STATUS_NO_MEMORY, "no memory for TLS");
    }
    SSL_CTX_set_default_passwd_cb(tls->context, has_no_password);
    SSL_CTX_set_min_proto_version(tls->context, TLS1_2_VERSION);
    SSL_CTX_set_verify(tls->context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(tls->context,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    const enum status status = read_files(tls->context, ca_file, own_file, error);
    if (status == STATUS_OK)
        *out = tls;
    else
        tls_destroy(tls);
    return status;
}

void tls_destroy(struct tls *tls)
{
    if (!tls)
        return;
    SSL_CTX_free(tls->context);
    free(tls);
}

// ---- a connection ----

// An address has its own field in a certificate, and is not told to the server.
static bool set_host(SSL *ssl, const char *host)
{
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host))
        return true;
    return SSL_set1_host(ssl, host) && SSL_set_tlsext_host_name(ssl, host);
}

struct tls_conn *tls_begin(const struct tls *tls, int fd, const char *host)
{
    struct tls_conn *conn = calloc(1, sizeof *conn);
    ERR_clear_error();
    if (conn)
        conn->ssl = SSL_new(tls->context);
    if (!conn || !conn->ssl || !set_host(conn->ssl, host) || !SSL_set_fd(conn->ssl, fd)) {
        tls_end(conn);
        return NULL;
    }
    SSL_set_connect_state(conn->ssl);
    return conn;
}

void tls_end(struct tls_conn *conn)
{
    if (!conn)
        return;
    SSL_free(conn->ssl); // without a farewell, which could block
    free(conn);
}

// What a call of OpenSSL ended with, as errno; 0: the other side has closed.
static int outcome_of(struct tls_conn *conn, int result)
{
    const int saved = errno, what = SSL_get_error(conn->ssl, result);
    conn->wants_room = what == SSL_ERROR_WANT_WRITE;
    switch (what) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE: return EAGAIN;
    case SSL_ERROR_ZERO_RETURN: return 0;
    case SSL_ERROR_SYSCALL: return saved ? saved : ECONNRESET;
    default: return EPROTO;
    }
}

static void note_why(struct tls_conn *conn, int outcome)
{
    const long verdict = SSL_get_verify_result(conn->ssl);
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    if (verdict != X509_V_OK)
        snprintf(conn->why, sizeof conn->why, "its certificate is refused: %s",
                 X509_verify_cert_error_string(verdict));
    else
        snprintf(conn->why, sizeof conn->why, "no TLS: %s",
                 outcome == 0                  ? "it closed the connection"
                 : outcome == EPROTO && reason ? reason
                                               : strerror(outcome));
}

enum tls_shaken tls_shake(struct tls_conn *conn)
{
    ERR_clear_error();
    errno = 0;
    const int result = SSL_do_handshake(conn->ssl);
    if (result == 1) {
        conn->wants_room = false;
        return TLS_DONE;
    }
    const int outcome = outcome_of(conn, result);
    if (outcome == EAGAIN)
        return TLS_AGAIN;
    note_why(conn, outcome);
    return TLS_FAILED;
}

const char *tls_why(const struct tls_conn *conn)
{
    return conn->why;
}

// `moved` bytes went before the call that ended with `result`.
static ssize_t end_of(struct tls_conn *conn, ssize_t moved, int result)
{
    const int outcome = outcome_of(conn, result);
    if (moved > 0 || outcome == 0)
        return moved; // the next call says more
    errno = outcome;
    return -1;
}

// Reads to or writes from `memory`; returns what OpenSSL returns.
typedef int transfer(SSL *ssl, void *memory, int bytes);

static int take_some(SSL *ssl, void *memory, int bytes)
{
    return SSL_read(ssl, memory, bytes);
}

static int give_some(SSL *ssl, void *memory, int bytes)
{
    return SSL_write(ssl, memory, bytes);
}

static ssize_t move(struct tls_conn *conn, const struct iovec *all, int count, transfer *some)
{
    ssize_t moved = 0;
    ERR_clear_error();
    for (int i = 0; i < count; i++) {
        for (size_t at = 0; at < all[i].iov_len;) {
            const size_t left = all[i].iov_len - at;
            errno = 0; // so that outcome_of() sees this call's
            const int went = some(conn->ssl, (char *)all[i].iov_base + at,
                                  left < INT32_MAX ? (int)left : INT32_MAX);
            if (went <= 0)
                return end_of(conn, moved, went);
            at += (size_t)went;
            moved += went;
        }
    }
    return moved;
}

ssize_t tls_read(struct tls_conn *conn, const struct iovec *to, int count)
{
    return move(conn, to, count, take_some);
}

ssize_t tls_write(struct tls_conn *conn, const struct iovec *from, int count)
{
    return move(conn, from, count, give_some);
}

bool tls_wants_room(const struct tls_conn *conn)
{
    return conn->wants_room;
}

bool tls_has_more(const struct tls_conn *conn)
{
    return SSL_pending(conn->ssl) > 0;
}
