// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// notify.h - tells the service manager that the daemon is ready or stops: one datagram to
// $NOTIFY_SOCKET, if that is set; see sd_notify(3). Knows no state of the daemon. Thread:
// dispatcher.

#ifndef AULE_SERVER_NOTIFY_H
#define AULE_SERVER_NOTIFY_H

void notify_manager(const char *state); // "READY=1", "STOPPING=1"

#endif
