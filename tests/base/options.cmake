# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# base/options: the parser and the printers on a table of the test's own.

aule_check(test_options SOURCES base/test_options.c LIBS aule_base LABELS unit)
