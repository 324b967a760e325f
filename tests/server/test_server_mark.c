// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_server_mark.c - two daemons of one device that start together; bind() is redirected here by
// the linker. The second one starts and ends its look just before the first one's mark is there.

#include "rigs/check_main.h"
#include "server/process/device_mark.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FIRST = 1, SECOND = 2 };

static uint8_t uuid[16];
static int second = -1;

int __real_bind(int fd, const struct sockaddr *address, socklen_t size);
int __wrap_bind(int fd, const struct sockaddr *address, socklen_t size);
int __wrap_bind(int fd, const struct sockaddr *address, socklen_t size)
{
    static bool nested;
    if (!nested) {
        nested = true;
        second = device_mark_set("the device", uuid, SECOND);
    }
    return __real_bind(fd, address, size);
}

// Of standard error.
static int count_warnings(int fd)
{
    char text[4096] = "";
    int count = 0;
    ck_assert_int_ge(read(fd, text, sizeof text - 1), 0);
    for (const char *at = text; (at = strstr(at, "is served by another aule-daemon")); at++)
        count++;
    return count;
}

START_TEST(of_two_daemons_that_start_together_one_sees_the_other_and_none_itself)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    memcpy(uuid, &(int){getpid()}, sizeof(int)); // no daemon's
    const int before = dup(STDERR_FILENO);
    ck_assert_int_eq(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    close(ends[1]);
    const int first = device_mark_set("the device", uuid, FIRST);
    ck_assert_int_eq(dup2(before, STDERR_FILENO), STDERR_FILENO);
    ck_assert_int_ge(first, 0);
    ck_assert_int_ge(second, 0);
    ck_assert_int_eq(count_warnings(ends[0]), 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server mark");
    check_case(suite, "mark", NULL, NULL,
               (const TTest *const[]){
                   of_two_daemons_that_start_together_one_sees_the_other_and_none_itself, NULL},
               1);
    return check_main(suite);
}
