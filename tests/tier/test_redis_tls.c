// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_redis_tls.c - the redis tier over TLS, on real servers whose certificates the test makes:
// what comes back has the same bits, and a server that cannot prove who it is gets no block.

#include "redis_world.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <unistd.h>

enum { MIB = 1 << 20, PATH_ROOM = 64 };

static char folder[32], ca[PATH_ROOM], own[PATH_ROOM], other_ca[PATH_ROOM], url[64];
static int tls_port;

// ---- certificates ----

static void add_extension(X509 *certificate, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    ck_assert_ptr_nonnull(extension);
    ck_assert_int_eq(X509_add_ext(certificate, extension, -1), 1);
    X509_EXTENSION_free(extension);
}

// `issuer` NULL: it vouches for itself and for others. `names`: a subjectAltName.
static X509 *make_certificate(EVP_PKEY *key, X509 *issuer, EVP_PKEY *issuer_key, const char *names)
{
    static long serial;
    X509 *certificate = X509_new();
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 24 * 3600);
    X509_set_pubkey(certificate, key);
    X509_NAME *name = X509_get_subject_name(certificate);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                               (const unsigned char *)(issuer ? "aule test" : "aule test CA"), -1,
                               -1, 0);
    X509_set_issuer_name(certificate, issuer ? X509_get_subject_name(issuer) : name);
    if (issuer)
        add_extension(certificate, issuer, NID_subject_alt_name, names);
    else
        add_extension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE");
    ck_assert_int_gt(X509_sign(certificate, issuer ? issuer_key : key, EVP_sha256()), 0);
    return certificate;
}

// Writes the certificate, and behind it its key, unless it is NULL.
static void write_files(const char *path, X509 *certificate, EVP_PKEY *key)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(PEM_write_X509(file, certificate), 1);
    if (key)
        ck_assert_int_eq(PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL), 1);
    ck_assert_int_eq(fclose(file), 0);
}

// A key alone, behind a password.
static void write_locked(const char *path)
{
    char password[] = "secret";
    EVP_PKEY *key = EVP_EC_gen("P-256");
    FILE *file = fopen(path, "a");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(PEM_write_PKCS8PrivateKey(file, key, EVP_aes_256_cbc(), password,
                                               sizeof password - 1, NULL, NULL),
                     1);
    ck_assert_int_eq(fclose(file), 0);
    EVP_PKEY_free(key);
}

static void make_ca(const char *path, const char *own_path, const char *names)
{
    EVP_PKEY *key = EVP_EC_gen("P-256"), *ca_key = EVP_EC_gen("P-256");
    X509 *authority = make_certificate(ca_key, NULL, NULL, NULL),
         *certificate = make_certificate(key, authority, ca_key, names);
    write_files(path, authority, NULL);
    write_files(own_path, certificate, key);
    X509_free(authority);
    X509_free(certificate);
    EVP_PKEY_free(key);
    EVP_PKEY_free(ca_key);
}

// ---- the world ----

static void start_server(bool again, const char *clients)
{
    char port[8];
    snprintf(port, sizeof port, "%d", tls_port);
    const char *const arguments[] = {"--tls-port",
                                     port,
                                     "--tls-cert-file",
                                     own,
                                     "--tls-key-file",
                                     own,
                                     "--tls-ca-cert-file",
                                     ca,
                                     "--tls-auth-clients",
                                     clients,
                                     NULL};
    (again ? server_start_again : server_start)(0, arguments);
}

static void open_server(const char *names, const char *clients)
{
    strcpy(folder, "/tmp/aule-tls-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(ca, sizeof ca, "%s/ca.pem", folder);
    snprintf(own, sizeof own, "%s/own.pem", folder);
    snprintf(other_ca, sizeof other_ca, "%s/other.pem", folder);
    make_ca(other_ca, own, names);
    make_ca(ca, own, names);
    tls_port = server_free_port();
    snprintf(url, sizeof url, "rediss://127.0.0.1:%d", tls_port);
    start_server(false, clients);
}

static void open_tier(const char *ca_file, const char *cert_file, uint64_t block_bytes)
{
    const struct redis_params params = {.url = url, .ca_file = ca_file, .cert_file = cert_file};
    world_open(1, &params, block_bytes);
}

static void end(void)
{
    char command[64];
    world_close();
    snprintf(command, sizeof command, "rm -rf %s", folder);
    ck_assert_int_eq(system(command), 0);
}

static const char here[] = "IP:127.0.0.1,DNS:localhost";

// ---- the tests ----

START_TEST(what_is_stored_over_tls_comes_back_with_the_same_bits)
{
    static const uint64_t sizes[] = {1, 4096, 16384, MIB, MIB + 1, 9 * MIB + 5};
    open_server(here, "no");
    open_tier(ca, NULL, sizes[_i]);
    world_expect_round_trip();
}
END_TEST

START_TEST(many_jobs_at_once_over_tls_all_get_their_own_bytes)
{
    struct tier_job *jobs[8];
    open_server(here, "no");
    open_tier(ca, NULL, 3 * MIB / 2);
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < 8; i++)
            jobs[i] = world_start(!round       ? TIER_STORE
                                  : i % 2 == 0 ? TIER_LOAD
                                               : TIER_LOOKUP,
                                  4 * i, 4, 60000);
        for (uint32_t i = 0; i < 8; i++) {
            world_end(jobs[i]);
            ck_assert_uint_eq(world_count(jobs[i], STORED_OK), 4);
            world_free(jobs[i]);
        }
    }
}
END_TEST

