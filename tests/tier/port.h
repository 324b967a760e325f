// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// port.h - a port for a server of a test. Any thread.

#ifndef AULE_TEST_TIER_PORT_H
#define AULE_TEST_TIER_PORT_H

// A TCP port of the loopback device that no program uses. Another one may take it before the caller
// does. 0: there is none, and errno says why.
int port_unused(void);

#endif
