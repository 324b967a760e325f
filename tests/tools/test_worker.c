// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_worker.c - aule-worker as a user starts it, alone and with a real daemon. A worker must
// generate the same tokens with its own attention and with aule's, over blocks and over rows,
// computed and found in the cache.

#include "aule/aule.h"
#include "base/exit_code.h"
#include "rigs/check_main.h"
#include "rigs/daemon_harness.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_OUTPUT = 1 << 16 };

static struct daemon server;
static char folder[] = "/tmp/aule-test-worker.XXXXXX";

// ---- the program ----

// Standard output and error of a shell command together, and its exit code.
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

static void refused(const struct run *run, enum exit_code code, const char *sentence)
{
    ck_assert_int_eq(run->code, (int)code);
    ck_assert_msg(strstr(run->output, sentence), "'%s' does not contain '%s'", run->output,
                  sentence);
    ck_assert_msg(strchr(run->output, '\n') == run->output + strlen(run->output) - 1,
                  "more than one line: %s", run->output);
}

static const struct {
    const char *options, *sentence;
} bad_options[] = {
    {"", "--prompt FILE is needed"},
    {"--prompt " WORKER_TEXT " --path sideways",
     "--path \"sideways\" is none of paged, contiguous and reference"},
    {"--prompt " WORKER_TEXT " --path page",
     "--path \"page\" is none of paged, contiguous and reference"},
    {"--prompt " WORKER_TEXT " --path ''",
     "--path \"\" is none of paged, contiguous and reference"},
    {"--prompt " WORKER_TEXT " --dtype int8", "--dtype \"int8\" is none of f32, f16 and bf16"},
    {"--prompt " WORKER_TEXT " --kv-dtype int4",
     "--kv-dtype \"int4\" is none of f32, f16, bf16, fp8_e4m3, fp8_e5m2 and int8"},
    {"--prompt " WORKER_TEXT " --kv-scale head",
     "--kv-scale \"head\" is none of none, tensor and token_head"},
    {"--prompt " WORKER_TEXT " --kv-scale tensor",
     "--kv-scale tensor is for fp8 and int8, but --kv-dtype is f16"},
    {"--prompt " WORKER_TEXT " --path contiguous --dtype f16 --kv-dtype int8",
     "--path contiguous keeps rows of --dtype f16, which cannot hold int8 times a scale"},
    {"--prompt " WORKER_TEXT " --tokens 0",
     "--tokens \"0\" is not a whole number from 1 to 1048576"},
    {"--prompt " WORKER_TEXT " --tokens 5x", "--tokens \"5x\" is not a whole number"},
    {"--prompt " WORKER_TEXT " --chunk -1", "--chunk \"-1\" is not a whole number"},
    {"--prompt " WORKER_TEXT " --block-size 48", "--block-size \"48\" is not a power of two"},
    {"--prompt " WORKER_TEXT " --colour", "--colour is no option"},
    {"--prompt " WORKER_TEXT " more", "\"more\" is no option"},
};

START_TEST(a_wrong_command_line_is_said_in_one_sentence)
{
    refused(start("%s %s 2>&1", WORKER, bad_options[_i].options), EXIT_CODE_USAGE,
            bad_options[_i].sentence);
}
END_TEST

START_TEST(help_and_version_are_answered)
{
    static const char *const asked[][2] = {{"--help", "usage: aule-worker"},
                                           {"-h", "--path paged|contiguous|reference"},
                                           {"--version", "aule-worker "}};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        const struct run *run = start("%s %s 2>&1", WORKER, asked[i][0]);
        ck_assert_int_eq(run->code, EXIT_CODE_DONE);
        ck_assert_msg(strstr(run->output, asked[i][1]) != NULL, "%s", run->output);
    }
}
END_TEST

