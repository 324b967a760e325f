// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// folder.h - a folder with a file for each block: how files are named, written, read and found
// again. A file is all parts of a block, each behind its header. It is written under another name
// and renamed, so a file with a block's name was once complete. The name has the version of the
// records, so that daemons of two versions leave each other's files alone. All calls may block on
// the disk. Several daemons may use one folder. Knows no limit and no tenant. Any thread.

#ifndef AULE_TIER_FILES_FOLDER_H
#define AULE_TIER_FILES_FOLDER_H

#include "tier/shelf.h"

#include <stdatomic.h>

enum { FOLDER_NAME_ROOM = 3 * (2 * STORED_ID_BYTES + 1) + 8 }; // of a file's name, with its NUL

struct folder {
    int fd;                // owned
    const char *path;      // lent
    atomic_uint last_part; // makes the names of unfinished files differ
};

// STATUS_INVALID: the path is not absolute.
enum status folder_check_path(const char *path, struct error *error);
// Opens the folder, and makes it with mode 0700 if only the last part of the path is missing.
// STATUS_INVALID: the path is not absolute, or others than this process's user may use the folder.
enum status folder_open(struct folder *folder, const char *path, struct error *error);
void folder_close(struct folder *folder);
// If the path leads to another folder now, *follows is true, and that one takes the place of the
// open one for all threads. INVALID: this process may not use that one, so nothing changes. One
// thread.
enum status folder_follow(struct folder *folder, bool *follows, struct error *error);

// A file with a block's name.
struct folder_file {
    struct shelf_key key;
    uint64_t bytes;
    int64_t used_ns; // its last use by any daemon, on the wall clock
};
// Calls `visit` for each such file; it reads names and sizes, no contents. Removes unfinished files
// whose writers have died. *foreign: entries with other names, which it leaves alone. False: the
// folder cannot be read; errno says why.
bool folder_scan(const struct folder *folder,
                 void (*visit)(void *context, const struct folder_file *file), void *context,
                 uint32_t *foreign);
// False: there is no such file.
bool folder_look(const struct folder *folder, const struct shelf_key *key,
                 struct folder_file *file);
// False: the name is not that of a block's file.
bool folder_parse(const char *name, struct shelf_key *key);
// False: the file stays, and errno says why.
bool folder_remove(const struct folder *folder, const struct shelf_key *key);
// Notes that the file was used now.
void folder_touch(const struct folder *folder, const struct shelf_key *key);

uint64_t folder_file_bytes(uint64_t block_bytes);
// FULL: the disk has no room. DENIED, STORE, MEMORY, TIMEOUT. *why: an errno, where one tells more.
enum stored_reason folder_store(struct folder *folder, const struct tier_job *job,
                                const struct tier_block *block, int *why);
// Loads block `index` of the job. The reasons of tier_part_check(), and ABSENT, DENIED, STORE,
// MEMORY, TIMEOUT.
enum stored_reason folder_load(const struct folder *folder, struct tier_job *job, uint32_t index);

#endif
