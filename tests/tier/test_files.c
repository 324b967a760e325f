// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_files.c - the tier in a folder, behind a tier that does harm: what is stored comes back with
// the same bits, also after a restart or a kill; harmed files are misses; who loses blocks when
// there is no room; and what two backends with one folder see of each other.

#include "base/clock.h"
#include "rigs/check_main.h"
#include "rigs/dice.h"
#include "tier/fault.h"
#include "tier/files/files.h"
#include "tier/files/folder.h"
#include "tier_world.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    BLOCK = 3 * STORED_PART_BYTES / 2, // bytes: two parts
    COARSE_US = 30000,                 // files written so long after each other have other times
};

static char path[64];
static struct tier *tier;
static struct tier_backend *fault;
static struct stored_space space;
static char said[1024], said_before[1024]; // the last two; under the tier's lock

static void hear(void *context, const char *sentence)
{
    (void)context;
    memcpy(said_before, said, sizeof said);
    snprintf(said, sizeof said, "%s", sentence);
}

static struct tier *open_folder(uint64_t limit_bytes, struct tier_backend **harm)
{
    const struct files_params params = {
        .path = path, .limit_bytes = limit_bytes, .pause_ms = 300, .say = hear};
    const struct tier_ops *ops;
    struct tier_backend *files;
    struct tier *opened;
    struct error error;
    const enum status status = files_create(&params, &files, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    *harm = fault_open(&files_ops, files, &ops);
    ck_assert_int_eq(tier_create(ops, *harm, &opened, &error), STATUS_OK);
    return opened;
}

// Room for `blocks` blocks of BLOCK bytes; 0: the default.
static void open_tier(uint32_t blocks)
{
    tier = open_folder(blocks * folder_file_bytes(BLOCK), &fault);
}

static void reopen(uint32_t blocks)
{
    ck_assert(tier_close(tier, FOREVER));
    open_tier(blocks);
}

static void begin(void)
{
    const char *home = getenv("TMPDIR");
    snprintf(path, sizeof path, "%.32s/aule-files-XXXXXX", home ? home : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(path));
    space = tier_space(BLOCK, "a");
    said[0] = 0;
    open_tier(0);
}

static void end(void)
{
    char command[96];
    ck_assert(tier_close(tier, FOREVER));
    snprintf(command, sizeof command, "rm -rf %s", path);
    ck_assert_int_eq(system(command), 0);
}

static void order(enum fault_kind kind, enum tier_kind jobs, enum stored_reason reason,
                  uint64_t bytes, uint32_t times)
{
    const struct fault_order now = {kind, jobs, reason, bytes, times};
    fault_order(fault, &now);
}

// ---- jobs ----

// Runs a job over one block and returns the block's reason. A block that comes has its own bits.
static enum stored_reason run(struct tier *on, enum tier_kind kind, uint32_t number,
                              struct tier_share share)
{
    struct tier_job *job = tier_world_job(kind, &space, number, 1);
    uint8_t *data = calloc(1, space.block_bytes);
    job->share = share;
    job->blocks[0].data = data;
    if (kind == TIER_STORE)
        tier_world_fill(data, space.block_bytes, number);
    tier_world_do(on, job);
    const enum stored_reason reason = job->blocks[0].reason;
    if (kind == TIER_LOAD && reason == STORED_OK)
        ck_assert(tier_world_holds(data, space.block_bytes, number));
    tier_job_destroy(job);
    free(data);
    return reason;
}

static const struct tier_share someone = {.tenant = 1};

static enum stored_reason store(uint32_t number)
{
    return run(tier, TIER_STORE, number, someone);
}

static enum stored_reason load(uint32_t number)
{
    return run(tier, TIER_LOAD, number, someone);
}

static bool has(struct tier *on, uint32_t number)
{
    const struct stored_chain chain = tier_chain(number);
    return tier_probe(on, &space, &chain) == TIER_THERE;
}

static struct tier_state state(void)
{
    struct tier_state now;
    tier_state(tier, &now);
    return now;
}

static uint64_t failed(enum stored_reason reason)
{
    struct tier_counts counts;
    tier_counts(tier, &counts);
    return counts.failed[reason];
}

// ---- files ----

// The path of the block's file.
static void file_of(uint32_t number, char name[256])
{
    const struct stored_chain chain = tier_chain(number);
    const struct shelf_key key = shelf_key_of(&space, &chain);
    DIR *folder = opendir(path);
    const struct dirent *entry;
    name[0] = 0;
    while ((entry = readdir(folder))) {
        struct shelf_key other;
        if (folder_parse(entry->d_name, &other) && !memcmp(&key, &other, sizeof key))
            snprintf(name, 256, "%s/%.180s", path, entry->d_name);
    }
    closedir(folder);
}

static uint32_t count_entries(void)
{
    DIR *folder = opendir(path);
    uint32_t count = 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count - 2;
}

static void overwrite(uint32_t number, off_t at, const void *bytes, size_t size)
{
    char name[256];
    file_of(number, name);
    const int fd = open(name, O_WRONLY);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pwrite(fd, bytes, size, at), (ssize_t)size);
    close(fd);
}

