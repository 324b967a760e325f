// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// cuda_rig.h - for tests of libaule-client: a fake libcuda that maps the memory of a software
// device, which is a file. Needs FAKE_LIBCUDA and IMPORTER. Asserts with check.

#ifndef AULE_TESTS_CUDA_RIG_H
#define AULE_TESTS_CUDA_RIG_H

#include "fakes/fake_libcuda.h"

#include <stdbool.h>
#include <stdint.h>

// Where an allocation begins in its file, because the driver's own notes may stand before it. Finds
// out by what another process writes, and leaves zeroes there.
uint64_t cuda_rig_begin(int fd, uint64_t allocated, bool dedicated);
// Loads the fake with two devices: the second one has this UUID.
struct fake_libcuda *cuda_rig_load(const uint8_t uuid[16]);
int cuda_rig_count_fds(void); // of this process

#endif