START_TEST(a_prompt_that_cannot_be_read_is_an_error_of_one_sentence)
{
    static const char *const wrong[][2] = {
        {"/nowhere/text", "/nowhere/text: No such file or directory"},
        {"/dev/null", "/dev/null: the prompt is empty"},
        {WORKER_TEXT " --max-prompt 100", "more than 100 bytes, the limit of --max-prompt"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refused(start("%s --prompt %s 2>&1", WORKER, wrong[i][0]), EXIT_CODE_FAILED, wrong[i][1]);
}
END_TEST

START_TEST(without_a_daemon_its_socket_is_said_and_that_it_is_gone)
{
    refused(start("%s --prompt %s --socket /nowhere/sock 2>&1", WORKER, WORKER_TEXT),
            EXIT_CODE_GONE, "/nowhere/sock");
}
END_TEST

// With --json a failure is one document, with this status (NULL = none), and nothing else.
static void refused_as_json(const struct run *run, enum exit_code code, const char *status,
                            const char *sentence)
{
    const char *end;
    ck_assert_int_eq(run->code, (int)code);
    cJSON *document = cJSON_ParseWithOpts(run->output, &end, 0);
    ck_assert_msg(document != NULL, "no JSON: %s", run->output);
    ck_assert_str_eq(end, "\n");
    ck_assert_double_eq(cJSON_GetNumberValue(cJSON_GetObjectItem(document, "schema_version")), 1);
    const char *error = cJSON_GetStringValue(cJSON_GetObjectItem(document, "error"));
    ck_assert_msg(error && strstr(error, sentence), "'%s' does not contain '%s'", run->output,
                  sentence);
    const cJSON *name = cJSON_GetObjectItem(document, "status");
    if (status)
        ck_assert_str_eq(cJSON_GetStringValue(name), status);
    else
        ck_assert(cJSON_IsNull(name));
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(document, "hint")));
    cJSON_Delete(document);
}

START_TEST(a_wrong_command_line_is_a_document_wherever_json_stands)
{
    const char *options = bad_options[_i].options;
    refused_as_json(start("%s --json %s 2>&1", WORKER, options), EXIT_CODE_USAGE, NULL,
                    bad_options[_i].sentence);
    refused_as_json(start("%s %s --json 2>&1", WORKER, options), EXIT_CODE_USAGE, NULL,
                    bad_options[_i].sentence);
}
END_TEST

START_TEST(with_json_a_failure_is_a_document)
{
    refused_as_json(start("%s --json --prompt /nowhere/text 2>&1", WORKER), EXIT_CODE_FAILED, NULL,
                    "/nowhere/text: No such file or directory");
    refused_as_json(
        start("%s --json --prompt %s --socket '/nowhere/\"sock' 2>&1", WORKER, WORKER_TEXT),
        EXIT_CODE_GONE, "DAEMON_GONE", "opening a session: no daemon listens at /nowhere/\"sock");
    refused_as_json(
        start(
            "head -c 100 %s | %s --json --reference --tokens 2 --prompt - --logits /dev/full 2>&1",
            WORKER_TEXT, WORKER),
        EXIT_CODE_FAILED, NULL, "/dev/full: No space left on device");
}
END_TEST

START_TEST(logits_of_another_length_are_not_compared)
{
    refused(start("head -c 100 %s | %s --reference --tokens 2 --prompt - --compare %s 2>&1",
                  WORKER_TEXT, WORKER, WORKER_TEXT),
            EXIT_CODE_FAILED, "more than the 512 logits of this run");
}
END_TEST

// No daemon is there, so these errors must come before the first connection.
START_TEST(
    files_of_logits_are_looked_at_before_anything_else_and_stay_as_they_are_when_the_run_fails)
{
    static const char command[] =
        "head -c 100 %s | %s --tokens 2 --prompt - --socket /nowhere/sock %s 2>&1";
    char text[128], kept[8] = "", path[] = "/tmp/aule-logits-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_eq(write(fd, "before", 6), 6);
    refused(start(command, WORKER_TEXT, WORKER, "--compare /nowhere/logits"), EXIT_CODE_FAILED,
            "/nowhere/logits: No such file or directory");
    refused(start(command, WORKER_TEXT, WORKER, "--logits /nowhere/logits"), EXIT_CODE_FAILED,
            "/nowhere/logits: No such file or directory");
    snprintf(text, sizeof text, "--logits %s", path);
    refused(start(command, WORKER_TEXT, WORKER, text), EXIT_CODE_GONE, "no daemon listens");
    ck_assert_int_eq(pread(fd, kept, sizeof kept, 0), 6);
    ck_assert_str_eq(kept, "before");
    snprintf(text, sizeof text, "--reference --logits %s --compare %s", path, path);
    refused(start(command, WORKER_TEXT, WORKER, text), EXIT_CODE_FAILED,
            "would replace what --compare reads");
    snprintf(text, sizeof text, "--reference --prompt %s --logits %s", path, path);
    refused(start(command, WORKER_TEXT, WORKER, text), EXIT_CODE_FAILED,
            "would replace what --prompt reads");
    ck_assert_int_eq(pread(fd, kept, sizeof kept, 0), 6);
    close(fd);
    unlink(path);
    snprintf(text, sizeof text, "--logits %s", path);
    refused(start(command, WORKER_TEXT, WORKER, text), EXIT_CODE_GONE, "no daemon listens");
    ck_assert_int_ne(access(path, F_OK), 0);
}
END_TEST