static void resize(uint32_t number, off_t size)
{
    char name[256];
    file_of(number, name);
    ck_assert_int_eq(truncate(name, size), 0);
}

static void flip(uint32_t number, off_t at)
{
    char name[256], byte;
    file_of(number, name);
    const int fd = open(name, O_RDWR);
    if (pread(fd, &byte, 1, at) == 1) { // else the file was cut before
        byte ^= 4;
        ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
}

static void make_file(const char *name)
{
    char whole[256];
    snprintf(whole, sizeof whole, "%s/%s", path, name);
    const int fd = open(whole, O_WRONLY | O_CREAT, 0600);
    ck_assert_int_ge(fd, 0);
    close(fd);
}

// ---- files that cannot be removed ----

int __real_unlinkat(int fd, const char *name, int flags);
int __wrap_unlinkat(int fd, const char *name, int flags);

static atomic_bool keeps_files; // unlinkat() fails

int __wrap_unlinkat(int fd, const char *name, int flags)
{
    if (!atomic_load(&keeps_files))
        return __real_unlinkat(fd, name, flags);
    errno = EPERM;
    return -1;
}

// ---- a disk that does not answer, as of a file server that is gone ----

int __real_openat64(int fd, const char *name, int flags, mode_t mode);
int __wrap_openat64(int fd, const char *name, int flags, mode_t mode);

static atomic_bool hangs; // openat() does not return

int __wrap_openat64(int fd, const char *name, int flags, mode_t mode)
{
    while (atomic_load(&hangs))
        usleep(1000);
    return __real_openat64(fd, name, flags, mode);
}

// ---- the tests ----

START_TEST(what_is_stored_comes_back_with_the_same_bits)
{
    static const uint64_t sizes[] = {8, 4096, STORED_PART_BYTES, STORED_PART_BYTES + 8, BLOCK};
    space.block_bytes = sizes[_i];
    ck_assert_int_eq(load(1), STORED_ABSENT);
    ck_assert_int_eq(store(1), STORED_OK);
    ck_assert(has(tier, 1) && !has(tier, 2));
    ck_assert_int_eq(load(1), STORED_OK);
    ck_assert_int_eq(run(tier, TIER_DELETE, 1, someone), STORED_OK);
    ck_assert_int_eq(run(tier, TIER_DELETE, 1, someone), STORED_ABSENT);
    ck_assert_int_eq(load(1), STORED_ABSENT);
    ck_assert_uint_eq(count_entries(), 0);
    ck_assert_uint_eq(state().bytes, 0);
}
END_TEST

START_TEST(a_look_up_tells_what_is_there)
{
    store(1);
    struct tier_job *job = tier_world_job(TIER_LOOKUP, &space, 0, 3);
    tier_world_do(tier, job);
    ck_assert_int_eq(job->blocks[0].answer, TIER_MISS);
    ck_assert_int_eq(job->blocks[1].answer, TIER_THERE);
    ck_assert_int_eq(job->blocks[2].answer, TIER_MISS);
    tier_job_destroy(job);
}
END_TEST

START_TEST(blocks_survive_a_restart_and_others_salts_find_nothing)
{
    for (uint32_t i = 0; i < 4; i++)
        ck_assert_int_eq(store(i), STORED_OK);
    const uint64_t bytes = state().bytes;
    reopen(0);
    ck_assert_uint_eq(state().blocks, 4);
    ck_assert_uint_eq(state().bytes, bytes);
    for (uint32_t i = 0; i < 4; i++)
        ck_assert_int_eq(load(i), STORED_OK);
    space = tier_space(BLOCK, "b");
    ck_assert(!has(tier, 0));
    ck_assert_int_eq(load(0), STORED_ABSENT);
}
END_TEST

// A harm to a file, and the reason under which the tier counts it.
static const struct harm {
    enum { CUT, LONGER, EMPTY, FLIP, MAGIC, ANOTHER } how;
    off_t at;
    enum stored_reason reason;
} harms[] = {
    {CUT, 1, STORED_LENGTH},
    {CUT, 63, STORED_LENGTH},
    {CUT, 64, STORED_LENGTH},
    {CUT, 64 + STORED_PART_BYTES, STORED_LENGTH},
    {CUT, 64 + STORED_PART_BYTES + 70, STORED_LENGTH},
    {LONGER, 1, STORED_LENGTH},
    {EMPTY, 0, STORED_LENGTH},
    {FLIP, 64, STORED_CHECKSUM},
    {FLIP, 64 + STORED_PART_BYTES + 64 + 1000, STORED_CHECKSUM},
    {FLIP, 56, STORED_CHECKSUM}, // of the checksum itself
    {FLIP, 8, STORED_IDENTITY},  // the part's number
    {FLIP, 16, STORED_LENGTH},
    {MAGIC, 0, STORED_OTHER_VERSION},
    {ANOTHER, 0, STORED_IDENTITY},
};

static void do_harm(const struct harm *harm, uint32_t number)
{
    char from[256], to[256];
    switch (harm->how) {
    case CUT: resize(number, harm->at); break;
    case EMPTY: resize(number, 0); break;
    case LONGER: resize(number, (off_t)folder_file_bytes(BLOCK) + harm->at); break;
    case FLIP: flip(number, harm->at); break;
    case MAGIC: overwrite(number, 0, "EXIF", 4); break;
    case ANOTHER: // a right file of another block
        store(99);
        file_of(99, from);
        file_of(number, to);
        ck_assert_int_eq(rename(from, to), 0);
    }
}

START_TEST(a_harmed_file_is_a_miss_that_is_counted_and_it_can_be_stored_again)
{
    const struct harm *harm = &harms[_i];
    ck_assert_int_eq(store(1), STORED_OK);
    do_harm(harm, 1);
    reopen(0);
    ck_assert_int_eq(load(1), harm->reason);
    ck_assert_uint_eq(failed(harm->reason), 1);
    ck_assert(!has(tier, 1));
    ck_assert_uint_eq(count_entries(), 0);
    ck_assert_int_eq(load(1), STORED_ABSENT);
    ck_assert_int_eq(store(1), STORED_OK);
    ck_assert_int_eq(load(1), STORED_OK);
}
END_TEST

START_TEST(a_file_that_was_cut_is_replaced_by_the_next_store)
{
    store(1);
    resize(1, 100);
    reopen(0);
    ck_assert_int_eq(store(1), STORED_OK);
    ck_assert_int_eq(load(1), STORED_OK);
}
END_TEST

START_TEST(entries_that_are_no_blocks_are_left_alone_and_told)
{
    char name[256], link[256];
    store(1);
    file_of(1, name);
    make_file("notes.txt");
    make_file("0123.aule1");
    snprintf(link, sizeof link, "%s/sub", path);
    ck_assert_int_eq(mkdir(link, 0700), 0);
    // A link with a block's name, of a chain that nobody has.
    snprintf(link, sizeof link, "%s", name);
    link[strlen(link) - 8] = link[strlen(link) - 8] == '0' ? '1' : '0';
    ck_assert_int_eq(symlink("/etc/passwd", link), 0);
    reopen(0);
    ck_assert_uint_eq(state().blocks, 1);
    ck_assert_uint_eq(count_entries(), 5);
    ck_assert_ptr_nonnull(strstr(state().note, "4 entries"));
    ck_assert_ptr_nonnull(strstr(said, "4 entries"));
    ck_assert_ptr_nonnull(strstr(said, path));
}
END_TEST

START_TEST(unfinished_files_go_unless_their_writer_lives)
{
    char name[256];
    make_file(".aule-part-1-1");
    make_file(".aule-part-1-2");
    snprintf(name, sizeof name, "%s/.aule-part-1-2", path);
    const int fd = open(name, O_WRONLY);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0); // as a writer does
    reopen(0);
    ck_assert_uint_eq(count_entries(), 1);
    ck_assert_int_eq(access(name, F_OK), 0);
    close(fd);
}
END_TEST

