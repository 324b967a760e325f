// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_parts.c - the parts of the client library that need no daemon: statuses, the socket's
// path, the arena, and structs of other headers.

#include "aule/aule.h"
#include "client/src/arena.h"
#include "client/src/caller.h"
#include "client/src/socket_path.h"
#include "rigs/check_main.h"

#include <stdlib.h>
#include <string.h>

// ---- statuses ----

START_TEST(every_status_has_a_name_and_a_text)
{
    for (int status = AULE_OK; status <= AULE_INTERNAL; status++) {
        ck_assert_str_ne(aule_status_name((enum aule_status)status), "UNKNOWN");
        ck_assert_uint_gt(strlen(aule_status_text((enum aule_status)status)), 0);
    }
    ck_assert_str_eq(aule_status_name(AULE_NOT_HELD), "NOT_HELD");
    ck_assert_str_eq(aule_status_name((enum aule_status)999), "UNKNOWN");
}
END_TEST

START_TEST(dtypes_know_their_name_and_size)
{
    ck_assert_str_eq(aule_dtype_name(AULE_BF16), "bf16");
    ck_assert_uint_eq(aule_dtype_size(AULE_F32), 4);
    ck_assert_uint_eq(aule_dtype_size(AULE_F16), 2);
    ck_assert_str_eq(aule_dtype_name((enum aule_dtype)0), "unknown");
    ck_assert_uint_eq(aule_dtype_size((enum aule_dtype)77), 0);
}
END_TEST

START_TEST(the_version_is_the_headers)
{
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", AULE_VERSION_MAJOR, AULE_VERSION_MINOR,
             AULE_VERSION_PATCH);
    ck_assert_str_eq(aule_version(), version);
}
END_TEST

START_TEST(a_null_argument_is_named)
{
    ck_assert_str_eq(aule_error(), "");
    ck_assert_int_eq(aule_session_open(NULL, NULL), AULE_INVALID);
    ck_assert_ptr_nonnull(strstr(aule_error(), "session is NULL"));
    ck_assert_int_eq(aule_cache_state(NULL, NULL), AULE_INVALID);
    ck_assert_ptr_nonnull(strstr(aule_error(), "cache is NULL"));
}
END_TEST

START_TEST(ending_null_does_nothing)
{
    aule_session_close(NULL);
    aule_cache_close(NULL);
    aule_batch_destroy(NULL);
    aule_monitor_close(NULL);
    aule_arena_free(NULL, NULL);
    aule_tensor_destroy(NULL, NULL);
    ck_assert_ptr_null(aule_arena_base(NULL));
    ck_assert_ptr_null(aule_tensor_data(NULL, NULL));
}
END_TEST

// ---- the socket's path ----

static void expect_path(const char *given, const char *expected)
{
    char *path = NULL;
    ck_assert_int_eq(socket_path(given, &path), AULE_OK);
    ck_assert_str_eq(path, expected);
    free(path);
}

START_TEST(the_first_rule_whose_variable_is_set_wins)
{
    unsetenv("AULE_SOCKET");
    unsetenv("AULE_RUNTIME_DIR");
    unsetenv("XDG_RUNTIME_DIR");
    expect_path(NULL, "/run/aule/0.sock");
    setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
    expect_path(NULL, "/run/user/7/aule/0.sock");
    setenv("AULE_RUNTIME_DIR", "/srv/aule", 1);
    expect_path(NULL, "/srv/aule/0.sock");
    setenv("AULE_SOCKET", "/tmp/x.sock", 1);
    expect_path(NULL, "/tmp/x.sock");
    expect_path("/tmp/given.sock", "/tmp/given.sock");
    setenv("AULE_SOCKET", "", 1);
    expect_path(NULL, "/srv/aule/0.sock");
}
END_TEST

