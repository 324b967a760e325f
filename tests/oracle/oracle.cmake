# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors

# Optimised in every build, because the attention suites spend most of their CPU time in the oracle.
add_library(aule_oracle STATIC oracle/oracle.c)
target_compile_options(aule_oracle PRIVATE -O2)
target_include_directories(aule_oracle PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(aule_oracle PRIVATE aule_flags PUBLIC aule_numbers aule_schema
  Threads::Threads m)

aule_check(test_oracle SOURCES oracle/test_oracle.c LIBS aule_oracle LABELS unit)
