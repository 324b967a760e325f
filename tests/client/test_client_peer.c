// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_peer.c - whose daemon the client library trusts. What listens here answers nothing,
// so a client that trusts it times out. Needs root, to listen and to connect as other users.

#include "aule/aule.h"
#include "rigs/check_main.h"
#include "rigs/client_expect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { STRANGER = 64001, WORKER = 64002, PATIENCE_MS = 200 };

static char folder[64];
static struct sockaddr_un address;
static int listener;

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/aule-peer-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chmod(folder, 0755), 0);
    address = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/0.sock", folder);
    unsetenv("AULE_DAEMON_UID");
}

static void remove_folder(void)
{
    close(listener);
    unlink(address.sun_path);
    rmdir(folder);
}

static void listen_as(uid_t uid)
{
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(listener, (const struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(chmod(address.sun_path, 0666), 0);
    ck_assert_int_eq(seteuid(uid), 0);
    ck_assert_int_eq(listen(listener, 8), 0);
    ck_assert_int_eq(seteuid(0), 0);
}

static enum aule_status open_as(uid_t uid)
{
    const struct aule_session_params params = {.socket = address.sun_path,
                                               .timeout_ms = PATIENCE_MS};
    struct aule_session *session;
    ck_assert_int_eq(seteuid(uid), 0);
    const enum aule_status status = aule_session_open(&params, &session);
    ck_assert_int_eq(seteuid(0), 0);
    ck_assert_ptr_null(session);
    return status;
}

START_TEST(a_client_gives_nothing_to_the_daemon_of_a_stranger)
{
    char byte;
    listen_as(STRANGER);
    expect(open_as(0), AULE_DENIED,
           "runs as user 64001, whom this process (user 0) does not trust");
    expect(open_as(WORKER), AULE_DENIED, "If you do, set AULE_DAEMON_UID=64001.");
    struct aule_monitor *monitor;
    expect(aule_monitor_open(address.sun_path, PATIENCE_MS, &monitor), AULE_DENIED,
           "user 64001, whom");
    const int peer = accept(listener, NULL, NULL);
    ck_assert_int_ge(peer, 0);
    ck_assert_int_eq(read(peer, &byte, 1), 0); // not even a greeting
    close(peer);
}
END_TEST

START_TEST(a_client_trusts_its_own_user_root_and_the_variables)
{
    listen_as(_i == 0 ? WORKER : _i == 1 ? 0 : STRANGER);
    if (_i == 2)
        setenv("AULE_DAEMON_UID", "64001", 1);
    expect(open_as(WORKER), AULE_TIMEOUT, "did not accept");
}
END_TEST

START_TEST(a_bad_variable_is_named_with_its_value)
{
    static const char *const values[] = {"aule", "-1", "64001x", "99999999999"};
    listen_as(0);
    setenv("AULE_DAEMON_UID", values[_i], 1);
    expect(open_as(WORKER), AULE_INVALID, values[_i]);
}
END_TEST

START_TEST(a_folder_that_any_user_can_write_to_is_refused_without_the_sticky_bit)
{
    listen_as(0);
    ck_assert_int_eq(chmod(folder, 0777), 0);
    expect(open_as(0), AULE_DENIED, "mode 0777");
    ck_assert_int_eq(chmod(folder, 01777), 0);
    expect(open_as(0), AULE_TIMEOUT, "did not accept");
}
END_TEST

int main(void)
{
    if (geteuid() != 0) {
        puts("skipped: only root can be several users");
        return 77;
    }
    Suite *suite = suite_create("client_peer");
    TCase *tcase = tcase_create("peer");
    tcase_add_checked_fixture(tcase, make_folder, remove_folder);
    tcase_add_test(tcase, a_client_gives_nothing_to_the_daemon_of_a_stranger);
    tcase_add_loop_test(tcase, a_client_trusts_its_own_user_root_and_the_variables, 0, 3);
    tcase_add_loop_test(tcase, a_bad_variable_is_named_with_its_value, 0, 4);
    tcase_add_test(tcase, a_folder_that_any_user_can_write_to_is_refused_without_the_sticky_bit);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
