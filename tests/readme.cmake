# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# README.md agrees with the C example and with what the programs say of themselves.

add_test(NAME readme COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/readme.sh ${PROJECT_BINARY_DIR})
set_tests_properties(readme PROPERTIES TIMEOUT 60 LABELS "lint")
