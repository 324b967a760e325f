// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// slots.c - see slots.h.

#include "slots.h"

#include <string.h>
#include <xxhash.h>

// CRC-16 with polynomial 0x1021, four bits at a time.
static uint16_t crc_add(uint16_t crc, uint8_t byte)
{
    static const uint16_t table[16] = {
        0x0000, 0x1021, 0x2042, 0x3063, 0x4084, 0x50a5, 0x60c6, 0x70e7,
        0x8108, 0x9129, 0xa14a, 0xb16b, 0xc18c, 0xd1ad, 0xe1ce, 0xf1ef,
    };
    crc = (uint16_t)(crc << 4) ^ table[(crc >> 12) ^ (byte >> 4)];
    return (uint16_t)(crc << 4) ^ table[(crc >> 12) ^ (byte & 15)];
}

uint16_t slot_of_text(const char *text, size_t size)
{
    uint16_t crc = 0;
    for (size_t i = 0; i < size; i++)
        crc = crc_add(crc, (uint8_t)text[i]);
    return crc % NUM_SLOTS;
}

uint16_t slot_of(const struct stored_chain *chain)
{
    static const char digits[] = "0123456789abcdef"; // as stored_name() writes them
    uint16_t crc = 0;
    for (size_t i = 0; i < sizeof chain->id; i++) {
        crc = crc_add(crc, (uint8_t)digits[chain->id[i] >> 4]);
        crc = crc_add(crc, (uint8_t)digits[chain->id[i] & 15]);
    }
    return crc % NUM_SLOTS;
}

void slots_share(uint8_t slots[NUM_SLOTS], const char *const *addresses, uint32_t num)
{
    for (uint32_t slot = 0; slot < NUM_SLOTS; slot++) {
        uint64_t best = 0;
        slots[slot] = 0;
        for (uint32_t i = 0; i < num; i++) {
            uint64_t weight = XXH3_64bits_withSeed(addresses[i], strlen(addresses[i]), slot);
            if (i == 0 || weight > best) {
                best = weight;
                slots[slot] = (uint8_t)i;
            }
        }
    }
}
