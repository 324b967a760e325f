# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# README.md agrees with the C example, with what the programs say of themselves, and with the tests that it names; so do the man pages.

add_test(NAME readme COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/readme.sh ${PROJECT_BINARY_DIR})
set_tests_properties(readme PROPERTIES TIMEOUT 300 LABELS "lint")
