# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# aule_flags: warnings and sanitizers as a target, so that no global setting changes.

add_library(aule_flags INTERFACE)
target_compile_options(aule_flags INTERFACE
  -Wall -Wextra -Wshadow -Wpointer-arith -Wundef -Wvla -fno-common
  $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes -Wmissing-prototypes>)
target_compile_definitions(aule_flags INTERFACE
  _GNU_SOURCE AULE_VERSION_STRING="${PROJECT_VERSION}")

if(AULE_SANITIZE)
  target_compile_options(aule_flags INTERFACE -fsanitize=${AULE_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(aule_flags INTERFACE -fsanitize=${AULE_SANITIZE})
  if(AULE_SANITIZE MATCHES "undefined")
    target_compile_options(aule_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=vptr>)
  endif()
endif()
