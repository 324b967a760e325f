# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# Native kernels of shaders/hopper: CUDA source, compiled to PTX by Debian's clang-19. No CUDA
# toolkit is needed. AULE_HAVE_HOPPER: the compiler can do it; else the build says what it leaves
# out.
#
# aule_embed_native(TARGET NAME SOURCE [DEFINE...]): compiles SOURCE to NAME.ptx at build time.
# TARGET gets its text, which ends with a 0, as `extern const unsigned char NAME_ptx[],
# NAME_ptx_end[]`.

option(AULE_NATIVE "build the native kernels; without effect if the compiler is missing" ON)
set(AULE_CLANG "" CACHE FILEPATH "clang for native kernels; empty: the system's clang-19")
set(AULE_PTX_FLAGS -x cuda --cuda-device-only -nocudainc -nocudalib --cuda-gpu-arch=sm_90a
  -Xclang -target-feature -Xclang +ptx83 -O3 -ffp-contract=off -std=c++17 -Wall -Wextra
  -Wno-unknown-cuda-version -Wno-unused-function)

find_program(aule_clang NAMES clang-19 NO_CACHE)
if(AULE_CLANG)
  set(aule_clang ${AULE_CLANG})
endif()
set(AULE_HAVE_HOPPER NO)
if(aule_clang AND AULE_NATIVE)
  execute_process(COMMAND ${aule_clang} ${AULE_PTX_FLAGS} -S
    ${PROJECT_SOURCE_DIR}/cmake/probes/native.cu -o ${PROJECT_BINARY_DIR}/CMakeFiles/aule_probe.ptx
    RESULT_VARIABLE code OUTPUT_QUIET ERROR_QUIET)
  if(code STREQUAL 0)
    set(AULE_HAVE_HOPPER YES)
  endif()
endif()
if(NOT AULE_NATIVE)
  message(STATUS "left out: native kernels, because AULE_NATIVE is off")
elseif(NOT AULE_HAVE_HOPPER)
  message(STATUS "left out: native kernels for Hopper GPUs, because there is no clang 19 that "
    "compiles CUDA to PTX (Debian's package clang-19)")
endif()

function(aule_embed_native target name source)
  set(module ${CMAKE_CURRENT_BINARY_DIR}/${name}.ptx)
  set(holder ${CMAKE_CURRENT_BINARY_DIR}/${name}.S)
  list(TRANSFORM ARGN PREPEND -D OUTPUT_VARIABLE defines)
  add_custom_command(
    OUTPUT ${module}
    COMMAND ${aule_clang} ${AULE_PTX_FLAGS} ${defines} -I${PROJECT_SOURCE_DIR} -MD -MF ${module}.d
      -MT ${module} -S ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${module}
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    DEPFILE ${module}.d
    VERBATIM)
  file(CONFIGURE OUTPUT ${holder} @ONLY CONTENT [[
    .section .rodata
    .global @name@_ptx, @name@_ptx_end
@name@_ptx:
    .incbin "@module@"
    .byte 0
@name@_ptx_end:
    .section .note.GNU-stack, "", %progbits
]])
  set_source_files_properties(${holder} PROPERTIES OBJECT_DEPENDS ${module})
  target_sources(${target} PRIVATE ${holder})
  set_property(TARGET ${target} APPEND PROPERTY AULE_NATIVE_MODULES ${module})
endfunction()
