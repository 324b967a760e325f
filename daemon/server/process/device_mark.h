// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// device_mark.h - tells the daemons of one device from each other. Each binds an abstract socket
// (unix(7)) whose name has the device's UUID, and finds the names of the others in /proc/net/unix.
// Such a name needs no file, and ends with its process. Daemons of another network namespace are
// not seen. A name is a hint for an operator; any user could bind one. Thread: dispatcher.

#ifndef AULE_SERVER_DEVICE_MARK_H
#define AULE_SERVER_DEVICE_MARK_H

#include <stdint.h>

// Sets the mark, then warns of each other daemon of the device. Returns a descriptor, which is the
// mark; -1: none.
int device_mark_set(const char *device_name, const uint8_t uuid[16], uint64_t epoch);

#endif
