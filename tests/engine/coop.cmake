# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# Devices with tensor cores: plain products on this system's device, where it has them. And aule
# built and run in Debian 13, whose software device has tensor cores of 8x8x8. The variant
# matrix_shared takes that size; the other matrix variants do not.
#
# The tests in Debian 13 are skipped without `tools/coop-root make`, or if its folder cannot be
# entered. Sanitizers would see the same code again, so their builds have none of these tests.

aule_check(test_coop SOURCES engine/test_coop.c LIBS aule_engine LABELS device VALIDATED)
if(AULE_HAVE_MATRIX)
  target_sources(test_coop PRIVATE ${PROJECT_SOURCE_DIR}/tools/bench/gpu/program.c)
  target_compile_definitions(test_coop PRIVATE AULE_HAVE_MATRIX=1)
  aule_embed_shader(test_coop coop_multiply engine/coop_multiply.comp)
  aule_embed_bfloat_shader(test_coop coop_multiply_bf16 engine/coop_multiply.comp)
endif()

if(AULE_SANITIZE)
  return()
endif()

set(coop ${PROJECT_SOURCE_DIR}/tools/coop-root run)
set(coop_script ${CMAKE_CURRENT_SOURCE_DIR}/engine/coop.sh)
set(coop_build ${PROJECT_BINARY_DIR}/coop)

# aule_coop(NAME TIMEOUT SECONDS COMMAND ... [ENVIRONMENT ...])
function(aule_coop name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "COMMAND;ENVIRONMENT" ${ARGN})
  add_test(NAME ${name} COMMAND ${coop} ${ARG_COMMAND} WORKING_DIRECTORY ${PROJECT_BINARY_DIR})
  set_tests_properties(${name} PROPERTIES
    SKIP_RETURN_CODE 77 TIMEOUT ${ARG_TIMEOUT} LABELS coop FIXTURES_REQUIRED coop
    ENVIRONMENT "CK_DEFAULT_TIMEOUT=300;${ARG_ENVIRONMENT}")
endfunction()

aule_coop(coop_build TIMEOUT 3600
  COMMAND ${coop_script} build ${PROJECT_SOURCE_DIR} ${coop_build})
set_tests_properties(coop_build PROPERTIES
  FIXTURES_REQUIRED "" FIXTURES_SETUP coop PROCESSORS 2 COST 1000)
aule_coop(coop_device TIMEOUT 600
  COMMAND ${coop_script} device ${PROJECT_SOURCE_DIR} ${coop_build})
aule_coop(coop_multiply TIMEOUT 600
  COMMAND ${coop_build}/tests/test_coop
  ENVIRONMENT ${validation})
aule_coop(coop_engine TIMEOUT 1200
  COMMAND ${coop_build}/tests/test_engine
  ENVIRONMENT CK_RUN_CASE=variants ${validation})

# Most tests are held to AVX2, which is the stricter device and what most users of Debian 13 have.
# There Mesa's code loads from an address that all lanes share even if no lane is active. AVX-512
# masks that load and hides a fault.
set(avx2 GALLIUM_OVERRIDE_CPU_CAPS=avx)
aule_coop(coop_kv TIMEOUT 3600
  COMMAND ${coop_build}/tests/test_kv
  ENVIRONMENT ${avx2} ${validation})

# aule_coop_attention(VARIANT ONE_IN [ENVIRONMENT...]): as aule_attention().
function(aule_coop_attention variant one_in)
  aule_coop(coop_attention_${variant} TIMEOUT 36000
    COMMAND ${coop_build}/tests/test_attention
    ENVIRONMENT CK_DEFAULT_TIMEOUT=900 AULE_VARIANT=${variant} AULE_TEST_ONE_IN=${one_in}
                AULE_TEST_CASES=7 ${avx2} ${validation} ${ARGN})
  set_tests_properties(coop_attention_${variant} PROPERTIES COST 200)
endfunction()

set(examples "AULE_TEST_PART=worked examples") # all of the suite with --long
aule_coop_attention(matrix_shared 72)
set_tests_properties(coop_attention_matrix_shared PROPERTIES COST 600) # the longest of all
aule_coop_attention(matrix_emulated 1 ${examples}) # only tests use this variant
aule_coop_attention(plain 72)
aule_coop_attention(subgroup 72)
aule_coop_attention(matrix 18) # skipped on this device

# A run takes one of the two variants that this system's device runs as well.
set_property(TEST coop_attention_plain coop_attention_subgroup
  APPEND PROPERTY LABELS one_of_coop_attention)

# The examples without that limit; skipped without AVX-512, where the code is the same.
aule_coop(coop_attention_avx512 TIMEOUT 36000
  COMMAND ${coop_script} avx512 ${coop_build}/tests/test_attention
  ENVIRONMENT CK_DEFAULT_TIMEOUT=900 AULE_VARIANT=matrix_shared AULE_TEST_CASES=25 ${examples}
              ${validation})