// The breaker opens at once, because trying again is of no use.
static void expect_refused(const char *sentence)
{
    world_await(0, STORED_BREAKER);
    ck_assert_msg(world_was_told(sentence), "not \"%s\" but: %s", sentence, world.said);
    redisReply *reply = server_ask(0, "DBSIZE");
    ck_assert_int_eq(reply->integer, 0);
    freeReplyObject(reply);
}

START_TEST(a_server_that_nobody_vouches_for_gets_no_block)
{
    open_server(here, "no");
    open_tier(_i ? NULL : other_ca, NULL, 1000); // NULL: those of the system
    world_free(world_run(TIER_STORE, 0, 1));
    expect_refused("its certificate is refused");
}
END_TEST

START_TEST(a_certificate_for_another_machine_is_refused)
{
    open_server("IP:127.0.0.2,DNS:example.org", "no");
    open_tier(ca, NULL, 1000);
    world_free(world_run(TIER_STORE, 0, 1));
    expect_refused("IP address mismatch");
}
END_TEST

// It takes the greeting for the begin of a command, and waits for its end.
START_TEST(a_server_that_speaks_plain_text_gets_no_block)
{
    open_server(here, "no");
    snprintf(url, sizeof url, "rediss://127.0.0.1:%d", servers[0].port);
    const struct redis_params params = {.url = url, .ca_file = ca, .stall_ms = 300};
    world_open(1, &params, 1000);
    struct tier_job *job = world_run(TIER_STORE, 0, 1);
    ck_assert_uint_eq(world_count(job, STORED_OK), 0);
    world_free(job);
    expect_refused("127.0.0.1");
}
END_TEST

START_TEST(a_server_that_asks_for_a_certificate_gets_the_daemons)
{
    open_server(here, "yes");
    open_tier(ca, _i ? own : NULL, 1000);
    if (_i) {
        world_expect(TIER_STORE, 0, 8, STORED_OK);
        world_expect(TIER_LOAD, 0, 8, STORED_OK);
        return;
    }
    struct tier_job *job = world_run(TIER_STORE, 0, 1);
    ck_assert_uint_eq(world_count(job, STORED_OK), 0);
    world_free(job);
}
END_TEST

START_TEST(a_server_that_is_killed_in_the_middle_is_used_again_when_it_is_back)
{
    struct tier_job *jobs[6];
    open_server(here, "no");
    open_tier(ca, NULL, 2 * MIB);
    world_expect(TIER_STORE, 0, 16, STORED_OK);
    for (uint32_t i = 0; i < 6; i++)
        jobs[i] = world_start(i % 2 ? TIER_STORE : TIER_LOAD, i % 2 ? 16 : 0, 16, 60000);
    world_end(jobs[0]);
    server_kill(0);
    for (uint32_t i = 0; i < 6; i++) {
        if (i)
            world_end(jobs[i]);
        ck_assert_uint_eq(world_count(jobs[i], STORED_TIMEOUT), 0); // it is noticed at once
        world_free(jobs[i]);
    }
    start_server(true, "no");
    world_await(0, STORED_ABSENT); // it is empty
    world_expect(TIER_STORE, 0, 8, STORED_OK);
    world_expect(TIER_LOAD, 0, 8, STORED_OK);
}
END_TEST

START_TEST(a_file_that_is_no_certificate_is_refused_with_its_name)
{
    struct tier_backend *backend;
    struct error error;
    open_server(here, "no");
    write_locked(other_ca); // a certificate and a key that only its owner can read
    const struct redis_params wrong[] = {{.url = url, .ca_file = "/etc/passwd"},
                                         {.url = url, .ca_file = ca, .cert_file = ca},
                                         {.url = url, .ca_file = ca, .cert_file = other_ca}};
    static const char *const texts[] = {"(ca) /etc/passwd: ", "(cert) /tmp/aule-tls",
                                        "(cert) /tmp/aule-tls"};
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(redis_create(&wrong[i], &backend, &error), STATUS_INVALID);
        ck_assert_msg(strstr(error.text, texts[i]) != NULL, "%s", error.text);
    }
    open_tier(ca, NULL, 1000);
}
END_TEST

static void add(Suite *suite, const char *name, const TTest *test, int loops)
{
    const TTest *const tests[] = {test, NULL};
    check_case(suite, name, NULL, end, tests, loops);
}

int main(void)
{
    const TTest *const tests[] = {
        many_jobs_at_once_over_tls_all_get_their_own_bytes,
        a_certificate_for_another_machine_is_refused,
        a_server_that_speaks_plain_text_gets_no_block,
        a_server_that_is_killed_in_the_middle_is_used_again_when_it_is_back,
        a_file_that_is_no_certificate_is_refused_with_its_name,
        NULL,
    };
    Suite *suite = suite_create("redis tls");
    if (!server_is_there()) {
        puts("skipped: redis-server is not installed");
        return 77;
    }
    check_seed();
    check_case(suite, "tls", NULL, end, tests, 1);
    add(suite, "sizes", what_is_stored_over_tls_comes_back_with_the_same_bits, 6);
    add(suite, "unknown servers", a_server_that_nobody_vouches_for_gets_no_block, 2);
    add(suite, "own certificate", a_server_that_asks_for_a_certificate_gets_the_daemons, 2);
    return check_main(suite);
}
