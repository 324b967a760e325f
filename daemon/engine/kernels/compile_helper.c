// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// compile_helper.c - see compile_helper.h. The first part is the daemon's: it starts a helper and
// waits for its answer, a byte. The second part is the helper's process.

#include "compile_helper.h"

#include "base/clock.h"
#include "engine/vulkan/transfer.h"
#include "pipeline.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

// A large shader takes seconds. A helper that no run waits for gets little of a busy processor.
enum { DEADLINE_MS = 60000, NICE = 10 };

enum status compile_helper_init(struct compile_helper *helper, const char *program,
                                struct error *error)
{
    helper->made = pthread_mutex_init(&helper->lock, NULL) == 0;
    if (!helper->made)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a lock");
    helper->program = program;
    helper->deadline_ms = DEADLINE_MS;
    return STATUS_OK;
}

void compile_helper_finish(struct compile_helper *helper)
{
    if (helper->made)
        pthread_mutex_destroy(&helper->lock);
    helper->made = false;
}

// ---- the daemon's part ----

// The helper has `end` as its standard input, no signal blocked or ignored, no output, and no other
// descriptor, whatever a driver has opened in the daemon.
static int spawn(const char *program, int end, pid_t *pid)
{
    char *const argv[] = {(char *)program, (char *)ENGINE_COMPILE_COMMAND, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, usual;
    if (posix_spawn_file_actions_init(&actions) != 0)
        return ENOMEM;
    if (posix_spawnattr_init(&attributes) != 0) {
        posix_spawn_file_actions_destroy(&actions);
        return ENOMEM;
    }
    sigemptyset(&none);
    sigfillset(&usual);
    sigdelset(&usual, SIGKILL);
    sigdelset(&usual, SIGSTOP);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &usual);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    int why = posix_spawn_file_actions_adddup2(&actions, end, STDIN_FILENO);
    for (int fd = STDOUT_FILENO; why == 0 && fd <= STDERR_FILENO; fd++)
        why = posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_WRONLY, 0);
    if (why == 0)
        why = posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
    if (why == 0)
        why = posix_spawn(pid, program, &actions, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return why;
}

static bool start(struct compile_helper *helper, int end, struct error *error)
{
    pthread_mutex_lock(&helper->lock);
    const int why = helper->stops ? ECANCELED : spawn(helper->program, end, &helper->pid);
    if (why)
        helper->pid = 0;
    pthread_mutex_unlock(&helper->lock);
    if (why)
        error_set(error, STATUS_INTERNAL, "%s was not started: %s", helper->program, strerror(why));
    return why == 0;
}

static void kill_it(struct compile_helper *helper)
{
    if (helper->pid)
        kill(helper->pid, SIGKILL);
}

// It has answered, or is ended here.
static void reap(struct compile_helper *helper)
{
    pthread_mutex_lock(&helper->lock);
    const pid_t pid = helper->pid;
    kill_it(helper);
    helper->pid = 0;
    pthread_mutex_unlock(&helper->lock);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
}

static bool await_answer(const struct compile_helper *helper, int fd, struct error *error)
{
    const int64_t deadline_ns = clock_deadline_ns((int)helper->deadline_ms);
    struct pollfd answer = {.fd = fd, .events = POLLIN};
    int ready;
    char byte;
    do {
        const int64_t left_ns = deadline_ns - clock_now_ns();
        ready = poll(&answer, 1, left_ns > 0 ? (int)(left_ns / NS_PER_MS) + 1 : 0);
    } while (ready < 0 && errno == EINTR);
    if (ready > 0 && recv(fd, &byte, 1, MSG_DONTWAIT) == 1)
        return true;
    if (ready == 0)
        error_set(error, STATUS_TIMEOUT, "it took over %u ms", helper->deadline_ms);
    else
        error_set(error, STATUS_INTERNAL, "it ended without an answer");
    return false;
}

static bool is_stopped(struct compile_helper *helper)
{
    pthread_mutex_lock(&helper->lock);
    const bool stops = helper->stops;
    pthread_mutex_unlock(&helper->lock);
    return stops;
}

bool compile_helper_run(struct compile_helper *helper, const struct compile_request *request,
                        struct error *error)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        error_set(error, STATUS_NO_MEMORY, "no socket: %s", strerror(errno));
        return false;
    }
    const bool started = start(helper, ends[1], error);
    close(ends[1]);
    bool done = false;
    if (started) {
        // If it has ended already, its end says so.
        (void)!send(ends[0], request, sizeof *request, MSG_NOSIGNAL);
        done = await_answer(helper, ends[0], error);
        reap(helper);
    }
    close(ends[0]);
    if (!done && is_stopped(helper))
        error->status = STATUS_STOPPING;
    return done;
}

void compile_helper_stop(struct compile_helper *helper)
{
    if (!helper->made)
        return;
    pthread_mutex_lock(&helper->lock);
    helper->stops = true;
    kill_it(helper);
    pthread_mutex_unlock(&helper->lock);
}

// ---- the helper's process ----

static enum status dispatch(struct transfer *transfer, VkPipeline pipeline, struct error *error)
{
    enum status status = transfer_begin(transfer, error);
    if (status != STATUS_OK)
        return status;
    vkCmdBindPipeline(transfer->commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    vkCmdDispatch(transfer->commands, 0, 0, 0); // a software device compiles for it all the same
    return transfer_end(transfer, error);
}

static void ignore_news(void *owner, bool awaited)
{
    (void)owner;
    (void)awaited;
}

// With the objects' end, the driver has written its cache.
static enum status compile_once(const struct compile_request *request, struct error *error)
{
    struct device device = {0};
    struct transfer transfer = {0};
    struct pipelines pipelines = {.compiler.news = ignore_news};
    VkPipeline pipeline;
    const struct engine_params params = {.device = request->device, .variant = request->variant};
    enum status status = device_init(&device, &params, variant_least_shared_memory(), false, error);
    if (status != STATUS_OK)
        return status;
    device.adapter.matrices = request->matrices;
    status = transfer_init(&transfer, &device, error);
    if (status == STATUS_OK)
        status = pipelines_init(&pipelines, &device, &transfer, &params, error);
    if (status == STATUS_OK)
        status =
            pipeline_get(&pipelines, (enum pipeline_kind)request->key.kind, &request->key.geometry,
                         (struct line_name){PIPELINE_WAIT, 0}, &pipeline, error);
    if (status == STATUS_OK)
        status = dispatch(&transfer, pipeline, error);
    if (pipelines.device)
        pipelines_finish(&pipelines);
    if (transfer.device)
        transfer_finish(&transfer);
    device_finish(&device);
    return status;
}

int engine_compile_main(void)
{
    struct compile_request request;
    struct error error = {0};
    char byte = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // If the daemon ended before prctl(), no signal tells, but the parent is another one.
    if (recv(STDIN_FILENO, &request, sizeof request, 0) != sizeof request ||
        getppid() != request.daemon)
        return 1;
    if (!request.awaited)
        setpriority(PRIO_PROCESS, 0, NICE);
    request.device[sizeof request.device - 1] = request.variant[sizeof request.variant - 1] = 0;
    if (request.key.kind >= PIPELINE_KINDS || compile_once(&request, &error) != STATUS_OK)
        return 1;
    return send(STDIN_FILENO, &byte, 1, MSG_NOSIGNAL) == 1 ? 0 : 1;
}
