// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tune_store.h - the tuning table and its file: checks which entries of the file this engine may
// use, and writes the table to the file. Two daemons of one device have one file: each replaces it
// as a whole, and the last one to write wins. A file that cannot be read is left alone until it
// can. tuning.c's init, then its thread.

#ifndef AULE_ENGINE_TUNE_STORE_H
#define AULE_ENGINE_TUNE_STORE_H

#include "engine/kernels/variant.h"
#include "tune_file.h"

enum {
    MOST_WORKGROUPS = 4096, // of a key; more fill any device, and a measurement must be short
    MOST_KEYS = 131072,
    MOST_SPLITS = 512, // more have no keys
};

struct tune_store {
    struct engine *engine;
    struct tune *table;
    struct tune_device device;
    char *path;                     // of the file; NULL = none; owned
    bool unread;                    // something is there that could not be read
    uint64_t kernels[MOST_KERNELS]; // kernel_hash() of each of the variant's
};

// A hash over the kernel's code and over all that says how its work is cut. Measurements hold only
// for a kernel with the same hash.
uint64_t kernel_hash(const struct kernel *kernel);

// Reads the file of the folder, if there is one; NULL: no folder.
enum status tune_store_init(struct tune_store *store, struct engine *engine, struct tune *table,
                            const char *folder, struct error *error);
void tune_store_finish(struct tune_store *store); // takes a zeroed one
// Replaces the file by the table. A file that cannot be read is replaced only after a `clear`. A
// failure is logged; tune_wait() says when to try again.
void tune_store_save(struct tune_store *store, bool clear);
// The number of the variant's kernel with that hash; MOST_KERNELS: the variant has none.
uint32_t tune_store_kernel(const struct tune_store *store, uint64_t hash);

#endif
