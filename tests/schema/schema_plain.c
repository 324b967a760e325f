// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// schema_plain.c - the smallest program that uses libaule_schema.a. schema_plain.sh links it as C,
// to check that it needs no C++ runtime. It also links it as a C++ host that counts its own
// operator new, to check that neither replaces the other's.

#include "schema/wire.h"

#include <stdio.h>

#ifdef __cplusplus
#include <cstdlib>
#include <new>

static int allocations;

void *operator new(size_t size)
{
    allocations++;
    return malloc(size ? size : 1);
}

void operator delete(void *memory) noexcept
{
    free(memory);
}

void operator delete(void *memory, size_t) noexcept
{
    free(memory);
}

static bool host_is_undisturbed(void)
{
    int *volatile number = new int(7); // volatile: otherwise a compiler may remove the new
    delete number;
    return allocations == 1;
}
#else
static bool host_is_undisturbed(void)
{
    return true;
}
#endif

int main(void)
{
    int32_t ids[] = {3, 1, 4};
    struct wire_request request = {}, decoded;
    request.session = 7;
    request.command = WIRE_COMMAND_BLOCKS_RELEASE;
    request.blocks_release.blocks.data = ids;
    request.blocks_release.blocks.count = 3;
    struct wire_buffer buffer;
    struct error error = {};
    if (wire_encode_request(&request, &buffer, &error) ||
        wire_decode_request(buffer.data, buffer.size, &decoded, &error)) {
        fprintf(stderr, "%s: %s\n", status_name(error.status), error.text);
        return 1;
    }
    bool right = decoded.session == 7 && decoded.blocks_release.blocks.count == 3 &&
                 decoded.blocks_release.blocks.data[2] == 4 && host_is_undisturbed();
    wire_buffer_finish(&buffer);
    return right ? 0 : 1;
}