START_TEST(a_full_tier_drops_the_least_recently_used_block_also_after_a_restart)
{
    reopen(3);
    for (uint32_t i = 0; i < 3; i++)
        store(i);
    usleep(COARSE_US);
    ck_assert_int_eq(load(0), STORED_OK);
    reopen(3);
    usleep(COARSE_US);
    ck_assert_int_eq(store(10), STORED_OK);
    ck_assert(has(tier, 0) && has(tier, 10));
    ck_assert_uint_eq(state().blocks, 3);
    ck_assert_uint_eq(state().evicted, 1);
    ck_assert_uint_eq(count_entries(), 3);
    reopen(1); // a lower limit holds at once
    ck_assert_uint_eq(state().blocks, 1);
    ck_assert(has(tier, 10));
}
END_TEST

START_TEST(files_that_cannot_be_removed_count_on_and_stop_stores)
{
    reopen(3);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_int_eq(store(i), STORED_OK);
    atomic_store(&keeps_files, true);
    ck_assert_int_eq(store(3), STORED_DENIED);
    ck_assert_uint_eq(count_entries(), 3);
    ck_assert_uint_eq(state().bytes, 3 * folder_file_bytes(BLOCK));
    ck_assert_uint_eq(state().evicted, 0);
    ck_assert(state().broken);
    ck_assert_msg(strstr(said, "not permitted") != NULL, "%s", said);
    ck_assert_int_eq(load(0), STORED_OK);
    ck_assert_int_eq(run(tier, TIER_DELETE, 0, someone), STORED_DENIED);
    flip(1, 64);
    ck_assert_int_eq(load(1), STORED_CHECKSUM);
    ck_assert(!has(tier, 1)); // but its bytes count
    ck_assert_uint_eq(state().bytes, 3 * folder_file_bytes(BLOCK));
    atomic_store(&keeps_files, false);
    usleep(400000);                        // the pause
    ck_assert_int_eq(store(1), STORED_OK); // replaces the damaged file
    ck_assert_int_eq(load(1), STORED_OK);
    ck_assert_int_eq(store(3), STORED_OK);
    ck_assert_uint_eq(count_entries(), 3);
}
END_TEST

