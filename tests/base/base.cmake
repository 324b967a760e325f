# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The suites of base/: no device, no daemon.

aule_check(test_clock SOURCES base/test_clock.c LIBS aule_base LABELS unit)
aule_check(test_forecast SOURCES base/test_forecast.c LIBS aule_base LABELS unit)
aule_check(test_list SOURCES base/test_list.c LIBS aule_base LABELS unit)
aule_check(test_socket_rule SOURCES base/test_socket_rule.c LIBS aule_base LABELS unit)
