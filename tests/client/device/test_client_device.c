// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_device.c - a session's device arena through libaule-client and the real daemon. A
// fake libcuda maps the memory of a software device; another process imports it with Vulkan.

#include "cuda_rig.h"
#include "rigs/client_step.h"
#include "rigs/importer.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEVICE_ARENA = 1 << 20 };
static struct fake_libcuda *cuda;
static struct step step;

static void setup(void)
{
    launch(NULL);
}

// A session with a device arena. False, with a line: the device exports no memory.
static bool open_device(void)
{
    struct aule_session *session = NULL;
    const struct aule_session_params params = {.socket = daemon_.socket, .device_arena_size = 4096};
    if (aule_session_open(&params, &session) == AULE_UNSUPPORTED) {
        fprintf(stderr, "not tested: %s\n", aule_error());
        return false;
    }
    aule_session_close(session);
    step_device_arena = DEVICE_ARENA;
    open_step(&step, NULL);
    return true;
}

static uint64_t find_begin(void)
{
    struct aule_device_export export;
    ok(aule_device_export(step.session, &export));
    const uint64_t begin = cuda_rig_begin(export.fd, export.allocated, export.dedicated);
    close(export.fd);
    return begin;
}

static void load_cuda(void)
{
    struct aule_session_info info;
    ok(aule_session_info(step.session, &info));
    cuda = cuda_rig_load(info.device_uuid);
    cuda->begin = cuda->begin ? cuda->begin : find_begin();
}

// ---- runs ----

static uint64_t size_of(const struct aule_tensor *tensor)
{
    return tensor->token_stride * tensor->num_rows;
}

// Puts a copy of the tensor into the device arena.
static struct aule_tensor move(char *base, const struct aule_tensor *tensor)
{
    struct aule_tensor moved = *tensor;
    moved.memory = AULE_MEMORY_DEVICE;
    moved.life = 0;
    ok(aule_device_alloc(step.session, size_of(tensor), &moved.offset));
    memcpy(base + moved.offset, aule_tensor_data(step.session, tensor), size_of(tensor));
    return moved;
}

START_TEST(runs_in_the_device_arena_give_the_same_bits)
{
    void *base = NULL;
    int device = -1;
    if (!open_device())
        return;
    load_cuda();
    memset(aule_tensor_data(step.session, &step.out), 0xff, size_of(&step.out));
    run_once(&step);
    ok(aule_device_map_cuda(step.session, -1, &base, &device));
    ck_assert_int_eq(device, 1); // the one with the daemon's UUID
    struct aule_batch *batch = create_batch(&step);
    struct aule_run_params run = step.run;
    run.q = move(base, &step.q);
    run.k = move(base, &step.k);
    run.v = move(base, &step.v);
    run.out = move(base, &step.out);
    memset((char *)base + run.out.offset, 0xff, size_of(&step.out));
    ok(aule_run(batch, &run, WAIT_MS, NULL));
    ck_assert_mem_eq((char *)base + run.out.offset, aule_tensor_data(step.session, &step.out),
                     size_of(&step.out));
    ck_assert_ptr_null(aule_tensor_data(step.session, &run.out));
    expect(AULE_INVALID, AULE_INVALID, "lies in memory kind 1");
    run.q = step.q;
    expect(aule_run(batch, &run, WAIT_MS, NULL), AULE_MISMATCH, "all tensors of a run lie in one");
    aule_batch_destroy(batch);
    close_step(&step);
    ck_assert_int_eq(cuda->maps, 0);
    ck_assert_int_eq(cuda->imports, 0);
    ck_assert_int_eq(cuda->contexts, 0);
    ck_assert_int_eq(cuda->synchronized, 1);
}
END_TEST

