// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_ctl_save.c - aule-ctl save and load with real daemons: the prefixes of a cache come back
// with the same bytes in another daemon; damaged and cut files load what is in front of the damage;
// another identity is refused; a file is never replaced by an incomplete one.

#include "rigs/ctl_world.h"
#include "rigs/dice.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LAYERS = 2, DIM = 16, BLOCKS = 6, TOKENS = BLOCKS * BLOCK_SIZE, TEXTS = 4, ROOM = 1 << 16 };

// How the cache stores K and V.
static const struct form {
    enum aule_dtype dtype;
    enum aule_scale_mode scales;
    uint64_t opaque_bytes; // not 0: of opaque blocks
} forms[] = {
    {AULE_F16, AULE_SCALE_NONE, 0},
    {AULE_F32, AULE_SCALE_NONE, 0},
    {AULE_FP8_E4M3, AULE_SCALE_PER_TOKEN_HEAD, 0},
    {AULE_INT8, AULE_SCALE_PER_TENSOR, 0},
    {.opaque_bytes = 1040},
};

// Texts 0 and 1 share two blocks; text 2 has the tokens of text 0 and an extra key; text 3 is
// alone.
static int32_t texts[TEXTS][TOKENS];
static uint8_t expected[TEXTS][ROOM]; // the blocks' bytes
static uint64_t block_bytes;
static bool scaled; // the cache wants scales of each run
static bool opaque; // its blocks are opaque
static char file[128];

static struct aule_prefix prefix_of(int text, uint32_t blocks)
{
    return (struct aule_prefix){.tokens = texts[text],
                                .num_tokens = blocks * BLOCK_SIZE,
                                .extra_key = text == 2 ? "lora" : NULL,
                                .extra_key_size = text == 2 ? 4 : 0};
}

static struct aule_cache *open_form(int form, uint32_t dim, const char *fingerprint)
{
    struct aule_cache *opened = NULL;
    const bool has_heads = !forms[form].opaque_bytes;
    CHECK_OK(aule_cache_open(session,
                             &(struct aule_cache_params){.name = "model",
                                                         .num_layers = has_heads ? LAYERS : 0,
                                                         .num_kv_heads = has_heads,
                                                         .head_dim = has_heads ? dim : 0,
                                                         .block_bytes = forms[form].opaque_bytes,
                                                         .k_dtype = forms[form].dtype,
                                                         .v_dtype = forms[form].dtype,
                                                         .scale_mode = forms[form].scales,
                                                         .block_size = BLOCK_SIZE,
                                                         .fingerprint = fingerprint,
                                                         .fingerprint_size = strlen(fingerprint)},
                             &opened));
    return opened;
}

static void open_all(int form)
{
    struct aule_cache_state state;
    session = open_session("worker", "tenant-a");
    cache = open_form(form, DIM, "rev");
    CHECK_OK(aule_cache_state(cache, &state));
    block_bytes = state.block_bytes;
    scaled = forms[form].scales == AULE_SCALE_PER_TENSOR;
    opaque = forms[form].opaque_bytes != 0;
    ck_assert_uint_le(block_bytes * BLOCKS, ROOM);
}

static void close_all(void)
{
    aule_cache_close(cache);
    aule_session_close(session);
    cache = NULL;
    session = NULL;
}

static void import_blocks(const int32_t *blocks, uint32_t count, struct dice *dice)
{
    struct aule_ticket ticket;
    uint64_t offset;
    void *data;
    CHECK_OK(aule_arena_alloc(session, count * block_bytes, &data, &offset));
    for (uint64_t i = 0; i < count * block_bytes; i++)
        ((uint8_t *)data)[i] = (uint8_t)dice_next(dice);
    CHECK_OK(aule_blocks_import(cache, count, blocks, offset, 60000, &ticket));
    CHECK_OK(aule_ticket_wait(session, ticket, 60000, NULL));
    aule_arena_free(session, data);
}

// Writes random K and V into the blocks.
static void write_rows(const int32_t *blocks, uint32_t first, uint32_t count, struct dice *dice)
{
    int64_t slots[TOKENS];
    const uint32_t rows = count * BLOCK_SIZE;
    for (uint32_t i = 0; i < rows; i++)
        slots[i] = (int64_t)blocks[first + i / BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        struct aule_kv_import import = {.layer = layer,
                                        .num_rows = rows,
                                        .slot_mapping = slots,
                                        .k_scale = scaled ? 0.25f : 0,
                                        .v_scale = scaled ? 0.5f : 0};
        struct aule_tensor *tensors[] = {&import.k, &import.v};
        struct aule_ticket ticket;
        for (int i = 0; i < 2; i++) {
            CHECK_OK(aule_tensor_create(session, AULE_F32, rows, 1, DIM, tensors[i]));
            float *values = aule_tensor_data(session, tensors[i]);
            for (uint32_t v = 0; v < rows * DIM; v++)
                values[v] = dice_normal(dice);
        }
        CHECK_OK(aule_kv_import(cache, &import, 60000, &ticket));
        CHECK_OK(aule_ticket_wait(session, ticket, 60000, NULL));
        for (int i = 0; i < 2; i++)
            aule_tensor_destroy(session, tensors[i]);
    }
}

