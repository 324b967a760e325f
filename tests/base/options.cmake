# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# base/options: the parser and the printers on a table of the test's own.

aule_check(test_options SOURCES base/test_options.c LIBS aule_base LABELS unit)
add_test(NAME options_misfit
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/base/options_misfit.sh ${CMAKE_C_COMPILER}
          ${PROJECT_SOURCE_DIR})
set_tests_properties(options_misfit PROPERTIES TIMEOUT 60 LABELS unit)
