// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fake_libcuda.h - what a test sets and counts in the fake libcuda. A test loads the library by its
// file; then "libcuda.so.1" is this one, because that is its soname.

#ifndef AULE_TESTS_FAKE_LIBCUDA_H
#define AULE_TESTS_FAKE_LIBCUDA_H

#include <stdbool.h>
#include <stdint.h>

// The library's symbol `fake_libcuda`.
struct fake_libcuda {
    uint8_t uuids[2][16]; // of its devices
    int num_devices;      // 2 at most; 0 by default
    uint64_t begin;       // byte of the file at which the memory of an import begins
    bool refuses_imports, refuses_maps;
    int contexts, imports, maps; // that have not ended
    int synchronized;            // calls of cuCtxSynchronize()
    bool dedicated;              // what the last import said
    uint64_t allocated;
};

#endif
