# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The tests of the Python package: each module of tests/python is a test of its own, with a daemon
# of its own. They run in build/venv; without it they are skipped. Sanitizers cannot be loaded into
# a Python without them, so only the other presets have these tests.

if(NOT AULE_SANITIZE)
  set(python_run ${CMAKE_CURRENT_SOURCE_DIR}/python/run.sh ${PROJECT_BINARY_DIR})
  add_test(NAME python_package_is_staged COMMAND ${python_run} stage)
  set_tests_properties(python_package_is_staged PROPERTIES FIXTURES_SETUP python_package)
  file(GLOB python_modules CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/python/test_*.py)
  set(python_tests python_package_is_staged)
  foreach(module ${python_modules})
    get_filename_component(name ${module} NAME_WE)
    string(REPLACE test_ python_ name ${name})
    add_test(NAME ${name} COMMAND ${python_run} ${module})
    set_tests_properties(${name} PROPERTIES FIXTURES_REQUIRED python_package)
    list(APPEND python_tests ${name})
  endforeach()
  # With the real vLLM, in build/vllm.
  add_test(NAME python_vllm_real_metadata COMMAND ${CMAKE_COMMAND} -E env
    AULE_TEST_VENV=${PROJECT_SOURCE_DIR}/build/vllm
    ${python_run} ${CMAKE_CURRENT_SOURCE_DIR}/python/vllm/test_real_metadata.py)
  set_tests_properties(python_vllm_real_metadata PROPERTIES FIXTURES_REQUIRED python_package)
  list(APPEND python_tests python_vllm_real_metadata)
  set_tests_properties(${python_tests} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 1200 LABELS python
    ENVIRONMENT "AULE_DAEMON=$<TARGET_FILE:aule-daemon>;AULE_CTL=$<TARGET_FILE:aule-ctl>;AULE_FAKE_LIBCUDA=$<TARGET_FILE:fake_libcuda>;AULE_IMPORTER=${CMAKE_CURRENT_BINARY_DIR}/vulkan_importer")
endif()
