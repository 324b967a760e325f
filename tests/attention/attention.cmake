# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# One program, and a test for each variant of the engine. A name that the engine does not know
# fails; a variant that the device cannot run is skipped.
#
# Label shader: these tests add code that a driver makes, which no sanitizer sees. The host's code
# is the same for all variants, so sanitizers run subgroup only.

add_library(aule_attention_cases STATIC
  rigs/dice.c
  attention/attention_parameters.c attention/attention_cases.c attention/attention_contents.c
  attention/attention_batch.c attention/attention_image.c)
target_include_directories(aule_attention_cases PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(aule_attention_cases PRIVATE aule_flags PUBLIC aule_engine aule_oracle)

add_executable(test_attention
  attention/attention_rig.c attention/attention_rig_check.c attention/attention_suite.c
  attention/test_attention.c attention/test_attention_features.c attention/test_attention_bits.c
  attention/test_attention_splits.c attention/test_attention_examples.c
  attention/test_attention_edges.c)
target_link_libraries(test_attention
  PRIVATE aule_flags aule_attention_cases PkgConfig::CHECK Threads::Threads m)

# aule_attention(NAME VARIANT ONE_IN CASES LABELS): a variant on this system's device. On a software
# device most of the time goes into compiling shaders. So a run draws one in ONE_IN entries of each
# table, and CASES random cases; `tools/test --long` runs all entries and 20 times the cases.
# Check ends a test that hangs after CK_DEFAULT_TIMEOUT seconds, long before TIMEOUT. COST makes
# ctest start the longest tests first, so that no core idles at the end.
function(aule_attention name variant one_in cases labels)
  add_test(NAME ${name} COMMAND test_attention)
  set_tests_properties(${name} PROPERTIES
    SKIP_RETURN_CODE 77 TIMEOUT 36000 LABELS "${labels}" COST 300)
  set_property(TEST ${name} PROPERTY ENVIRONMENT
    CK_DEFAULT_TIMEOUT=900 AULE_VARIANT=${variant} AULE_TEST_ONE_IN=${one_in}
    AULE_TEST_CASES=${cases} ${validation})
endfunction()

aule_attention(test_attention_plain plain 72 7 "device;shader")
aule_attention(test_attention_plain_small plain_small 72 4 "device;shader")
aule_attention(test_attention_subgroup_small subgroup_small 72 7 "device;shader")
aule_attention(test_attention_subgroup subgroup 36 13 device)
aule_attention(test_attention_hopper hopper 1 300 "device;shader") # needs a Hopper GPU
aule_attention(test_attention_matrix matrix 1 300 "device;shader") # needs tensor cores
aule_attention(test_attention_matrix_f16 matrix_f16 1 300 device)
# Only tests use this variant. In Debian 13 the tests named coop run the same shaders.
aule_attention(test_attention_matrix_emulated matrix_emulated 144 2 "device;shader")

# The host's code for runs of several kernels, under a sanitizer: the examples are enough for it.
if(AULE_SANITIZE)
  aule_attention(test_attention_matrix_emulated_examples matrix_emulated 36 13 device)
  set_property(TEST test_attention_matrix_emulated_examples
    APPEND PROPERTY ENVIRONMENT "CK_RUN_CASE=worked examples")
endif()
