// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// owner.h - the process at the other end of a connection, by a pidfd from the kernel (Linux 6.5).
// Unlike a pid it also works across pid namespaces that do not see each other. Any thread.

#ifndef AULE_OWNER_H
#define AULE_OWNER_H

#include <stdint.h>

// A pidfd of the process that connected `fd`; the caller closes it. It becomes readable when the
// process ends, whoever else has the connection. -1 with errno: the kernel is too old.
int owner_open(int fd);
// A number that no other process has; 0: the kernel has none (before Linux 6.9), or `pidfd` is -1.
uint64_t owner_number(int pidfd);

#endif
