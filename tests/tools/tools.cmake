# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# What the scripts of tools/ refuse, and what tools/leftovers finds. worker.cmake tests the
# quickstart.

add_test(NAME tools_refuse_a_wrong_command_line COMMAND
  ${CMAKE_CURRENT_SOURCE_DIR}/tools/test_tools_usage.sh)
set_tests_properties(tools_refuse_a_wrong_command_line PROPERTIES TIMEOUT 300 LABELS "lint")
add_test(NAME leftovers_are_those_of_the_own_run COMMAND
  ${CMAKE_CURRENT_SOURCE_DIR}/tools/test_leftovers.sh ${PROJECT_SOURCE_DIR}/tools/leftovers)
set_tests_properties(leftovers_are_those_of_the_own_run PROPERTIES TIMEOUT 300 LABELS "lint"
  SKIP_RETURN_CODE 77)
