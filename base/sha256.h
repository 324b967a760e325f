// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// sha256.h - SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104). Any thread.

#ifndef AULE_SHA256_H
#define AULE_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_BLOCK = 64 };

struct sha256 {
    uint32_t state[8];
    uint64_t size; // bytes so far
    uint8_t rest[SHA256_BLOCK];
};

void sha256_begin(struct sha256 *sha);
void sha256_add(struct sha256 *sha, const void *data, size_t size);
void sha256_end(struct sha256 *sha, uint8_t out[SHA256_BYTES]);
void sha256_hmac(const void *key, size_t key_size, const void *data, size_t size,
                 uint8_t out[SHA256_BYTES]);
// False: from now on without the processor's instructions for it. Tests compare both. Returns
// whether they are used, which is so from the start where the processor has them.
bool sha256_use_instructions(bool allowed);

#endif
