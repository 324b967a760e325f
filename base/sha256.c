// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// sha256.c - see sha256.h. Plain C; a block of 64 bytes takes about 200 ns.

#include "sha256.h"

#include <string.h>

static const uint32_t rounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t x, unsigned by)
{
    return x >> by | x << (32 - by);
}

static void expand(const uint8_t *block, uint32_t words[64])
{
    for (int i = 0; i < 16; i++)
        words[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
                   (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        const uint32_t a = words[i - 15], b = words[i - 2];
        words[i] = words[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + words[i - 7] +
                   (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
}

static void mix(uint32_t state[8], const uint8_t *block)
{
    uint32_t words[64], s[8];
    expand(block, words);
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        const uint32_t one = s[7] + (turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)) +
                             ((s[4] & s[5]) ^ (~s[4] & s[6])) + rounds[i] + words[i],
                       two = (turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22)) +
                             ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one;
        s[0] = one + two;
    }
    for (int i = 0; i < 8; i++)
        state[i] += s[i];
}

void sha256_begin(struct sha256 *sha)
{
    *sha = (struct sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                     0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void sha256_add(struct sha256 *sha, const void *data, size_t size)
{
    const uint8_t *bytes = data;
    while (size) {
        const size_t at = sha->size % SHA256_BLOCK, room = SHA256_BLOCK - at,
                     count = size < room ? size : room;
        memcpy(sha->rest + at, bytes, count);
        sha->size += count;
        bytes += count;
        size -= count;
        if (sha->size % SHA256_BLOCK == 0)
            mix(sha->state, sha->rest);
    }
}

void sha256_end(struct sha256 *sha, uint8_t out[SHA256_BYTES])
{
    static const uint8_t pad[SHA256_BLOCK] = {0x80};
    uint8_t bits[8];
    for (int i = 0; i < 8; i++)
        bits[i] = (uint8_t)(sha->size * 8 >> (56 - 8 * i));
    const size_t at = sha->size % SHA256_BLOCK;
    sha256_add(sha, pad, at < 56 ? 56 - at : 120 - at);
    sha256_add(sha, bits, sizeof bits);
    for (int i = 0; i < SHA256_BYTES; i++)
        out[i] = (uint8_t)(sha->state[i / 4] >> (24 - 8 * (i % 4)));
}

static void pass(const uint8_t pad[SHA256_BLOCK], uint8_t mask, const void *data, size_t size,
                 uint8_t out[SHA256_BYTES])
{
    struct sha256 sha;
    uint8_t masked[SHA256_BLOCK];
    for (int i = 0; i < SHA256_BLOCK; i++)
        masked[i] = pad[i] ^ mask;
    sha256_begin(&sha);
    sha256_add(&sha, masked, sizeof masked);
    sha256_add(&sha, data, size);
    sha256_end(&sha, out);
}

void sha256_hmac(const void *key, size_t key_size, const void *data, size_t size,
                 uint8_t out[SHA256_BYTES])
{
    uint8_t pad[SHA256_BLOCK] = {0}, inner[SHA256_BYTES];
    if (key_size > SHA256_BLOCK) {
        struct sha256 sha;
        sha256_begin(&sha);
        sha256_add(&sha, key, key_size);
        sha256_end(&sha, pad);
    } else if (key_size) {
        memcpy(pad, key, key_size);
    }
    pass(pad, 0x36, data, size, inner);
    pass(pad, 0x5c, inner, sizeof inner, out);
}