START_TEST(a_path_that_no_socket_can_have_is_refused)
{
    char longest[109];
    char *path = NULL;
    memset(longest, 'x', 108);
    longest[108] = 0;
    ck_assert_int_eq(socket_path(longest, &path), AULE_INVALID);
    ck_assert_ptr_nonnull(strstr(aule_error(), "108 bytes"));
    longest[107] = 0;
    expect_path(longest, longest);
    ck_assert_int_eq(socket_path("", &path), AULE_INVALID);
}
END_TEST

// ---- the arena ----

enum { ARENA = 1 << 20 };

static struct arena *arena;

static void arena_setup(void)
{
    ck_assert_int_eq(arena_create(ARENA, &arena), AULE_OK);
}

static void arena_teardown(void)
{
    arena_destroy(arena);
}

static void expect_room(uint64_t bytes, uint64_t largest)
{
    uint64_t free_bytes, gap;
    arena_room(arena, &free_bytes, &gap);
    ck_assert_uint_eq(free_bytes, bytes);
    ck_assert_uint_eq(gap, largest);
}

START_TEST(allocations_are_aligned_and_apart)
{
    uint64_t offsets[64];
    for (uint64_t i = 0; i < 64; i++) {
        ck_assert_int_eq(arena_alloc(arena, i * 37 + 1, &offsets[i]), AULE_OK);
        ck_assert_uint_eq(offsets[i] % ARENA_ALIGNMENT, 0);
        for (uint64_t j = 0; j < i; j++)
            ck_assert(offsets[j] + j * 37 + 1 <= offsets[i] ||
                      offsets[i] + i * 37 + 1 <= offsets[j]);
    }
}
END_TEST

START_TEST(freed_neighbours_become_one_gap)
{
    uint64_t a, b, c;
    ck_assert_int_eq(arena_alloc(arena, ARENA / 4, &a), AULE_OK);
    ck_assert_int_eq(arena_alloc(arena, ARENA / 4, &b), AULE_OK);
    ck_assert_int_eq(arena_alloc(arena, ARENA / 2, &c), AULE_OK);
    expect_room(0, 0);
    ck_assert_int_eq(arena_free(arena, a), AULE_OK);
    ck_assert_int_eq(arena_free(arena, c), AULE_OK);
    expect_room(ARENA / 4 * 3, ARENA / 2);
    ck_assert_int_eq(arena_free(arena, b), AULE_OK);
    expect_room(ARENA, ARENA);
}
END_TEST

START_TEST(the_smallest_gap_that_fits_is_taken)
{
    uint64_t large, wall, small, rest, got;
    ck_assert_int_eq(arena_alloc(arena, 4096, &large), AULE_OK);
    ck_assert_int_eq(arena_alloc(arena, 256, &wall), AULE_OK);
    ck_assert_int_eq(arena_alloc(arena, 1024, &small), AULE_OK);
    ck_assert_int_eq(arena_alloc(arena, 256, &rest), AULE_OK);
    ck_assert_int_eq(arena_free(arena, large), AULE_OK);
    ck_assert_int_eq(arena_free(arena, small), AULE_OK);
    ck_assert_int_eq(arena_alloc(arena, 1000, &got), AULE_OK);
    ck_assert_uint_eq(got, small);
}
END_TEST

START_TEST(a_full_arena_says_what_is_free)
{
    uint64_t offset, more = 12345;
    ck_assert_int_eq(arena_alloc(arena, ARENA - 512, &offset), AULE_OK);
    ck_assert_int_eq(arena_alloc(arena, 513, &more), AULE_NO_MEMORY);
    ck_assert_ptr_nonnull(strstr(aule_error(), "no 513 bytes"));
    ck_assert_ptr_nonnull(strstr(aule_error(), "512 are free"));
    ck_assert_uint_eq(more, 12345);
    ck_assert_int_eq(arena_alloc(arena, UINT64_MAX, &more), AULE_NO_MEMORY);
    ck_assert_int_eq(arena_alloc(arena, 0, &more), AULE_INVALID);
}
END_TEST

