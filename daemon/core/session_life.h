// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// session_life.h - the life of a session: see session_life.c.

#ifndef AULE_CORE_SESSION_LIFE_H
#define AULE_CORE_SESSION_LIFE_H

#include "core.h"

void session_passed(struct core_session *session); // ends a closed session without work in flight,
                                                   // and tells the server

#endif