START_TEST(a_full_disk_is_noticed)
{
    refused(start("head -c 100 %s | %s --reference --tokens 2 --prompt - --logits /dev/full 2>&1",
                  WORKER_TEXT, WORKER),
            EXIT_CODE_FAILED, "/dev/full: No space left on device");
}
END_TEST

START_TEST(a_terminal_is_told_how_far_it_is_and_the_line_goes_at_the_end)
{
    char seen[4096];
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    ck_assert_int_ge(terminal, 0);
    ck_assert_int_eq(grantpt(terminal), 0);
    ck_assert_int_eq(unlockpt(terminal), 0);
    const int kept = open(ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC); // keeps the output
    ck_assert_int_ge(kept, 0);
    struct run *run = start("head -c 100 %s | %s --reference --tokens 2 --chunk 60 --prompt - 2>%s",
                            WORKER_TEXT, WORKER, ptsname(terminal));
    ck_assert_int_eq(run->code, 0);
    // The kernel hands the output on piece by piece; a mark behind it tells where it ends.
    ck_assert_int_eq(write(kept, "\a", 1), 1);
    size_t size = 0;
    while (size == 0 || seen[size - 1] != '\a') {
        const ssize_t got = read(terminal, seen + size, sizeof seen - size);
        ck_assert_int_gt(got, 0);
        size += (size_t)got;
    }
    seen[--size] = 0;
    const char *at = seen;
    static const char *const steps[] = {"\rprompt: 0 of 100 tokens ", "\rprompt: 60 of 100 tokens ",
                                        "\rprompt: 100 of 100 tokens ", "\rtext: 1 of 2 tokens ",
                                        "\rtext: 2 of 2 tokens "};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        at = strstr(at, steps[i]);
        ck_assert_msg(at != NULL, "no '%s', or in another order: %s", steps[i] + 1, seen);
    }
    ck_assert_int_eq(seen[size - 1], '\r');
    ck_assert_ptr_null(strchr(seen, '\n'));
    close(kept);
    close(terminal);
}
END_TEST

START_TEST(help_names_every_option_and_version_the_version)
{
    struct run *run = start("%s --help", WORKER);
    ck_assert_int_eq(run->code, 0);
    ck_assert_ptr_nonnull(strstr(run->output, "--kv-dtype f32|f16|bf16|fp8_e4m3|fp8_e5m2|int8"));
    run = start("%s --version", WORKER);
    ck_assert_int_eq(run->code, 0);
    ck_assert_str_eq(run->output, "aule-worker 0.2.0\n");
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
    launch((const char *const[]){DAEMON_STAGED, NULL});
}

static void stop(void)
{
    ck_assert_int_eq(daemon_stop(&server), 0);
    ck_assert_int_eq(daemon_count_segments(&server), 0);
    daemon_finish(&server);
    ck_assert_int_eq(start("rm -rf %s", folder)->code, 0);
}

