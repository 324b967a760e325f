// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_server_parts.c - parts of the server alone: the socket's place, its lock, segments and their
// guard, the job thread, the waker. No device, no nng.

#include "rigs/check_main.h"
#include "schema/wire.h"
#include "server/jobs.h"
#include "server/segment.h"
#include "server/sigbus.h"
#include "server/socket_path.h"
#include "server/waker.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];
static struct error error;

static void make_folder(void)
{
    strcpy(folder, "/tmp/aule-parts-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void remove_folder(void)
{
    static const char *const names[] = {"s", "s.lock", "aule"};
    char path[128];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        remove(path);
    }
    rmdir(folder);
}

static const char *in_folder(const char *name)
{
    static char path[100];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

// ---- socket_path ----

static void expect_path(const char *option, uint32_t number, const char *expected)
{
    char path[SOCKET_PATH_ROOM];
    enum status status = socket_path_resolve(option, number, path, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    ck_assert_str_eq(path, expected);
}

START_TEST(the_rule_takes_option_then_runtime_dir_then_xdg)
{
    setenv("XDG_RUNTIME_DIR", folder, 1);
    unsetenv("AULE_RUNTIME_DIR");
    expect_path(NULL, 0, in_folder("aule/0.sock"));
    struct stat info;
    ck_assert_int_eq(stat(in_folder("aule"), &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0700);
    setenv("AULE_RUNTIME_DIR", folder, 1);
    expect_path(NULL, 3, in_folder("3.sock"));
    expect_path(in_folder("s"), 3, in_folder("s"));
    ck_assert_int_eq(chdir(folder), 0);
    expect_path("s", 0, in_folder("s"));
    expect_path("aule/../s", 0, in_folder("s")); // one place has one name
}
END_TEST

START_TEST(the_last_folder_of_a_path_is_made_for_its_owner_alone)
{
    struct stat info;
    umask(0);
    expect_path(in_folder("aule/s"), 0, in_folder("aule/s"));
    ck_assert_int_eq(stat(in_folder("aule"), &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0700);
    char path[SOCKET_PATH_ROOM];
    ck_assert_int_eq(socket_path_resolve(in_folder("no/such/s"), 0, path, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, in_folder("no/such: No such file or directory")));
    ck_assert_int_ne(access(in_folder("no"), F_OK), 0);
}
END_TEST

START_TEST(paths_that_name_no_file_or_lie_open_are_refused)
{
    char path[SOCKET_PATH_ROOM];
    ck_assert_int_eq(socket_path_resolve("", 0, path, &error), STATUS_INVALID);
    ck_assert_int_eq(socket_path_resolve("/", 0, path, &error), STATUS_INVALID);
    ck_assert_int_eq(socket_path_resolve("..", 0, path, &error), STATUS_INVALID);
    ck_assert_int_eq(chmod(folder, 0777), 0);
    ck_assert_int_eq(socket_path_resolve(in_folder("s"), 0, path, &error), STATUS_DENIED);
    ck_assert_ptr_nonnull(strstr(error.text, "0777"));
    ck_assert_int_eq(chmod(folder, 01777), 0);
    expect_path(in_folder("s"), 0, in_folder("s"));
}
END_TEST

START_TEST(a_path_has_at_most_99_bytes)
{
    char option[256], path[SOCKET_PATH_ROOM];
    memset(option, 'x', sizeof option);
    memcpy(option, "/tmp/", 5);
    option[99] = 0;
    ck_assert_int_eq(socket_path_resolve(option, 0, path, &error), STATUS_OK);
    ck_assert_str_eq(path, option);
    option[99] = 'x';
    option[125] = 0;
    ck_assert_int_eq(socket_path_resolve(option, 0, path, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "has 125 bytes; at most 99 fit"));
    ck_assert_ptr_nonnull(strstr(error.text, option));
    option[100] = 0;
    ck_assert_int_eq(socket_path_resolve(option, 0, path, &error), STATUS_INVALID);
}
END_TEST

START_TEST(a_lock_has_one_owner_and_names_it)
{
    struct socket_lock first, second;
    char pid[32];
    ck_assert_int_eq(socket_lock_take(in_folder("s"), &first, &error), STATUS_OK);
    ck_assert_int_eq(socket_lock_take(in_folder("s"), &second, &error), STATUS_BUSY);
    snprintf(pid, sizeof pid, "(pid %d)", (int)getpid());
    ck_assert_ptr_nonnull(strstr(error.text, pid));
    socket_lock_release(&second); // it was not held: nothing happens
    ck_assert_int_eq(access(in_folder("s.lock"), F_OK), 0);
    socket_lock_release(&first);
    ck_assert_int_eq(access(in_folder("s.lock"), F_OK), -1);
    ck_assert_int_eq(socket_lock_take(in_folder("s"), &second, &error), STATUS_OK);
    socket_lock_release(&second);
}
END_TEST

START_TEST(a_symlink_cannot_stand_in_for_the_lock)
{
    struct socket_lock lock;
    ck_assert_int_eq(symlink("/etc/passwd", in_folder("s.lock")), 0);
    ck_assert_int_eq(socket_lock_take(in_folder("s"), &lock, &error), STATUS_DENIED);
}
END_TEST

static int bind_socket(bool and_listen)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", in_folder("s"));
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    if (and_listen)
        ck_assert_int_eq(listen(fd, 4), 0);
    return fd;
}

START_TEST(only_a_socket_that_nobody_listens_on_is_cleared)
{
    ck_assert_int_eq(socket_path_clear(in_folder("s"), &error), STATUS_OK);
    int fd = bind_socket(true);
    ck_assert_int_eq(socket_path_clear(in_folder("s"), &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "another program"));
    ck_assert_int_eq(access(in_folder("s"), F_OK), 0);
    close(fd);
    ck_assert_int_eq(socket_path_clear(in_folder("s"), &error), STATUS_OK);
    ck_assert_int_eq(access(in_folder("s"), F_OK), -1);
    ck_assert_int_eq(symlink("/etc/passwd", in_folder("s")), 0);
    ck_assert_int_eq(socket_path_clear(in_folder("s"), &error), STATUS_INVALID);
    ck_assert_int_eq(access("/etc/passwd", F_OK), 0);
}
END_TEST

// ---- segments and the guard ----

static int wake_fd;
static size_t largest_private = SIZE_MAX; // the largest private mapping that succeeds

// The linker redirects mmap() here.
void *__real_mmap(void *place, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *place, size_t size, int protection, int flags, int fd, off_t offset);

void *__wrap_mmap(void *place, size_t size, int protection, int flags, int fd, off_t offset)
{
    if ((flags & MAP_PRIVATE) && size > largest_private) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return __real_mmap(place, size, protection, flags, fd, offset);
}

static char own_prefix[32], other_prefix[32]; // of this run; other runs may be active

static void open_guard(void)
{
    snprintf(own_prefix, sizeof own_prefix, "aule-parts-%d-", (int)getpid());
    snprintf(other_prefix, sizeof other_prefix, "aule-others-%d-", (int)getpid());
    wake_fd = eventfd(0, EFD_NONBLOCK);
    ck_assert_int_eq(sigbus_guard_init(2, wake_fd, &error), STATUS_OK);
}

static void close_guard(void)
{
    sigbus_guard_finish();
    close(wake_fd);
}

static int count_segments(const char *prefix)
{
    int count = 0;
    DIR *entries = opendir("/dev/shm");
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    closedir(entries);
    return count;
}

static struct segment_params params_of(uint64_t arena_size, uint64_t alignment)
{
    return (struct segment_params){.prefix = own_prefix,
                                   .epoch = 7,
                                   .session = 9,
                                   .arena_size = arena_size,
                                   .alignment = alignment};
}

START_TEST(a_segment_has_header_arena_and_alignment)
{
    static const uint64_t alignments[] = {4096, 65536, 1 << 20};
    for (int i = 0; i < 3; i++) {
        struct segment segment;
        const struct segment_params params = params_of(alignments[i] * 2, alignments[i]);
        ck_assert_int_eq(segment_create(&params, &segment, &error), STATUS_OK);
        const struct wire_segment_header *header = segment.base;
        ck_assert_uint_eq(header->magic, WIRE_SEGMENT_MAGIC);
        ck_assert_uint_eq(header->epoch, 7);
        ck_assert_uint_eq(header->session, 9);
        ck_assert_uint_eq(header->arena_offset, segment.arena_offset);
        ck_assert_uint_eq(((uintptr_t)segment.base + segment.arena_offset) % alignments[i], 0);
        ck_assert_uint_eq(segment.size, segment.arena_offset + segment.arena_size);
        memset((uint8_t *)segment.base + segment.arena_offset, 1, segment.arena_size);
        segment_destroy(&segment);
        segment_destroy(&segment); // a second time does nothing
    }
    ck_assert_int_eq(count_segments(own_prefix), 0);
}
END_TEST

START_TEST(a_segment_without_room_is_refused_with_numbers)
{
    struct segment segment;
    const struct segment_params params = params_of(UINT64_C(1) << 50, 4096);
    ck_assert_int_eq(segment_create(&params, &segment, &error), STATUS_NO_MEMORY);
    ck_assert_ptr_nonnull(strstr(error.text, "1125899906846"));
    ck_assert_ptr_nonnull(strstr(error.text, "/dev/shm has"));
    ck_assert_int_eq(count_segments(own_prefix), 0);
}
END_TEST

START_TEST(the_last_sweep_removes_what_has_the_prefix_and_nothing_else)
{
    struct segment segments[2];
    struct segment_params params = params_of(4096, 4096);
    ck_assert_int_eq(segment_create(&params, &segments[0], &error), STATUS_OK);
    params.prefix = other_prefix;
    ck_assert_int_eq(segment_create(&params, &segments[1], &error), STATUS_OK);
    segment_sweep(own_prefix);
    ck_assert_int_eq(count_segments(own_prefix), 0);
    ck_assert_int_eq(count_segments(other_prefix), 1);
    segment_destroy(&segments[0]);
    segment_destroy(&segments[1]);
    ck_assert_int_eq(count_segments(other_prefix), 0);
}
END_TEST

// Other daemons of this machine may sweep at the same time.
START_TEST(a_dead_daemons_segment_is_swept_by_any_other_and_a_living_ones_is_not)
{
    struct segment segment;
    const struct segment_params params = params_of(4096, 4096);
    fflush(NULL);
    const pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        _exit(segment_create(&params, &segment, &error) != STATUS_OK); // as if it was killed
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    segment_sweep_dead();
    ck_assert_int_eq(count_segments(own_prefix), 0);
    ck_assert_int_eq(segment_create(&params, &segment, &error), STATUS_OK);
    segment_sweep_dead();
    ck_assert_int_eq(count_segments(own_prefix), 1);
    segment_destroy(&segment);
    ck_assert_int_eq(count_segments(own_prefix), 0);
}
END_TEST

START_TEST(more_segments_than_the_guard_holds_are_refused_by_name)
{
    struct segment segments[3];
    const struct segment_params params = params_of(4096, 4096);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(segment_create(&params, &segments[i], &error), STATUS_OK);
    ck_assert_int_eq(segment_create(&params, &segments[2], &error), STATUS_LIMIT);
    ck_assert_ptr_nonnull(strstr(error.text, "--max-sessions"));
    segment_destroy(&segments[0]);
    ck_assert_int_eq(segment_create(&params, &segments[2], &error), STATUS_OK);
    segment_destroy(&segments[1]);
    segment_destroy(&segments[2]);
}
END_TEST

static int truncate_segment(const struct segment *segment)
{
    int fd = shm_open(segment->name, O_RDWR, 0);
    int result = ftruncate(fd, 0);
    close(fd);
    return result;
}

static void *touch(void *context)
{
    const struct segment *segment = context;
    volatile uint8_t *arena = (uint8_t *)segment->base + segment->arena_offset;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL); // as a driver's threads do
    arena[100] = 1;
    return (void *)(uintptr_t)(arena[5000] == 0 && arena[100] == 1);
}

START_TEST(a_touch_of_a_lost_page_survives_in_any_thread_and_marks_its_segment_alone)
{
    struct segment lost, kept;
    const struct segment_params params = params_of(16384, 4096);
    pthread_t thread;
    void *survived;
    ck_assert_int_eq(segment_create(&params, &lost, &error), STATUS_OK);
    ck_assert_int_eq(segment_create(&params, &kept, &error), STATUS_OK);
    memset(lost.base, 0xee, lost.size);
    ck_assert_int_eq(truncate_segment(&lost), 0);
    ck_assert(!segment_is_dead(&lost));
    ck_assert_int_eq(pthread_create(&thread, NULL, touch, &lost), 0);
    ck_assert_int_eq(pthread_join(thread, &survived), 0);
    ck_assert_ptr_nonnull(survived);
    ck_assert(segment_is_dead(&lost));
    ck_assert(!segment_is_dead(&kept));
    struct pollfd woken = {.fd = wake_fd, .events = POLLIN};
    ck_assert_int_eq(poll(&woken, 1, 0), 1);
    segment_destroy(&lost);
    segment_destroy(&kept);
}
END_TEST

START_TEST(lost_pages_are_replaced_one_by_one_where_the_system_refuses_the_whole_segment)
{
    struct segment lost;
    const struct segment_params params = params_of(16384, 4096);
    ck_assert_int_eq(segment_create(&params, &lost, &error), STATUS_OK);
    ck_assert_int_eq(truncate_segment(&lost), 0);
    largest_private = (size_t)sysconf(_SC_PAGESIZE);
    ck_assert_ptr_nonnull(touch(&lost));
    largest_private = SIZE_MAX;
    ck_assert(segment_is_dead(&lost));
    segment_destroy(&lost);
}
END_TEST

// A fault outside the guard's memory goes to the earlier handler.
static void on_foreign(int number)
{
    (void)number;
    _exit(42);
}

START_TEST(a_foreign_fault_reaches_the_earlier_handler)
{
    close_guard();
    ck_assert(signal(SIGBUS, on_foreign) != SIG_ERR);
    open_guard();
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        int fd = shm_open("/aule-partsforeign", O_RDWR | O_CREAT, 0600);
        shm_unlink("/aule-partsforeign");
        volatile uint8_t *memory = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
        _exit(memory[0]);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 42);
}
END_TEST

// ---- jobs ----

struct numbered {
    struct job job;
    int number;
    bool worked;
};

static void work(struct job *job)
{
    ((struct numbered *)(void *)job)->worked = true;
}

static void done(struct job *job, void *context)
{
    struct numbered *numbered = (struct numbered *)(void *)job;
    int *next = context;
    ck_assert(numbered->worked);
    ck_assert_int_eq(numbered->number, *next);
    ++*next;
}

// Sleeps until the descriptor reports finished jobs.
static void hear(int fd, struct jobs *jobs, int *next)
{
    struct pollfd woken = {.fd = fd, .events = POLLIN};
    uint64_t count;
    ck_assert_int_eq(poll(&woken, 1, -1), 1);
    ck_assert_int_eq(read(fd, &count, sizeof count), sizeof count);
    jobs_finish_done(jobs, next);
}

START_TEST(jobs_are_done_once_in_order_and_wake)
{
    struct numbered numbered[100];
    struct jobs *jobs;
    int next = 0, fd = eventfd(0, EFD_NONBLOCK);
    ck_assert_int_eq(jobs_create(fd, &jobs, &error), STATUS_OK);
    for (int i = 0; i < 100; i++) {
        numbered[i] = (struct numbered){{.work = work, .done = done}, i, false};
        jobs_start(jobs, &numbered[i].job);
        if (i % 10 == 0)
            jobs_finish_done(jobs, &next);
    }
    while (next < 100)
        hear(fd, jobs, &next);
    jobs_destroy(jobs);
    close(fd);
}
END_TEST

struct held {
    struct numbered numbered;
    sem_t begun, end;
};

static void work_until_told(struct job *job)
{
    struct held *held = (struct held *)(void *)job;
    sem_post(&held->begun);
    sem_wait(&held->end);
    work(job);
}

// Tenant 1 has many large jobs, tenant 2 two, tenant 3 one that comes late.
START_TEST(long_jobs_take_turns_among_tenants_and_a_tenants_small_ones_go_first)
{
    enum { MANY = 40 };
    struct held first = {.numbered = {{.work = work_until_told, .done = done}, 0, false}};
    struct numbered large[MANY], small[4], quick = {{.work = work, .done = done}, 1, false};
    static const struct {
        uint64_t tenant, bytes;
        int number; // its place
    } expected[4] = {{1, 10, 2}, {2, 20, 3}, {3, 1 << 20, 4}, {2, 30, 6}};
    struct jobs *jobs;
    int next = 0, fd = eventfd(0, EFD_NONBLOCK);
    sem_init(&first.begun, 0, 0);
    sem_init(&first.end, 0, 0);
    ck_assert_int_eq(jobs_create(fd, &jobs, &error), STATUS_OK);
    jobs_start(jobs, &first.numbered.job);
    sem_wait(&first.begun);
    for (int i = 0; i < MANY; i++) {
        large[i] = (struct numbered){
            {.work = work, .done = done, .is_long = true, .tenant = 1, .bytes = 64 << 20},
            i ? 6 + i : 5,
            false};
        jobs_start(jobs, &large[i].job);
    }
    for (int i = 0; i < 4; i++) {
        small[i] = (struct numbered){{.work = work,
                                      .done = done,
                                      .is_long = true,
                                      .tenant = expected[i].tenant,
                                      .bytes = expected[i].bytes},
                                     expected[i].number,
                                     false};
        jobs_start(jobs, &small[i].job);
    }
    jobs_start(jobs, &quick.job);
    sem_post(&first.end);
    while (next < MANY + 6)
        hear(fd, jobs, &next);
    jobs_destroy(jobs);
    sem_destroy(&first.begun);
    sem_destroy(&first.end);
    close(fd);
}
END_TEST

START_TEST(a_job_that_waits_can_be_cancelled_or_overtaken_and_one_that_runs_can_not)
{
    struct held first = {.numbered = {{.work = work_until_told, .done = done}, 0, false}};
    struct numbered last = {{.work = work, .done = done}, 2, false},
                    urgent = {{.work = work, .done = done}, 1, false};
    struct numbered cancelled = {{.work = work, .done = done}, 99, false};
    struct jobs *jobs;
    int next = 0, fd = eventfd(0, EFD_NONBLOCK);
    sem_init(&first.begun, 0, 0);
    sem_init(&first.end, 0, 0);
    ck_assert_int_eq(jobs_create(fd, &jobs, &error), STATUS_OK);
    jobs_start(jobs, &first.numbered.job);
    sem_wait(&first.begun);
    jobs_start(jobs, &cancelled.job);
    jobs_start(jobs, &last.job);
    jobs_start_first(jobs, &urgent.job);
    ck_assert(jobs_cancel(jobs, &cancelled.job));
    ck_assert(!jobs_cancel(jobs, &cancelled.job));
    ck_assert(!jobs_cancel(jobs, &first.numbered.job));
    sem_post(&first.end);
    while (next < 3)
        hear(fd, jobs, &next);
    ck_assert(!jobs_cancel(jobs, &last.job));
    ck_assert(!cancelled.worked);
    jobs_destroy(jobs);
    sem_destroy(&first.begun);
    sem_destroy(&first.end);
    close(fd);
}
END_TEST

// ---- the waker ----

enum { NEWS = 20000 };

static struct waker waker;
static atomic_uint num_news; // events that can be seen
static unsigned num_seen;

static bool has_news(const void *context)
{
    (void)context;
    return atomic_load(&num_news) != num_seen;
}

static void open_waker(void)
{
    num_seen = 0;
    atomic_store(&num_news, 0);
    waker = (struct waker){.fd = eventfd(0, EFD_NONBLOCK)};
}

static void close_waker(void)
{
    close(waker.fd);
}

static void *bring_news(void *argument)
{
    (void)argument;
    for (unsigned i = 0; i < NEWS; i++) {
        atomic_store(&num_news, i + 1);
        waker_wake(&waker);
    }
    return NULL;
}

START_TEST(a_sleeping_thread_is_woken_by_the_last_event)
{
    struct pollfd woken = {.fd = waker.fd, .events = POLLIN};
    pthread_t thread;
    uint64_t count;
    ck_assert_int_eq(pthread_create(&thread, NULL, bring_news, NULL), 0);
    while (num_seen < NEWS) {
        if (waker_fall_asleep(&waker, has_news, NULL)) {
            if (poll(&woken, 1, -1) < 1 || read(waker.fd, &count, sizeof count) != sizeof count)
                ck_abort_msg("the eventfd says nothing");
            waker_wake_up(&waker);
        }
        num_seen = atomic_load(&num_news);
    }
    pthread_join(thread, NULL);
}
END_TEST

START_TEST(a_thread_that_is_awake_is_not_woken)
{
    struct pollfd woken = {.fd = waker.fd, .events = POLLIN};
    atomic_store(&num_news, 1);
    waker_wake(&waker);
    ck_assert_int_eq(poll(&woken, 1, 0), 0);
    ck_assert(!waker_fall_asleep(&waker, has_news, NULL)); // it has not seen them yet
    waker_wake(&waker);
    ck_assert_int_eq(poll(&woken, 1, 0), 0);
    num_seen = 1;
    ck_assert(waker_fall_asleep(&waker, has_news, NULL));
    waker_wake(&waker);
    ck_assert_int_eq(poll(&woken, 1, 0), 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server parts");
    TCase *paths = tcase_create("socket path"), *segments = tcase_create("segment"),
          *jobs = tcase_create("jobs");
    TCase *wakers = tcase_create("waker");
    tcase_add_checked_fixture(paths, make_folder, remove_folder);
    tcase_add_test(paths, the_rule_takes_option_then_runtime_dir_then_xdg);
    tcase_add_test(paths, the_last_folder_of_a_path_is_made_for_its_owner_alone);
    tcase_add_test(paths, paths_that_name_no_file_or_lie_open_are_refused);
    tcase_add_test(paths, a_path_has_at_most_99_bytes);
    tcase_add_test(paths, a_lock_has_one_owner_and_names_it);
    tcase_add_test(paths, a_symlink_cannot_stand_in_for_the_lock);
    tcase_add_test(paths, only_a_socket_that_nobody_listens_on_is_cleared);
    tcase_add_checked_fixture(segments, open_guard, close_guard);
    tcase_add_test(segments, a_segment_has_header_arena_and_alignment);
    tcase_add_test(segments, a_segment_without_room_is_refused_with_numbers);
    tcase_add_test(segments, the_last_sweep_removes_what_has_the_prefix_and_nothing_else);
    tcase_add_test(segments, a_dead_daemons_segment_is_swept_by_any_other_and_a_living_ones_is_not);
    tcase_add_test(segments, more_segments_than_the_guard_holds_are_refused_by_name);
    tcase_add_test(segments,
                   a_touch_of_a_lost_page_survives_in_any_thread_and_marks_its_segment_alone);
    tcase_add_test(segments,
                   lost_pages_are_replaced_one_by_one_where_the_system_refuses_the_whole_segment);
    tcase_add_test(segments, a_foreign_fault_reaches_the_earlier_handler);
    tcase_add_test(jobs, jobs_are_done_once_in_order_and_wake);
    tcase_add_test(jobs, long_jobs_take_turns_among_tenants_and_a_tenants_small_ones_go_first);
    tcase_add_test(jobs, a_job_that_waits_can_be_cancelled_or_overtaken_and_one_that_runs_can_not);
    suite_add_tcase(suite, paths);
    suite_add_tcase(suite, segments);
    tcase_add_checked_fixture(wakers, open_waker, close_waker);
    tcase_add_test(wakers, a_sleeping_thread_is_woken_by_the_last_event);
    tcase_add_test(wakers, a_thread_that_is_awake_is_not_woken);
    suite_add_tcase(suite, jobs);
    suite_add_tcase(suite, wakers);
    return check_main(suite);
}
