// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_worker.c - aule-worker: its model and reference in this process, its program as people start it, alone and against a
// real daemon. A worker must say the same tokens whether attention is its own or aule's, computed or found in the cache.

#include "check_main.h"

#include "daemon_harness.h"
#include "element.h"
#include "generate.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_OUTPUT = 1 << 16, BLOCK_SIZE = 32 };

static const char quickstart_text[] = WORKER_TEXT; // path
static struct daemon server;
static char folder[] = "/tmp/aule-test-worker.XXXXXX";

// ---- the model with the reference, in this process ----

static int32_t *read_text(uint32_t *count)
{
    FILE *file = fopen(quickstart_text, "rb");
    ck_assert_ptr_nonnull(file);
    int32_t *tokens = NULL;
    *count = 0;
    for (int byte; (byte = fgetc(file)) != EOF; (*count)++) {
        tokens = realloc(tokens, (*count + 1) * sizeof *tokens);
        ck_assert_ptr_nonnull(tokens);
        tokens[*count] = byte;
    }
    fclose(file);
    return tokens;
}

static struct generation reference(const int32_t *prompt, uint32_t num_prompt, uint32_t num_tokens, uint32_t chunk,
                                   enum aule_dtype kv_dtype)
{
    char error[640] = "";
    const struct attention_params params = {.dtype = AULE_F32,
                                            .kv_dtype = kv_dtype,
                                            .block_size = BLOCK_SIZE,
                                            .max_tokens = num_prompt + num_tokens,
                                            .max_count = chunk};
    struct generate_params generate_params = {
        .prompt = prompt, .num_prompt = num_prompt, .num_tokens = num_tokens, .chunk = chunk};
    struct model *model = model_create();
    struct generation generation;
    generate_params.model = model;
    generate_params.attention = attention_reference_create(&params, error, sizeof error);
    ck_assert_msg(generate_params.attention && generate(&generate_params, &generation, error, sizeof error), "%s",
                  error);
    attention_destroy(generate_params.attention);
    model_destroy(model);
    return generation;
}

START_TEST(the_quickstart_text_leads_to_varied_and_well_separated_tokens)
{
    uint32_t count;
    int32_t *text = read_text(&count);
    struct generation generation = reference(text, count, 20, 512, AULE_F16);
    ck_assert_uint_gt(count, 3000);
    ck_assert_uint_ge(generation_distinct_ids(&generation), 5);
    ck_assert_double_gt(generation_smallest_gap(&generation), 0.01);
    generation_finish(&generation);
    free(text);
}
END_TEST

START_TEST(chunks_of_any_length_give_the_same_bits)
{
    uint32_t count;
    int32_t *text = read_text(&count);
    struct generation whole = reference(text, 200, 5, 200, AULE_F16);
    const uint32_t chunks[] = {1, 7, 32, 199};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        struct generation parts = reference(text, 200, 5, chunks[i], AULE_F16);
        ck_assert_mem_eq(whole.logits, parts.logits, 5 * MODEL_VOCABULARY * sizeof(float));
        generation_finish(&parts);
    }
    generation_finish(&whole);
    free(text);
}
END_TEST

START_TEST(every_early_token_matters)
{
    uint32_t count;
    int32_t *text = read_text(&count);
    struct generation before = reference(text, 600, 1, 600, AULE_F16);
    text[3] ^= 1;
    struct generation after = reference(text, 600, 1, 600, AULE_F16);
    ck_assert_double_gt(generation_largest_difference(before.logits, after.logits, MODEL_VOCABULARY), 0.01);
    generation_finish(&before);
    generation_finish(&after);
    free(text);
}
END_TEST

START_TEST(the_cache_type_rounds_what_is_stored)
{
    uint32_t count;
    int32_t *text = read_text(&count);
    struct generation half = reference(text, 200, 1, 200, AULE_F16), full = reference(text, 200, 1, 200, AULE_F32);
    const double difference = generation_largest_difference(half.logits, full.logits, MODEL_VOCABULARY);
    ck_assert_double_gt(difference, 0);
    ck_assert_double_lt(difference, 0.1);
    generation_finish(&half);
    generation_finish(&full);
    free(text);
}
END_TEST

START_TEST(a_logit_that_is_not_finite_is_the_largest_difference)
{
    const float good[] = {1, 2}, off[] = {1, 2.5f}, bad[] = {1, NAN}, infinite[] = {INFINITY, 2};
    ck_assert_double_eq(generation_largest_difference(good, off, 2), 0.5);
    ck_assert_double_gt(generation_largest_difference(good, bad, 2), 1e30);
    ck_assert_double_gt(generation_largest_difference(infinite, infinite, 2), 1e30);
}
END_TEST

