// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// lane.c - see lane.h. A thread that asks leaves a record in a list and sleeps on the ring until somebody has found its answer: whoever looks
// takes all that is posted and hands it out by the sequence numbers. One mutex guards the ring's counts and the list; nobody sleeps with it.

#include "lane.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <utlist.h>

#include "error.h"
#include "ring.h"

enum { LEAST_CORES_TO_SPIN = 3, SPIN_NS = 50000, SPINS_A_LOOK = 64 };

struct waiter {
    uint32_t sequence;
    bool answered;
    struct wire_completion completion;
    struct waiter *prev, *next;
};

struct lane {
    pid_t pid;
    struct connection *connection;
    int bell;
    bool spins;
    pthread_mutex_t mutex; // guards the rest
    struct ring_client ring;
    struct waiter *waiters;
    bool broken;
};

// ---- choosing ----

enum aule_status lane_choose(enum lane_choice *choice)
{
    const char *asked = getenv("AULE_LANE");
    *choice = LANE_AUTO;
    if (!asked || !asked[0])
        return AULE_OK;
    if (strcmp(asked, "nng") != 0 && strcmp(asked, "ring") != 0)
        return fail(AULE_INVALID, "AULE_LANE is \"%s\"; nng and ring are known", asked);
    *choice = asked[0] == 'n' ? LANE_NNG : LANE_RING;
    return AULE_OK;
}

// ---- opening ----

static enum aule_status check_rings(const struct wire_hello_reply *hello)
{
    uint64_t size = ring_size(hello->ring_entries, WIRE_SUBMISSION_SIZE), end = hello->arena_offset;
    uint64_t first = hello->submission_ring_offset, second = hello->completion_ring_offset;
    if (ring_good_number(hello->ring_entries) && first >= WIRE_PAGE && first % WIRE_PAGE == 0 &&
        second % WIRE_PAGE == 0 && first < second && second - first >= size && second < end && end - second >= size)
        return AULE_OK;
    return fail(AULE_MISMATCH, "segment %s: rings of %u entries at %ju and %ju do not fit before the arena at %ju",
                hello->segment_name, hello->ring_entries, (uintmax_t)first, (uintmax_t)second, (uintmax_t)end);
}

// The doorbell lies beside the socket.
static enum aule_status connect_bell(struct lane *lane, const char *path, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path) + 1 : 0;
    int size = snprintf(address.sun_path, sizeof address.sun_path, "%.*s%s", folder, path, name);
    if (strchr(name, '/') || size < 0 || (size_t)size >= sizeof address.sun_path)
        return fail(AULE_MISMATCH, "the doorbell %s of the daemon at %s is none", name, path);
    lane->bell = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (lane->bell < 0 && (errno == EMFILE || errno == ENFILE))
        return fail_no_descriptor(address.sun_path);
    if (lane->bell < 0 || connect(lane->bell, (const struct sockaddr *)&address, sizeof address) != 0)
        return fail(AULE_DAEMON_GONE, "the doorbell %s: %s", address.sun_path, strerror(errno));
    return AULE_OK;
}

static bool has_free_cores(void)
{
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) >= LEAST_CORES_TO_SPIN;
}

static void on_connection_end(void *context)
{
    struct lane *lane = context;
    ring_interrupt(&lane->ring);
}

static enum aule_status open_rings(const char *path, const struct wire_hello_reply *hello,
                                   const struct segment *segment, struct connection *connection, struct lane *lane)
{
    const struct ring_place place = {
        .submissions = (char *)segment->base + hello->submission_ring_offset,
        .completions = (char *)segment->base + hello->completion_ring_offset,
        .num_entries = hello->ring_entries,
        .submission_size = WIRE_SUBMISSION_SIZE,
        .completion_size = WIRE_COMPLETION_SIZE,
    };
    enum aule_status status = check_rings(hello);
    if (status == AULE_OK)
        status = connect_bell(lane, path, hello->doorbell ? hello->doorbell : "");
    if (status != AULE_OK)
        return status;
    ring_client_init(&lane->ring, &place);
    connection_watch(connection, on_connection_end, lane);
    return AULE_OK;
}

