// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// files.h - the tier in a folder: a file for each block, which survives the daemon. Its files are
// found again at the start by their names and sizes. Several daemons of one user may share the
// folder: each sees the others' files as they come and go, and drops the least recently used ones
// when all of them together exceed its limit. Threads of its own do all I/O.

#ifndef AULE_TIER_FILES_H
#define AULE_TIER_FILES_H

#include "tier/tier.h"

enum { FILES_MOST_THREADS = 16 };

// Zero is the default.
struct files_params {
    const char *path;     // absolute
    uint64_t limit_bytes; // of all files; 64 GiB
    uint32_t threads;     // 4; at most FILES_MOST_THREADS
    uint32_t pause_ms;    // nothing is stored for so long after the disk was full or failed; 1000
    uint32_t open_ms;     // for the folder to open, or for the next of its files; 30000
    // Tells an operator a sentence: files that are not aule's, a disk that is full. NULL: nobody.
    // Any thread. It must not call the tier.
    void (*say)(void *context, const char *sentence);
    void *say_context;
};

extern const struct tier_ops files_ops;

// url.c. STATUS_INVALID: the path, or an option in the URL. files_open(): as files_create().
enum status files_check_url(const char *url, struct error *error);
enum status files_open(const char *url, const struct tier_opening *opening,
                       struct tier_backend **out, struct error *error);

// Opens or makes the folder and lists its files. STATUS_INVALID: the path, the folder's owner or
// mode, or a number. STATUS_NO_MEMORY: memory, a thread or a descriptor. STATUS_TIMEOUT: the disk
// does not answer. A thread then waits for it until the process ends.
enum status files_create(const struct files_params *params, struct tier_backend **out,
                         struct error *error);

#endif
