// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_redis.h - the cases of test_redis, which stand in two files.

#ifndef AULE_TEST_REDIS_H
#define AULE_TEST_REDIS_H

#include <check.h>

void add_redis_faults(Suite *suite);

#endif
