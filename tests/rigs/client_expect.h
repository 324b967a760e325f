// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// client_expect.h - what tests of libaule-client ask of a status and its sentence, and numbers to
// fill tensors with. Knows neither daemon nor session. Asserts with check.

#ifndef AULE_TESTS_CLIENT_EXPECT_H
#define AULE_TESTS_CLIENT_EXPECT_H

#include "aule/aule.h"

#include <stdint.h>

void ok(enum aule_status status);
// This status, and `words` in the sentence of the thread's latest failure.
void expect(enum aule_status status, enum aule_status expected, const char *words);

float value_at(uint32_t seed,
               uint32_t i); // between -1 and 1, a multiple of 2^-15; follows from both alone

#endif
