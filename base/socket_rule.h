// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// socket_rule.h - where a daemon's socket lies if no option names it. The daemon and its clients
// share this rule. Reads the environment only; any thread, as far as getenv() allows.

#ifndef AULE_SOCKET_RULE_H
#define AULE_SOCKET_RULE_H

#include <stddef.h>
#include <stdint.h>

enum { SOCKET_PATH_MAX = 107 }; // bytes, without the NUL: what sockaddr_un takes
// The control socket lies beside the daemon's, and has its name and this. It is the longest name of
// the daemon's sockets, so the path of a daemon's socket has at most so many bytes:
#define SOCKET_CONTROL ".control"
enum { SOCKET_DAEMON_MAX = SOCKET_PATH_MAX - (sizeof SOCKET_CONTROL - 1) };
enum { SOCKET_FILE_SIZE = 16 }; // "4294967295.sock" and the NUL

// The first of $AULE_RUNTIME_DIR, $XDG_RUNTIME_DIR/aule and /run/aule. An empty variable counts as
// unset. Returns the length like snprintf(): if it is not less than `size`, the name was cut.
size_t socket_rule_folder(char *folder, size_t size);
// The file in it: "N.sock", where N is the device's place in --list-devices. Clients look for 0.
void socket_rule_file(uint32_t number, char file[SOCKET_FILE_SIZE]);

#endif
