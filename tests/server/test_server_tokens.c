// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_server_tokens.c - which process a token gives a descriptor, by what the kernel says of it.
// The device arena is the linker's: nothing but session_redeem() runs here.

#include "rigs/check_main.h"
#include "server/session.h"
#include "server/state.h"

#include <string.h>

enum { UID = 1000, FD = 17 };

static struct server server;
static struct session session;
static struct error error;

enum status __wrap_engine_arena_export(struct engine_arena *arena, struct engine_export *out,
                                       struct error *error_);
enum status __wrap_engine_arena_export(struct engine_arena *arena, struct engine_export *out,
                                       struct error *error_)
{
    (void)arena, (void)error_;
    *out = (struct engine_export){.fd = FD};
    return STATUS_OK;
}

static enum status redeem(uint64_t pid, uint64_t owner, uint64_t peer_pid, uint64_t peer_owner)
{
    struct session *one = &session;
    const struct exports_peer peer = {{.uid = UID}, peer_pid, peer_owner};
    int fd = -1;
    server = (struct server){.sessions = NULL};
    session = (struct session){
        .id = 1, .stage = SESSION_OPEN, .uid = UID, .pid = pid, .owner = owner, .has_token = true};
    HASH_ADD(hh, server.sessions, id, sizeof one->id, one);
    const enum status status = session_redeem(&server, session.token, &peer, &fd, &error);
    HASH_DEL(server.sessions, one);
    ck_assert_int_eq(fd, status == STATUS_OK ? FD : -1);
    ck_assert_int_eq(session.has_token, status != STATUS_OK);
    return status;
}

START_TEST(a_token_is_redeemed_by_the_process_that_asked_for_it)
{
    ck_assert_int_eq(redeem(5, 50, 5, 50), STATUS_OK);
    ck_assert_int_eq(redeem(5, 0, 5, 0), STATUS_OK); // a pid is enough
    ck_assert_int_eq(redeem(0, 50, 0, 50), STATUS_OK);
    ck_assert_int_eq(redeem(5, 50, 6, 60), STATUS_DENIED);
    ck_assert_ptr_nonnull(strstr(error.text, "process 6 did not ask for this token"));
    ck_assert_int_eq(redeem(0, 50, 0, 60), STATUS_DENIED);
    ck_assert_int_eq(redeem(0, 50, 5, 50), STATUS_DENIED);
}
END_TEST

START_TEST(processes_that_the_kernel_does_not_tell_apart_redeem_no_token)
{
    ck_assert_int_eq(redeem(0, 0, 0, 0), STATUS_DENIED);
    ck_assert_ptr_nonnull(strstr(error.text, "Linux 6.9"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server tokens");
    check_case(suite, "tokens", NULL, NULL,
               (const TTest *const[]){a_token_is_redeemed_by_the_process_that_asked_for_it,
                                      processes_that_the_kernel_does_not_tell_apart_redeem_no_token,
                                      NULL},
               1);
    return check_main(suite);
}
