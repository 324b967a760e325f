// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_ctl.c - aule-ctl as a program: exit codes, the sentence on stderr, the JSON documents, and that what it shows is what
// sessions of this process did. Usage is tested without a daemon, the rest against a real one of the test's own.

#include "check_main.h"

#include "aule/aule.h"
#include "daemon_harness.h"
#include "quote.h"
#include "units.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OK, FAILED, USAGE, GONE }; // exit codes, as the man page has them
enum { BLOCK_SIZE = 8, HEAD_DIM = 8, MAX_ARGUMENTS = 16 };

extern char **environ;

// ---- running aule-ctl ----

struct outcome {
    int code;        // exit code; minus the signal's number
    char *out, *err; // what was written; owned
};

static char *take_text(int fd)
{
    off_t size = lseek(fd, 0, SEEK_END);
    ck_assert_int_ge(size, 0);
    char *text = calloc(1, (size_t)size + 1);
    ck_assert_ptr_nonnull(text);
    ck_assert_int_eq(pread(fd, text, (size_t)size, 0), size);
    close(fd);
    return text;
}

// `out` NULL = collect stdout; else the file that it goes to.
static struct outcome run_to(const char *out, const char *const *arguments)
{
    const char *argv[MAX_ARGUMENTS + 2] = {CTL};
    for (int i = 0; arguments[i]; i++) {
        ck_assert_int_lt(i, MAX_ARGUMENTS);
        argv[i + 1] = arguments[i];
    }
    int out_fd = out ? open(out, O_WRONLY | O_CLOEXEC) : memfd_create("out", MFD_CLOEXEC);
    int err_fd = memfd_create("err", MFD_CLOEXEC);
    ck_assert_int_ge(out_fd, 0);
    ck_assert_int_ge(err_fd, 0);
    posix_spawn_file_actions_t actions;
    ck_assert_int_eq(posix_spawn_file_actions_init(&actions), 0);
    ck_assert_int_eq(posix_spawn_file_actions_adddup2(&actions, out_fd, 1), 0);
    ck_assert_int_eq(posix_spawn_file_actions_adddup2(&actions, err_fd, 2), 0);
    pid_t pid;
    ck_assert_int_eq(posix_spawn(&pid, CTL, &actions, NULL, (char *const *)argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    struct outcome outcome = {.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status)};
    outcome.out = out ? NULL : take_text(out_fd);
    if (out)
        close(out_fd);
    outcome.err = take_text(err_fd);
    return outcome;
}

static void outcome_finish(struct outcome *outcome)
{
    free(outcome->out);
    free(outcome->err);
}

#define RUN(...) run_to(NULL, (const char *const[]){__VA_ARGS__, NULL})

// A failure says one sentence on stderr, with these words, and nothing on stdout. Ends the outcome.
static void assert_fails(struct outcome outcome, int code, const char *words)
{
    ck_assert_msg(outcome.code == code, "exit code %d, not %d: %s", outcome.code, code, outcome.err);
    ck_assert_msg(strstr(outcome.err, words) != NULL, "\"%s\" lacks \"%s\"", outcome.err, words);
    ck_assert_int_eq(strncmp(outcome.err, "aule-ctl: ", 10), 0);
    ck_assert_ptr_eq(strchr(outcome.err, '\n'), outcome.err + strlen(outcome.err) - 1);
    ck_assert_str_eq(outcome.out, "");
    outcome_finish(&outcome);
}

// Exit code 0, nothing on stderr, exactly one document, schema_version 1. Ends the outcome; the document is the caller's.
static cJSON *document(struct outcome outcome)
{
    const char *end = NULL;
    ck_assert_msg(outcome.code == OK, "exit code %d: %s", outcome.code, outcome.err);
    ck_assert_str_eq(outcome.err, "");
    cJSON *json = cJSON_ParseWithOpts(outcome.out, &end, 0);
    ck_assert_msg(json != NULL, "no JSON: %s", outcome.out);
    ck_assert_str_eq(end, "\n");
    ck_assert_double_eq(cJSON_GetNumberValue(cJSON_GetObjectItem(json, "schema_version")), 1);
    outcome_finish(&outcome);
    return json;
}

// With --json a failure is one document on stderr, of this status (NULL = of none), and nothing on stdout. Ends the outcome.
static void assert_fails_as_json(struct outcome outcome, int code, const char *status, const char *words)
{
    const char *end = NULL;
    ck_assert_msg(outcome.code == code, "exit code %d, not %d: %s", outcome.code, code, outcome.err);
    ck_assert_str_eq(outcome.out, "");
    cJSON *json = cJSON_ParseWithOpts(outcome.err, &end, 0);
    ck_assert_msg(json != NULL, "no JSON: %s", outcome.err);
    ck_assert_str_eq(end, "\n");
    const char *error = cJSON_GetStringValue(cJSON_GetObjectItem(json, "error"));
    const cJSON *name = cJSON_GetObjectItem(json, "status");
    ck_assert_msg(error && strstr(error, words), "\"%s\" lacks \"%s\"", error ? error : "", words);
    if (status)
        ck_assert_pstr_eq(cJSON_GetStringValue(name), status);
    else
        ck_assert(cJSON_IsNull(name));
    cJSON_Delete(json);
    outcome_finish(&outcome);
}

static double number(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    ck_assert_msg(cJSON_IsNumber(item), "%s is no number", key);
    return item->valuedouble;
}

static const char *string(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    ck_assert_msg(cJSON_IsString(item), "%s is no string", key);
    return item->valuestring;
}

static const cJSON *list(const cJSON *json, const char *key, int size)
{
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(json, key);
    ck_assert_msg(cJSON_IsArray(array), "%s is no array", key);
    ck_assert_int_eq(cJSON_GetArraySize(array), size);
    return array;
}

// ---- without a daemon ----

START_TEST(version_needs_no_daemon)
{
    struct outcome outcome = RUN("version");
    ck_assert_int_eq(outcome.code, OK);
    ck_assert_ptr_nonnull(strstr(outcome.out, aule_version()));
    outcome_finish(&outcome);
    outcome = RUN("--version");
    ck_assert_int_eq(outcome.code, OK);
    ck_assert_str_eq(outcome.out, "aule-ctl " AULE_VERSION_STRING "\n");
    outcome_finish(&outcome);
    cJSON *json = document(RUN("version", "--json"));
    ck_assert_str_eq(string(json, "version"), AULE_VERSION_STRING);
    ck_assert_str_eq(string(json, "library"), aule_version());
    cJSON_Delete(json);
}
END_TEST

static const char *const asking[] = {"status", "sessions", "caches", "blocks", "device", "tune", "ping"};

START_TEST(without_a_daemon_nothing_can_be_asked)
{
    assert_fails(RUN(asking[_i], "--socket", "/tmp/aule-test-nobody.sock"), GONE, "/tmp/aule-test-nobody.sock");
    assert_fails(RUN(asking[_i], "--socket=/tmp/aule-test-nobody.sock"), GONE,
                 "there is no such socket; aule-daemon --socket /tmp/aule-test-nobody.sock starts one");
    assert_fails_as_json(RUN("--json", asking[_i], "--socket=/tmp/aule-test-nobody.sock"), GONE, "DAEMON_GONE",
                         "/tmp/aule-test-nobody.sock");
}
END_TEST

START_TEST(a_daemon_is_advised_only_where_it_would_find_or_make_its_folder)
{
    assert_fails(RUN("ping", "--socket=/tmp/aule-test-nowhere/s"), GONE,
                 "aule-daemon --socket /tmp/aule-test-nowhere/s");
    assert_fails(RUN("ping", "--socket=/tmp/aule-test-nowhere/x/s"), GONE,
                 "the folder that it would be in is not there");
}
END_TEST

START_TEST(without_descriptors_nothing_can_be_asked)
{
    char text[1024] = "";
    FILE *shell = popen(
        "exec 2>&1 3>&- 4>&- 5>&- 6>&-; ulimit -n 4; exec " CTL " ping --socket /tmp/aule-test-nobody.sock", "re");
    ck_assert_ptr_nonnull(shell);
    ck_assert_uint_gt(fread(text, 1, sizeof text - 1, shell), 0);
    int status = pclose(shell);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == FAILED, "status 0x%x: %s", (unsigned)status, text);
    ck_assert_msg(strstr(text, "may have 4 (ulimit -n)") != NULL, "%s", text);
}
END_TEST

