// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ctl_world.c - see ctl_world.h.

#include "ctl_world.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_ARGUMENTS = 16 };

extern char **environ;

const char *const asking[NUM_ASKING] = {"status", "metrics",   "sessions", "caches", "blocks",
                                        "device", "log-level", "ping",     "prefix"};

// ---- running aule-ctl ----

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

struct outcome run_to(const char *out, const char *const *arguments)
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

void outcome_finish(struct outcome *outcome)
{
    free(outcome->out);
    free(outcome->err);
}

void assert_fails(struct outcome outcome, int code, const char *words)
{
    ck_assert_msg(outcome.code == code, "exit code %d, not %d: %s", outcome.code, code,
                  outcome.err);
    ck_assert_msg(strstr(outcome.err, words) != NULL, "\"%s\" lacks \"%s\"", outcome.err, words);
    ck_assert_int_eq(strncmp(outcome.err, "aule-ctl: ", 10), 0);
    ck_assert_ptr_eq(strchr(outcome.err, '\n'), outcome.err + strlen(outcome.err) - 1);
    ck_assert_str_eq(outcome.out, "");
    outcome_finish(&outcome);
}

cJSON *document(struct outcome outcome)
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

void assert_fails_as_json(struct outcome outcome, int code, const char *status, const char *words)
{
    const char *end = NULL;
    ck_assert_msg(outcome.code == code, "exit code %d, not %d: %s", outcome.code, code,
                  outcome.err);
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

double number(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    ck_assert_msg(cJSON_IsNumber(item), "%s is no number", key);
    return item->valuedouble;
}

const char *string(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    ck_assert_msg(cJSON_IsString(item), "%s is no string", key);
    return item->valuestring;
}

const cJSON *list(const cJSON *json, const char *key, int size)
{
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(json, key);
    ck_assert_msg(cJSON_IsArray(array), "%s is no array", key);
    ck_assert_int_eq(cJSON_GetArraySize(array), size);
    return array;
}

// ---- with a daemon ----

struct daemon server;
struct aule_session *session;
struct aule_cache *cache;

void start(void)
{
    ck_assert_int_eq(unsetenv("AULE_VARIANT"),
                     0); // the shaders' test needs the daemon's own choice
    ck_assert(daemon_launch(&server, NULL));
}

void stop(void)
{
    aule_cache_close(cache);
    aule_session_close(session);
    ck_assert_int_eq(daemon_stop(&server), 0);
    daemon_finish(&server);
}

struct aule_session *open_session(const char *name, const char *tenant)
{
    struct aule_session *opened = NULL;
    CHECK_OK(aule_session_open(&(struct aule_session_params){.socket = server.socket,
                                                             .name = name,
                                                             .tenant = tenant,
                                                             .arena_size = 1 << 20,
                                                             .timeout_ms = 60000},
                               &opened));
    return opened;
}

struct aule_cache *open_cache(const char *name)
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

void open_worker(const char *name)
{
    session = open_session(name, "tenant-a");
    cache = open_cache("model");
}

void publish_two_blocks(int32_t blocks[2])
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

void show_on_terminal(int columns, const char *view, const char *option, char *text, size_t size)
{
    const struct winsize screen = {.ws_row = 24, .ws_col = (unsigned short)columns};
    int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert_int_ge(terminal, 0);
    ck_assert_int_eq(grantpt(terminal), 0);
    ck_assert_int_eq(unlockpt(terminal), 0);
    ck_assert_int_eq(ioctl(terminal, TIOCSWINSZ, &screen), 0);
    int kept = open(ptsname(terminal),
                    O_RDWR | O_NOCTTY | O_CLOEXEC); // otherwise the output would be lost when its
                                                    // writer ends
    ck_assert_int_ge(kept, 0);
    struct outcome outcome = run_to(
        ptsname(terminal), (const char *const[]){view, "--socket", server.socket, option, NULL});
    ck_assert_msg(outcome.code == OK, "exit code %d: %s", outcome.code, outcome.err);
    outcome_finish(&outcome);
    // The kernel hands the output on piece by piece; a mark behind it tells where it ends.
    ck_assert_int_eq(write(kept, "\a", 1), 1);
    size_t used = 0;
    while (used == 0 || text[used - 1] != '\a') {
        ssize_t got = read(terminal, text + used, size - used);
        ck_assert_int_gt(got, 0);
        used += (size_t)got;
    }
    text[used - 1] = 0;
    close(kept);
    close(terminal);
}
