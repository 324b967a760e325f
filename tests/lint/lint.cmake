# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# Checks that no reader should have to do: layout, shell scripts, license lines, white space,
# clang-tidy, and which room may include which.

foreach(what format shell license text cases tidy)
  add_test(NAME lint_${what} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/lint/lint.sh ${what}
    ${PROJECT_BINARY_DIR})
  set_tests_properties(lint_${what} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 1800 LABELS "lint")
endforeach()
add_test(NAME lint_borders COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/lint/borders.sh)
set_tests_properties(lint_borders PROPERTIES LABELS "lint")
