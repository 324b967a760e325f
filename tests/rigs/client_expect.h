// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// client_expect.h - helpers for tests of libaule-client: expected statuses and errors, and numbers
// to fill tensors with. It knows neither daemon nor session. Asserts with check.

#ifndef AULE_TESTS_CLIENT_EXPECT_H
#define AULE_TESTS_CLIENT_EXPECT_H

#include "aule/aule.h"

#include <stdint.h>

void ok(enum aule_status status);
// The call returned this status, and the error of the thread's last failure contains `words`.
void expect(enum aule_status status, enum aule_status expected, const char *words);

float value_at(uint32_t seed,
               uint32_t i); // between -1 and 1, a multiple of 2^-15; it depends only on both
                            // arguments

#endif