// Copies the blocks' bytes out.
static void read_blocks(const int32_t *blocks, uint32_t count, uint8_t *out)
{
    struct aule_ticket ticket;
    uint64_t offset;
    void *data;
    CHECK_OK(aule_arena_alloc(session, count * block_bytes, &data, &offset));
    CHECK_OK(aule_blocks_export(cache, count, blocks, offset, 60000, &ticket));
    CHECK_OK(aule_ticket_wait(session, ticket, 60000, NULL));
    memcpy(out, data, count * block_bytes);
    aule_arena_free(session, data);
}

static void publish(int text, struct dice *dice)
{
    int32_t blocks[BLOCKS];
    uint32_t found;
    const struct aule_prefix prefix = prefix_of(text, BLOCKS);
    CHECK_OK(aule_prefix_lookup(cache, &prefix, 0, blocks, &found));
    CHECK_OK(aule_blocks_lease(cache, BLOCKS - found, 60000, blocks + found));
    if (opaque)
        import_blocks(blocks + found, BLOCKS - found, dice);
    else
        write_rows(blocks, found, BLOCKS - found, dice);
    CHECK_OK(aule_prefix_publish(cache, &prefix, blocks, NULL));
    read_blocks(blocks, BLOCKS, expected[text]);
    CHECK_OK(aule_blocks_release(cache, BLOCKS, blocks));
}

static void publish_all(int form)
{
    struct dice dice = {check_draw("save")};
    for (int text = 0; text < TEXTS; text++)
        for (int i = 0; i < TOKENS; i++)
            texts[text][i] =
                i < 2 * BLOCK_SIZE && text < 2 ? 7 + i : 1000 * (text == 2 ? 1 : text + 1) + i;
    open_all(form);
    for (int text = 0; text < TEXTS; text++)
        publish(text, &dice);
    close_all();
}

// How many blocks of the text are there; all of them have the bytes that they had.
static uint32_t find(int text)
{
    static uint8_t bytes[ROOM];
    int32_t blocks[BLOCKS];
    uint32_t found;
    const struct aule_prefix prefix = prefix_of(text, BLOCKS);
    CHECK_OK(aule_prefix_lookup(cache, &prefix, 0, blocks, &found));
    if (found) {
        read_blocks(blocks, found, bytes);
        ck_assert_mem_eq(bytes, expected[text], found * block_bytes);
        CHECK_OK(aule_blocks_release(cache, found, blocks));
    }
    return found;
}

static uint32_t find_all(int form)
{
    uint32_t found = 0;
    open_all(form);
    for (int text = 0; text < TEXTS; text++)
        found += find(text);
    close_all();
    return found;
}

static void restart(void)
{
    ck_assert_int_eq(daemon_stop(&server), 0);
    ck_assert(daemon_start(&server, NULL));
}

static void begin(void)
{
    start();
    snprintf(file, sizeof file, "%s/saved", server.folder);
}

static void end(void)
{
    unlink(file);
    stop();
}

static cJSON *save(void)
{
    return document(ASK("save", file, "--tenant", "tenant-a", "--json"));
}

static off_t size_of(const char *path)
{
    struct stat stat;
    ck_assert_int_eq(lstat(path, &stat), 0);
    return stat.st_size;
}