START_TEST(a_token_is_not_given_to_the_export_socket_of_another_user)
{
    struct aule_device_export export;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (geteuid() != 0 || !open_device()) {
        fprintf(stderr, "not tested: only root can listen as another user\n");
        return;
    }
    snprintf(address.sun_path, sizeof address.sun_path, "%s.export", daemon_.socket);
    ck_assert_int_eq(unlink(address.sun_path), 0);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(seteuid(64001), 0);
    ck_assert_int_eq(listen(fd, 1), 0);
    ck_assert_int_eq(seteuid(0), 0);
    expect(aule_device_export(step.session, &export), AULE_DENIED, "user 64001, whom");
    unlink(address.sun_path);
    close(fd);
    close_step(&step);
}
END_TEST

START_TEST(another_vulkan_process_imports_what_the_client_exports)
{
    struct aule_device_export export;
    struct importer importer;
    void *base;
    if (!open_device())
        return;
    load_cuda();
    ok(aule_device_map_cuda(step.session, -1, &base, NULL));
    ok(aule_device_export(step.session, &export));
    ck_assert_uint_eq(export.size, DEVICE_ARENA);
    importer_start(&importer, export.fd, export.allocated, export.dedicated);
    close(export.fd);
    for (int i = 0; i < 16; i++)
        ck_assert_int_eq(
            strtol((char[]){importer.uuid[2 * i], importer.uuid[2 * i + 1], 0}, NULL, 16),
            export.device_uuid[i]);
    importer_put(&importer, 256, 7, 32);
    for (int i = 0; i < 32; i++)
        ck_assert_float_eq(((float *)base)[64 + i], (float)(7 + i));
    importer_end(&importer);
    close_step(&step);
}
END_TEST

// ---- bad input ----

START_TEST(without_libcuda_the_sentence_says_so)
{
    void *base = &base;
    if (!open_device())
        return;
    if (dlopen("libcuda.so.1", RTLD_NOW)) {
        fprintf(stderr, "not tested: this machine has a libcuda\n");
        return;
    }
    int before = cuda_rig_count_fds();
    expect(aule_device_map_cuda(step.session, -1, &base, NULL), AULE_UNSUPPORTED,
           "libcuda cannot be loaded: libcuda.so.1");
    ck_assert_ptr_eq(base, &base);
    ck_assert_int_eq(cuda_rig_count_fds(), before);
    still_works(&step);
    close_step(&step);
}
END_TEST

START_TEST(an_old_driver_is_named_by_the_function_that_it_lacks)
{
    void *base = &base;
    if (!open_device())
        return;
    ck_assert_ptr_nonnull(dlopen(FAKE_OLD_LIBCUDA, RTLD_NOW)); // it is "libcuda.so.1" now
    int before = cuda_rig_count_fds();
    expect(aule_device_map_cuda(step.session, -1, &base, NULL), AULE_UNSUPPORTED,
           "libcuda is too old: it has no cuDeviceGetCount");
    ck_assert_ptr_eq(base, &base);
    ck_assert_int_eq(cuda_rig_count_fds(), before);
    still_works(&step);
    close_step(&step);
}
END_TEST

START_TEST(another_gpu_gets_a_sentence_with_both_uuids)
{
    void *base;
    struct aule_session_info info;
    char words[80];
    if (!open_device())
        return;
    load_cuda();
    ok(aule_session_info(step.session, &info));
    int before = cuda_rig_count_fds();
    expect(aule_device_map_cuda(step.session, 0, &base, NULL), AULE_MISMATCH,
           "CUDA device 0 is GPU eeeeeeee-eeee-eeee-eeee-eeeeeeeeeeee, but the daemon has GPU ");
    snprintf(words, sizeof words, "%02x%02x%02x%02x-", info.device_uuid[0], info.device_uuid[1],
             info.device_uuid[2], info.device_uuid[3]);
    ck_assert_ptr_nonnull(strstr(aule_error(), words));
    cuda->num_devices = 1;
    expect(aule_device_map_cuda(step.session, -1, &base, NULL), AULE_MISMATCH, "CUDA device 0");
    expect(aule_device_map_cuda(step.session, 1, &base, NULL), AULE_INVALID, "CUDA device 1");
    cuda->num_devices = 0;
    expect(aule_device_map_cuda(step.session, -1, &base, NULL), AULE_UNSUPPORTED, "no device");
    ck_assert_int_eq(cuda_rig_count_fds(), before);
    ck_assert_int_eq(cuda->contexts, 0);
    close_step(&step);
}
END_TEST