START_TEST(elements_round_to_nearest_even)
{
    ck_assert_float_eq(element_round(1 + 0x1p-11f, AULE_F16), 1);
    ck_assert_float_eq(element_round(1 + 0x1.8p-10f, AULE_F16), 1 + 0x1p-9f);
    ck_assert_float_eq(element_round(1 + 0x1.8p-10f, AULE_F32), 1 + 0x1.8p-10f);
    ck_assert(isinf(element_round(65520, AULE_F16)));
}
END_TEST

// ---- the program ----

// A shell command's standard output and error together, and its exit code.
struct run {
    int code;
    char output[MAX_OUTPUT];
};

__attribute__((format(printf, 1, 2))) static struct run *start(const char *format, ...)
{
    static struct run run;
    char command[4096];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    ck_assert_int_lt(length, (int)sizeof command);
    FILE *pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    const size_t size = fread(run.output, 1, MAX_OUTPUT - 1, pipe);
    run.output[size] = 0;
    const int status = pclose(pipe);
    ck_assert(WIFEXITED(status));
    run.code = WEXITSTATUS(status);
    return &run;
}

static void refused(const struct run *run, const char *sentence)
{
    ck_assert_int_eq(run->code, 1);
    ck_assert_msg(strstr(run->output, sentence), "'%s' does not contain '%s'", run->output, sentence);
    ck_assert_msg(strchr(run->output, '\n') == run->output + strlen(run->output) - 1, "more than one line: %s",
                  run->output);
}

static const struct {
    const char *options, *sentence;
} bad_options[] = {
    {"", "--prompt FILE is needed"},
    {"--prompt /nowhere/text", "/nowhere/text: No such file or directory"},
    {"--prompt /dev/null", "/dev/null: the prompt is empty"},
    {"--prompt " WORKER_TEXT " --max-prompt 100", "more than 100 bytes, the limit of --max-prompt"},
    {"--prompt " WORKER_TEXT " --path contiguous", "--path contiguous comes with a later version"},
    {"--prompt " WORKER_TEXT " --path sideways", "--path 'sideways' is neither paged nor contiguous"},
    {"--prompt " WORKER_TEXT " --kv-dtype int8", "--kv-dtype 'int8' is neither f32 nor f16"},
    {"--prompt " WORKER_TEXT " --tokens 0", "--tokens '0' is not a number from 1 to 1048576"},
    {"--prompt " WORKER_TEXT " --tokens 5x", "--tokens '5x' is not a number"},
    {"--prompt " WORKER_TEXT " --chunk -1", "--chunk '-1' is not a number"},
    {"--prompt " WORKER_TEXT " --block-size 48", "--block-size 48 is not a power of two"},
    {"--prompt " WORKER_TEXT " --colour", "unrecognized option '--colour'"},
    {"--prompt " WORKER_TEXT " more", "'more' is no option"},
    {"--prompt " WORKER_TEXT " --socket /nowhere/sock", "/nowhere/sock"},
};

START_TEST(what_is_wrong_is_said_in_one_sentence)
{
    refused(start("%s %s 2>&1", WORKER, bad_options[_i].options), bad_options[_i].sentence);
}
END_TEST

START_TEST(logits_of_another_length_are_not_compared)
{
    refused(start("head -c 100 %s | %s --reference --tokens 2 --prompt - --compare %s 2>&1", WORKER_TEXT, WORKER,
                  WORKER_TEXT),
            "more than the 512 logits of this run");
}
END_TEST

START_TEST(a_full_disk_is_noticed)
{
    refused(start("head -c 100 %s | %s --reference --tokens 2 --prompt - --logits /dev/full 2>&1", WORKER_TEXT, WORKER),
            "/dev/full: No space left on device");
}
END_TEST

START_TEST(help_names_every_option_and_version_the_version)
{
    struct run *run = start("%s --help", WORKER);
    ck_assert_int_eq(run->code, 0);
    ck_assert_ptr_nonnull(strstr(run->output, "--kv-dtype TYPE"));
    run = start("%s --version", WORKER);
    ck_assert_int_eq(run->code, 0);
    ck_assert_str_eq(run->output, "aule-worker 0.1.0\n");
}
END_TEST

// ---- against a daemon ----

