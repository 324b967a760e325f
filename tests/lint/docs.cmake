# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The documents agree with the programs, the tests and the public header; see docs.sh.

add_test(NAME docs COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/lint/docs.sh ${PROJECT_BINARY_DIR}
  ${CMAKE_C_COMPILER})
set_tests_properties(docs PROPERTIES TIMEOUT 300 LABELS "lint")
