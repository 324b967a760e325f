// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// savefile.h - the file of `save` and `load`: the identity of a cache, then its published blocks,
// each with its key and a checksum, a parent before its children, then an end that says how many
// there are. A file gets its name when it is complete. Numbers are little-endian. Knows no daemon.
// One thread.

#ifndef AULE_CTL_SAVEFILE_H
#define AULE_CTL_SAVEFILE_H

#include "ctl.h"

enum { SAVEFILE_VERSION = 1, SAVEFILE_ERROR_SIZE = 768 };
#define SAVEFILE_NO_PARENT UINT64_MAX

// What the blocks belong to.
struct savefile_identity {
    uint32_t num_layers, num_kv_heads, head_dim, head_dim_v, block_size;
    uint32_t k_dtype, v_dtype, scale_mode, v_is_k_prefix;
    uint32_t fingerprint_size;
    uint64_t block_bytes;
    uint8_t fingerprint[64];
    char name[256]; // of the cache; ends with NUL
};

// A block without its bytes.
struct savefile_block {
    uint64_t parent; // its number in the file, from 0; SAVEFILE_NO_PARENT: it begins a prefix
    struct aule_block_tokens key; // the extra key only where it begins a prefix
    uint64_t offset;              // in the file, where its bytes begin
    uint64_t checksum;            // of its bytes
};

struct savefile {
    int fd;
    const char *path;  // lent
    char *target;      // of a file that is written: `path`, or what a symlink there names; owned
    char *unfinished;  // likewise: its name until it is complete; owned; NULL: it has none yet
    uint64_t offset;   // where the next record is
    uint64_t count;    // blocks so far
    uint64_t expected; // blocks that the file's first record announces
    struct savefile_identity identity;
    char error[SAVEFILE_ERROR_SIZE]; // a sentence after a failure
};

// ---- writing ----

// Nothing or a regular file must be at `path`; a symlink to one is followed. Until the end a signal
// that ends the process removes the unfinished file. One file at a time.
// False: see file->error. End with savefile_finish() or savefile_close().
bool savefile_create(struct savefile *file, const char *path,
                     const struct savefile_identity *identity, uint64_t expected);
bool savefile_write(struct savefile *file, const struct savefile_block *block, const void *bytes);
// Completes the file and gives it its name, instead of a file that has it already.
bool savefile_finish(struct savefile *file);

// ---- reading ----

bool savefile_open(struct savefile *file, const char *path);
enum savefile_next { SAVEFILE_BLOCK, SAVEFILE_END, SAVEFILE_DAMAGED };
// Reads a block's key and goes behind its bytes. The file's end is told only if it is complete.
enum savefile_next savefile_next(struct savefile *file, struct savefile_block *block);
// Reads the bytes of a block. False: they are damaged.
bool savefile_read(struct savefile *file, const struct savefile_block *block, void *bytes);

// Removes a file that is not complete. Takes a zeroed one.
void savefile_close(struct savefile *file);

#endif
