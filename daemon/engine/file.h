// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// file.h - a file that is kept between lives: read as a whole, or replaced as a whole, so that a
// reader sees the old or the new one and never a part. Knows nothing of contents. Any thread; no
// state.

#ifndef AULE_ENGINE_FILE_H
#define AULE_ENGINE_FILE_H

#include "schema/status.h"

#include <sys/uio.h>

// *data is malloc'd, with a NUL behind it. NOT_FOUND: there is none. LIMIT: more than `most` bytes.
// Others say what the system said.
enum status file_read(const char *path, size_t most, char **data, size_t *size,
                      struct error *error);

// Written beside, to `path` with ".new", mode 0600, and renamed; the folder is made if only that
// one is missing. A process that is killed meanwhile leaves that one file, which the next call
// takes, or file_sweep(). The error is what the system said.
enum status file_replace(const char *path, const struct iovec *pieces, int num_pieces,
                         struct error *error);
// Removes that one, unless somebody is writing it.
void file_sweep(const char *path);

#endif
