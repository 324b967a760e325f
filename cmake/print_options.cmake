# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# cmake -D PROGRAM= -D VERSION= -D TEMPLATE= -D PAGE= -D COMPLETION= -P print_options.cmake: writes
# PROGRAM's man page PAGE and its bash completion COMPLETION. PAGE is TEMPLATE, where the list of
# options replaces the line @OPTIONS@.

function(print_options format variable)
  execute_process(COMMAND ${PROGRAM} --print-options ${format} OUTPUT_VARIABLE text
    RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${PROGRAM} --print-options ${format}: exit code ${code}")
  endif()
  set(${variable} "${text}" PARENT_SCOPE)
endfunction()

print_options(man options)
print_options(bash completion)
file(READ ${TEMPLATE} page)
string(REPLACE "@OPTIONS@\n" "${options}" page "${page}")
string(REPLACE "@VERSION@" "${VERSION}" page "${page}")
file(WRITE ${PAGE} "${page}")
file(WRITE ${COMPLETION} "${completion}")