// Runs a worker with the first `bytes` bytes of the text and then `append`, after a reference run
// with the same `options`, and with --compare to it. `aule_options` are for the worker only. The
// caller frees the result with cJSON_Delete().
static cJSON *compared(uint32_t bytes, const char *append, const char *options,
                       const char *aule_options)
{
    const char *command = "head -c %u %s | %s --prompt - --append '%s' --json %s %s";
    char more[256];
    snprintf(more, sizeof more, "--reference --logits %s/logits 2>&1", folder);
    struct run *run = start(command, bytes, WORKER_TEXT, WORKER, append, options, more);
    ck_assert_msg(run->code == 0, "%s", run->output);
    cJSON *reference_report = cJSON_Parse(run->output);
    snprintf(more, sizeof more, "%s --socket %s --compare %s/logits 2>&1", aule_options,
             server.socket, folder);
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

// Frees the report.
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

// How far logits may be from the reference's; docs/operating.md has the same table. They differ by
// rounding ties: a value near the middle between two numbers of its type. A coarser type makes
// larger differences.
static const struct {
    enum aule_dtype dtype;
    double f32, f16, bf16, eight_bits; // by the type in which keys and values are stored
} tolerances[] = {
    {AULE_F32, 1e-4, 1e-3, 5e-3, 2e-2},
    {AULE_F16, 5e-3, 5e-3, 1e-2, 5e-2},
    {AULE_BF16, 2e-2, 2e-2, 2e-2, 1e-1},
};

static double tolerance(enum aule_dtype dtype, enum aule_dtype kv_dtype)
{
    const double by_kv[] = {[AULE_F32] = tolerances[dtype - AULE_F32].f32,
                            [AULE_F16] = tolerances[dtype - AULE_F32].f16,
                            [AULE_BF16] = tolerances[dtype - AULE_F32].bf16};
    ck_assert_int_eq(tolerances[dtype - AULE_F32].dtype, dtype);
    return kv_dtype > AULE_BF16 ? tolerances[dtype - AULE_F32].eight_bits : by_kv[kv_dtype];
}

// One of these for each test: a type in which keys and values are stored, and its scale.
static const struct {
    enum aule_dtype dtype;
    const char *scale; // NULL: it cannot have one
    uint32_t block_size;
} kinds[] = {
    {AULE_F32, NULL, 8},         {AULE_F16, NULL, 16},           {AULE_BF16, NULL, 32},
    {AULE_FP8_E4M3, "none", 64}, {AULE_FP8_E4M3, "tensor", 128}, {AULE_FP8_E4M3, "token_head", 256},
    {AULE_FP8_E5M2, "none", 8},  {AULE_FP8_E5M2, "tensor", 16},  {AULE_FP8_E5M2, "token_head", 32},
    {AULE_INT8, "none", 64},     {AULE_INT8, "tensor", 128},     {AULE_INT8, "token_head", 256},
};

enum { NUM_KINDS = sizeof kinds / sizeof *kinds };

// With this many bytes of the text, for every pair of types and in each step, the best logit leads
// by more than five times what the tolerance could change. So the ids must be equal.
enum { CLEAR_BYTES = 263, CLEAR_TOKENS = 3 };

static bool is_exact_in(enum aule_dtype dtype, const char *scale)
{
    return dtype == AULE_F32 || !scale || strcmp(scale, "none") == 0;
}

static void equals_the_reference(enum aule_dtype dtype, int kind)
{
    const double bound = tolerance(dtype, kinds[kind].dtype);
    const char *scale = kinds[kind].scale;
    char options[192];
    snprintf(options, sizeof options,
             "--tokens %d --dtype %s --kv-dtype %s --kv-scale %s --block-size %u --cache-name %s",
             CLEAR_TOKENS, aule_dtype_name(dtype), aule_dtype_name(kinds[kind].dtype),
             scale ? scale : "none", kinds[kind].block_size, aule_dtype_name(dtype));
    expect(compared(CLEAR_BYTES, "", options, ""), 0, bound);
    expect(compared(CLEAR_BYTES, "", options, ""),
           floor((double)CLEAR_BYTES / kinds[kind].block_size), bound);
    if (is_exact_in(dtype, scale))
        expect(compared(CLEAR_BYTES, "", options, "--path contiguous"), 0, bound);
}

START_TEST(every_kind_of_keys_and_values_gives_the_ids_of_the_reference)
{
    equals_the_reference(AULE_F32, _i);
    equals_the_reference(AULE_F16, _i);
    equals_the_reference(AULE_BF16, _i);
}
END_TEST

START_TEST(blocks_and_rows_give_the_same_bits)
{
    const char *dtype = aule_dtype_name(_i);
    const char *command = "head -c 300 %s | %s --prompt - --tokens 8 --chunk 100 --dtype %s "
                          "--kv-dtype %s --socket %s "
                          "--logits %s/%s --path %s 2>&1";
    struct run *run =
        start(command, WORKER_TEXT, WORKER, dtype, dtype, server.socket, folder, "blocks", "paged");
    ck_assert_msg(run->code == 0, "%s", run->output);
    run = start(command, WORKER_TEXT, WORKER, dtype, dtype, server.socket, folder, "rows",
                "contiguous");
    ck_assert_msg(run->code == 0, "%s", run->output);
    ck_assert_int_eq(start("cmp %s/blocks %s/rows", folder, folder)->code, 0);
}
END_TEST

START_TEST(rows_of_its_own_need_no_blocks_and_share_none)
{
    expect(compared(300, "", "--tokens 2", "--path contiguous"), 0, 1e-3);
    expect(compared(300, "", "--tokens 2", "--path contiguous"), 0, 1e-3);
    ck_assert_str_eq(start("%s status --json --socket %s | jq -c '[.num_caches, .pool_blocks]'",
                           CTL, server.socket)
                         ->output,
                     "[0,0]\n");
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
    struct run *run = start("for i in 1 2 3 4; do head -c 1000 %s | %s --prompt - --append \" $i\" "
                            "--json --socket %s & done | "
                            "jq -s 'map(.hit_blocks)' -c",
                            WORKER_TEXT, WORKER, server.socket);
    ck_assert_str_eq(run->output, "[31,31,31,31]\n");
}
END_TEST

START_TEST(another_identity_is_refused_with_both_values)
{
    expect(compared(100, "", "--tokens 1 --block-size 16", ""), 0, 1e-3);
    refused(start("%s --prompt %s --socket %s --block-size 64 2>&1", WORKER, WORKER_TEXT,
                  server.socket),
            EXIT_CODE_FAILED, "MISMATCH");
    ck_assert_ptr_nonnull(strstr(
        start("%s --prompt %s --socket %s --block-size 64 2>&1", WORKER, WORKER_TEXT, server.socket)
            ->output,
        "64"));
}
END_TEST

START_TEST(a_daemon_that_dies_ends_a_worker_with_a_sentence)
{
    char command[1024];
    snprintf(command, sizeof command, "%s --prompt %s --socket %s --tokens 100000 2>&1", WORKER,
             WORKER_TEXT, server.socket);
    FILE *pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    sleep(2);
    daemon_kill(&server);
    char line[1024] = "";
    ck_assert_ptr_nonnull(fgets(line, sizeof line, pipe));
    ck_assert_ptr_nonnull(strstr(line, "DAEMON_GONE"));
    const int status = pclose(pipe);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), EXIT_CODE_GONE);
    ck_assert(daemon_start(&server, NULL)); // removes what the killed one left
}
END_TEST

