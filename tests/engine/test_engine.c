// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine.c - the engine on a real device, under the validation layer if the build asks for it.
// test_attention.c checks what attention computes. Here one key is enough, whose value comes back
// bit for bit. Exit code 77: Vulkan finds no device.

#include "rigs/engine_world.h"

static Suite *engine_suite(void)
{
    Suite *suite = suite_create("engine");
    add_device_tests(suite);
    add_cache_tests(suite);
    add_run_tests(suite);
    add_kind_tests(suite);
    add_check_tests(suite);
    add_split_tests(suite);
    add_kernel_tests(suite);
    add_warp_tests(suite);
    add_cascade_tests(suite);
    add_company_tests(suite);
    add_step_tests(suite);
    add_fault_tests(suite);
    add_file_tests(suite);
    add_compile_tests(suite);
    add_export_tests(suite);
    add_haul_tests(suite);
    return suite;
}

int main(void)
{
    return run_on_device(engine_suite);
}
