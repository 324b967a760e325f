# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The native kernels without a GPU: index arithmetic on the host; and, where NVIDIA's assembler
# ptxas is found, that it takes the PTX without warnings, such as matrix products one by one.

aule_check(test_hopper SOURCES engine/test_hopper.c rigs/dice.c LIBS aule_engine aule_shaders
           LABELS engine)

find_program(AULE_PTXAS NAMES ptxas HINTS /usr/local/cuda/bin)
get_target_property(modules aule_shaders AULE_NATIVE_MODULES)
if(NOT modules)
  set(modules)
endif()
# The kernels of the same head dims differ little, so a run takes one of them.
foreach(module ${modules})
  get_filename_component(name ${module} NAME_WE)
  string(REGEX REPLACE ".*16_([0-9]+_[0-9]+).*" "\\1" dims ${name})
  if(AULE_PTXAS)
    add_test(NAME ptx_${name} COMMAND ${AULE_PTXAS} -arch=sm_90a --warning-as-error
      ${module} -o ${CMAKE_CURRENT_BINARY_DIR}/${name}.cubin)
  else()
    add_test(NAME ptx_${name} COMMAND sh -c "echo 'there is no ptxas'; exit 77")
  endif()
  set_tests_properties(ptx_${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600
    LABELS "lint;one_of_ptx_${dims}")
endforeach()