START_TEST(what_cuda_refuses_leaks_nothing_and_can_be_tried_again)
{
    void *base, *again;
    if (!open_device())
        return;
    load_cuda();
    int before = cuda_rig_count_fds();
    cuda->refuses_imports = true;
    expect(aule_device_map_cuda(step.session, -1, &base, NULL), AULE_UNSUPPORTED,
           "cuImportExternalMemory returned 999 (CUDA_ERROR_UNKNOWN)");
    cuda->refuses_imports = false;
    cuda->refuses_maps = true;
    expect(aule_device_map_cuda(step.session, -1, &base, NULL), AULE_UNSUPPORTED, "memory_map");
    cuda->refuses_maps = false;
    ck_assert_int_eq(cuda_rig_count_fds(), before);
    ck_assert_int_eq(cuda->contexts, 0);
    ok(aule_device_map_cuda(step.session, -1, &base, NULL));
    ok(aule_device_map_cuda(step.session, 1, &again, NULL));
    ck_assert_ptr_eq(base, again);
    expect(aule_device_map_cuda(step.session, 0, &base, NULL), AULE_MISMATCH,
           "is mapped on CUDA device 1, not on 0");
    ck_assert_int_eq(cuda->imports, 1);
    close_step(&step);
}
END_TEST

START_TEST(a_session_without_a_device_arena_says_so)
{
    struct aule_device_export export = {.fd = 77};
    struct aule_session_info info;
    uint64_t offset;
    void *base;
    open_step(&step, NULL);
    ok(aule_session_info(step.session, &info));
    ck_assert_uint_eq(info.device_arena_size, 0);
    expect(aule_device_export(step.session, &export), AULE_NOT_FOUND, "device_arena_size 0");
    ck_assert_int_eq(export.fd, 77);
    expect(aule_device_map_cuda(step.session, -1, &base, NULL), AULE_NOT_FOUND,
           "device_arena_size");
    expect(aule_device_alloc(step.session, 16, &offset), AULE_NOT_FOUND, "device_arena_size");
    step.run.q.memory = AULE_MEMORY_DEVICE;
    step.run.k.memory = step.run.v.memory = step.run.out.memory = AULE_MEMORY_DEVICE;
    struct aule_batch *batch = create_batch(&step);
    expect(aule_run(batch, &step.run, WAIT_MS, NULL), AULE_INVALID, "but the session has none");
    aule_batch_destroy(batch);
    close_step(&step);
}
END_TEST

START_TEST(memory_is_allocated_and_freed_and_never_twice)
{
    uint64_t first, second;
    if (!open_device())
        return;
    ok(aule_device_alloc(step.session, DEVICE_ARENA / 2, &first));
    ok(aule_device_alloc(step.session, DEVICE_ARENA / 2, &second));
    ck_assert_uint_ne(first, second);
    expect(aule_device_alloc(step.session, 1, &second), AULE_NO_MEMORY, "0 are free");
    aule_device_free(step.session, first);
    aule_device_free(step.session, first); // ignored
    ok(aule_device_alloc(step.session, DEVICE_ARENA / 2, &second));
    ck_assert_uint_eq(first, second);
    close_step(&step);
}
END_TEST