START_TEST(bad_usage_is_refused_with_the_offending_word)
{
    assert_fails(RUN("frobnicate"), USAGE, "\"frobnicate\" is no command");
    assert_fails(run_to(NULL, (const char *const[]){NULL}), USAGE, "name a command");
    assert_fails(RUN("status", "--cache", "x"), USAGE, "\"status\" takes no --cache");
    assert_fails(RUN("version", "--socket", "x"), USAGE, "\"version\" takes no --socket");
    assert_fails(RUN("status", "now"), USAGE, "\"status\" takes no arguments; there are 1");
    assert_fails(RUN("close-session"), USAGE, "takes one ID");
    assert_fails(RUN("ping", "--timeout", "soon"), USAGE, "--timeout soon");
    assert_fails(RUN("ping", "--timeout", "0"), USAGE, "--timeout 0");
    assert_fails(RUN("ping", "--timeout", "99999999999"), USAGE, "--timeout 99999999999");
    assert_fails(RUN("status", "--frob"), USAGE, "--frob is no option");
    assert_fails(RUN("status", "--json=yes"), USAGE, "--json=yes");
    assert_fails(RUN("ping", "--socket"), USAGE, "--socket lacks its value");
}
END_TEST

// Nobody listens there, and that is not what is said.
START_TEST(arguments_are_looked_at_before_the_daemon_is_asked)
{
    static const char socket[] = "--socket=/tmp/aule-test-nobody.sock";
    assert_fails(RUN("close-session", "seven", socket), USAGE, "\"seven\" is no session's id");
    assert_fails(RUN("tune", "harder", socket), USAGE, "tune \"harder\": there are show, renew, clear");
    assert_fails(RUN("blocks", "--state", "stolen", socket), USAGE, "--state stolen is no state");
    assert_fails_as_json(RUN("blocks", "--state", "stolen", socket, "--json"), USAGE, NULL, "--state stolen");
}
END_TEST

START_TEST(bad_usage_is_a_document_wherever_json_stands)
{
    assert_fails_as_json(RUN("frobnicate", "--json"), USAGE, NULL, "there are status");
    assert_fails_as_json(RUN("--json"), USAGE, NULL, "name a command");
    assert_fails_as_json(RUN("ping", "--timeout", "soon\xff", "--json"), USAGE, NULL, "--timeout soon?");
    assert_fails_as_json(RUN("--json", "status", "--frob"), USAGE, NULL, "--frob is no option");
    assert_fails(RUN("status", "--frob", "--", "--json"), USAGE, "--frob is no option");
}
END_TEST

