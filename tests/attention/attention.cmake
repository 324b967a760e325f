# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# One program, and a test for each attention shader of the engine's table: a name that the table does not have fails, one that the
# device cannot run is skipped. Label shader: the host's code is the same for all, so what these tests add is a driver's code, which no
# sanitizer sees; subgroup goes without it, for all. COST: the longest begin first, so that no core is idle in the end.

add_library(aule_attention_cases STATIC
  rigs/dice.c attention/attention_parameters.c attention/attention_cases.c attention/attention_contents.c attention/attention_batch.c attention/attention_image.c)
target_include_directories(aule_attention_cases PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(aule_attention_cases PRIVATE aule_flags PUBLIC aule_engine aule_oracle)

add_executable(test_attention
  attention/attention_rig.c attention/attention_rig_check.c attention/attention_suite.c attention/test_attention.c attention/test_attention_features.c attention/test_attention_bits.c
  attention/test_attention_splits.c attention/test_attention_examples.c)
target_link_libraries(test_attention PRIVATE aule_flags aule_attention_cases PkgConfig::CHECK Threads::Threads m)

# aule_attention(NAME VARIANT ONE_IN CASES LABELS): one variant on this system's device. A software device compiles for most of the time that
# these tests take, so a run draws one in ONE_IN entries of each table, and few random cases; `tools/test --long` takes all.
# A hung test ends by Check's limit for each of its parts, long before TIMEOUT.
function(aule_attention name variant one_in cases labels)
  add_test(NAME ${name} COMMAND test_attention)
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 36000 LABELS "${labels}" COST 300
    ENVIRONMENT "CK_DEFAULT_TIMEOUT=900;AULE_VARIANT=${variant};AULE_TEST_ONE_IN=${one_in};AULE_TEST_CASES=${cases};${validation}")
endfunction()

aule_attention(test_attention_plain plain 3 50 "device;shader")
aule_attention(test_attention_plain_small plain_small 18 10 "device;shader")
aule_attention(test_attention_subgroup subgroup 3 50 device)
aule_attention(test_attention_matrix matrix 1 300 "device;shader") # on a device that has them
aule_attention(test_attention_matrix_f16 matrix_f16 1 300 device)
aule_attention(test_attention_matrix_emulated matrix_emulated 9 25 "device;shader")

# The host's code for several kernels a run, under a sanitizer: the examples are enough for it.
if(AULE_SANITIZE)
  aule_attention(test_attention_matrix_emulated_examples matrix_emulated 9 25 device)
  set_property(TEST test_attention_matrix_emulated_examples APPEND PROPERTY ENVIRONMENT "CK_RUN_CASE=worked examples")
endif()