static void flip(off_t at)
{
    uint8_t byte;
    const int fd = open(file, O_RDWR);
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte ^= 16;
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

// All blocks: those that two texts share count once.
enum { SAVED = TEXTS * BLOCKS - 2 };

START_TEST(prefixes_come_back_in_another_daemon_with_the_same_bytes)
{
    struct stat stat;
    publish_all(_i);
    cJSON *json = save();
    ck_assert_double_eq(number(json, "blocks"), SAVED);
    ck_assert_double_eq(number(json, "tokens"), SAVED * BLOCK_SIZE);
    ck_assert_double_eq(number(json, "bytes"), (double)size_of(file));
    ck_assert_double_eq(number(json, "others"), 0);
    ck_assert_str_eq(string(json, "name"), "model");
    cJSON_Delete(json);
    ck_assert_int_eq(lstat(file, &stat), 0);
    ck_assert_uint_eq(stat.st_mode & 07777, 0600);
    restart();
    json = document(ASK("load", file, "--tenant", "tenant-a", "--json"));
    ck_assert_double_eq(number(json, "blocks"), SAVED);
    ck_assert_double_eq(number(json, "existing"), 0);
    cJSON_Delete(json);
    ck_assert_uint_eq(find_all(_i), TEXTS * BLOCKS);
    json = document(ASK("load", file, "--tenant", "tenant-a", "--json")); // again
    ck_assert_double_eq(number(json, "blocks"), 0);
    ck_assert_double_eq(number(json, "existing"), SAVED);
    cJSON_Delete(json);
    json = document(ASK("status", "--json"));
    ck_assert_double_eq(number(json, "leased_blocks"), 0);
    ck_assert_double_eq(number(json, "held_blocks"), 0);
    cJSON_Delete(json);
}
END_TEST

START_TEST(a_tenant_saves_and_finds_its_own_prefixes_only)
{
    publish_all(0);
    cJSON *json = document(ASK("save", file, "--json")); // of the tenant without a name
    ck_assert_double_eq(number(json, "blocks"), 0);
    ck_assert_double_eq(number(json, "others"), SAVED);
    cJSON_Delete(json);
    cJSON_Delete(save());
    restart();
    json = document(ASK("load", file, "--tenant", "tenant-b", "--json"));
    ck_assert_double_eq(number(json, "blocks"), SAVED);
    cJSON_Delete(json);
    ck_assert_uint_eq(find_all(0), 0); // of tenant-a
}
END_TEST

START_TEST(another_identity_is_refused_with_both_values)
{
    publish_all(0);
    cJSON_Delete(save());
    restart();
    session = open_session("worker", "tenant-a");
    cache = open_form(0, 2 * DIM, "rev");
    assert_fails_as_json(ASK("load", file, "--tenant", "tenant-a", "--json"), FAILED, "MISMATCH",
                         "16");
    assert_fails(ASK("load", file, "--tenant", "tenant-a"), FAILED, "32");
    aule_cache_close(cache);
    struct aule_cache_view *caches;
    uint32_t count;
    struct aule_monitor *monitor;
    CHECK_OK(aule_monitor_open(server.socket, 60000, &monitor));
    CHECK_OK(aule_monitor_caches(monitor, &caches, &count));
    for (uint32_t i = 0; i < count; i++)
        CHECK_OK(aule_monitor_drop_cache(monitor, caches[i].cache));
    free(caches);
    aule_monitor_close(monitor);
    cache = open_form(0, DIM, "other");
    assert_fails(ASK("load", file, "--tenant", "tenant-a"), FAILED, "fingerprint");
}
END_TEST

// A bit is flipped at some place of the file, or the file is cut there.
START_TEST(a_damaged_file_loads_what_is_in_front_of_the_damage)
{
    publish_all(0);
    cJSON_Delete(save());
    const int place = check_is_long() ? _i : 7 * _i; // of 48
    const off_t size = size_of(file), at = size * (place / 2) / 24 + 9;
    const bool cut = place % 2;
    if (cut)
        ck_assert_int_eq(truncate(file, at), 0);
    else
        flip(at);
    restart();
    struct outcome outcome = ASK("load", file, "--tenant", "tenant-a");
    ck_assert_int_eq(outcome.code, FAILED);
    ck_assert_msg(strstr(outcome.err, file), "%s", outcome.err);
    ck_assert_msg(strstr(outcome.err, "damaged") || strstr(outcome.err, "was cut") ||
                      strstr(outcome.err, "not written by aule-ctl save") ||
                      strstr(outcome.err, "version"),
                  "%s", outcome.err);
    const char *told = strstr(outcome.err, "; ");
    const uint32_t loaded = told ? (uint32_t)strtoul(told + 2, NULL, 10) : 0;
    outcome_finish(&outcome);
    const uint32_t found = find_all(0); // with the right bytes
    ck_assert_uint_ge(found, loaded);
    ck_assert_uint_le(found, loaded + 2); // two blocks are shared by two texts
    const double part = (double)at / (double)size * SAVED;
    ck_assert_double_gt(loaded, part - 2);
    ck_assert_double_lt(loaded, part + 1);
}
END_TEST

START_TEST(files_that_are_none_are_refused)
{
    const int fd = open(file, O_WRONLY | O_CREAT, 0600);
    ck_assert_int_eq(write(fd, "not a file of aule", 18), 18);
    close(fd);
    assert_fails(ASK("load", file), FAILED, "was not written by aule-ctl save");
    assert_fails(ASK("load", "/nowhere/file"), FAILED, "No such file");
    assert_fails(ASK("load", server.folder), FAILED, "is no regular file");
}
END_TEST

START_TEST(two_files_in_one_are_told)
{
    char both[8 * sizeof file];
    publish_all(0);
    cJSON_Delete(save());
    snprintf(both, sizeof both, "cat %s >> %s.two; cat %s >> %s.two; mv %s.two %s", file, file,
             file, file, file, file);
    ck_assert_int_eq(system(both), 0);
    assert_fails(ASK("load", file, "--tenant", "tenant-a"), FAILED, "goes on behind its end");
}
END_TEST

START_TEST(a_save_that_fails_leaves_the_old_file_and_no_other)
{
    const struct rlimit large = {RLIM_INFINITY, RLIM_INFINITY};
    char part[sizeof file + 16];
    assert_fails(ASK("save", file), USAGE, "0 caches");
    publish_all(0);
    assert_fails(ASK("save", "/nowhere/file", "--cache", "model"), FAILED, "/nowhere/file");
    cJSON_Delete(save());
    const off_t size = size_of(file);
    const struct rlimit small = {(rlim_t)size / 2, RLIM_INFINITY};
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_fails(ASK("save", file, "--tenant", "tenant-a"), FAILED, "cannot be written");
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &large), 0);
    ck_assert_int_eq(size_of(file), size);
    snprintf(part, sizeof part, "ls %s | grep -q part-", server.folder);
    ck_assert_int_ne(system(part), 0);
    cJSON *json = document(ASK("load", file, "--tenant", "tenant-a", "--json"));
    ck_assert_double_eq(number(json, "existing"), SAVED);
    cJSON_Delete(json);
}
END_TEST