START_TEST(help_lists_every_command_and_the_exit_codes)
{
    struct outcome outcome = RUN("--help");
    ck_assert_int_eq(outcome.code, OK);
    for (size_t i = 0; i < sizeof asking / sizeof *asking; i++)
        ck_assert_ptr_nonnull(strstr(outcome.out, asking[i]));
    ck_assert_ptr_nonnull(strstr(outcome.out, "close-session ID"));
    ck_assert_ptr_nonnull(strstr(outcome.out, "Exit codes: 0"));
    outcome_finish(&outcome);
    outcome = RUN("blocks", "--help");
    ck_assert_int_eq(outcome.code, OK);
    ck_assert_ptr_nonnull(strstr(outcome.out, "--state STATE"));
    outcome_finish(&outcome);
}
END_TEST

START_TEST(output_that_cannot_be_written_is_a_failure)
{
    struct outcome outcome = run_to("/dev/full", (const char *const[]){"version", NULL});
    ck_assert_int_eq(outcome.code, FAILED);
    ck_assert_ptr_nonnull(strstr(outcome.err, "could not be written"));
    outcome_finish(&outcome);
}
END_TEST

// Somebody listens, but is no daemon: nothing ever comes back.
START_TEST(a_listener_that_never_answers_is_given_up)
{
    char folder[] = "/tmp/aule-test-ctl.XXXXXX", deadline[] = "300";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/sock", folder);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    time_t start = time(NULL);
    struct outcome outcome = RUN("ping", "--socket", address.sun_path, "--timeout", deadline);
    ck_assert_int_eq(outcome.code, GONE);
    ck_assert_uint_gt(strlen(outcome.err), 20);
    ck_assert_int_lt(time(NULL) - start, 100);
    outcome_finish(&outcome);
    close(fd);
    unlink(address.sun_path);
    rmdir(folder);
}
END_TEST

START_TEST(numbers_are_shown_as_people_read_them)
{
    char text[UNITS_SIZE];
    ck_assert_str_eq(units_bytes(0, text), "0 B");
    ck_assert_str_eq(units_bytes(1023, text), "1023 B");
    ck_assert_str_eq(units_bytes(1536, text), "1.5 KiB");
    ck_assert_str_eq(units_bytes((UINT64_C(1) << 30) - 1, text), "1.0 GiB");
    ck_assert_str_eq(units_bytes(UINT64_MAX, text), "16.0 EiB");
    ck_assert_str_eq(units_count(9999, text), "9999");
    ck_assert_str_eq(units_count(12345, text), "12.3 k");
    ck_assert_str_eq(units_count(999999, text), "1.0 M");
    ck_assert_str_eq(units_ms(999, text), "999 ms");
    ck_assert_str_eq(units_ms(12340, text), "12.3 s");
    ck_assert_str_eq(units_ms(200000, text), "3 min 20 s");
    ck_assert_str_eq(units_ms(3600000, text), "1 h 0 min");
    ck_assert_str_eq(units_ms(UINT64_C(360000000), text), "4 d 4 h");
    ck_assert_str_eq(units_ns(850, text), "850 ns");
    ck_assert_str_eq(units_ns(12345, text), "12.3 us");
    ck_assert_str_eq(units_ns(1500000000, text), "1.5 s");
}
END_TEST

START_TEST(what_is_quoted_for_a_shell_is_the_word_itself)
{
    static const char *const words[] = {"model", "/tmp/0.sock",      "",  "a b",      "it's",
                                        "''",    "$HOME `ls` \\ \"", "~", "\xc3\xa4", "a\nb"};
    char quoted[QUOTE_SIZE(32)], command[128], said[64] = "";
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        snprintf(command, sizeof command, "printf %%s %s", quote(quoted, sizeof quoted, words[i]));
        FILE *shell = popen(command, "re");
        ck_assert_ptr_nonnull(shell);
        said[fread(said, 1, sizeof said - 1, shell)] = '\0';
        ck_assert_int_eq(pclose(shell), 0);
        ck_assert_str_eq(said, words[i]);
    }
    ck_assert_str_eq(quote(quoted, sizeof quoted, "/tmp/0.sock"), "/tmp/0.sock");
    ck_assert_str_eq(quote(quoted, QUOTE_SIZE(1), "a''"), "'a'"); // what is cut is still one word
}
END_TEST

// ---- with a daemon: one a test, and one worker in this process ----

static struct daemon server;
static struct aule_session *session;
static struct aule_cache *cache;

#define ASK(...) RUN(__VA_ARGS__, "--socket", server.socket)
#define CHECK_OK(call)                                                                                                 \
    do {                                                                                                               \
        enum aule_status check_status = (call);                                                                        \
        ck_assert_msg(check_status == AULE_OK, "%s: %s", aule_status_name(check_status), aule_error());                \
    } while (0)

static void start(void)
{
    ck_assert_int_eq(unsetenv("AULE_VARIANT"), 0); // the shaders' test wants the choice to be the daemon's
    ck_assert(daemon_launch(&server, NULL));
}

static void stop(void)
{
    aule_cache_close(cache);
    aule_session_close(session);
    ck_assert_int_eq(daemon_stop(&server), 0);
    daemon_finish(&server);
}

static struct aule_session *open_session(const char *name, const char *tenant)
{
    struct aule_session *opened = NULL;
    CHECK_OK(aule_session_open(
        &(struct aule_session_params){
            .socket = server.socket, .name = name, .tenant = tenant, .arena_size = 1 << 20, .timeout_ms = 60000},
        &opened));
    return opened;
}

