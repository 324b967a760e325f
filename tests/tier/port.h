// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// port.h - a port for a server of a test. Any thread.

#ifndef AULE_TEST_TIER_PORT_H
#define AULE_TEST_TIER_PORT_H

// A TCP port of the loopback device that no program uses. It stays reserved until this process
// ends: the kernel gives it to no other program, but a server that sets SO_REUSEADDR, as Redis
// does, may listen on it. 0: there is none, and errno says why.
int port_unused(void);

#endif
