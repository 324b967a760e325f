# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# aule_embed_shader(TARGET NAME SOURCE): compile GLSL to SPIR-V at build time and hand it to TARGET as the header
# NAME_spv.h with `static const uint32_t NAME_spv[]`.

find_program(GLSLANG_VALIDATOR NAMES glslangValidator glslang REQUIRED)

function(aule_embed_shader target name source)
  set(header ${CMAKE_CURRENT_BINARY_DIR}/${name}_spv.h)
  add_custom_command(
    OUTPUT ${header}
    COMMAND ${GLSLANG_VALIDATOR} -V --quiet --target-env vulkan1.2 -I${CMAKE_CURRENT_SOURCE_DIR} --vn ${name}_spv
            --depfile ${header}.d -o ${header} ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    DEPFILE ${header}.d
    VERBATIM)
  target_sources(${target} PRIVATE ${header})
  target_include_directories(${target} PUBLIC ${CMAKE_CURRENT_BINARY_DIR})
endfunction()
