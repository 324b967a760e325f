// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// staged_daemon.c - the program aule-daemon-staged copies arenas around each run, as aule-daemon
// does where the device cannot use them in place. The linker puts this function before the
// engine's (--wrap). Main thread.

#include "engine/engine.h"

enum status __real_engine_create(const struct engine_params *params, struct engine **out,
                                 struct error *error);
enum status __wrap_engine_create(const struct engine_params *params, struct engine **out,
                                 struct error *error);

enum status __wrap_engine_create(const struct engine_params *params, struct engine **out,
                                 struct error *error)
{
    struct engine_params staged = *params;
    staged.force_staging = true;
    return __real_engine_create(&staged, out, error);
}
