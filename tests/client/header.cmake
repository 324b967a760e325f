# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The public header compiles alone, in both languages, and links with what the library exports.

set(header_flags -Wall -Wextra -Wpedantic -Werror)
foreach(language C CXX)
  string(TOLOWER test_header_${language} name)
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/client/test_header.c)
  if(language STREQUAL CXX)
    # The same text under another name, because CMake derives the language from the name.
    set(source ${CMAKE_CURRENT_BINARY_DIR}/test_header.cc)
    configure_file(client/test_header.c ${source} COPYONLY)
  endif()
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE aule-client)
  target_compile_options(${name} PRIVATE ${header_flags})
  if(AULE_SANITIZE)
    target_link_options(${name} PRIVATE -fsanitize=${AULE_SANITIZE})
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 LABELS unit)
endforeach()
set_target_properties(test_header_c PROPERTIES C_STANDARD 11 C_EXTENSIONS OFF)
set_target_properties(test_header_cxx PROPERTIES CXX_STANDARD 17 CXX_EXTENSIONS OFF)
