# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# aule_embed_shader(TARGET NAME SOURCE [OPTIMIZED] [DEFINE...]): compiles GLSL, with these macros
# defined, to SPIR-V at build time. TARGET gets it as the header NAME_spv.h with `static const
# uint32_t NAME_spv[]`. NAME.spv beside it is the same module as a file, for tools. OPTIMIZED lets
# the compiler inline functions and drop dead code. A driver then compiles the module in a half to a
# quarter of the time (shaders/NOTEBOOK.md).

function(aule_embed_shader target name source)
  set(header ${CMAKE_CURRENT_BINARY_DIR}/${name}_spv.h)
  set(module ${CMAKE_CURRENT_BINARY_DIR}/${name}.spv)
  cmake_parse_arguments(ARG "OPTIMIZED" "" "" ${ARGN})
  list(TRANSFORM ARG_UNPARSED_ARGUMENTS PREPEND -D OUTPUT_VARIABLE defines)
  set(compile ${GLSLANG_VALIDATOR} -V --quiet --target-env vulkan1.2 -I${CMAKE_CURRENT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}
    ${defines})
  if(ARG_OPTIMIZED)
    list(APPEND compile ${AULE_GLSLANG_OPTIMIZE})
  endif()
  add_custom_command(
    OUTPUT ${module} ${header}
    COMMAND ${compile} --depfile ${module}.d -o ${module} ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    COMMAND aule_embed ${module} ${header} ${name}_spv
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source} aule_embed
    DEPFILE ${module}.d
    VERBATIM)
  target_sources(${target} PRIVATE ${header})
  set_property(TARGET ${target} APPEND PROPERTY AULE_SHADER_MODULES ${module})
  target_include_directories(${target} PUBLIC ${CMAKE_CURRENT_BINARY_DIR})
endfunction()

# aule_embed_bfloat_shader(TARGET NAME SOURCE [DEFINE...]): the same, but what the source calls
# float16_t becomes bf16 (shaders/bfloat.c).
function(aule_embed_bfloat_shader target name source)
  set(header ${CMAKE_CURRENT_BINARY_DIR}/${name}_spv.h)
  set(module ${CMAKE_CURRENT_BINARY_DIR}/${name}.spv)
  set(halves ${CMAKE_CURRENT_BINARY_DIR}/${name}.f16.spv)
  list(TRANSFORM ARGN PREPEND -D OUTPUT_VARIABLE defines)
  add_custom_command(
    OUTPUT ${halves} ${header} ${module}
    COMMAND ${GLSLANG_VALIDATOR} -V --quiet --target-env vulkan1.2 -I${CMAKE_CURRENT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}
      ${defines}
      --depfile ${halves}.d -o ${halves} ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    COMMAND aule_bfloat ${halves} ${module}
    COMMAND aule_embed ${module} ${header} ${name}_spv
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source} aule_bfloat aule_embed
    DEPFILE ${halves}.d
    VERBATIM)
  target_sources(${target} PRIVATE ${header})
  set_property(TARGET ${target} APPEND PROPERTY AULE_SHADER_MODULES ${module})
  target_include_directories(${target} PUBLIC ${CMAKE_CURRENT_BINARY_DIR})
endfunction()
