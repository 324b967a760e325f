// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// redis_world.c - see redis_world.h.

#include "redis_world.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct redis_world world;
static pthread_mutex_t said_lock = PTHREAD_MUTEX_INITIALIZER;

enum {
    LONG_MS = 60000,
    PATIENT_MS = 20000, // on a busy machine a server may have no processor for a while
};

// ---- servers ----

bool redis_server_is_there(void)
{
    return system("command -v redis-server >/dev/null 2>&1") == 0;
}

static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, size), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    close(fd);
    const int port = ntohs(address.sin_port);
    // A cluster's servers talk to each other on this port and 10000.
    return port + 10000 <= UINT16_MAX ? port : port - 10000;
}

static void become_server(const struct redis_server *server, const char *const *arguments)
{
    const char *words[64] = {
        "redis-server", "--bind", "127.0.0.1",    "--save",  "",
        "--appendonly", "no",     "--loglevel",   "warning", "--enable-debug-command",
        "yes",          "--dir",  server->folder, "--port",
    };
    char port[8];
    int count = 14;
    snprintf(port, sizeof port, "%d", server->port);
    words[count++] = port;
    for (; arguments && *arguments; arguments++)
        words[count++] = *arguments;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int nothing = open("/dev/null", O_RDWR);
    dup2(nothing, STDIN_FILENO);
    dup2(nothing, STDOUT_FILENO);
    execvp("redis-server", (char *const *)words);
    _exit(127);
}

static redisContext *talk(const struct redis_server *server)
{
    return redisConnectWithTimeout("127.0.0.1", server->port, (struct timeval){.tv_sec = 30});
}

static bool answers(const struct redis_server *server)
{
    redisContext *context = talk(server);
    redisReply *reply = context && !context->err ? redisCommand(context, "PING") : NULL;
    const bool answers = reply != NULL; // NOAUTH is an answer, too
    if (reply)
        freeReplyObject(reply);
    if (context)
        redisFree(context);
    return answers;
}

void world_serve_again(int i, const char *const *arguments)
{
    struct redis_server *server = &world.servers[i];
    if (!server->folder[0]) {
        strcpy(server->folder, "/tmp/aule-redis-XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(server->folder));
    }
    server->pid = fork();
    ck_assert_int_ge(server->pid, 0);
    if (server->pid == 0)
        become_server(server, arguments);
    while (!answers(server)) {
        ck_assert_msg(waitpid(server->pid, NULL, WNOHANG) == 0, "redis-server did not start");
        usleep(5000);
    }
}

void world_serve(int i, const char *const *arguments)
{
    world.servers[i].port = free_port();
    world_serve_again(i, arguments);
}

void world_kill(int i)
{
    struct redis_server *server = &world.servers[i];
    if (!server->pid)
        return;
    kill(server->pid, SIGKILL);
    waitpid(server->pid, NULL, 0);
    server->pid = 0;
}

void world_signal(int i, int number)
{
    ck_assert_int_eq(kill(world.servers[i].pid, number), 0);
}

redisReply *world_ask(int i, const char *format, ...)
{
    redisContext *context = talk(&world.servers[i]);
    va_list list;
    ck_assert(context && !context->err);
    va_start(list, format);
    redisReply *reply = redisvCommand(context, format, list);
    va_end(list);
    ck_assert_msg(reply != NULL, "%s", context->errstr);
    redisFree(context);
    return reply;
}

void world_tell(int i, const char *format, ...)
{
    redisContext *context = talk(&world.servers[i]);
    va_list list;
    ck_assert(context && !context->err);
    va_start(list, format);
    redisReply *reply = redisvCommand(context, format, list);
    va_end(list);
    ck_assert_msg(reply != NULL, "%s", context->errstr);
    ck_assert_msg(reply->type != REDIS_REPLY_ERROR, "%s: %s", format, reply->str);
    freeReplyObject(reply);
    redisFree(context);
}

long world_number(int i, const char *section, const char *key)
{
    redisReply *reply = world_ask(i, "INFO %s", section);
    const char *line = strstr(reply->str, key);
    const long number = line ? strtol(line + strlen(key) + 1, NULL, 10) : 0;
    freeReplyObject(reply);
    return number;
}

static bool cluster_is_ready(int num)
{
    for (int i = 0; i < num; i++) {
        redisReply *reply = world_ask(i, "CLUSTER INFO");
        const bool ready = strstr(reply->str, "cluster_state:ok") &&
                           strstr(reply->str, "cluster_slots_assigned:16384");
        freeReplyObject(reply);
        if (!ready)
            return false;
    }
    return true;
}

void world_make_cluster(int num)
{
    for (int i = 0; i < num; i++) {
        const int first = 16384 * i / num, last = 16384 * (i + 1) / num - 1;
        world_tell(i, "CLUSTER ADDSLOTSRANGE %d %d", first, last);
        world_tell(i, "CLUSTER SET-CONFIG-EPOCH %d", i + 1);
        if (i > 0)
            world_tell(i, "CLUSTER MEET 127.0.0.1 %d", world.servers[0].port);
    }
    while (!cluster_is_ready(num))
        usleep(20000);
}

// ---- the tier ----

static void hear(void *context, const char *sentence)
{
    (void)context;
    pthread_mutex_lock(&said_lock);
    const size_t used = strlen(world.said);
    snprintf(world.said + used, sizeof world.said - used, "%s\n", sentence);
    pthread_mutex_unlock(&said_lock);
}

bool world_was_told(const char *part)
{
    pthread_mutex_lock(&said_lock);
    const bool told = strstr(world.said, part) != NULL;
    pthread_mutex_unlock(&said_lock);
    return told;
}

void world_open(int num, const struct redis_params *params, uint64_t block_bytes)
{
    struct redis_params all = params ? *params : (struct redis_params){0};
    struct tier_backend *backend;
    struct error error;
    char url[256] = "redis://";
    for (int i = 0; i < num; i++)
        snprintf(url + strlen(url), sizeof url - strlen(url), "%s127.0.0.1:%d", i ? "," : "",
                 world.servers[i].port);
    all.url = all.url ? all.url : url;
    all.stall_ms = all.stall_ms ? all.stall_ms : PATIENT_MS;
    all.say = hear;
    ck_assert_msg(redis_create(&all, &backend, &error) == STATUS_OK, "%s", error.text);
    ck_assert_msg(tier_create(&redis_ops, backend, &world.tier, &error) == STATUS_OK, "%s",
                  error.text);
    world.space.block_bytes = block_bytes;
    record_fingerprint("model", 5, world.space.fingerprint);
    record_salt("key", 3, "tenant", 6, world.space.salt);
}

static void remove_folder(struct redis_server *server)
{
    char command[64];
    if (!server->folder[0])
        return;
    snprintf(command, sizeof command, "rm -rf %s", server->folder);
    ck_assert_int_eq(system(command), 0);
}

void world_close(void)
{
    ck_assert(tier_close(world.tier, clock_deadline_ns(LONG_MS)));
    for (int i = 0; i < WORLD_SERVERS; i++) {
        world_kill(i);
        remove_folder(&world.servers[i]);
    }
    memset(&world, 0, sizeof world);
}

// ---- blocks ----

struct record_chain world_chain(uint32_t block)
{
    const struct record_chain begin = record_chain_begin(NULL, 0);
    const int32_t token = (int32_t)block;
    return record_chain_next(&begin, &token, 1);
}

void world_name(uint32_t block, uint32_t part, char name[RECORD_NAME_ROOM])
{
    const struct record_chain chain = world_chain(block);
    record_name(name, &world.space, &chain, part);
}

static void fill(uint8_t *data, uint64_t size, uint64_t block)
{
    uint64_t state = block * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (uint64_t i = 0; i < size; i++) {
        if (i % 8 == 0) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
        }
        data[i] = (uint8_t)(state >> (i % 8 * 8));
    }
}

