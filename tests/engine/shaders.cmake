# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# Each shader's module must be valid SPIR-V for the environment that the engine requests; a software
# device accepts invalid modules. The validator that came with the compiler is used, because an
# older one may not know cooperative matrices.

get_filename_component(compiler_folder ${GLSLANG_VALIDATOR} DIRECTORY)
find_program(spirv_val NAMES spirv-val HINTS ${compiler_folder} NO_CACHE REQUIRED)
set(validate ${spirv_val} --target-env vulkan1.2 --scalar-block-layout)

set(validates_matrix NO)
if(AULE_HAVE_MATRIX)
  set(probe ${CMAKE_CURRENT_BINARY_DIR}/matrix_probe.spv)
  execute_process(COMMAND ${GLSLANG_VALIDATOR} -V --quiet --target-env vulkan1.2 -o ${probe}
    ${matrix_probe})
  execute_process(COMMAND ${validate} ${probe} RESULT_VARIABLE code OUTPUT_QUIET ERROR_QUIET)
  if(code STREQUAL 0)
    set(validates_matrix YES)
  endif()
endif()

get_target_property(modules aule_shaders AULE_SHADER_MODULES)
foreach(module ${modules})
  get_filename_component(name ${module} NAME_WE)
  if(name MATCHES "_matrix$" AND NOT validates_matrix)
    add_test(NAME spirv_${name} COMMAND sh
      -c "echo '${spirv_val} is too old for cooperative matrices'; exit 77")
  else()
    add_test(NAME spirv_${name} COMMAND ${validate} ${module})
  endif()
  set_tests_properties(spirv_${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 300 LABELS lint)
  if(name MATCHES "_bf16$") # an older validator does not know BFloat16TypeKHR
    set_tests_properties(spirv_${name}
      PROPERTIES SKIP_REGULAR_EXPRESSION "Invalid capability operand: 5116")
  endif()
endforeach()
