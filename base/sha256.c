// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// sha256.c - see sha256.h. Plain C, or the instructions that x86 has for it, which take a third of
// the time or less.

#include "sha256.h"

#include <stdatomic.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

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

static void mix_plainly(uint32_t state[8], const uint8_t *block)
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

#ifdef __x86_64__
static bool has_instructions(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && c & bit_SSE4_1 && c & bit_SSSE3 &&
           __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & bit_SHA;
}

// The processor keeps the state as (a, b, e, f) and (c, d, g, h).
__attribute__((target("sha,sse4.1"))) static void mix_by_instructions(uint32_t state[8],
                                                                      const uint8_t *block)
{
    const __m128i bytes = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i *const at = (__m128i *)(void *)state;
    const __m128i low = _mm_shuffle_epi32(_mm_loadu_si128(at), 0xb1),
                  high = _mm_shuffle_epi32(_mm_loadu_si128(at + 1), 0x1b),
                  abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xf0);
    __m128i one = abef, two = cdgh, words[4];
    for (int i = 0; i < 4; i++)
        words[i] = _mm_shuffle_epi8(
            _mm_loadu_si128((const __m128i *)(const void *)(block + (size_t)i * 16)), bytes);
    for (int i = 0; i < 16; i++) {
        const __m128i own = words[i % 4], next = words[(i + 1) % 4], last = words[(i + 3) % 4],
                      sum = _mm_add_epi32(
                          own, _mm_loadu_si128((const __m128i *)(const void *)&rounds[i * 4]));
        two = _mm_sha256rnds2_epu32(two, one, sum);
        one = _mm_sha256rnds2_epu32(one, two, _mm_shuffle_epi32(sum, 0x0e));
        const __m128i more = _mm_add_epi32(_mm_sha256msg1_epu32(own, next),
                                           _mm_alignr_epi8(last, words[(i + 2) % 4], 4));
        words[i % 4] = _mm_sha256msg2_epu32(more, last);
    }
    one = _mm_shuffle_epi32(_mm_add_epi32(one, abef), 0x1b);
    two = _mm_shuffle_epi32(_mm_add_epi32(two, cdgh), 0xb1);
    _mm_storeu_si128(at, _mm_blend_epi16(one, two, 0xf0));
    _mm_storeu_si128(at + 1, _mm_alignr_epi8(two, one, 8));
}
#else
static bool has_instructions(void)
{
    return false;
}

static void mix_by_instructions(uint32_t state[8], const uint8_t *block)
{
    mix_plainly(state, block);
}
#endif

enum { UNKNOWN, PLAIN, INSTRUCTIONS };
static atomic_int way; // cpuid is slow, above all in a virtual machine

bool sha256_use_instructions(bool allowed)
{
    const int now = allowed && has_instructions() ? INSTRUCTIONS : PLAIN;
    atomic_store_explicit(&way, now, memory_order_relaxed);
    return now == INSTRUCTIONS;
}

static void mix(uint32_t state[8], const uint8_t *block)
{
    const int now = atomic_load_explicit(&way, memory_order_relaxed);
    if (now == INSTRUCTIONS || (now == UNKNOWN && sha256_use_instructions(true)))
        mix_by_instructions(state, block);
    else
        mix_plainly(state, block);
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