// ---- jobs ----

struct tier_job *world_start(enum tier_kind kind, uint32_t first, uint32_t count, int timeout_ms)
{
    const uint64_t size = world.space.block_bytes;
    struct tier_job *job = tier_job_create(kind, count);
    ck_assert_ptr_nonnull(job);
    job->space = world.space;
    job->deadline_ns = clock_deadline_ns(timeout_ms);
    job->abandon_ns = clock_deadline_ns(timeout_ms + LONG_MS);
    for (uint32_t i = 0; i < count; i++) {
        struct tier_block *block = &job->blocks[i];
        block->chain = world_chain(first + i);
        block->tag = first + i;
        if (kind != TIER_STORE && kind != TIER_LOAD)
            continue;
        block->data = calloc(1, size);
        ck_assert_ptr_nonnull(block->data);
        if (kind == TIER_STORE)
            fill(block->data, size, first + i);
    }
    job->owner = &world; // until it is given back
    tier_start(world.tier, job);
    return job;
}

static void check_loaded(const struct tier_job *job)
{
    const uint64_t size = world.space.block_bytes;
    uint8_t *right = malloc(size);
    for (uint32_t i = 0; i < job->num_blocks; i++) {
        const struct tier_block *block = &job->blocks[i];
        fill(right, size, block->tag);
        if (block->reason == RECORD_OK)
            ck_assert_msg(memcmp(block->data, right, size) == 0, "block %u has wrong bytes",
                          (unsigned)block->tag);
    }
    free(right);
}

// Waits until the tier gives any job back.
static struct tier_job *await_event(void)
{
    struct tier_event event;
    while (!tier_poll(world.tier, clock_now_ns(), &event)) {
        struct pollfd news = {.fd = tier_fd(world.tier), .events = POLLIN};
        poll(&news, 1, 1000);
    }
    ck_assert_int_eq(event.kind, TIER_DONE); // the backend keeps its deadlines
    return event.job;
}

void world_end(struct tier_job *job)
{
    while (job->owner)
        await_event()->owner = NULL;
    if (job->kind == TIER_LOAD)
        check_loaded(job);
}

struct tier_job *world_run(enum tier_kind kind, uint32_t first, uint32_t count)
{
    struct tier_job *job = world_start(kind, first, count, LONG_MS);
    world_end(job);
    return job;
}

void world_free(struct tier_job *job)
{
    for (uint32_t i = 0; i < job->num_blocks; i++)
        free(job->blocks[i].data);
    tier_job_destroy(job);
}

uint32_t world_count(const struct tier_job *job, enum record_reason reason)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < job->num_blocks; i++)
        count += job->blocks[i].reason == reason;
    return count;
}

void world_expect(enum tier_kind kind, uint32_t first, uint32_t count, enum record_reason reason)
{
    struct tier_job *job = world_run(kind, first, count);
    for (uint32_t i = 0; i < count; i++) {
        const struct tier_block *block = &job->blocks[i];
        ck_assert_msg(block->reason == reason, "block %u: %s, not %s", first + i,
                      record_reason_labels[block->reason], record_reason_labels[reason]);
        if (kind == TIER_LOOKUP)
            ck_assert_int_eq(block->answer, reason == RECORD_OK ? TIER_THERE : TIER_MISS);
    }
    world_free(job);
}

void world_await(uint32_t block, enum record_reason reason)
{
    for (bool done = false; !done; usleep(10000)) {
        struct tier_job *job = world_start(TIER_LOOKUP, block, 1, 1000);
        world_end(job);
        done = job->blocks[0].reason == reason;
        world_free(job);
    }
}
