// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// file.h - a file that is read as a whole or replaced as a whole. A reader sees the old contents or
// the new ones, never a mixture. Knows nothing of contents. Any thread; no state.

#ifndef AULE_ENGINE_FILE_H
#define AULE_ENGINE_FILE_H

#include "schema/status.h"

#include <sys/uio.h>

// *data is malloc'd and ends with a NUL beyond *size. NOT_FOUND: there is no such file. LIMIT: it
// has more than `most` bytes. DENIED: it is a symbolic link, belongs to neither this process's user
// nor root, or others may write to it; nothing is read. Other errors quote the system.
enum status file_read(const char *path, size_t most, char **data, size_t *size,
                      struct error *error);

// Writes "PATH.new", mode 0600, and renames it to `path`. Makes the folder if only its last part is
// missing. If the process is killed meanwhile, "PATH.new" stays; the next call or file_sweep()
// takes care of it. Errors quote the system.
enum status file_replace(const char *path, const struct iovec *pieces, int num_pieces,
                         struct error *error);
// Removes "PATH.new", unless a process is writing it.
void file_sweep(const char *path);

#endif
