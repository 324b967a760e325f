# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# aule_option_files(PROGRAM SECTION [COMPONENT]): makes and installs the man page PROGRAM.SECTION
# and the bash completion of a program. The page is PROGRAM.SECTION.in of this folder with the list
# of options. The built program prints both lists from its table of options (base/options.h).

function(aule_option_files program section)
  set(component)
  if(ARGC GREATER 2)
    set(component COMPONENT ${ARGV2})
  endif()
  set(template ${CMAKE_CURRENT_SOURCE_DIR}/${program}.${section}.in)
  set(page ${CMAKE_CURRENT_BINARY_DIR}/${program}.${section})
  set(completion ${CMAKE_CURRENT_BINARY_DIR}/${program}.bash)
  set(script ${PROJECT_SOURCE_DIR}/cmake/print_options.cmake)
  add_custom_command(
    OUTPUT ${page} ${completion}
    COMMAND ${CMAKE_COMMAND} -D PROGRAM=$<TARGET_FILE:${program}> -D VERSION=${PROJECT_VERSION}
      -D TEMPLATE=${template} -D PAGE=${page}
            -D COMPLETION=${completion} -P ${script}
    DEPENDS ${program} ${template} ${script}
    COMMENT "${program}: man page and completion"
    VERBATIM)
  add_custom_target(${program}-option-files ALL DEPENDS ${page} ${completion})
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section} ${component})
  install(FILES ${completion} DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
    RENAME ${program} ${component})
endfunction()