enum aule_status lane_open(enum lane_choice choice, const char *path, const struct wire_hello_reply *hello,
                           const struct segment *segment, struct connection *connection, struct lane **out)
{
    *out = NULL;
    if (hello->ring_entries == 0 && choice == LANE_RING)
        return fail(AULE_UNSUPPORTED, "AULE_LANE is ring, but the daemon at %s offers no ring lane (--ring-entries)",
                    path);
    if (choice != LANE_RING)
        return AULE_OK;
    struct lane *lane = calloc(1, sizeof *lane);
    if (!lane)
        return fail(AULE_NO_MEMORY, "no memory for the ring lane");
    lane->pid = getpid();
    lane->connection = connection;
    lane->bell = -1;
    lane->spins = has_free_cores();
    pthread_mutex_init(&lane->mutex, NULL);
    enum aule_status status = open_rings(path, hello, segment, connection, lane);
    if (status == AULE_OK)
        *out = lane;
    else
        lane_close(lane);
    return status;
}

void lane_close(struct lane *lane)
{
    if (!lane)
        return;
    if (lane->bell >= 0)
        close(lane->bell);
    if (lane->pid == getpid())
        pthread_mutex_destroy(&lane->mutex);
    free(lane);
}

bool lane_takes(const struct lane *lane, enum wire_command command)
{
    return lane && (command == WIRE_COMMAND_RUN || command == WIRE_COMMAND_WAIT);
}

// ---- waiting ----