static void launch_small(void)
{
    launch((const char *const[]){"--max-blocks", "4", NULL});
}

START_TEST(a_pool_that_is_too_small_is_an_error_that_names_its_option)
{
    struct run *run = start("%s --prompt %s --socket %s 2>&1", WORKER, WORKER_TEXT, server.socket);
    refused(run, EXIT_CODE_FAILED, "making a step");
    ck_assert_msg(strstr(run->output, "--max-blocks"), "%s", run->output);
    expect(compared(60, "", "--tokens 2", ""), 0, 1e-3);
    expect(compared(300, "", "--tokens 2", "--path contiguous"), 0, 1e-3);
}
END_TEST

static void launch_small_arenas(void)
{
    launch((const char *const[]){"--max-arena", "2M", NULL});
}

START_TEST(an_arena_that_is_too_large_is_said_with_its_option)
{
    struct run *run = start("%s --prompt %s --socket %s --path contiguous 2>&1", WORKER,
                            WORKER_TEXT, server.socket);
    refused(run, EXIT_CODE_FAILED, "opening a session: an arena of ");
    ck_assert_msg(strstr(run->output, "--max-arena 2097152 (LIMIT)"), "%s", run->output);
    run = start("%s --json --prompt %s --socket %s --path contiguous 2>&1", WORKER, WORKER_TEXT,
                server.socket);
    refused_as_json(run, EXIT_CODE_FAILED, "LIMIT", "opening a session: an arena of ");
    expect(compared(60, "", "--tokens 2", "--path contiguous"), 0, 1e-3);
}
END_TEST

