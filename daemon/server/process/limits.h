// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// limits.h - what the resource limits of the process (getrlimit(2)) leave for sessions:
// descriptors, address space, threads, the size of a file. Knows the options that they bound.
// Thread: any, unless noted.

#ifndef AULE_SERVER_LIMITS_H
#define AULE_SERVER_LIMITS_H

#include "schema/status.h"
#include "server/params.h"

// Raises RLIMIT_NOFILE as far as it goes. If it is still too small for --max-sessions and
// --max-connections, these become smaller, and the log says so.
// NO_MEMORY: not even one session fits, or the address space or the number of threads is too small
// for any driver: a driver that gets no memory ends the process. Main thread, at the start.
enum status limits_fit(struct server_params *params, struct error *error);

// LIMIT: the sentence for a connection that finds no descriptor.
enum status limits_no_descriptor(struct error *error);

// Bytes that RLIMIT_AS and RLIMIT_DATA leave for arenas and the pool, besides what a driver needs
// to compile shaders; UINT64_MAX: neither is set.
uint64_t limits_address_room(void);
uint64_t limits_file_size(void); // RLIMIT_FSIZE in bytes; UINT64_MAX: it is not set

#endif