// Under the mutex: hands out all that is posted. An answer that nobody waits for any more is dropped.
static void hand_out(struct lane *lane)
{
    uint64_t entry[WIRE_COMPLETION_SIZE / sizeof(uint64_t)];
    enum ring_look look;
    while ((look = ring_consume(&lane->ring, entry)) == RING_TAKEN) {
        struct wire_completion completion;
        struct waiter *waiter;
        wire_get_completion(entry, &completion);
        DL_SEARCH_SCALAR(lane->waiters, waiter, sequence, completion.sequence);
        if (!waiter)
            continue;
        waiter->completion = completion;
        waiter->answered = true;
    }
    lane->broken |= look == RING_BROKEN;
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

// For a short while, where a core is free for it.
static bool spin(const struct lane *lane, uint32_t consumed)
{
    for (int64_t end_ns = now_ns() + SPIN_NS; now_ns() < end_ns;) {
        for (int i = 0; i < SPINS_A_LOOK; i++) {
            if (ring_posted(&lane->ring, consumed))
                return true;
            relax();
        }
    }
    return false;
}

// With the mutex, which is let go in the meantime. False: the time is over, or nobody will answer any more.
static bool wait_for_news(struct lane *lane, const struct timeout *timeout)
{
    const uint32_t consumed = lane->ring.consumed;
    int left = timeout_left(timeout);
    if (left == 0 || lane->broken || ring_interrupted(&lane->ring))
        return false;
    pthread_mutex_unlock(&lane->mutex);
    const struct timespec rest = {.tv_sec = left / 1000, .tv_nsec = left % 1000 * 1000000L};
    if (!lane->spins || !spin(lane, consumed))
        ring_sleep(&lane->ring, consumed, left < 0 ? NULL : &rest);
    pthread_mutex_lock(&lane->mutex);
    return true;
}

// ---- calling ----

static enum aule_status no_answer(struct lane *lane, const char *command, const struct timeout *timeout,
                                  struct answer *answer)
{
    enum aule_status status = connection_end_error(lane->connection, command);
    if (status != AULE_OK)
        return status;
    if (lane->broken)
        return fail(AULE_MALFORMED, "%s: the daemon's ring claims answers to what was never asked", command);
    answer->missing = true;
    return fail(AULE_TIMEOUT, "the daemon did not answer %s within %d ms", command, timeout->ms);
}

// Under the mutex. With room in the ring *bell says whether the daemon wants to hear it.
static enum aule_status submit(struct lane *lane, struct wire_submission *submission, const struct timeout *room,
                               struct waiter *waiter, bool *bell)
{
    const char *command = wire_command_name((int)submission->command);
    uint64_t entry[WIRE_SUBMISSION_SIZE / sizeof(uint64_t)];
    struct answer none = {.message = NULL};
    for (bool waits = true;; waits = wait_for_news(lane, room)) {
        if (lane->broken || ring_interrupted(&lane->ring))
            return no_answer(lane, command, room, &none);
        hand_out(lane);
        submission->sequence = waiter->sequence = lane->ring.submitted;
        wire_put_submission(submission, entry);
        if (ring_submit(&lane->ring, entry))
            break;
        if (!waits)
            return fail(AULE_BUSY, "%s: all %u entries of the session's ring were under way for %d ms (--ring-entries)",
                        command, lane->ring.place.num_entries, room->ms);
    }
    *bell = ring_ear(&lane->ring) == RING_ASLEEP;
    DL_APPEND(lane->waiters, waiter);
    return AULE_OK;
}

static enum aule_status ask(struct lane *lane, struct wire_submission *submission, int wait_ms,
                            const struct timeout *timeout, struct answer *answer, struct wire_completion *completion)
{
    const struct timeout room = timeout_start(wait_ms);
    struct waiter waiter = {.answered = false};
    bool bell = false;
    pthread_mutex_lock(&lane->mutex);
    enum aule_status status = submit(lane, submission, &room, &waiter, &bell);
    if (status != AULE_OK) {
        pthread_mutex_unlock(&lane->mutex);
        return status;
    }
    if (bell) {
        pthread_mutex_unlock(&lane->mutex);
        send(lane->bell, "", 1,
             MSG_NOSIGNAL); // a full queue has rung already, and a daemon that is gone is seen elsewhere
        pthread_mutex_lock(&lane->mutex);
    }
    for (bool waits = true; hand_out(lane), !waiter.answered && waits;)
        waits = wait_for_news(lane, timeout);
    DL_DELETE(lane->waiters, &waiter);
    if (!waiter.answered)
        status = no_answer(lane, wire_command_name((int)submission->command), timeout, answer);
    pthread_mutex_unlock(&lane->mutex);
    *completion = waiter.completion;
    return status;
}

// The completion as the answer that a message would have brought.
static enum aule_status judge(const struct wire_completion *completion, enum wire_answer expected, const char *command,
                              struct answer *answer)
{
    if (completion->status < STATUS_OK || completion->status > STATUS_INTERNAL)
        return fail(AULE_MALFORMED, "%s was answered with the unknown status %d: %s", command, completion->status,
                    completion->text);
    if (completion->status != STATUS_OK)
        return fail((enum aule_status)completion->status, "%s", completion->text);
    if (completion->answer != expected)
        return fail(AULE_MALFORMED, "%s was answered with kind %u instead of %d", command, completion->answer,
                    (int)expected);
    struct wire_reply *reply = &answer->reply;
    reply->answer = expected;
    if (expected == WIRE_ANSWER_RUN) {
        reply->run.ticket = completion->ticket;
        return AULE_OK;
    }
    if (completion->text[0] && !(answer->message = strdup(completion->text)))
        return fail(AULE_NO_MEMORY, "no memory for the answer to %s", command);
    reply->wait = (struct wire_wait_reply){
        .run_status = completion->run_status,
        .gpu_ns = completion->gpu_ns,
        .num_runs = completion->num_runs,
        .num_sessions = completion->num_sessions,
        .run_message = answer->message ? answer->message : "",
    };
    return AULE_OK;
}

static struct wire_submission submission_of(const struct wire_request *request)
{
    struct wire_submission submission = {.command = request->command};
    if (request->command == WIRE_COMMAND_RUN)
        submission.run = request->run;
    else
        submission.wait = request->wait;
    return submission;
}

enum aule_status lane_call(struct lane *lane, const struct wire_request *request, int wait_ms,
                           const struct timeout *timeout, enum wire_answer expected, struct answer *answer)
{
    struct wire_submission submission = submission_of(request);
    struct wire_completion completion;
    *answer = (struct answer){.message = NULL};
    enum aule_status status = ask(lane, &submission, wait_ms, timeout, answer, &completion);
    return status == AULE_OK ? judge(&completion, expected, wire_command_name(request->command), answer) : status;
}

enum aule_status lane_run(struct lane *lane, const struct wire_request *run, int wait_ms, const struct timeout *timeout,
                          struct answer *answer, uint64_t *ticket)
{
    struct wire_submission submission = submission_of(run);
    struct wire_completion completion;
    submission.waits = true;
    submission.wait_ms = wait_ms;
    *answer = (struct answer){.message = NULL};
    *ticket = 0;
    enum aule_status status = ask(lane, &submission, wait_ms, timeout, answer, &completion);
    if (status != AULE_OK)
        return status;
    *ticket = completion.ticket;
    return judge(&completion, WIRE_ANSWER_WAIT, wire_command_name(run->command), answer);
}
