// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// compile_helper.h - a process that makes one pipeline and dispatches it once, with no workgroups.
// A software device compiles a shader at its first dispatch, on the thread that runs all
// dispatches, so all sessions would wait. It keeps the code in the driver's cache on disk, where
// the daemon then finds it. The helper is a new process of the same program, because a driver's
// threads do not survive fork().

#ifndef AULE_ENGINE_COMPILE_HELPER_H
#define AULE_ENGINE_COMPILE_HELPER_H

#include "compiler.h"
#include "engine/vulkan/adapter.h"

#include <pthread.h>
#include <sys/types.h>

struct compile_request {
    char device[64], variant[64]; // as in engine_params
    pid_t daemon;                 // its parent
    bool awaited;                 // a run waits for it, so it is as important as the daemon
    struct matrices matrices;     // of the device, some of which shaders are compiled for
    struct pipeline_key key;
};

struct compile_helper {
    const char *program; // that becomes the helper; NULL: there is none
    uint32_t deadline_ms;
    pthread_mutex_t lock; // guards the rest
    bool made, stops;
    pid_t pid; // of the helper that runs; 0: none
};

enum status compile_helper_init(struct compile_helper *helper, const char *program,
                                struct error *error);
void compile_helper_finish(struct compile_helper *helper); // takes a zeroed one
// Has the pipeline compiled, and waits for that. False: the helper failed or did not end in time,
// and *error says why; or it was stopped (STATUS_STOPPING). One thread at a time.
bool compile_helper_run(struct compile_helper *helper, const struct compile_request *request,
                        struct error *error);
// Ends the helper. From now on compile_helper_run() fails at once. Any thread.
void compile_helper_stop(struct compile_helper *helper);

#endif