// Two tenants whose salts begin with the same byte. Another daemon stores the first one's blocks
// again when the second one was named last, and still they have the first one's floor.
START_TEST(salts_that_begin_alike_keep_their_tenants)
{
    const struct tier_share one = {.tenant = 1, .floor = 3}, two = {.tenant = 2};
    struct stored_space spaces[2] = {tier_space(BLOCK, "a"), tier_space(BLOCK, "b")};
    struct tier_backend *harm;
    spaces[1].salt[0] = spaces[0].salt[0];
    reopen(5);
    for (uint32_t i = 0; i < 4; i++) {
        space = spaces[i / 3];
        ck_assert_int_eq(run(tier, TIER_STORE, i, i < 3 ? one : two), STORED_OK);
        usleep(COARSE_US);
    }
    struct tier *other = open_folder(5 * folder_file_bytes(BLOCK), &harm);
    space = spaces[0];
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_int_eq(run(other, TIER_DELETE, i, one), STORED_OK);
        while (has(tier, i))
            usleep(1000);
        ck_assert_int_eq(run(other, TIER_STORE, i, one), STORED_OK);
        while (!has(tier, i))
            usleep(1000);
    }
    ck_assert(tier_close(other, FOREVER));
    space = spaces[1];
    for (uint32_t i = 10; i < 14; i++)
        ck_assert_int_eq(run(tier, TIER_STORE, i, two), STORED_OK);
    space = spaces[0];
    for (uint32_t i = 0; i < 3; i++)
        ck_assert(has(tier, i));
}
END_TEST

START_TEST(a_block_larger_than_the_limit_is_refused)
{
    reopen(1);
    space.block_bytes = 2 * BLOCK;
    ck_assert_int_eq(store(1), STORED_FULL);
    ck_assert_uint_eq(count_entries(), 0);
}
END_TEST

START_TEST(a_tenant_keeps_its_floor_and_never_exceeds_its_cap)
{
    const struct tier_share first = {.tenant = 1, .floor = 2}, second = {.tenant = 2, .cap = 1},
                            third = {.tenant = 3};
    reopen(4);
    for (uint32_t i = 0; i < 3; i++)
        run(tier, TIER_STORE, i, first);
    run(tier, TIER_STORE, 10, second); // full
    run(tier, TIER_STORE, 11, second);
    ck_assert(!has(tier, 0) && has(tier, 1) && has(tier, 2) && !has(tier, 10) && has(tier, 11));
    for (uint32_t i = 0; i < 5; i++)
        run(tier, TIER_STORE, 20 + i, third);
    ck_assert(has(tier, 1) && has(tier, 2));
}
END_TEST

// Files that were found are a tenant's from its first job on.
START_TEST(a_floor_holds_for_blocks_of_an_earlier_daemon)
{
    const struct tier_share first = {.tenant = 7, .floor = 2}, other = {.tenant = 8};
    reopen(4);
    for (uint32_t i = 0; i < 3; i++) {
        run(tier, TIER_STORE, i, first);
        usleep(COARSE_US);
    }
    reopen(4);
    ck_assert_int_eq(run(tier, TIER_LOAD, 2, first), STORED_OK);
    space = tier_space(BLOCK, "other");
    for (uint32_t i = 0; i < 5; i++)
        ck_assert_int_eq(run(tier, TIER_STORE, 20 + i, other), STORED_OK);
    space = tier_space(BLOCK, "a");
    ck_assert(!has(tier, 0) && has(tier, 1) && has(tier, 2));
}
END_TEST

