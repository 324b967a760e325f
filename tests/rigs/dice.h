// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// dice.h - random numbers from a seed, the same on every machine. It does not know what they are
// for.

#ifndef AULE_DICE_H
#define AULE_DICE_H

#include <stdbool.h>
#include <stdint.h>

struct dice {
    uint64_t state;
};
uint64_t dice_next(struct dice *dice);
uint32_t dice_below(struct dice *dice, uint32_t end);                  // 0 .. end - 1; end > 0
uint32_t dice_between(struct dice *dice, uint32_t low, uint32_t high); // both included
bool dice_chance(struct dice *dice, uint32_t percent);
float dice_normal(struct dice *dice); // mean 0, deviation about 1, always within +-3
void dice_shuffle(struct dice *dice, int32_t *numbers, uint32_t count);

#endif