static void launch(const char *const *options)
{
    ck_assert(daemon_launch(&server, options));
    strcpy(strrchr(folder, '.'), ".XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void launch_importing(void)
{
    launch(NULL);
}

static void launch_staging(void)
{
    launch((const char *const[]){"--force-staging", NULL});
}

static void stop(void)
{
    ck_assert_int_eq(daemon_stop(&server), 0);
    ck_assert_int_eq(daemon_count_segments(&server), 0);
    daemon_finish(&server);
    ck_assert_int_eq(start("rm -rf %s", folder)->code, 0);
}

// Runs a worker with the first `bytes` bytes of the text and `append` behind them, after a reference run with the same
// `options`, and with --compare to it. `aule_options` are the worker's alone. The caller's to cJSON_Delete().
static cJSON *compared(uint32_t bytes, const char *append, const char *options, const char *aule_options)
{
    const char *command = "head -c %u %s | %s --prompt - --append '%s' --json %s %s";
    char more[256];
    snprintf(more, sizeof more, "--reference --logits %s/logits 2>&1", folder);
    struct run *run = start(command, bytes, WORKER_TEXT, WORKER, append, options, more);
    ck_assert_msg(run->code == 0, "%s", run->output);
    cJSON *reference_report = cJSON_Parse(run->output);
    snprintf(more, sizeof more, "%s --socket %s --compare %s/logits 2>&1", aule_options, server.socket, folder);
    run = start(command, bytes, WORKER_TEXT, WORKER, append, options, more);
    ck_assert_msg(run->code == 0, "%s", run->output);
    cJSON *report = cJSON_Parse(run->output);
    ck_assert_ptr_nonnull(reference_report);
    ck_assert_ptr_nonnull(report);
    ck_assert(cJSON_Compare(cJSON_GetObjectItem(report, "token_ids"),
                            cJSON_GetObjectItem(reference_report, "token_ids"), true));
    cJSON_Delete(reference_report);
    return report;
}

static double number(const cJSON *report, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(report, name);
    ck_assert_msg(cJSON_IsNumber(item), "no number %s", name);
    return item->valuedouble;
}

// Ends the report.
static void expect(cJSON *report, double hit_blocks, double bound)
{
    ck_assert_double_eq(number(report, "hit_blocks"), hit_blocks);
    ck_assert_double_eq(number(report, "hit_tokens"), hit_blocks * number(report, "block_size"));
    ck_assert_double_le(number(report, "largest_logit_difference"), bound);
    cJSON_Delete(report);
}

START_TEST(tokens_and_logits_equal_the_reference_and_prefixes_are_found)
{
    const char *options = "--tokens 8 --chunk 100";
    expect(compared(300, " one", options, ""), 0, 1e-3);
    expect(compared(300, " one", options, ""), 9, 1e-3);
    expect(compared(300, " two", options, ""), 9, 1e-3);
    expect(compared(150, "", options, ""), 4, 1e-3);
}
END_TEST

START_TEST(a_prompt_that_is_there_in_full_runs_its_last_token_again)
{
    expect(compared(256, "", "--tokens 8", ""), 0, 1e-3);
    expect(compared(256, "", "--tokens 8", ""), 8, 1e-3);
}
END_TEST

// f16 tensors round each layer's output, and which way a value goes that lies near the middle is chance.
static const struct {
    const char *dtype, *kv_dtype;
    uint32_t block_size;
    double bound;
} kinds[] = {
    {"f32", "f32", 8, 1e-3},
    {"f32", "f16", 16, 1e-3},
    {"f16", "f32", 64, 2e-2},
    {"f16", "f16", 256, 2e-2},
};

START_TEST(every_pair_of_types_equals_the_reference)
{
    char options[128];
    snprintf(options, sizeof options, "--tokens 4 --dtype %s --kv-dtype %s --block-size %u", kinds[_i].dtype,
             kinds[_i].kv_dtype, kinds[_i].block_size);
    expect(compared(520, "", options, ""), 0, kinds[_i].bound);
    expect(compared(520, "", options, ""), 520 / kinds[_i].block_size, kinds[_i].bound);
}
END_TEST

START_TEST(tenants_and_caches_of_other_names_share_nothing)
{
    expect(compared(300, "", "--tokens 2", ""), 0, 1e-3);
    expect(compared(300, "", "--tokens 2", "--tenant other"), 0, 1e-3);
    expect(compared(300, "", "--tokens 2", "--cache-name other"), 0, 1e-3);
    expect(compared(300, "", "--tokens 2", "--tenant other"), 9, 1e-3);
}
END_TEST

START_TEST(workers_at_once_all_find_the_prefix)
{
    expect(compared(1000, "", "--tokens 1", ""), 0, 1e-3);
    struct run *run =
        start("for i in 1 2 3 4; do head -c 1000 %s | %s --prompt - --append \" $i\" --json --socket %s & done | "
              "jq -s 'map(.hit_blocks)' -c",
              WORKER_TEXT, WORKER, server.socket);
    ck_assert_str_eq(run->output, "[31,31,31,31]\n");
}
END_TEST

START_TEST(another_identity_is_refused_with_both_values)
{
    expect(compared(100, "", "--tokens 1 --block-size 16", ""), 0, 1e-3);
    refused(start("%s --prompt %s --socket %s --block-size 64 2>&1", WORKER, WORKER_TEXT, server.socket), "MISMATCH");
    ck_assert_ptr_nonnull(strstr(
        start("%s --prompt %s --socket %s --block-size 64 2>&1", WORKER, WORKER_TEXT, server.socket)->output, "64"));
}
END_TEST

START_TEST(a_daemon_that_dies_ends_a_worker_with_a_sentence)
{
    char command[1024];
    snprintf(command, sizeof command, "%s --prompt %s --socket %s --tokens 100000 2>&1", WORKER, WORKER_TEXT,
             server.socket);
    FILE *pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    sleep(2);
    daemon_kill(&server);
    char line[1024] = "";
    ck_assert_ptr_nonnull(fgets(line, sizeof line, pipe));
    ck_assert_ptr_nonnull(strstr(line, "DAEMON_GONE"));
    const int status = pclose(pipe);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 1);
    ck_assert(daemon_start(&server, NULL)); // removes what the dead one left
}
END_TEST

static void launch_small(void)
{
    launch((const char *const[]){"--max-blocks", "4", NULL});
}

START_TEST(a_pool_that_is_too_small_is_said_with_its_option)
{
    struct run *run = start("%s --prompt %s --socket %s --timeout 1000 2>&1", WORKER, WORKER_TEXT, server.socket);
    refused(run, "leasing blocks");
    ck_assert_msg(strstr(run->output, "--max-blocks"), "%s", run->output);
    expect(compared(60, "", "--tokens 2", ""), 0, 1e-3);
}
END_TEST

static Suite *worker_suite(void)
{
    Suite *suite = suite_create("worker");
    TCase *model = tcase_create("model");
    tcase_add_test(model, the_quickstart_text_leads_to_varied_and_well_separated_tokens);
    tcase_add_test(model, chunks_of_any_length_give_the_same_bits);
    tcase_add_test(model, every_early_token_matters);
    tcase_add_test(model, the_cache_type_rounds_what_is_stored);
    tcase_add_test(model, a_logit_that_is_not_finite_is_the_largest_difference);
    tcase_add_test(model, elements_round_to_nearest_even);
    suite_add_tcase(suite, model);

    TCase *program = tcase_create("program");
    tcase_add_loop_test(program, what_is_wrong_is_said_in_one_sentence, 0, sizeof bad_options / sizeof *bad_options);
    tcase_add_test(program, logits_of_another_length_are_not_compared);
    tcase_add_test(program, a_full_disk_is_noticed);
    tcase_add_test(program, help_names_every_option_and_version_the_version);
    suite_add_tcase(suite, program);

    TCase *importing = tcase_create("daemon");
    tcase_add_checked_fixture(importing, launch_importing, stop);
    tcase_add_test(importing, tokens_and_logits_equal_the_reference_and_prefixes_are_found);
    tcase_add_test(importing, a_prompt_that_is_there_in_full_runs_its_last_token_again);
    tcase_add_loop_test(importing, every_pair_of_types_equals_the_reference, 0, sizeof kinds / sizeof *kinds);
    tcase_add_test(importing, tenants_and_caches_of_other_names_share_nothing);
    tcase_add_test(importing, workers_at_once_all_find_the_prefix);
    tcase_add_test(importing, another_identity_is_refused_with_both_values);
    tcase_add_test(importing, a_daemon_that_dies_ends_a_worker_with_a_sentence);
    suite_add_tcase(suite, importing);

    TCase *staging = tcase_create("daemon_staging");
    tcase_add_checked_fixture(staging, launch_staging, stop);
    tcase_add_test(staging, tokens_and_logits_equal_the_reference_and_prefixes_are_found);
    tcase_add_loop_test(staging, every_pair_of_types_equals_the_reference, 0, sizeof kinds / sizeof *kinds);
    suite_add_tcase(suite, staging);

    TCase *small = tcase_create("daemon_small");
    tcase_add_checked_fixture(small, launch_small, stop);
    tcase_add_test(small, a_pool_that_is_too_small_is_said_with_its_option);
    suite_add_tcase(suite, small);
    return suite;
}

int main(void)
{
    return check_main(worker_suite());
}