static void await(struct tier *on, uint32_t number, bool there)
{
    while (has(on, number) != there)
        usleep(1000); // the test's timeout bounds it
}

START_TEST(two_daemons_see_each_others_blocks_and_keep_one_limit)
{
    struct tier_backend *harm;
    reopen(3);
    struct tier *other = open_folder(3 * folder_file_bytes(BLOCK), &harm);
    ck_assert_int_eq(store(0), STORED_OK);
    await(other, 0, true);
    ck_assert_int_eq(run(other, TIER_LOAD, 0, someone), STORED_OK);
    ck_assert_int_eq(run(other, TIER_STORE, 1, someone), STORED_OK);
    ck_assert_int_eq(run(other, TIER_STORE, 2, someone), STORED_OK);
    await(tier, 2, true);
    usleep(3 * COARSE_US);
    ck_assert_int_eq(run(other, TIER_LOAD, 0, someone), STORED_OK);
    ck_assert_int_eq(store(3), STORED_OK); // knows that the other one has used 0 after 1
    ck_assert(has(tier, 0) && !has(tier, 1) && has(tier, 2));
    await(other, 1, false);
    ck_assert_uint_eq(count_entries(), 3);
    ck_assert_int_eq(run(tier, TIER_DELETE, 2, someone), STORED_OK);
    ck_assert(run(other, TIER_LOAD, 2, someone) == STORED_ABSENT);
    ck_assert(tier_close(other, FOREVER));
}
END_TEST

START_TEST(a_full_disk_is_counted_and_tried_again_later)
{
    const struct rlimit small = {STORED_PART_BYTES, RLIM_INFINITY},
                        large = {RLIM_INFINITY, RLIM_INFINITY};
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    ck_assert_int_eq(store(1), STORED_FULL);
    ck_assert_int_eq(store(2), STORED_FULL); // not tried
    ck_assert_uint_eq(failed(STORED_FULL), 2);
    ck_assert_uint_eq(state().breaks, 1);
    ck_assert_ptr_nonnull(strstr(said, "300 ms without stores, because the disk has no room"));
    ck_assert_uint_eq(count_entries(), 0);
    ck_assert_uint_eq(state().bytes, 0);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &large), 0);
    while (state().broken)
        usleep(10000);
    ck_assert_int_eq(store(1), STORED_OK);
    ck_assert_int_eq(load(1), STORED_OK);
}
END_TEST

START_TEST(a_folder_that_vanishes_gives_misses_and_failures)
{
    char moved[128];
    store(1);
    snprintf(moved, sizeof moved, "rm -rf %s", path);
    ck_assert_int_eq(system(moved), 0);
    ck_assert_int_eq(load(1), STORED_ABSENT);
    ck_assert_int_eq(store(2), STORED_STORE);
    ck_assert_msg(strstr(said, "writing failed: No such file or directory") != NULL, "%s", said);
}
END_TEST

START_TEST(a_folder_that_is_made_anew_or_moved_here_is_used)
{
    char command[320], old[sizeof path + 8];
    store(1);
    snprintf(old, sizeof old, "%s.old", path);
    ck_assert_int_eq(rename(path, old), 0);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    while (!strstr(said, "0 blocks are in the folder that this path leads to now"))
        usleep(10000);
    ck_assert_int_eq(load(1), STORED_ABSENT);
    ck_assert_int_eq(store(1), STORED_OK);
    ck_assert_uint_eq(count_entries(), 1);
    snprintf(command, sizeof command, "rm -r %s && mv %s %s", path, old, path);
    ck_assert_int_eq(system(command), 0);
    while (!strstr(said, "1 blocks are in the folder"))
        usleep(10000);
    ck_assert_int_eq(load(1), STORED_OK);
    ck_assert_int_eq(store(2), STORED_OK);
    ck_assert_uint_eq(count_entries(), 2);
}
END_TEST

static void remove_other(const char *old)
{
    char command[sizeof path + 32];
    snprintf(command, sizeof command, "rm -r %s", old);
    ck_assert_int_eq(system(command), 0);
}

static atomic_bool goes_on;

// A thread that renames files in the folder that was there at first, without a pause.
static void *make_news(void *folder)
{
    char from[128], to[128];
    snprintf(from, sizeof from, "%s/one", (const char *)folder);
    snprintf(to, sizeof to, "%s/other", (const char *)folder);
    for (int i = 0; atomic_load(&goes_on); i ^= 1) {
        ck_assert_int_eq(i ? rename(to, from) : rename(from, to), 0);
        usleep(1000);
    }
    return NULL;
}