static Suite *worker_suite(void)
{
    Suite *suite = suite_create("worker");
    TCase *program = tcase_create("program");
    tcase_add_loop_test(program, a_wrong_command_line_is_said_in_one_sentence, 0,
                        sizeof bad_options / sizeof *bad_options);
    tcase_add_loop_test(program, a_wrong_command_line_is_a_document_wherever_json_stands, 0,
                        sizeof bad_options / sizeof *bad_options);
    tcase_add_test(program, with_json_a_failure_is_a_document);
    tcase_add_test(program, help_and_version_are_answered);
    tcase_add_test(program, a_prompt_that_cannot_be_read_is_an_error_of_one_sentence);
    tcase_add_test(program, without_a_daemon_its_socket_is_said_and_that_it_is_gone);
    tcase_add_test(program, logits_of_another_length_are_not_compared);
    tcase_add_test(
        program,
        files_of_logits_are_looked_at_before_anything_else_and_stay_as_they_are_when_the_run_fails);
    tcase_add_test(program, a_full_disk_is_noticed);
    tcase_add_test(program, a_terminal_is_told_how_far_it_is_and_the_line_goes_at_the_end);
    tcase_add_test(program, help_names_every_option_and_version_the_version);
    suite_add_tcase(suite, program);

    TCase *importing = tcase_create("daemon");
    tcase_add_checked_fixture(importing, launch_importing, stop);
    tcase_add_test(importing, tokens_and_logits_equal_the_reference_and_prefixes_are_found);
    tcase_add_test(importing, a_prompt_that_is_there_in_full_runs_its_last_token_again);
    check_loop(importing, every_kind_of_keys_and_values_gives_the_ids_of_the_reference, NUM_KINDS);
    tcase_add_loop_test(importing, blocks_and_rows_give_the_same_bits, AULE_F32, AULE_BF16 + 1);
    tcase_add_test(importing, rows_of_its_own_need_no_blocks_and_share_none);
    tcase_add_test(importing, tenants_and_caches_of_other_names_share_nothing);
    tcase_add_test(importing, workers_at_once_all_find_the_prefix);
    tcase_add_test(importing, another_identity_is_refused_with_both_values);
    tcase_add_test(importing, a_daemon_that_dies_ends_a_worker_with_a_sentence);
    suite_add_tcase(suite, importing);

    TCase *staging = tcase_create("daemon_staging");
    tcase_add_checked_fixture(staging, launch_staging, stop);
    tcase_add_test(staging, tokens_and_logits_equal_the_reference_and_prefixes_are_found);
    for (int kind = 1; kind < NUM_KINDS;
         kind += 4) // every type is written in the same way, so some are enough here
        tcase_add_loop_test(staging, every_kind_of_keys_and_values_gives_the_ids_of_the_reference,
                            kind, kind + 1);
    tcase_add_loop_test(staging, blocks_and_rows_give_the_same_bits, AULE_F32, AULE_BF16 + 1);
    suite_add_tcase(suite, staging);

    TCase *small = tcase_create("daemon_small");
    tcase_add_checked_fixture(small, launch_small, stop);
    tcase_add_test(small, a_pool_that_is_too_small_is_an_error_that_names_its_option);
    suite_add_tcase(suite, small);

    TCase *arenas = tcase_create("daemon_small_arenas");
    tcase_add_checked_fixture(arenas, launch_small_arenas, stop);
    tcase_add_test(arenas, an_arena_that_is_too_large_is_said_with_its_option);
    suite_add_tcase(suite, arenas);
    return suite;
}

int main(void)
{
    return check_main(worker_suite());
}
