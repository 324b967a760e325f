# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# One program, and a test for each attention shader of the engine's table: a name that the table does not have fails, one that the
# device cannot run is skipped. Label shader: the host's code is the same for all, so what these tests add is a driver's code, which no
# sanitizer sees; subgroup goes without it, for all. COST: the longest begin first, so that no core is idle in the end.

add_library(aule_attention_cases STATIC
  dice.c attention_parameters.c attention_cases.c attention_contents.c attention_batch.c attention_image.c)
target_include_directories(aule_attention_cases PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(aule_attention_cases PRIVATE aule_flags PUBLIC aule_engine aule_oracle)

add_executable(test_attention
  attention_rig.c attention_rig_check.c attention_suite.c test_attention.c test_attention_features.c test_attention_bits.c
  test_attention_splits.c test_attention_examples.c)
target_link_libraries(test_attention PRIVATE aule_flags aule_attention_cases PkgConfig::CHECK Threads::Threads m)

foreach(variant plain subgroup matrix matrix_f16)
  add_test(NAME test_attention_${variant} COMMAND test_attention)
  set_tests_properties(test_attention_${variant} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 3600 LABELS device
    ENVIRONMENT "CK_DEFAULT_TIMEOUT=900;AULE_VARIANT=${variant};${validation}" COST 170)
endforeach()
set_property(TEST test_attention_plain test_attention_matrix APPEND PROPERTY LABELS shader)

# Products in shared memory are slow, and their shaders slow to compile for a software device: fewer cases than elsewhere.
add_test(NAME test_attention_matrix_emulated COMMAND test_attention)
set_tests_properties(test_attention_matrix_emulated PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 3600 LABELS "device;shader" COST 100
  ENVIRONMENT "CK_DEFAULT_TIMEOUT=900;AULE_VARIANT=matrix_emulated;AULE_TEST_CASES=25;${validation}")

# The host's code for several kernels a run, under a sanitizer: the examples are enough for it.
if(AULE_SANITIZE)
  add_test(NAME test_attention_matrix_emulated_examples COMMAND test_attention)
  set_tests_properties(test_attention_matrix_emulated_examples PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 1200 LABELS device
    ENVIRONMENT "CK_DEFAULT_TIMEOUT=900;AULE_VARIANT=matrix_emulated;CK_RUN_CASE=worked examples")
endif()