START_TEST(a_folder_is_followed_while_there_is_news_of_the_old_one_and_a_refusal_says_why)
{
    char old[sizeof path + 8];
    pthread_t thread;
    make_file("one");
    snprintf(old, sizeof old, "%s.old", path);
    ck_assert_int_eq(rename(path, old), 0);
    atomic_store(&goes_on, true);
    ck_assert_int_eq(pthread_create(&thread, NULL, make_news, old), 0);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    while (!strstr(said, "others could use it"))
        usleep(10000);
    ck_assert_int_eq(chmod(path, 0700), 0);
    while (!strstr(said, "0 blocks are in the folder that this path leads to now"))
        usleep(10000);
    atomic_store(&goes_on, false);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(store(1), STORED_OK);
    ck_assert_uint_eq(count_entries(), 1);
    remove_other(old);
}
END_TEST

static atomic_bool watchless; // no watch is left

int __real_inotify_add_watch(int fd, const char *name, uint32_t mask);
int __wrap_inotify_add_watch(int fd, const char *name, uint32_t mask);
int __wrap_inotify_add_watch(int fd, const char *name, uint32_t mask)
{
    if (!atomic_load(&watchless))
        return __real_inotify_add_watch(fd, name, mask);
    errno = ENOSPC;
    return -1;
}

START_TEST(a_watch_that_cannot_be_had_is_told_and_tried_again)
{
    char old[sizeof path + 8];
    struct tier_backend *harm;
    snprintf(old, sizeof old, "%s.old", path);
    atomic_store(&watchless, true);
    ck_assert_int_eq(rename(path, old), 0);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    while (!strstr(said, "0 blocks are in the folder that this path leads to now"))
        usleep(10000);
    ck_assert_msg(strstr(said_before, "cannot be watched") != NULL, "%s", said_before);
    atomic_store(&watchless, false);
    struct tier *other = open_folder(0, &harm);
    ck_assert_int_eq(run(other, TIER_STORE, 7, someone), STORED_OK);
    await(tier, 7, true);
    ck_assert(tier_close(other, FOREVER));
    remove_other(old);
}
END_TEST

START_TEST(a_disk_that_does_not_answer_delays_an_end_until_its_deadline_only)
{
    uint8_t *data = calloc(1, BLOCK);
    struct tier_job *job = tier_world_job(TIER_STORE, &space, 1, 1);
    job->blocks[0].data = data;
    atomic_store(&hangs, true);
    tier_start(tier, job);
    usleep(20000); // a thread has the job, or not yet
    ck_assert(!tier_close(tier, clock_deadline_ns(50)));
    atomic_store(&hangs, false);
    ck_assert(tier_close(tier, FOREVER));
    free(data);
    open_tier(0);
}
END_TEST

START_TEST(a_disk_that_does_not_answer_at_the_start_is_told)
{
    struct tier_backend *files;
    struct error error;
    atomic_store(&hangs, true);
    const struct files_params params = {.path = path, .open_ms = 1000};
    ck_assert_int_eq(files_create(&params, &files, &error), STATUS_TIMEOUT);
    ck_assert_msg(strstr(error.text, "the disk does not answer for 1 s"), "%s", error.text);
    ck_assert_ptr_null(files); // a thread still hangs, so a sanitizer finds its memory
}
END_TEST

static void assert_refused(const char *where, const char *words)
{
    struct tier_backend *files;
    struct error error;
    ck_assert_int_eq(files_create(&(struct files_params){.path = where}, &files, &error),
                     STATUS_INVALID);
    ck_assert_msg(strstr(error.text, words) && strstr(error.text, where), "%s", error.text);
    ck_assert_ptr_null(files);
}

START_TEST(folders_that_others_could_use_are_refused)
{
    char name[128];
    snprintf(name, sizeof name, "%s/new", path);
    assert_refused("relative", "must begin with /");
    assert_refused("/nowhere/at/all", "No such file");
    make_file("file");
    snprintf(name, sizeof name, "%s/file", path);
    assert_refused(name, "Not a directory");
    snprintf(name, sizeof name, "%s/open", path);
    ck_assert_int_eq(mkdir(name, 0700), 0);
    ck_assert_int_eq(chmod(name, 0750), 0);
    assert_refused(name, "mode 0750");
    snprintf(name, sizeof name, "%s/link", path);
    ck_assert_int_eq(symlink("open", name), 0);
    assert_refused(name, "Not a directory");
}
END_TEST

START_TEST(a_missing_folder_is_made_for_its_owner_alone)
{
    struct stat stat;
    struct tier_backend *files;
    struct error error;
    char name[128];
    snprintf(name, sizeof name, "%s/made", path);
    ck_assert_int_eq(files_create(&(struct files_params){.path = name}, &files, &error), STATUS_OK);
    ck_assert_int_eq(lstat(name, &stat), 0);
    ck_assert_uint_eq(stat.st_mode & 07777, 0700);
    ck_assert(files_ops.close(files, FOREVER));
}
END_TEST