START_TEST(save_asks_which_cache_if_there_are_several)
{
    session = open_session("worker", "tenant-a");
    cache = open_cache("one");
    struct aule_cache *other = open_cache("two");
    assert_fails(ASK("save", file), USAGE, "--cache");
    cJSON *json = document(ASK("save", file, "--cache", "two", "--json"));
    ck_assert_str_eq(string(json, "name"), "two");
    cJSON_Delete(json);
    aule_cache_close(other);
}
END_TEST

// Runs `save` with stderr on a terminal. Returns what it wrote there.
static void save_on_terminal(char *text, size_t size)
{
    int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), status;
    ck_assert_int_eq(grantpt(terminal), 0);
    ck_assert_int_eq(unlockpt(terminal), 0);
    const int kept = open(ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(kept, STDERR_FILENO);
        execl(CTL, "aule-ctl", "save", file, "--tenant", "tenant-a", "--socket", server.socket,
              (char *)NULL);
        _exit(127);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(write(kept, "\a", 1), 1);
    size_t used = 0;
    while (used == 0 || text[used - 1] != '\a') {
        const ssize_t got = read(terminal, text + used, size - used - 1);
        ck_assert_int_gt(got, 0);
        used += (size_t)got;
    }
    text[used] = 0;
    close(kept);
    close(terminal);
}

START_TEST(a_terminal_shows_how_far_a_save_is)
{
    static char text[1 << 16];
    publish_all(0);
    save_on_terminal(text, sizeof text);
    ck_assert_msg(strstr(text, "saving model [") && strstr(text, " %, "), "%s", text);
    ck_assert_ptr_nonnull(strstr(text, "\r\033[K")); // and the line goes
    struct outcome outcome = ASK("save", file, "--tenant", "tenant-a");
    ck_assert_str_eq(outcome.err, ""); // no terminal
    outcome_finish(&outcome);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_tenant_saves_and_finds_its_own_prefixes_only,
        another_identity_is_refused_with_both_values,
        files_that_are_none_are_refused,
        two_files_in_one_are_told,
        a_save_that_fails_leaves_the_old_file_and_no_other,
        save_asks_which_cache_if_there_are_several,
        a_terminal_shows_how_far_a_save_is,
        NULL,
    };
    Suite *suite = suite_create("ctl save");
    check_case(suite, "save", begin, end, tests, 1);
    check_case(
        suite, "forms", begin, end,
        (const TTest *const[]){prefixes_come_back_in_another_daemon_with_the_same_bytes, NULL},
        sizeof forms / sizeof *forms);
    check_case(suite, "damage", begin, end,
               (const TTest *const[]){a_damaged_file_loads_what_is_in_front_of_the_damage, NULL},
               check_is_long() ? 48 : 7);
    return check_main(suite);
}
