// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// cuda_rig.c - see cuda_rig.h.

#include "cuda_rig.h"

#include "rigs/importer.h"

#include <check.h>
#include <dirent.h>
#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

uint64_t cuda_rig_begin(int fd, uint64_t allocated, bool dedicated)
{
    static const float mark[] = {16433, 16434, 16435, 16436, 16437, 16438};
    struct importer importer;
    struct stat info;
    importer_start(&importer, fd, allocated, dedicated);
    importer_put(&importer, 0, mark[0], 6);
    ck_assert_int_eq(fstat(fd, &info), 0);
    char *file = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(file, MAP_FAILED);
    char *found = memmem(file, (size_t)info.st_size, mark, sizeof mark);
    ck_assert_ptr_nonnull(found);
    memset(found, 0, sizeof mark);
    const uint64_t begin = (uint64_t)(found - file);
    munmap(file, (size_t)info.st_size);
    importer_end(&importer);
    return begin;
}

struct fake_libcuda *cuda_rig_load(const uint8_t uuid[16])
{
    void *library = dlopen(FAKE_LIBCUDA, RTLD_NOW);
    ck_assert_msg(library != NULL, "%s", dlerror());
    struct fake_libcuda *cuda = dlsym(library, "fake_libcuda");
    ck_assert_ptr_nonnull(cuda);
    cuda->num_devices = 2;
    memset(cuda->uuids[0], 0xee, sizeof cuda->uuids[0]);
    memcpy(cuda->uuids[1], uuid, sizeof cuda->uuids[1]);
    return cuda;
}

int cuda_rig_count_fds(void)
{
    int count = 0;
    DIR *entries = opendir("/proc/self/fd");
    while (readdir(entries))
        count++;
    closedir(entries);
    return count;
}