START_TEST(what_the_fault_tier_does_is_a_miss_and_counted)
{
    ck_assert_int_eq(store(1), STORED_OK);
    order(FAULT_FLIP, TIER_LOAD, STORED_OK, 70000, 1);
    ck_assert_int_eq(load(1), STORED_CHECKSUM);
    ck_assert_int_eq(store(1), STORED_OK);
    order(FAULT_TRUNCATE, TIER_LOAD, STORED_OK, 17, 1);
    ck_assert_int_eq(load(1), STORED_LENGTH);
    order(FAULT_FAIL, TIER_STORE, STORED_FULL, 0, 1);
    ck_assert_int_eq(store(1), STORED_FULL);
    ck_assert(!has(tier, 1));
    ck_assert_int_eq(store(1), STORED_OK);
    ck_assert_int_eq(load(1), STORED_OK);
}
END_TEST

START_TEST(an_abandoned_load_is_quiet_only_after_its_last_byte)
{
    struct tier_event event;
    uint8_t *data = calloc(1, BLOCK);
    store(1);
    order(FAULT_HOLD, TIER_LOAD, STORED_OK, 0, 1);
    struct tier_job *job = tier_world_job(TIER_LOAD, &space, 1, 1);
    job->blocks[0].data = data;
    job->abandon_ns = 100;
    tier_start(tier, job);
    ck_assert(tier_poll(tier, 100, &event));
    ck_assert_int_eq(event.kind, TIER_ABANDONED);
    while (!fault_num_held(fault))
        usleep(1000);
    fault_let_go(fault);
    event = tier_world_wait(tier);
    ck_assert_int_eq(event.kind, TIER_QUIET);
    tier_job_destroy(job);
    free(data);
    ck_assert_int_eq(load(1), STORED_OK);
}
END_TEST

START_TEST(a_deadline_that_has_passed_ends_a_job_without_its_blocks)
{
    uint8_t *data = calloc(1, BLOCK);
    store(1);
    struct tier_job *job = tier_world_job(TIER_LOAD, &space, 1, 1);
    job->deadline_ns = 1;
    job->blocks[0].data = data;
    tier_world_do(tier, job);
    ck_assert_int_eq(job->blocks[0].reason, STORED_TIMEOUT);
    tier_job_destroy(job);
    free(data);
    ck_assert(has(tier, 1));
}
END_TEST

START_TEST(many_jobs_at_once_all_get_their_own_bytes)
{
    enum { JOBS = 8, BLOCKS = 4, SIZE = STORED_PART_BYTES + 512 };
    struct tier_job *jobs[JOBS];
    uint8_t *data = calloc(JOBS * BLOCKS, SIZE);
    space.block_bytes = SIZE;
    for (int kind = TIER_STORE; kind <= TIER_LOAD; kind++) {
        for (uint32_t i = 0; i < JOBS; i++) {
            jobs[i] = tier_world_job((enum tier_kind)kind, &space, i * BLOCKS, BLOCKS);
            for (uint32_t b = 0; b < BLOCKS; b++) {
                jobs[i]->blocks[b].data = data + (i * BLOCKS + b) * (size_t)SIZE;
                if (kind == TIER_STORE)
                    tier_world_fill(jobs[i]->blocks[b].data, SIZE, i * BLOCKS + b);
                else
                    memset(jobs[i]->blocks[b].data, 0, SIZE);
            }
            tier_start(tier, jobs[i]);
        }
        for (uint32_t i = 0; i < JOBS; i++)
            ck_assert_int_eq(tier_world_wait(tier).kind, TIER_DONE);
        for (uint32_t i = 0; i < JOBS; i++) {
            for (uint32_t b = 0; b < BLOCKS; b++)
                ck_assert_int_eq(jobs[i]->blocks[b].reason, STORED_OK);
            tier_job_destroy(jobs[i]);
        }
    }
    for (uint32_t i = 0; i < JOBS * BLOCKS; i++)
        ck_assert(tier_world_holds(data + i * (size_t)SIZE, SIZE, i));
    free(data);
}
END_TEST

START_TEST(closing_ends_jobs_that_wait)
{
    enum { JOBS = 20 };
    uint8_t *data = calloc(1, BLOCK);
    for (uint32_t i = 0; i < JOBS; i++) {
        struct tier_job *job = tier_world_job(TIER_STORE, &space, i, 1);
        job->blocks[0].data = data;
        tier_start(tier, job);
    }
    ck_assert(tier_close(tier, FOREVER));
    free(data);
    open_tier(0);
    ck_assert_uint_eq(state().blocks, count_entries()); // no unfinished file is left
}
END_TEST

