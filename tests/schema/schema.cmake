# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors

aule_check(test_schema
           SOURCES schema/test_schema.c schema/test_schema_damaged.c schema/test_schema_forged.c
                   schema/test_schema_recorded.c schema/schema_messages.c schema/schema_fields.c
           LIBS aule_schema LABELS unit COST 50)
target_compile_definitions(test_schema PRIVATE
  RECORDED="${CMAKE_CURRENT_SOURCE_DIR}/schema/protocol_3_0.bin")
# It makes allocations fail.
target_link_options(test_schema PRIVATE -Wl,--wrap=malloc -Wl,--wrap=calloc)

set(schema_flags)
if(AULE_SANITIZE)
  set(schema_flags -fsanitize=${AULE_SANITIZE})
endif()
add_test(NAME schema_links_as_plain_c
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/schema/schema_plain.sh ${CMAKE_C_COMPILER}
          ${CMAKE_CXX_COMPILER} $<TARGET_FILE:aule_schema> ${PROJECT_SOURCE_DIR}
          ${PROJECT_BINARY_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/schema/schema_plain.c ${schema_flags})
set_tests_properties(schema_links_as_plain_c PROPERTIES TIMEOUT 600 LABELS unit)

add_test(NAME schema_generate
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/schema/schema_generate.sh ${AWK}
          ${PROJECT_SOURCE_DIR}/schema/generate.awk)
set_tests_properties(schema_generate PROPERTIES TIMEOUT 60 LABELS unit)
