// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// dice.c - see dice.h: splitmix64.

#include "dice.h"

uint64_t dice_next(struct dice *dice)
{
    uint64_t z = dice->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint32_t dice_below(struct dice *dice, uint32_t end)
{
    return (uint32_t)((dice_next(dice) >> 32) * end >> 32);
}

uint32_t dice_between(struct dice *dice, uint32_t low, uint32_t high)
{
    return low + dice_below(dice, high - low + 1);
}

bool dice_chance(struct dice *dice, uint32_t percent)
{
    return dice_below(dice, 100) < percent;
}

float dice_normal(struct dice *dice)
{
    uint64_t bits = dice_next(dice);
    uint32_t sum = (uint32_t)(bits & 0xffff) + (uint32_t)(bits >> 16 & 0xffff) +
                   (uint32_t)(bits >> 32 & 0xffff);
    return ((float)sum / 65536 - 1.5f) * 2;
}

void dice_shuffle(struct dice *dice, int32_t *numbers, uint32_t count)
{
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = dice_below(dice, i);
        int32_t number = numbers[i - 1];
        numbers[i - 1] = numbers[j];
        numbers[j] = number;
    }
}