START_TEST(frameworks_allocate_in_the_arena_by_functions_without_a_context)
{
    void *base;
    uint64_t offset;
    int device;
    if (!open_device())
        return;
    expect(aule_torch_begin(step.session), AULE_NOT_FOUND, "is not mapped");
    ck_assert_ptr_null(aule_torch_alloc(4096, 1, NULL));
    load_cuda();
    ok(aule_device_map_cuda(step.session, -1, &base, &device));
    ok(aule_torch_begin(step.session));
    ok(aule_torch_begin(step.session)); // once more
    ck_assert_ptr_null(aule_torch_alloc(4096, 0, NULL));
    ck_assert_ptr_nonnull(strstr(aule_error(), "no session lets torch allocate on CUDA device 0"));
    char *first = aule_torch_alloc(5000, device, NULL), *second = aule_torch_alloc(1, device, NULL);
    ck_assert(first >= (char *)base && second >= (char *)base && first + 5000 <= second);
    memset(first, 1, 5000);
    ok(aule_device_alloc(step.session, 256, &offset)); // both share the arena
    ck_assert((char *)base + offset != first && (char *)base + offset != second);
    ck_assert_ptr_null(aule_torch_alloc(INT64_C(1) << 40, device, NULL));
    ck_assert_ptr_nonnull(strstr(aule_error(), "free"));
    ck_assert_ptr_null(aule_torch_alloc(0, device, NULL));
    ck_assert_ptr_nonnull(strstr(aule_error(), "torch asks for 0 bytes"));
    aule_torch_free(first, 5000, device, NULL);
    aule_torch_free(first, 5000, device, NULL); // a second time changes nothing
    aule_torch_free(&offset, 8, device, NULL);  // of nobody's arena
    ck_assert_ptr_eq(aule_torch_alloc(5000, device, NULL), first);
    aule_torch_free(second, 1, device, NULL);
    close_step(&step);
    memset(first, 2, 5000); // the memory stays until the framework frees it
    ck_assert_int_eq(cuda->maps, 1);
    ck_assert_ptr_null(aule_torch_alloc(4096, device, NULL));
    aule_torch_free(first, 5000, device, NULL);
    ck_assert_int_eq(cuda->maps + cuda->imports + cuda->contexts, 0);
}
END_TEST

START_TEST(a_session_that_gives_a_framework_memory_again_knows_what_it_gave_before)
{
    void *base;
    int device;
    if (!open_device())
        return;
    load_cuda();
    ok(aule_device_map_cuda(step.session, -1, &base, &device));
    ok(aule_torch_begin(step.session));
    void *memory = aule_torch_alloc(4096, device, NULL);
    ck_assert_ptr_nonnull(memory);
    aule_torch_end(step.session);
    ok(aule_torch_begin(step.session));
    aule_torch_free(memory, 4096, device, NULL);
    ck_assert_ptr_eq(aule_torch_alloc(4096, device, NULL), memory);
    aule_torch_free(memory, 4096, device, NULL);
    aule_torch_end(step.session);
    close_step(&step);
    ck_assert_int_eq(cuda->maps + cuda->imports + cuda->contexts, 0);
}
END_TEST

START_TEST(one_session_at_a_time_gives_a_frameworks_memory_on_a_gpu)
{
    void *base;
    struct aule_session *other;
    if (!open_device())
        return;
    load_cuda();
    ok(aule_device_map_cuda(step.session, -1, &base, NULL));
    ok(aule_torch_begin(step.session));
    const struct aule_session_params params = {
        .socket = daemon_.socket, .device_arena_size = 1 << 20, .arena_size = 1 << 20};
    ok(aule_session_open(&params, &other));
    ok(aule_device_map_cuda(other, -1, &base, NULL));
    expect(aule_torch_begin(other), AULE_BUSY, "of another session on CUDA device 1");
    aule_torch_end(other); // it has not begun
    void *memory = aule_torch_alloc(4096, 1, NULL);
    aule_torch_end(step.session);
    ok(aule_torch_begin(other));
    void *next = aule_torch_alloc(4096, 1, NULL);
    ck_assert((char *)next >= (char *)base && (char *)next < (char *)base + (1 << 20));
    aule_torch_free(memory, 4096, 1, NULL);
    aule_torch_free(next, 4096, 1, NULL);
    aule_session_close(other);
    close_step(&step);
    ck_assert_int_eq(cuda->maps + cuda->imports + cuda->contexts, 0);
}
END_TEST

