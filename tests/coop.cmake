# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# Devices with matrix units: plain products on this system's, where it has them; and aule built and run in Debian 13, on a software device
# that has them (8x8x8, so not the size of aule's fragments, but any size will do for matrix_shared). The latter is skipped where `tools/coop-root make` was not run or its folder
# cannot be entered, and not there under sanitizers, which would see the same code again.

aule_check(test_coop SOURCES test_coop.c LIBS aule_engine LABELS device VALIDATED)
if(AULE_HAVE_MATRIX)
  target_sources(test_coop PRIVATE ${PROJECT_SOURCE_DIR}/tools/bench/program.c)
  target_compile_definitions(test_coop PRIVATE AULE_HAVE_MATRIX=1)
  aule_embed_shader(test_coop coop_multiply coop_multiply.comp)
  aule_embed_bfloat_shader(test_coop coop_multiply_bf16 coop_multiply.comp)
endif()

if(AULE_SANITIZE)
  return()
endif()

set(coop ${PROJECT_SOURCE_DIR}/tools/coop-root run)
set(coop_build ${PROJECT_BINARY_DIR}/coop)

# aule_coop(NAME TIMEOUT SECONDS COMMAND ... [ENVIRONMENT ...])
function(aule_coop name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "COMMAND;ENVIRONMENT" ${ARGN})
  add_test(NAME ${name} COMMAND ${coop} ${ARG_COMMAND} WORKING_DIRECTORY ${PROJECT_BINARY_DIR})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT ${ARG_TIMEOUT} LABELS coop FIXTURES_REQUIRED coop
    ENVIRONMENT "CK_DEFAULT_TIMEOUT=300;${ARG_ENVIRONMENT}")
endfunction()

aule_coop(coop_build TIMEOUT 3600
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/coop.sh build ${PROJECT_SOURCE_DIR} ${coop_build})
set_tests_properties(coop_build PROPERTIES FIXTURES_REQUIRED "" FIXTURES_SETUP coop PROCESSORS 2 COST 1000)
aule_coop(coop_device TIMEOUT 600
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/coop.sh device ${PROJECT_SOURCE_DIR} ${coop_build})
aule_coop(coop_multiply TIMEOUT 600
  COMMAND ${coop_build}/tests/test_coop
  ENVIRONMENT ${validation})
aule_coop(coop_engine TIMEOUT 1200
  COMMAND ${coop_build}/tests/test_engine
  ENVIRONMENT CK_RUN_CASE=variants ${validation})

# The variant that this device is for gets the whole suite, with fewer random cases; of the others one of Check's cases is enough, which
# other devices run whole.
aule_coop(coop_attention_matrix_shared TIMEOUT 3600
  COMMAND ${coop_build}/tests/test_attention
  ENVIRONMENT CK_DEFAULT_TIMEOUT=900 AULE_VARIANT=matrix_shared AULE_TEST_CASES=25 ${validation})
set_tests_properties(coop_attention_matrix_shared PROPERTIES COST 400)
foreach(variant matrix matrix_emulated)
  aule_coop(coop_attention_${variant} TIMEOUT 1800
    COMMAND ${coop_build}/tests/test_attention
    ENVIRONMENT AULE_VARIANT=${variant} "CK_RUN_CASE=worked examples" ${validation})
endforeach()
foreach(variant plain subgroup)
  aule_coop(coop_attention_${variant} TIMEOUT 1800
    COMMAND ${coop_build}/tests/test_attention
    ENVIRONMENT AULE_VARIANT=${variant} CK_RUN_CASE=bits ${validation})
endforeach()
