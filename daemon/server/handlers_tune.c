// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// handlers_tune.c - what was measured of the ways that kernels have, and what an operator does about it. Dispatcher thread.

#include "dispatch.h"

enum status handle_tune(struct call *call)
{
    return error_set(&call->error, STATUS_UNSUPPORTED, "this daemon does not tune");
}