START_TEST(freeing_what_is_none_changes_nothing)
{
    uint64_t offset;
    ck_assert_int_eq(arena_alloc(arena, 4096, &offset), AULE_OK);
    ck_assert_int_eq(arena_free(arena, offset + 256), AULE_NOT_FOUND);
    ck_assert_int_eq(arena_free(arena, UINT64_MAX), AULE_NOT_FOUND);
    expect_room(ARENA - 4096, ARENA - 4096);
    ck_assert_int_eq(arena_free(arena, offset), AULE_OK);
    ck_assert_int_eq(arena_free(arena, offset), AULE_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(aule_error(), "no allocation begins"));
    expect_room(ARENA, ARENA);
}
END_TEST

// Random allocations and frees, compared with a map of the owner of each grain.
START_TEST(random_use_never_overlaps_and_loses_nothing)
{
    enum { GRAINS = ARENA / ARENA_ALIGNMENT, LIVE = 200 };
    static uint8_t owner[GRAINS];
    uint64_t offsets[LIVE] = {0}, grains[LIVE] = {0}, used = 0;
    srand(1);
    for (int step = 0; step < 20000; step++) {
        unsigned i = (unsigned)rand() % LIVE;
        if (grains[i]) {
            ck_assert_int_eq(arena_free(arena, offsets[i]), AULE_OK);
            memset(owner + offsets[i] / ARENA_ALIGNMENT, 0, grains[i]);
            used -= grains[i];
            grains[i] = 0;
            continue;
        }
        uint64_t size = (uint64_t)rand() % 16384 + 1,
                 wanted = (size + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT;
        if (arena_alloc(arena, size, &offsets[i]) != AULE_OK)
            continue;
        grains[i] = wanted;
        used += wanted;
        for (uint64_t g = 0; g < wanted; g++) {
            ck_assert_uint_eq(owner[offsets[i] / ARENA_ALIGNMENT + g], 0);
            owner[offsets[i] / ARENA_ALIGNMENT + g] = 1;
        }
        uint64_t room, largest;
        arena_room(arena, &room, &largest);
        ck_assert_uint_eq(room, ARENA - used * ARENA_ALIGNMENT);
    }
    for (unsigned i = 0; i < LIVE; i++)
        if (grains[i])
            ck_assert_int_eq(arena_free(arena, offsets[i]), AULE_OK);
    expect_room(ARENA, ARENA);
}
END_TEST

START_TEST(an_arena_smaller_than_a_grain_has_no_room)
{
    struct arena *tiny;
    uint64_t offset;
    ck_assert_int_eq(arena_create(255, &tiny), AULE_OK);
    ck_assert_int_eq(arena_alloc(tiny, 1, &offset), AULE_NO_MEMORY);
    arena_destroy(tiny);
}
END_TEST

// ---- structs of other headers ----

// The struct in today's header, in an older one and in a newer one.
struct now {
    uint32_t a, b;
};
struct old {
    uint32_t a;
};
struct next {
    uint32_t a, b, c;
};

START_TEST(an_older_program_is_given_what_it_knows)
{
    const struct now whole = {1, 2};
    struct old given[2] = {{7}, {7}};
    GIVE(&given[0], sizeof given[0], whole);
    ck_assert_uint_eq(given[0].a, 1);
    ck_assert_uint_eq(given[1].a, 7);
}
END_TEST

START_TEST(a_newer_program_is_given_zero_for_what_the_library_does_not_know)
{
    const struct now whole = {1, 2};
    struct next given = {7, 7, 7};
    GIVE(&given, sizeof given, whole);
    ck_assert_uint_eq(given.b, 2);
    ck_assert_uint_eq(given.c, 0);
}
END_TEST

START_TEST(fields_that_an_older_program_lacks_are_zero)
{
    const struct old from[2] = {{1}, {9}};
    struct now whole = {7, 7};
    ck_assert_int_eq(TAKE(&whole, from, sizeof *from), AULE_OK);
    ck_assert_uint_eq(whole.a, 1);
    ck_assert_uint_eq(whole.b, 0);
}
END_TEST

START_TEST(a_newer_program_may_leave_what_the_library_does_not_know)
{
    struct next params = {1, 2, 0};
    struct now whole;
    ck_assert_int_eq(TAKE(&whole, &params, sizeof params), AULE_OK);
    ck_assert_uint_eq(whole.b, 2);
    params.c = 1;
    ck_assert_int_eq(TAKE(&whole, &params, sizeof params), AULE_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(aule_error(), aule_version()));
}
END_TEST

// Headers in which aule_batch_params has one pointer less, and one pointer more.
START_TEST(metadata_ends_where_the_callers_header_says)
{
    static const int32_t cu[] = {0, 3};
    for (int more = -1; more <= 1; more++) {
        void *bytes[sizeof(struct aule_metadata) / sizeof(void *) + 2];
        size_t count = (size_t)((int)(sizeof(struct aule_metadata) / sizeof(void *)) + more);
        memset(bytes, 0xa5, sizeof bytes);
        const void *canary = bytes[count];
        struct aule_metadata *metadata = (struct aule_metadata *)(void *)bytes;
        ck_assert_int_eq(
            aule_metadata_varlen_sized(1, cu, cu, 0, 0, metadata, count * sizeof *bytes), AULE_OK);
        ck_assert_int_eq(metadata->params.seq_lens_kv[0], 3);
        ck_assert_ptr_eq(bytes[count - 1], metadata->params.seq_lens_kv);
        ck_assert_ptr_eq(bytes[count], canary);
        aule_metadata_finish_sized(metadata, count * sizeof *bytes);
        ck_assert_ptr_null(bytes[count - 1]);
        ck_assert_ptr_eq(bytes[count], canary);
    }
    struct aule_metadata metadata;
    ck_assert_int_eq(aule_metadata_varlen_sized(1, cu, cu, 0, 0, &metadata, 3), AULE_INVALID);
}
END_TEST

static void add(Suite *suite, const char *name, void (*setup)(void), void (*teardown)(void),
                const TTest *const *tests)
{
    TCase *group = tcase_create(name);
    if (setup)
        tcase_add_checked_fixture(group, setup, teardown);
    for (; *tests; tests++)
        tcase_add_test(group, *tests);
    suite_add_tcase(suite, group);
}

int main(void)
{
    Suite *suite = suite_create("client_parts");
    add(suite, "statuses", NULL, NULL,
        (const TTest *const[]){every_status_has_a_name_and_a_text, dtypes_know_their_name_and_size,
                               the_version_is_the_headers, a_null_argument_is_named,
                               ending_null_does_nothing, NULL});
    add(suite, "socket path", NULL, NULL,
        (const TTest *const[]){the_first_rule_whose_variable_is_set_wins,
                               a_path_that_no_socket_can_have_is_refused, NULL});
    add(suite, "arena", arena_setup, arena_teardown,
        (const TTest *const[]){allocations_are_aligned_and_apart, freed_neighbours_become_one_gap,
                               the_smallest_gap_that_fits_is_taken, a_full_arena_says_what_is_free,
                               freeing_what_is_none_changes_nothing,
                               random_use_never_overlaps_and_loses_nothing,
                               an_arena_smaller_than_a_grain_has_no_room, NULL});
    add(suite, "sizes", NULL, NULL,
        (const TTest *const[]){an_older_program_is_given_what_it_knows,
                               a_newer_program_is_given_zero_for_what_the_library_does_not_know,
                               fields_that_an_older_program_lacks_are_zero,
                               a_newer_program_may_leave_what_the_library_does_not_know,
                               metadata_ends_where_the_callers_header_says, NULL});
    return check_main(suite);
}