static struct aule_cache *open_cache(const char *name)
{
    struct aule_cache *opened = NULL;
    CHECK_OK(aule_cache_open(session,
                             &(struct aule_cache_params){.name = name,
                                                         .num_layers = 1,
                                                         .num_kv_heads = 1,
                                                         .head_dim = HEAD_DIM,
                                                         .k_dtype = AULE_F32,
                                                         .v_dtype = AULE_F32,
                                                         .block_size = BLOCK_SIZE,
                                                         .fingerprint = "rev\xff",
                                                         .fingerprint_size = 4},
                             &opened));
    return opened;
}

static void open_worker(const char *name)
{
    session = open_session(name, "tenant-a");
    cache = open_cache("model");
}

// One sequence of two blocks through one run; the blocks are published and looked up: 16 tokens asked, 16 found.
static void publish_two_blocks(int32_t blocks[2])
{
    enum { TOKENS = 2 * BLOCK_SIZE };
    int32_t tokens[TOKENS], cu_seqlens_q[] = {0, TOKENS}, seq_lens_kv[] = {TOKENS}, found[2];
    int64_t slots[TOKENS];
    CHECK_OK(aule_blocks_lease(cache, 2, 60000, blocks));
    for (int i = 0; i < TOKENS; i++) {
        tokens[i] = 100 + i;
        slots[i] = (int64_t)blocks[i / BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE;
    }
    struct aule_batch *batch = NULL;
    CHECK_OK(aule_batch_create(cache,
                               &(struct aule_batch_params){.num_seqs = 1,
                                                           .max_blocks = 2,
                                                           .cu_seqlens_q = cu_seqlens_q,
                                                           .seq_lens_kv = seq_lens_kv,
                                                           .block_table = blocks,
                                                           .slot_mapping = slots},
                               &batch));
    struct aule_run_params run = {.num_heads = 1, .causal = true};
    struct aule_tensor *tensors[] = {&run.q, &run.k, &run.v, &run.out};
    for (size_t i = 0; i < 4; i++) {
        CHECK_OK(aule_tensor_create(session, AULE_F32, TOKENS, 1, HEAD_DIM, tensors[i]));
        memset(aule_tensor_data(session, tensors[i]), 0, sizeof(float) * TOKENS * HEAD_DIM);
    }
    CHECK_OK(aule_run(batch, &run, 60000, NULL));
    aule_batch_destroy(batch);
    struct aule_prefix prefix = {.tokens = tokens, .num_tokens = TOKENS};
    uint32_t num_blocks = 0;
    CHECK_OK(aule_prefix_publish(cache, &prefix, blocks, NULL));
    CHECK_OK(aule_prefix_lookup(cache, &prefix, 0, found, &num_blocks));
    ck_assert_uint_eq(num_blocks, 2);
    ck_assert_int_eq(found[1], blocks[1]);
}

START_TEST(every_command_prints_one_document)
{
    cJSON_Delete(document(ASK(asking[_i], "--json")));
    struct outcome outcome = ASK(asking[_i]);
    ck_assert_msg(outcome.code == OK, "%s", outcome.err);
    ck_assert_uint_gt(strlen(outcome.out), 10);
    outcome_finish(&outcome);
}
END_TEST

START_TEST(the_socket_may_come_from_the_environment)
{
    ck_assert_int_eq(setenv("AULE_SOCKET", server.socket, 1), 0);
    cJSON *json = document(RUN("ping", "--json"));
    ck_assert_str_eq(string(json, "version"), AULE_VERSION_STRING);
    ck_assert_uint_eq(strlen(string(json, "epoch")), 16);
    ck_assert_double_gt(number(json, "round_trip_ns"), 0);
    ck_assert_double_ge(number(json, "protocol_major"), 1);
    cJSON_Delete(json);
}
END_TEST

START_TEST(status_shows_what_the_workers_did)
{
    int32_t blocks[2];
    cJSON *json = document(ASK("status", "--json"));
    ck_assert_double_eq(number(json, "num_sessions"), 0);
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(json, "prefix_hit_rate")));
    cJSON_Delete(json);
    open_worker("worker");
    publish_two_blocks(blocks);
    json = document(ASK("status", "--json"));
    ck_assert_double_eq(number(json, "pid"), server.pid);
    ck_assert_str_eq(string(json, "socket"), server.socket);
    ck_assert_double_eq(number(json, "num_sessions"), 1);
    ck_assert_double_eq(number(json, "num_caches"), 1);
    ck_assert_double_eq(number(json, "runs_done"), 1);
    ck_assert_double_eq(number(json, "runs_failed"), 0);
    ck_assert_double_eq(number(json, "dispatches"), 1);
    ck_assert_double_eq(number(json, "max_sessions_per_dispatch"), 1);
    ck_assert_double_eq(number(json, "sessions_served"), 1);
    ck_assert_double_eq(number(json, "dispatches_of_1"), 1);
    ck_assert_double_eq(number(json, "dispatches_of_2"), 0);
    ck_assert_double_eq(number(json, "lookups"), 1);
    ck_assert_double_eq(number(json, "lookup_tokens"), 2 * BLOCK_SIZE);
    ck_assert_double_eq(number(json, "hit_tokens"), 2 * BLOCK_SIZE);
    ck_assert_double_eq(number(json, "prefix_hit_rate"), 1);
    ck_assert_double_eq(number(json, "held_blocks"), 2);
    ck_assert_double_eq(number(json, "free_blocks") + number(json, "leased_blocks") + number(json, "held_blocks") +
                            number(json, "cached_blocks") + number(json, "quarantined_blocks"),
                        number(json, "pool_blocks"));
    cJSON_Delete(json);
    struct outcome outcome = ASK("status");
    ck_assert_ptr_nonnull(strstr(outcome.out, "16 of 16 tokens were hits (100.0 %)"));
    ck_assert_ptr_nonnull(
        strstr(outcome.out, "sharing   1.00 sessions a dispatch, at most 1\n          dispatches for 1: 1, for 2: 0,"));
    outcome_finish(&outcome);
}
END_TEST

