// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// monitor_state.h - asks a daemon for its metrics by the library's monitor. A failure fails the
// test.

#ifndef AULE_TESTS_RIGS_MONITOR_STATE_H
#define AULE_TESTS_RIGS_MONITOR_STATE_H

#include "daemon_state.h"

#include <aule/aule.h>
#include <check.h>
#include <stdlib.h>

static inline struct daemon_state monitor_state(struct aule_monitor *monitor)
{
    struct daemon_state state = {.num_sessions = 0};
    struct aule_metric *array = NULL;
    uint32_t count = 0;
    ck_assert_msg(aule_monitor_metrics(monitor, &array, &count) == AULE_OK, "%s", aule_error());
    for (uint32_t i = 0; i < count; i++)
        daemon_state_take(&state, array[i].name, array[i].value);
    free(array);
    return state;
}

#endif