START_TEST(too_large_a_device_arena_names_the_option)
{
    struct aule_session *session;
    expect(aule_session_open(&(struct aule_session_params){.socket = daemon_.socket,
                                                           .device_arena_size = UINT64_C(1) << 45},
                             &session),
           AULE_LIMIT, "--device-arenas");
}
END_TEST

// ---- death ----

START_TEST(after_the_daemons_death_the_memory_stays_and_calls_say_what_happened)
{
    struct aule_device_export export;
    void *base;
    if (!open_device())
        return;
    load_cuda();
    ok(aule_device_map_cuda(step.session, -1, &base, NULL));
    memset(base, 5, DEVICE_ARENA);
    daemon_kill(&daemon_);
    expect(aule_device_export(step.session, &export), AULE_DAEMON_GONE, daemon_.socket);
    ck_assert_int_eq(((char *)base)[DEVICE_ARENA - 1], 5);
    ck_assert(daemon_start(&daemon_, NULL));
    ok(aule_session_reconnect(step.session));
    ck_assert_int_eq(cuda->maps, 0); // the old mapping ended with the reconnect
    ok(aule_device_map_cuda(step.session, -1, &base, NULL));
    ck_assert_int_eq(((char *)base)[DEVICE_ARENA - 1], 0);
    close_step(&step);
    ck_assert_int_eq(cuda->maps, 0);
}
END_TEST

START_TEST(a_forked_child_does_not_touch_the_mapping)
{
    void *base;
    int status;
    if (!open_device())
        return;
    load_cuda();
    ok(aule_device_map_cuda(step.session, -1, &base, NULL));
    pid_t child = fork();
    if (child == 0) {
        aule_session_close(step.session);
        _exit(cuda->maps == 1 && cuda->contexts == 1 ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    close_step(&step);
    ck_assert_int_eq(cuda->maps, 0);
}
END_TEST

START_TEST(sessions_come_and_go_without_a_trace)
{
    void *base;
    if (!open_device())
        return;
    close_step(&step);
    int before = cuda_rig_count_fds();
    for (int i = 0; i < 60; i++) {
        open_step(&step, NULL);
        load_cuda();
        ok(aule_device_map_cuda(step.session, -1, &base, NULL));
        close_step(&step);
        ck_assert_int_eq(cuda->maps + cuda->imports + cuda->contexts, 0);
    }
    ck_assert_int_eq(cuda_rig_count_fds(), before);
}
END_TEST

int main(void)
{
    const struct entry use[] = {
        {runs_in_the_device_arena_give_the_same_bits, 0},
        {another_vulkan_process_imports_what_the_client_exports, 0},
        {a_token_is_not_given_to_the_export_socket_of_another_user, 0},
        {memory_is_allocated_and_freed_and_never_twice, 0},
        {frameworks_allocate_in_the_arena_by_functions_without_a_context, 0},
        {a_session_that_gives_a_framework_memory_again_knows_what_it_gave_before, 0},
        {one_session_at_a_time_gives_a_frameworks_memory_on_a_gpu, 0},
        {NULL, 0}};
    const struct entry bad[] = {{without_libcuda_the_sentence_says_so, 0},
                                {an_old_driver_is_named_by_the_function_that_it_lacks, 0},
                                {another_gpu_gets_a_sentence_with_both_uuids, 0},
                                {what_cuda_refuses_leaks_nothing_and_can_be_tried_again, 0},
                                {a_session_without_a_device_arena_says_so, 0},
                                {too_large_a_device_arena_names_the_option, 0},
                                {NULL, 0}};
    const struct entry death[] = {
        {after_the_daemons_death_the_memory_stays_and_calls_say_what_happened, 0},
        {a_forked_child_does_not_touch_the_mapping, 0},
        {sessions_come_and_go_without_a_trace, 0},
        {NULL, 0}};
    Suite *suite = suite_create("client device");
    add(suite, "use", setup, use);
    add(suite, "bad input", setup, bad);
    add(suite, "death", setup, death);
    return check_main(suite);
}