START_TEST(caches_show_shape_states_and_what_is_published)
{
    int32_t blocks[2];
    open_worker("worker");
    publish_two_blocks(blocks);
    cJSON *json = document(ASK("caches", "--json"));
    const cJSON *entry = cJSON_GetArrayItem(list(json, "caches", 1), 0);
    ck_assert_str_eq(string(entry, "name"), "model");
    ck_assert_str_eq(string(entry, "fingerprint"), "726576ff");
    ck_assert_str_eq(string(entry, "k_dtype"), "f32");
    ck_assert_str_eq(string(entry, "scale_mode"), "none");
    ck_assert_double_eq(number(entry, "head_dim_v"), HEAD_DIM);
    ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(entry, "v_is_k_prefix")));
    ck_assert_double_eq(number(entry, "block_size"), BLOCK_SIZE);
    ck_assert_double_eq(number(entry, "head_dim"), HEAD_DIM);
    ck_assert_double_eq(number(entry, "block_bytes"), sizeof(float) * 2 * BLOCK_SIZE * HEAD_DIM);
    ck_assert_double_eq(number(entry, "open_sessions"), 1);
    ck_assert_double_eq(number(entry, "published_blocks"), 2);
    ck_assert_double_eq(number(entry, "pending_blocks"), 0);
    ck_assert_double_eq(number(entry, "held_blocks"), 2);
    ck_assert_double_eq(number(entry, "free_blocks") + number(entry, "leased_blocks") + number(entry, "held_blocks") +
                            number(entry, "cached_blocks") + number(entry, "quarantined_blocks"),
                        number(entry, "total_blocks"));
    cJSON_Delete(json);
}
END_TEST

// What aule-ctl writes to a terminal of so many columns.
static void show_on_terminal(int columns, const char *view, char *text, size_t size)
{
    const struct winsize screen = {.ws_row = 24, .ws_col = (unsigned short)columns};
    int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert_int_ge(terminal, 0);
    ck_assert_int_eq(grantpt(terminal), 0);
    ck_assert_int_eq(unlockpt(terminal), 0);
    ck_assert_int_eq(ioctl(terminal, TIOCSWINSZ, &screen), 0);
    int kept = open(ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC); // or what was written would go with its writer
    ck_assert_int_ge(kept, 0);
    struct outcome outcome = run_to(ptsname(terminal), (const char *const[]){view, "--socket", server.socket, NULL});
    ck_assert_msg(outcome.code == OK, "exit code %d: %s", outcome.code, outcome.err);
    outcome_finish(&outcome);
    ssize_t got = read(terminal, text, size - 1);
    ck_assert_int_gt(got, 0);
    text[got] = 0;
    close(kept);
    close(terminal);
}

START_TEST(a_narrow_terminal_gets_the_same_columns_in_parts)
{
    char text[8192];
    static const char *const headings[] = {"layers", "KV heads", "scales", "chunks", "quarantined", "fingerprint"};
    open_worker("worker");
    show_on_terminal(60, "caches", text, sizeof text);
    for (size_t i = 0; i < sizeof headings / sizeof *headings; i++)
        ck_assert_msg(strstr(text, headings[i]) != NULL, "%s lacks %s", text, headings[i]);
    ck_assert_msg(strstr(text, "MLA") == NULL, "a column that says no in every line: %s", text);
    int parts = 0;
    for (char *line = strtok(text, "\r\n"); line; line = strtok(NULL, "\r\n")) {
        ck_assert_msg(strlen(line) <= 60, "wider than 60: %s", line);
        ck_assert_msg(strncmp(line, "id  name ", 9) == 0 || strstr(line, "  model  ") == line + 2, "whose line? %s",
                      line);
        parts += strncmp(line, "id ", 3) == 0;
    }
    ck_assert_int_ge(parts, 3);
}
END_TEST

START_TEST(words_that_a_narrow_terminal_has_no_room_for_go_on_below)
{
    char text[8192];
    show_on_terminal(60, "device", text, sizeof text);
    ck_assert_msg(
        strstr(text, "  to be named, for it is for tests:\r\n                       what matrix does, with") != NULL,
        "%s", text);
    for (char *line = strtok(text, "\r\n"); line; line = strtok(NULL, "\r\n"))
        ck_assert_msg(strlen(line) <= 60, "wider than 60: %s", line);
}
END_TEST

START_TEST(caches_show_scales_and_mla)
{
    const struct aule_cache_params mla = {.name = "mla",
                                          .num_layers = 1,
                                          .num_kv_heads = 1,
                                          .head_dim = 32,
                                          .head_dim_v = 16,
                                          .v_is_k_prefix = true,
                                          .k_dtype = AULE_INT8,
                                          .v_dtype = AULE_INT8,
                                          .scale_mode = AULE_SCALE_PER_TOKEN_HEAD,
                                          .block_size = BLOCK_SIZE};
    session = open_session("worker", NULL);
    CHECK_OK(aule_cache_open(session, &mla, &cache));
    cJSON *json = document(ASK("caches", "--json"));
    const cJSON *entry = cJSON_GetArrayItem(list(json, "caches", 1), 0);
    ck_assert_str_eq(string(entry, "scale_mode"), "token_head");
    ck_assert_str_eq(string(entry, "fingerprint"), "");
    ck_assert_double_eq(number(entry, "head_dim_v"), 16);
    ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(entry, "v_is_k_prefix")));
    cJSON_Delete(json);
    struct outcome outcome = ASK("caches");
    static const char *const words[] = {"K dim", "V dim", "MLA", "scales", "token_head", "int8", "32", "16", "yes"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        ck_assert_msg(strstr(outcome.out, words[i]) != NULL, "%s lacks %s", outcome.out, words[i]);
    outcome_finish(&outcome);
}
END_TEST

