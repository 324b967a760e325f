# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# Each shader's module is valid SPIR-V for the environment that the engine asks for: a software device forgives much.

find_program(SPIRV_VAL NAMES spirv-val REQUIRED)
get_target_property(modules aule_shaders AULE_SHADER_MODULES)
foreach(module ${modules})
  get_filename_component(name ${module} NAME_WE)
  add_test(NAME spirv_${name} COMMAND ${SPIRV_VAL} --target-env vulkan1.2 --scalar-block-layout ${module})
  set_tests_properties(spirv_${name} PROPERTIES TIMEOUT 60 LABELS lint)
endforeach()
