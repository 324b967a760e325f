# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors

add_library(aule_oracle STATIC oracle.c)
target_include_directories(aule_oracle PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(aule_oracle PRIVATE aule_flags PUBLIC aule_schema m)

aule_check(test_oracle SOURCES test_oracle.c LIBS aule_oracle LABELS unit)