// Names come from other processes: a terminal must not obey them, and a document must stay JSON.
START_TEST(names_reach_neither_the_terminal_nor_the_document_raw)
{
    session = open_session("evil\x1b[31m\xff\xc3\xa9", "tenant\"b");
    struct outcome outcome = ASK("sessions");
    ck_assert_int_eq(outcome.code, OK);
    ck_assert_ptr_nonnull(strstr(outcome.out, "evil?[31m?\xc3\xa9"));
    ck_assert_ptr_null(strchr(outcome.out, 0x1b));
    outcome_finish(&outcome);
    cJSON *json = document(ASK("sessions", "--json"));
    const cJSON *entry = cJSON_GetArrayItem(list(json, "sessions", 1), 0);
    ck_assert_str_eq(string(entry, "name"), "evil\x1b[31m?\xc3\xa9");
    ck_assert_str_eq(string(entry, "tenant"), "tenant\"b");
    ck_assert_double_eq(number(entry, "pid"), getpid());
    ck_assert_double_eq(number(entry, "uid"), getuid());
    ck_assert_double_eq(number(entry, "arena_bytes"), 1 << 20);
    cJSON_Delete(json);
}
END_TEST

static void assert_blocks(int count, struct outcome outcome)
{
    cJSON *json = document(outcome);
    list(json, "blocks", count);
    cJSON_Delete(json);
}

START_TEST(blocks_can_be_chosen_by_cache_and_state)
{
    int32_t blocks[2], leased[3];
    open_worker("worker");
    publish_two_blocks(blocks);
    CHECK_OK(aule_blocks_lease(cache, 3, 60000, leased));
    struct aule_cache_state state;
    CHECK_OK(aule_cache_state(cache, &state));

    assert_blocks((int)state.total_blocks, ASK("blocks", "--json"));
    assert_blocks((int)state.free_blocks, ASK("blocks", "--json", "--state", "free"));
    assert_blocks(0, ASK("blocks", "--json", "--state", "quarantined"));
    cJSON *json = document(ASK("blocks", "--json", "--state", "leased", "--cache", "model"));
    const cJSON *entry, *leases = list(json, "blocks", 3);
    struct aule_session_info info;
    CHECK_OK(aule_session_info(session, &info));
    cJSON_ArrayForEach(entry, leases)
    {
        ck_assert_str_eq(string(entry, "cache_name"), "model");
        ck_assert_str_eq(string(entry, "state"), "leased");
        ck_assert_double_eq(number(entry, "writer"), (double)info.session);
        ck_assert_double_eq(number(entry, "depth"), -1);
    }
    char id[32];
    snprintf(id, sizeof id, "%.0f", number(cJSON_GetArrayItem(leases, 0), "cache"));
    cJSON_Delete(json);

    json = document(ASK("blocks", "--json", "--state", "held", "--cache", id));
    const cJSON *held = list(json, "blocks", 2);
    ck_assert_double_eq(number(cJSON_GetArrayItem(held, 0), "depth") + number(cJSON_GetArrayItem(held, 1), "depth"), 1);
    cJSON_Delete(json);
}
END_TEST

START_TEST(a_cache_or_state_that_is_none_is_refused)
{
    open_worker("worker");
    assert_fails(ASK("blocks", "--cache", "nothing"), FAILED, "no cache \"nothing\" among its 1");
    assert_fails(ASK("blocks", "--cache", "987654321"), FAILED, "no cache \"987654321\"");
    assert_fails(ASK("blocks", "--state", "lost"), USAGE, "--state lost");
    assert_fails_as_json(ASK("blocks", "--cache", "nothing", "--json"), FAILED, NULL, "no cache \"nothing\"");
}
END_TEST

// A cache may be called like the number of another one.
START_TEST(a_cache_is_known_by_its_name_before_its_id)
{
    char id[32];
    open_worker("worker");
    cJSON *json = document(ASK("caches", "--json"));
    snprintf(id, sizeof id, "%.0f", number(cJSON_GetArrayItem(list(json, "caches", 1), 0), "cache"));
    cJSON_Delete(json);
    struct aule_cache *confusing = open_cache(id);
    int32_t block;
    CHECK_OK(aule_blocks_lease(confusing, 1, 60000, &block));
    json = document(ASK("blocks", "--json", "--cache", id, "--state", "leased"));
    ck_assert_str_eq(string(cJSON_GetArrayItem(list(json, "blocks", 1), 0), "cache_name"), id);
    cJSON_Delete(json);
    aule_cache_close(confusing);
}
END_TEST

START_TEST(device_says_what_the_daemon_runs_on)
{
    session = open_session("worker", NULL);
    struct aule_session_info info;
    CHECK_OK(aule_session_info(session, &info));
    cJSON *json = document(ASK("device", "--json"));
    ck_assert_str_eq(string(json, "name"), info.device_name);
    ck_assert_uint_eq(strlen(string(json, "uuid")), 36);
    ck_assert_int_eq(strncmp(string(json, "api_version"), "1.", 2), 0);
    ck_assert_double_gt(number(json, "heap_bytes"), 0);
    ck_assert(cJSON_IsBool(cJSON_GetObjectItem(json, "software")));
    cJSON_Delete(json);
}
END_TEST

