# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors

add_library(aule_numbers STATIC oracle/numbers.c)
target_include_directories(aule_numbers PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(aule_numbers PRIVATE aule_flags PUBLIC aule_schema m)