// A process that stores until it is killed.
static void store_until_killed(void)
{
    struct dice dice = {check_draw("kill")};
    ck_assert(tier_close(tier, FOREVER));
    const pid_t pid = fork();
    if (pid == 0) {
        open_tier(20);
        for (uint32_t i = 0;; i++)
            store(i % 40);
    }
    usleep(10000 + dice_below(&dice, 60000));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    open_tier(20);
}

START_TEST(a_writer_that_is_killed_leaves_no_wrong_block)
{
    uint32_t there = 0;
    store_until_killed();
    for (uint32_t i = 0; i < 40; i++) {
        const bool had = has(tier, i);
        ck_assert_int_eq(load(i), had ? STORED_OK : STORED_ABSENT);
        there += had;
    }
    ck_assert_uint_eq(there, state().blocks);
    ck_assert_uint_eq(there, count_entries()); // unfinished files are gone
    ck_assert_uint_le(state().bytes, state().limit_bytes);
}
END_TEST

// Stores, loads, erasures, restarts and harm at random: what comes back has its own bits, and what
// the tier counts is what lies in the folder.
START_TEST(random_work_gives_right_bits_and_right_counts)
{
    struct dice dice = {check_draw("files")};
    const uint32_t num_harms = sizeof harms / sizeof *harms;
    reopen(8);
    for (int step = 0; step < 150; step++) {
        const uint32_t number = dice_below(&dice, 12), what = dice_below(&dice, 20);
        const struct tier_share share = {1 + number % 3, number % 2, 0};
        if (what < 8)
            run(tier, TIER_STORE, number, share);
        else if (what < 16)
            run(tier, TIER_LOAD, number, share);
        else if (what < 17)
            run(tier, TIER_DELETE, number, share);
        else if (what < 18)
            reopen(4 + dice_below(&dice, 6));
        else if (what < 19)
            order(FAULT_FLIP, TIER_LOAD, STORED_OK, dice_next(&dice), 1);
        else if (has(tier, number))
            do_harm(&harms[dice_below(&dice, num_harms - 1)], number);
    }
    reopen(8);
    ck_assert_uint_eq(state().blocks, count_entries());
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_look_up_tells_what_is_there,
        blocks_survive_a_restart_and_others_salts_find_nothing,
        a_file_that_was_cut_is_replaced_by_the_next_store,
        entries_that_are_no_blocks_are_left_alone_and_told,
        unfinished_files_go_unless_their_writer_lives,
        a_full_tier_drops_the_least_recently_used_block_also_after_a_restart,
        files_that_cannot_be_removed_count_on_and_stop_stores,
        salts_that_begin_alike_keep_their_tenants,
        a_block_larger_than_the_limit_is_refused,
        a_tenant_keeps_its_floor_and_never_exceeds_its_cap,
        a_floor_holds_for_blocks_of_an_earlier_daemon,
        two_daemons_see_each_others_blocks_and_keep_one_limit,
        a_full_disk_is_counted_and_tried_again_later,
        a_folder_that_vanishes_gives_misses_and_failures,
        a_folder_that_is_made_anew_or_moved_here_is_used,
        a_folder_is_followed_while_there_is_news_of_the_old_one_and_a_refusal_says_why,
        a_watch_that_cannot_be_had_is_told_and_tried_again,
        a_disk_that_does_not_answer_delays_an_end_until_its_deadline_only,
        a_disk_that_does_not_answer_at_the_start_is_told,
        folders_that_others_could_use_are_refused,
        a_missing_folder_is_made_for_its_owner_alone,
        what_the_fault_tier_does_is_a_miss_and_counted,
        an_abandoned_load_is_quiet_only_after_its_last_byte,
        a_deadline_that_has_passed_ends_a_job_without_its_blocks,
        many_jobs_at_once_all_get_their_own_bytes,
        closing_ends_jobs_that_wait,
        a_writer_that_is_killed_leaves_no_wrong_block,
        random_work_gives_right_bits_and_right_counts,
        NULL,
    };
    const TTest *const sized[] = {what_is_stored_comes_back_with_the_same_bits, NULL},
                       *const harmed[] = {
                           a_harmed_file_is_a_miss_that_is_counted_and_it_can_be_stored_again,
                           NULL};
    Suite *suite = suite_create("files");
    check_case(suite, "files", begin, end, tests, 1);
    check_case(suite, "sizes", begin, end, sized, 5);
    check_case(suite, "harm", begin, end, harmed, sizeof harms / sizeof *harms);
    return check_main(suite);
}
