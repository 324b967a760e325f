// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// notify.h - tells a service manager about readiness: one datagram to $NOTIFY_SOCKET, if it is set
// (sd_notify(3) describes it).

#ifndef AULE_SERVER_NOTIFY_H
#define AULE_SERVER_NOTIFY_H

void notify_manager(const char *state); // "READY=1", "STOPPING=1"

#endif
