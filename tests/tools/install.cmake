# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The files that `cmake --install` installs are enough to build and run README's example.

set(install_flags)
if(AULE_SANITIZE)
  set(install_flags -fsanitize=${AULE_SANITIZE})
endif()
add_test(NAME test_install
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/tools/test_install.sh ${CMAKE_BINARY_DIR} ${CMAKE_C_COMPILER}
    ${PROJECT_VERSION} ${install_flags})
set_tests_properties(test_install PROPERTIES TIMEOUT 1200 LABELS process
  ENVIRONMENT "${validation}")