// Exactly one shader is used: the first that the device can run, because none is forced here.
START_TEST(device_shows_every_shader_and_why_it_is_used_or_not)
{
    cJSON *json = document(ASK("device", "--json"));
    const cJSON *entry, *variants = cJSON_GetObjectItem(json, "variants");
    int used = 0, usable = 0;
    ck_assert_int_ge(cJSON_GetArraySize(variants), 2);
    struct outcome outcome = ASK("device");
    cJSON_ArrayForEach(entry, variants)
    {
        bool is_used = cJSON_IsTrue(cJSON_GetObjectItem(entry, "used"));
        bool lacks = string(entry, "missing")[0] != '\0';
        const char *why = lacks ? string(entry, "missing") : is_used ? "the best" : "a better one";
        ck_assert_msg(strstr(string(entry, "why"), why) != NULL, "\"%s\" lacks %s", string(entry, "why"), why);
        ck_assert_int_eq(is_used, !lacks && usable == 0);
        if (is_used)
            ck_assert_str_eq(string(entry, "name"), string(json, "variant"));
        used += is_used;
        usable += !lacks;
        ck_assert_ptr_nonnull(strstr(outcome.out, string(entry, "name")));
        ck_assert_ptr_nonnull(strstr(outcome.out, string(entry, "why")));
    }
    ck_assert_int_eq(used, 1);
    outcome_finish(&outcome);
    cJSON_Delete(json);
}
END_TEST

// The last of the table asks least of a device, so that each can run it.
START_TEST(a_forced_shader_is_said_to_be_forced)
{
    cJSON *json = document(ASK("device", "--json"));
    const cJSON *variants = cJSON_GetObjectItem(json, "variants");
    int last = cJSON_GetArraySize(variants) - 1;
    char name[64];
    snprintf(name, sizeof name, "%s", string(cJSON_GetArrayItem(variants, last), "name"));
    cJSON_Delete(json);
    ck_assert_int_eq(daemon_stop(&server), 0);
    ck_assert(daemon_start(&server, (const char *const[]){"--variant", name, NULL}));
    json = document(ASK("device", "--json"));
    ck_assert_str_eq(string(json, "variant"), name);
    const cJSON *entry;
    bool first = true;
    int num_used = 0;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(json, "variants"))
    {
        if (string(entry, "missing")[0])
            continue;
        bool used = strcmp(string(entry, "name"), name) == 0;
        ck_assert_int_eq(cJSON_IsTrue(cJSON_GetObjectItem(entry, "used")), used);
        ck_assert_str_eq(string(entry, "why"), !used   ? "another one is forced"
                                               : first ? "the best that this device can run"
                                                       : "forced");
        first = false;
        num_used += used;
    }
    ck_assert_int_eq(num_used, 1); // what is used is nothing that the device lacks something for
    cJSON_Delete(json);
}
END_TEST

START_TEST(close_session_ends_the_session_and_gives_its_blocks_back)
{
    char id[32];
    int32_t blocks[3];
    open_worker("worker");
    CHECK_OK(aule_blocks_lease(cache, 3, 60000, blocks));
    struct aule_session_info info;
    CHECK_OK(aule_session_info(session, &info));
    snprintf(id, sizeof id, "%" PRIu64, info.session);
    cJSON *json = document(ASK("close-session", id, "--json"));
    ck_assert_double_eq(number(json, "closed_session"), (double)info.session);
    cJSON_Delete(json);
    ck_assert_int_ne(aule_blocks_lease(cache, 1, 60000, blocks), AULE_OK);
    json = document(ASK("status", "--json"));
    ck_assert_double_eq(number(json, "leased_blocks"), 0);
    ck_assert_double_eq(number(json, "num_sessions"), 0);
    cJSON_Delete(json);
    assert_fails(ASK("close-session", id), FAILED, id);
}
END_TEST

START_TEST(close_session_refuses_what_is_no_session)
{
    assert_fails(ASK("close-session", "123456"), FAILED, "123456");
    assert_fails_as_json(ASK("close-session", "123456", "--json"), FAILED, "NOT_FOUND", "123456");
    assert_fails(ASK("close-session", "x1"), USAGE, "\"x1\" is no session's id");
    assert_fails(ASK("close-session", "-1"), USAGE, "-1");
    assert_fails(ASK("close-session", "99999999999999999999"), USAGE, "99999999999999999999");
}
END_TEST

static enum aule_status open_otherwise(const char *name)
{
    return aule_cache_open(
        session,
        &(struct aule_cache_params){
            .name = name, .num_layers = 2, .num_kv_heads = 1, .head_dim = HEAD_DIM, .block_size = BLOCK_SIZE},
        &cache);
}

// What is cached outlives its sessions, and keeps the name from another model until it is dropped.
START_TEST(drop_cache_ends_what_nobody_has_open)
{
    int32_t blocks[2];
    open_worker("worker");
    publish_two_blocks(blocks);
    assert_fails(ASK("drop-cache", "model"), FAILED,
                 "\"model\" is open in 1 session (BUSY); aule-ctl sessions --socket ");
    assert_fails_as_json(ASK("drop-cache", "model", "--json"), FAILED, "BUSY", "is open in 1 session");
    aule_cache_close(cache);
    cache = NULL;
    cJSON *json = document(ASK("caches", "--json"));
    const cJSON *entry = cJSON_GetArrayItem(list(json, "caches", 1), 0);
    ck_assert_double_eq(number(entry, "cached_blocks"), 2);
    const double id = number(entry, "cache");
    cJSON_Delete(json);
    json = document(ASK("drop-cache", "model", "--json"));
    ck_assert_double_eq(number(json, "dropped_cache"), id);
    cJSON_Delete(json);
    json = document(ASK("status", "--json"));
    ck_assert_double_eq(number(json, "num_caches"), 0);
    ck_assert_double_eq(number(json, "pool_blocks"), 0);
    cJSON_Delete(json);
    assert_fails(ASK("drop-cache", "model"), FAILED, "no cache \"model\" among its 0");
    CHECK_OK(open_otherwise("model"));
}
END_TEST

