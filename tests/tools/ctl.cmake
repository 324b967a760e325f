# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# aule-ctl as a user starts it: its usage, and what it says about a real daemon with sessions of
# libaule-client.

if(TARGET aule-ctl)
  pkg_check_modules(CJSON REQUIRED IMPORTED_TARGET libcjson)
  foreach(suite test_ctl test_ctl_views test_ctl_drawings test_ctl_actions test_ctl_save)
    aule_check(${suite} SOURCES tools/${suite}.c rigs/ctl_world.c rigs/dice.c LIBS aule-client daemon_harness
      PkgConfig::CJSON LABELS process VALIDATED)
    target_compile_definitions(${suite} PRIVATE CTL="$<TARGET_FILE:aule-ctl>")
    add_dependencies(${suite} aule-ctl)
  endforeach()
  target_sources(test_ctl PRIVATE ${PROJECT_SOURCE_DIR}/tools/ctl/units.c)
  target_include_directories(test_ctl PRIVATE ${PROJECT_SOURCE_DIR})
  pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
  aule_check(test_savefile SOURCES tools/test_savefile.c ${PROJECT_SOURCE_DIR}/tools/ctl/savefile.c
    LIBS aule-client PkgConfig::XXHASH LABELS unit)
  target_include_directories(test_savefile PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tools/ctl)
  target_link_options(test_savefile PRIVATE -Wl,--wrap=open)
endif()
