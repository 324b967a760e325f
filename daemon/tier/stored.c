// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// stored.c - see stored.h.

#include "stored.h"

#include "base/sha256.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>
// The library is compiled for any x86-64. Its dispatcher uses AVX2 or AVX-512 where the processor
// has them: 10 instead of 6 GB/s a thread, out of memory. The sums are the same.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "headers are stored as they lie here");

const char *const stored_reason_labels[STORED_NUM_REASONS] = {
#define X(id, label) label,
    STORED_REASON_MAP(X)
#undef X
};

static const char magic[4] = {'A', 'U', 'L', 'E'};

// ---- ids ----

static void end_id(struct sha256 *sha, uint8_t out[STORED_ID_BYTES])
{
    uint8_t whole[SHA256_BYTES];
    sha256_end(sha, whole);
    memcpy(out, whole, STORED_ID_BYTES);
}

void stored_fingerprint(const void *identity, size_t size, uint8_t out[STORED_ID_BYTES])
{
    struct sha256 sha;
    sha256_begin(&sha);
    sha256_add(&sha, identity, size);
    end_id(&sha, out);
}

void stored_salt(const void *key, size_t key_size, const void *name, size_t size,
                 uint8_t out[STORED_ID_BYTES])
{
    uint8_t whole[SHA256_BYTES];
    sha256_hmac(key, key_size, name, size, whole);
    memcpy(out, whole, STORED_ID_BYTES);
}

struct stored_chain stored_chain_begin(const void *extra_key, size_t size)
{
    struct stored_chain chain;
    stored_fingerprint(extra_key, size, chain.id);
    return chain;
}

struct stored_chain stored_chain_next(const struct stored_chain *before, const int32_t *tokens,
                                      uint32_t num_tokens)
{
    struct stored_chain chain;
    struct sha256 sha;
    sha256_begin(&sha);
    sha256_add(&sha, before->id, sizeof before->id);
    sha256_add(&sha, tokens, num_tokens * sizeof *tokens);
    end_id(&sha, chain.id);
    return chain;
}

// ---- parts ----

uint32_t stored_num_parts(uint64_t block_bytes)
{
    return (uint32_t)((block_bytes + STORED_PART_BYTES - 1) / STORED_PART_BYTES);
}

uint64_t stored_part_offset(uint32_t part)
{
    return (uint64_t)part * STORED_PART_BYTES;
}

uint32_t stored_part_bytes(uint64_t block_bytes, uint32_t part)
{
    const uint64_t left = block_bytes - stored_part_offset(part);
    return (uint32_t)(left < STORED_PART_BYTES ? left : STORED_PART_BYTES);
}

// ---- names ----

static char *put_hex(char *to, const uint8_t id[STORED_ID_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < STORED_ID_BYTES; i++) {
        *to++ = digits[id[i] >> 4];
        *to++ = digits[id[i] & 15];
    }
    return to;
}

size_t stored_name(char out[STORED_NAME_ROOM], const struct stored_space *space,
                   const struct stored_chain *chain, uint32_t part)
{
    char number[16];
    snprintf(number, sizeof number, "%u", part);
    char *to = stpcpy(out, "aule:1:");
    to = stpcpy(put_hex(to, space->fingerprint), ":");
    to = stpcpy(put_hex(to, space->salt), ":{");
    to = stpcpy(put_hex(to, chain->id), "}:");
    to = stpcpy(to, number);
    return (size_t)(to - out);
}
_Static_assert(STORED_VERSION == 1, "the names of stored_name() begin with the version");

// ---- headers ----

static uint64_t checksum(const struct stored_space *space, const void *payload, size_t size)
{
    uint64_t seed;
    memcpy(&seed, space->salt, sizeof seed);
    return XXH3_64bits_withSeed(payload, size, seed);
}

void stored_header_fill(struct stored_header *header, const struct stored_space *space,
                        const struct stored_chain *chain, uint32_t part, const void *payload)
{
    *header = (struct stored_header){
        .version = STORED_VERSION,
        .header_bytes = sizeof *header,
        .part = part,
        .num_parts = stored_num_parts(space->block_bytes),
        .payload_bytes = stored_part_bytes(space->block_bytes, part),
    };
    memcpy(header->magic, magic, sizeof magic);
    memcpy(header->fingerprint, space->fingerprint, sizeof header->fingerprint);
    memcpy(header->chain, chain->id, sizeof header->chain);
    header->checksum = checksum(space, payload, header->payload_bytes);
}

enum stored_reason stored_header_check(const struct stored_header *header,
                                       const struct stored_space *space,
                                       const struct stored_chain *chain, uint32_t part)
{
    if (memcmp(header->magic, magic, sizeof magic) != 0 || header->version != STORED_VERSION ||
        header->header_bytes != sizeof *header)
        return STORED_OTHER_VERSION;
    if (memcmp(header->fingerprint, space->fingerprint, sizeof header->fingerprint) != 0 ||
        memcmp(header->chain, chain->id, sizeof header->chain) != 0 || header->part != part ||
        header->num_parts != stored_num_parts(space->block_bytes))
        return STORED_IDENTITY;
    return header->payload_bytes == stored_part_bytes(space->block_bytes, part) ? STORED_OK
                                                                                : STORED_LENGTH;
}

enum stored_reason stored_check(const struct stored_header *header,
                                const struct stored_space *space, const struct stored_chain *chain,
                                uint32_t part, const void *payload, uint64_t payload_bytes)
{
    const enum stored_reason reason = stored_header_check(header, space, chain, part);
    if (reason != STORED_OK)
        return reason;
    if (payload_bytes != header->payload_bytes)
        return STORED_LENGTH;
    return checksum(space, payload, payload_bytes) == header->checksum ? STORED_OK
                                                                       : STORED_CHECKSUM;
}
