# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# Chooses the shader compiler (GLSLANG_VALIDATOR) and the Vulkan headers. AULE_HAVE_MATRIX: both
# know cooperative matrices. It knows where tools/shader-compiler puts its files, but fetches
# nothing. It says which shaders are left out because the compiler lacks a feature. It notices new
# files there only when CMake runs again.

set(AULE_GLSLANG "" CACHE FILEPATH
    "the shader compiler; empty: $VULKAN_SDK's, else the better of the system's and build/tools'")
set(AULE_VULKAN_INCLUDE_DIR "" CACHE PATH
    "Vulkan headers; empty: $VULKAN_SDK's, else the newer of the system's and build/tools'")

set(fetched ${PROJECT_SOURCE_DIR}/build/tools/debian-13)
set(matrix_probe ${PROJECT_SOURCE_DIR}/cmake/probes/matrix.comp)

# aule_probe(RESULT COMPILER SOURCE [OPTION...]): RESULT is whether COMPILER accepts SOURCE with
# these options.
function(aule_probe result compiler source)
  execute_process(COMMAND ${compiler} -V --target-env vulkan1.2 ${ARGN}
    -o ${PROJECT_BINARY_DIR}/CMakeFiles/aule_probe.spv ${source}
    RESULT_VARIABLE code OUTPUT_QUIET ERROR_QUIET)
  set(taken NO)
  if(code STREQUAL 0)
    set(taken YES)
  endif()
  set(${result} ${taken} PARENT_SCOPE)
endfunction()

# The first compiler that accepts the probe, else the first one.
function(aule_choose_compiler)
  set(sdk)
  if(NOT "$ENV{VULKAN_SDK}" STREQUAL "")
    find_program(sdk NAMES glslangValidator glslang PATHS $ENV{VULKAN_SDK}/bin
      NO_DEFAULT_PATH NO_CACHE)
  endif()
  find_program(system NAMES glslangValidator glslang NO_CACHE)
  if(AULE_GLSLANG)
    set(candidates ${AULE_GLSLANG})
  elseif(sdk)
    set(candidates ${sdk})
  else()
    set(candidates ${system} ${fetched}/bin/glslang)
  endif()
  set(chosen)
  set(matrix NO)
  foreach(candidate ${candidates})
    if(NOT matrix AND EXISTS ${candidate})
      aule_probe(matrix ${candidate} ${matrix_probe})
      if(matrix OR NOT chosen)
        set(chosen ${candidate})
      endif()
    endif()
  endforeach()
  if(NOT chosen)
    message(FATAL_ERROR
      "no shader compiler: none of ${candidates} is there; "
      "tools/setup installs Debian's glslang-tools")
  endif()
  set(GLSLANG_VALIDATOR ${chosen} PARENT_SCOPE)
  set(compiler_knows_matrix ${matrix} PARENT_SCOPE)
endfunction()

# aule_headers_know(RESULT FOLDER NAME)
function(aule_headers_know result folder name)
  set(lines)
  if(EXISTS ${folder}/vulkan/vulkan_core.h)
    file(STRINGS ${folder}/vulkan/vulkan_core.h lines REGEX "^#define ${name} " LIMIT_COUNT 1)
  endif()
  set(known NO)
  if(lines)
    set(known YES)
  endif()
  set(${result} ${known} PARENT_SCOPE)
endfunction()

# Sets Vulkan_INCLUDE_DIR, which find_package(Vulkan) uses: newer headers go with the system's
# loader.
function(aule_choose_headers)
  unset(Vulkan_INCLUDE_DIR CACHE)
  find_path(found vulkan/vulkan_core.h HINTS $ENV{VULKAN_SDK}/include NO_CACHE)
  aule_headers_know(known "${found}" VK_KHR_cooperative_matrix)
  if(AULE_VULKAN_INCLUDE_DIR)
    set(found ${AULE_VULKAN_INCLUDE_DIR})
  elseif(NOT known AND "$ENV{VULKAN_SDK}" STREQUAL ""
    AND EXISTS ${fetched}/include/vulkan/vulkan_core.h)
    set(found ${fetched}/include)
  endif()
  if(NOT EXISTS ${found}/vulkan/vulkan_core.h)
    message(FATAL_ERROR
      "no Vulkan headers: there is no '${found}/vulkan/vulkan_core.h'; "
      "tools/setup installs Debian's libvulkan-dev")
  endif()
  aule_headers_know(known ${found} VK_KHR_cooperative_matrix)
  set(Vulkan_INCLUDE_DIR ${found}
    CACHE PATH "chosen by cmake/compiler.cmake; set AULE_VULKAN_INCLUDE_DIR" FORCE)
  set(headers_know_matrix ${known} PARENT_SCOPE)
endfunction()

aule_choose_compiler()
aule_choose_headers()
message(STATUS "shader compiler: ${GLSLANG_VALIDATOR}; Vulkan headers: ${Vulkan_INCLUDE_DIR}")

# Some compilers are built without SPIRV-Tools' optimizer.
set(AULE_GLSLANG_OPTIMIZE)
aule_probe(can_optimize ${GLSLANG_VALIDATOR} ${PROJECT_SOURCE_DIR}/shaders/copy.comp -Os
  -I${PROJECT_SOURCE_DIR}/shaders)
if(can_optimize)
  set(AULE_GLSLANG_OPTIMIZE -Os)
else()
  message(STATUS "not optimized: shaders, because the shader compiler does not know -Os; "
    "drivers take longer to compile them")
endif()

set(AULE_HAVE_MATRIX NO)
if(NOT compiler_knows_matrix)
  message(STATUS
    "left out: variants for tensor cores, because the shader compiler does not know "
    "GL_KHR_cooperative_matrix (tools/shader-compiler fetches one)")
elseif(NOT headers_know_matrix)
  message(STATUS
    "left out: variants for tensor cores, because the Vulkan headers do not know "
    "VK_KHR_cooperative_matrix (tools/shader-compiler fetches others)")
else()
  set(AULE_HAVE_MATRIX YES)
endif()
