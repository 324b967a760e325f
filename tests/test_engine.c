// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine.c - the engine on a real device, under the validation layer where the build wants it. What attention computes is test_attention.c's; here
// one key is enough, whose value comes back bit for bit. Exit 77 where Vulkan finds no device.

#include "engine_world.h"

#include <sys/wait.h>
#include <unistd.h>

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
    add_cascade_tests(suite);
    add_step_tests(suite);
    add_fault_tests(suite);
    add_file_tests(suite);
    add_tune_tests(suite);
    return suite;
}

// Looked for in a process of its own: Vulkan must not be touched before check forks.
static bool have_device(void)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        struct engine_device *devices = NULL;
        uint32_t count = 0;
        struct error error = {0};
        if (engine_list_devices(&devices, &count, &error) != STATUS_OK)
            fprintf(stderr, "skipped: %s\n", error.text);
        _exit(devices ? 0 : 77);
    }
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) != 77;
}

int main(void)
{
    return have_device() ? check_main(engine_suite()) : 77;
}
