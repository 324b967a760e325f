// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// stored.h - how a block is named and stored outside the GPU. A block's bytes are K and V of all
// layers, layer after layer, and are cut into parts of at most STORED_PART_BYTES. A stored part is
// a 64-byte header and its payload. The header tells whose payload it is, and has a checksum; what
// does not match is a miss. A name has no process, machine, seed or pointer in it, so that all
// machines with one key file give a block the same name. Knows no tier. Any thread.

#ifndef AULE_TIER_STORED_H
#define AULE_TIER_STORED_H

#include <stddef.h>
#include <stdint.h>

enum {
    STORED_VERSION = 1, // grows with each change of the header, of a name, or of a block's bytes
    STORED_PART_BYTES = 1 << 20,
    STORED_ID_BYTES = 16,
    STORED_NAME_ROOM = 160, // of stored_name(), with its NUL
};

// Why a block did not come, or was not stored. X(ID, label): the label is that of the metrics.
#define STORED_REASON_MAP(X)                                                                       \
    X(OK, "ok")                                                                                    \
    X(ABSENT, "absent")         /* a miss, and no error */                                         \
    X(OTHER_VERSION, "version") /* of the header */                                                \
    X(IDENTITY, "identity")     /* it is another block, or another part */                         \
    X(LENGTH, "length")         /* it is truncated or too long */                                  \
    X(CHECKSUM, "checksum")                                                                        \
    X(TIMEOUT, "timeout")       /* of the operation */                                             \
    X(ABANDONED, "abandoned")   /* the tier has not answered in time, and may still do so */       \
    X(BREAKER, "breaker")       /* not tried, because what was tried before failed */              \
    X(FULL, "full")             /* the tier or its queue has no room */                            \
    X(CONNECTION, "connection") /* it cannot be reached, or was lost */                            \
    X(DENIED, "denied")         /* the store refused it: password, permission, a command */        \
    X(STORE, "store")           /* the store failed in another way: a bad answer, an I/O error */  \
    X(MEMORY, "memory")         /* of the daemon */                                                \
    X(CLOSED, "closed")         /* the tier closes */

enum stored_reason {
#define X(id, label) STORED_##id,
    STORED_REASON_MAP(X)
#undef X
        STORED_NUM_REASONS
};
extern const char *const stored_reason_labels[STORED_NUM_REASONS];

// What all blocks of one cache and one salt have in common.
struct stored_space {
    uint8_t fingerprint[STORED_ID_BYTES]; // of the model's identity and the layout
    uint8_t salt[STORED_ID_BYTES];        // who may share it
    uint64_t block_bytes;
};
// A block's place: all token ids from the start of the prompt to the block's end, and the extra
// key.
struct stored_chain {
    uint8_t id[STORED_ID_BYTES];
};

// Little-endian, as the machines are that run this.
struct stored_header {
    char magic[4]; // "AULE"
    uint16_t version, header_bytes;
    uint32_t part, num_parts;
    uint64_t payload_bytes;
    uint8_t fingerprint[STORED_ID_BYTES];
    uint8_t chain[STORED_ID_BYTES];
    uint64_t checksum; // xxh3 of the payload, seeded with the salt
};
_Static_assert(sizeof(struct stored_header) == 64, "readers of other languages count on it");

// The fingerprint is the truncated SHA-256 of what the caller describes.
void stored_fingerprint(const void *identity, size_t size, uint8_t out[STORED_ID_BYTES]);
// The truncated HMAC-SHA-256 of a salt's name.
void stored_salt(const void *key, size_t key_size, const void *name, size_t size,
                 uint8_t out[STORED_ID_BYTES]);
// The chain before the first block; `extra_key` may be empty.
struct stored_chain stored_chain_begin(const void *extra_key, size_t size);
struct stored_chain stored_chain_next(const struct stored_chain *before, const int32_t *tokens,
                                      uint32_t num_tokens);

uint32_t stored_num_parts(uint64_t block_bytes);
// Where part `part` of a block begins, and its length.
uint64_t stored_part_offset(uint32_t part);
uint32_t stored_part_bytes(uint64_t block_bytes, uint32_t part);

// "aule:1:<fingerprint>:<salt>:{<chain>}:<part>", ids in hex. Returns the length without the NUL.
size_t stored_name(char out[STORED_NAME_ROOM], const struct stored_space *space,
                   const struct stored_chain *chain, uint32_t part);

void stored_header_fill(struct stored_header *header, const struct stored_space *space,
                        const struct stored_chain *chain, uint32_t part, const void *payload);
// STORED_OK, OTHER_VERSION, IDENTITY or LENGTH. Looks at no payload. So it tells early that what
// follows need not be read.
enum stored_reason stored_header_check(const struct stored_header *header,
                                       const struct stored_space *space,
                                       const struct stored_chain *chain, uint32_t part);
// The whole check. `payload_bytes` is what came, and may be less than the header says.
enum stored_reason stored_check(const struct stored_header *header,
                                const struct stored_space *space, const struct stored_chain *chain,
                                uint32_t part, const void *payload, uint64_t payload_bytes);

#endif
