// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine_device.c - the list of devices, and which one is chosen.

#include "engine/vulkan/statistics.h"
#include "rigs/engine_world.h"

#include <ctype.h>
#include <string.h>

static struct engine_device *list_devices(uint32_t *count)
{
    struct engine_device *devices = NULL;
    struct error error = {0};
    ck_assert_int_eq(engine_list_devices(&devices, count, &error), STATUS_OK);
    ck_assert_uint_gt(*count, 0);
    return devices;
}

START_TEST(list_describes_every_device)
{
    uint32_t count = 0;
    struct engine_device *devices = list_devices(&count);
    bool indices[64] = {false};
    for (uint32_t i = 0; i < count; i++) {
        const struct engine_device *device = &devices[i];
        ck_assert_uint_lt(device->index, count);
        ck_assert(!indices[device->index]);
        indices[device->index] = true;
        ck_assert_uint_gt(strlen(device->name), 0);
        ck_assert_uint_gt(strlen(device->driver), 1);
        ck_assert_int_eq(device->software, strcmp(device->type, "cpu") == 0);
        ck_assert_int_eq(device->usable, device->missing[0] == '\0');
        ck_assert_uint_gt(device->heap_bytes, 0);
        ck_assert_uint_le(device->budget_bytes, device->heap_bytes);
        ck_assert_uint_gt(device->max_allocation_bytes, 0);
        ck_assert_uint_gt(device->subgroup_size, 0);
        ck_assert_uint_ge(device->shared_memory_bytes, 16384);
        ck_assert_uint_eq(device->host_import, device->import_alignment != 0);
    }
    free(devices);
}
END_TEST

static void expect_choice(const char *wanted, const struct engine_device *device)
{
    struct engine *chosen = open_engine((struct engine_params){.device = wanted});
    ck_assert_uint_eq(engine_device(chosen)->index, device->index);
    ck_assert_str_eq(engine_device(chosen)->name, device->name);
    ck_assert_mem_eq(engine_device(chosen)->uuid, device->uuid, 16);
    close_engine(chosen);
}

START_TEST(best_device_is_the_default)
{
    uint32_t count = 0;
    struct engine_device *devices = list_devices(&count);
    ck_assert(devices[0].usable);
    expect_choice(NULL, &devices[0]);
    free(devices);
}
END_TEST

START_TEST(device_is_chosen_by_index)
{
    uint32_t count = 0;
    struct engine_device *devices = list_devices(&count);
    char index[16];
    snprintf(index, sizeof index, "%u", devices[0].index);
    expect_choice(index, &devices[0]);
    free(devices);
}
END_TEST

START_TEST(device_is_chosen_by_uuid_with_and_without_dashes)
{
    uint32_t count = 0;
    struct engine_device *devices = list_devices(&count);
    char plain[40] = "", dashed[40] = "";
    for (int i = 0; i < 16; i++) {
        sprintf(plain + strlen(plain), "%02x", devices[0].uuid[i]);
        sprintf(dashed + strlen(dashed), "%s%02X", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                devices[0].uuid[i]);
    }
    expect_choice(plain, &devices[0]);
    expect_choice(dashed, &devices[0]);
    free(devices);
}
END_TEST

START_TEST(device_is_chosen_by_part_of_its_name_in_any_case)
{
    uint32_t count = 0;
    struct engine_device *devices = list_devices(&count);
    char part[8] = "";
    for (int i = 0; i < 5 && devices[0].name[i]; i++)
        part[i] = (char)(islower((unsigned char)devices[0].name[i])
                             ? toupper((unsigned char)devices[0].name[i])
                             : tolower((unsigned char)devices[0].name[i]));
    expect_choice(part, &devices[0]);
    free(devices);
}
END_TEST

static void expect_refusal(const char *wanted, const char *sentence)
{
    struct engine *chosen = NULL;
    struct error error = {0};
    struct engine_params params = {.device = wanted};
    ck_assert_int_eq(engine_create(&params, &chosen, &error), STATUS_NOT_FOUND);
    ck_assert_int_eq(error.status, STATUS_NOT_FOUND);
    ck_assert_ptr_null(chosen);
    ck_assert_ptr_nonnull(strstr(error.text, wanted));
    ck_assert_msg(strstr(error.text, sentence) != NULL, "'%s' is not in: %s", sentence, error.text);
}

START_TEST(unknown_device_is_refused_with_the_list)
{
    uint32_t count = 0;
    struct engine_device *devices = list_devices(&count);
    expect_refusal("no such gpu", devices[0].name);
    expect_refusal("999", devices[0].name);
    expect_refusal("00000000-0000-0000-0000-0000000000ff", devices[0].name);
    free(devices);
}
END_TEST

START_TEST(destroy_takes_nothing_and_the_new)
{
    engine_destroy(NULL);
    engine_batch_destroy(NULL);
    engine_cache_destroy(NULL);
    engine_arena_destroy(NULL);
    close_engine(open_engine((struct engine_params){0}));
}
END_TEST

START_TEST(a_drivers_message_about_a_pipeline_is_one_line)
{
    const VkPipelineExecutableStatisticKHR list[] = {
        {.name = "Register Count",
         .format = VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR,
         .value.u64 = 152},
        {.name = "Spills",
         .format = VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR,
         .value.b32 = VK_FALSE},
        {.name = "Left",
         .format = VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR,
         .value.i64 = -3},
        {.name = "Occupancy",
         .format = VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_FLOAT64_KHR,
         .value.f64 = 0.25},
    };
    char text[128], small[32];
    statistics_text(list, 4, text, sizeof text);
    ck_assert_str_eq(text, "Register Count 152, Spills no, Left -3, Occupancy 0.25");
    statistics_text(list, 4, small, sizeof small);
    ck_assert_str_eq(small, "Register Count 152, Spills no");
    statistics_text(list, 0, text, sizeof text);
    ck_assert_str_eq(text, "");
}
END_TEST

START_TEST(pipelines_are_made_and_named_where_statistics_are_wanted)
{
    engine = open_engine((struct engine_params){.statistics = true});
    open_arena();
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 0, true);
    struct engine_run run = plain_run(batch, 0, 0, 256, 512, 768);
    expect_done(submit_runs(&run, 1));
    ck_assert_msg(logged("3 compiled attention_"), "%s", log_text);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
    teardown();
}
END_TEST

void add_device_tests(Suite *suite)
{
    TCase *tcase = tcase_create("devices");
    tcase_add_test(tcase, list_describes_every_device);
    tcase_add_test(tcase, best_device_is_the_default);
    tcase_add_test(tcase, device_is_chosen_by_index);
    tcase_add_test(tcase, device_is_chosen_by_uuid_with_and_without_dashes);
    tcase_add_test(tcase, device_is_chosen_by_part_of_its_name_in_any_case);
    tcase_add_test(tcase, unknown_device_is_refused_with_the_list);
    tcase_add_test(tcase, destroy_takes_nothing_and_the_new);
    tcase_add_test(tcase, a_drivers_message_about_a_pipeline_is_one_line);
    tcase_add_test(tcase, pipelines_are_made_and_named_where_statistics_are_wanted);
    suite_add_tcase(suite, tcase);
}
