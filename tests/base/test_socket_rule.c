// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_socket_rule.c - where daemon and clients look for a socket that no option names.

#include "base/socket_rule.h"
#include "rigs/check_main.h"

#include <string.h>

static void expect_folder(const char *expected)
{
    char folder[64];
    ck_assert_uint_eq(socket_rule_folder(folder, sizeof folder), strlen(expected));
    ck_assert_str_eq(folder, expected);
}

START_TEST(the_first_variable_that_is_set_names_the_folder)
{
    unsetenv("AULE_RUNTIME_DIR");
    unsetenv("XDG_RUNTIME_DIR");
    expect_folder("/run/aule");
    setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
    expect_folder("/run/user/7/aule");
    setenv("AULE_RUNTIME_DIR", "/srv/a", 1);
    expect_folder("/srv/a");
    setenv("AULE_RUNTIME_DIR", "", 1);
    expect_folder("/run/user/7/aule");
    setenv("XDG_RUNTIME_DIR", "", 1);
    expect_folder("/run/aule");
}
END_TEST

START_TEST(a_folder_that_is_cut_tells_its_whole_length)
{
    char folder[8];
    setenv("AULE_RUNTIME_DIR", "/srv/aule", 1);
    ck_assert_uint_eq(socket_rule_folder(folder, sizeof folder), 9);
    ck_assert_str_eq(folder, "/srv/au");
}
END_TEST

START_TEST(each_device_has_a_file)
{
    char file[SOCKET_FILE_SIZE];
    socket_rule_file(0, file);
    ck_assert_str_eq(file, "0.sock");
    socket_rule_file(UINT32_MAX, file);
    ck_assert_str_eq(file, "4294967295.sock");
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        the_first_variable_that_is_set_names_the_folder,
        a_folder_that_is_cut_tells_its_whole_length,
        each_device_has_a_file,
        NULL,
    };
    Suite *suite = suite_create("socket_rule");
    check_case(suite, "socket_rule", NULL, NULL, tests, 1);
    return check_main(suite);
}