static const char *const odd_names[] = {"model", "the model's \"$HOME\"", "-7", "--json"};

// As it stands in a terminal, with nothing in the environment that says where the daemon is.
START_TEST(the_command_that_drops_a_cache_in_the_way_works_as_it_is_told)
{
    char command[2048];
    int32_t blocks[2];
    session = open_session("worker", NULL);
    cache = open_cache(odd_names[_i]);
    publish_two_blocks(blocks);
    aule_cache_close(cache);
    ck_assert_int_eq(open_otherwise(odd_names[_i]), AULE_MISMATCH);
    const char *told = strstr(aule_error(), "drop it: aule-ctl ");
    ck_assert_msg(told != NULL, "%s", aule_error());
    snprintf(command, sizeof command, "%s %s >/dev/null", CTL, told + strlen("drop it: aule-ctl "));
    ck_assert_msg(system(command) == 0, "%s", command); // NOLINT(cert-env33-c): a shell is what is tested
    CHECK_OK(open_otherwise(odd_names[_i]));
}
END_TEST

START_TEST(commands_that_a_complaint_names_ask_the_same_daemon)
{
    char words[512];
    snprintf(words, sizeof words, "aule-ctl sessions --socket %s and aule-ctl caches --socket %s list what there is",
             server.socket, server.socket);
    assert_fails(ASK("close-session", "123456"), FAILED, words);
    snprintf(words, sizeof words, "aule-ctl caches --socket %s lists them", server.socket);
    assert_fails(ASK("drop-cache", "none"), FAILED, words);
    assert_fails(RUN("close-session", "--socket", "/tmp/a b", "x"), USAGE,
                 "; aule-ctl sessions --socket '/tmp/a b' lists");
    ck_assert_int_eq(setenv("AULE_SOCKET", server.socket, 1), 0);
    assert_fails(RUN("drop-cache", "none"), FAILED, "; aule-ctl caches lists them");
    ck_assert_int_eq(unsetenv("AULE_SOCKET"), 0);
}
END_TEST

static Suite *ctl_suite(void)
{
    Suite *suite = suite_create("ctl");
    const int num_asking = sizeof asking / sizeof *asking;
    TCase *tests = tcase_create("without a daemon");
    tcase_add_test(tests, version_needs_no_daemon);
    tcase_add_loop_test(tests, without_a_daemon_nothing_can_be_asked, 0, num_asking);
    tcase_add_test(tests, a_daemon_is_advised_only_where_it_would_find_or_make_its_folder);
    tcase_add_test(tests, without_descriptors_nothing_can_be_asked);
    tcase_add_test(tests, bad_usage_is_refused_with_the_offending_word);
    tcase_add_test(tests, arguments_are_looked_at_before_the_daemon_is_asked);
    tcase_add_test(tests, bad_usage_is_a_document_wherever_json_stands);
    tcase_add_test(tests, help_lists_every_command_and_the_exit_codes);
    tcase_add_test(tests, output_that_cannot_be_written_is_a_failure);
    tcase_add_test(tests, a_listener_that_never_answers_is_given_up);
    tcase_add_test(tests, numbers_are_shown_as_people_read_them);
    tcase_add_test(tests, what_is_quoted_for_a_shell_is_the_word_itself);
    suite_add_tcase(suite, tests);

    tests = tcase_create("with a daemon");
    tcase_add_checked_fixture(tests, start, stop);
    tcase_add_loop_test(tests, every_command_prints_one_document, 0, num_asking);
    tcase_add_test(tests, the_socket_may_come_from_the_environment);
    tcase_add_test(tests, status_shows_what_the_workers_did);
    tcase_add_test(tests, caches_show_shape_states_and_what_is_published);
    tcase_add_test(tests, caches_show_scales_and_mla);
    tcase_add_test(tests, a_narrow_terminal_gets_the_same_columns_in_parts);
    tcase_add_test(tests, words_that_a_narrow_terminal_has_no_room_for_go_on_below);
    tcase_add_test(tests, names_reach_neither_the_terminal_nor_the_document_raw);
    tcase_add_test(tests, blocks_can_be_chosen_by_cache_and_state);
    tcase_add_test(tests, a_cache_or_state_that_is_none_is_refused);
    tcase_add_test(tests, a_cache_is_known_by_its_name_before_its_id);
    tcase_add_test(tests, device_says_what_the_daemon_runs_on);
    tcase_add_test(tests, device_shows_every_shader_and_why_it_is_used_or_not);
    tcase_add_test(tests, a_forced_shader_is_said_to_be_forced);
    tcase_add_test(tests, close_session_ends_the_session_and_gives_its_blocks_back);
    tcase_add_test(tests, close_session_refuses_what_is_no_session);
    tcase_add_test(tests, drop_cache_ends_what_nobody_has_open);
    tcase_add_loop_test(tests, the_command_that_drops_a_cache_in_the_way_works_as_it_is_told, 0,
                        sizeof odd_names / sizeof *odd_names);
    tcase_add_test(tests, commands_that_a_complaint_names_ask_the_same_daemon);
    suite_add_tcase(suite, tests);
    return suite;
}

int main(void)
{
    return check_main(ctl_suite());
}
