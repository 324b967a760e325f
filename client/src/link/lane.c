// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// lane.c - see lane.h. A command that finds no place in the ring goes as a message, for two
// reasons. A ring may be full of runs that wait for tickets, and only a wait frees tickets. And
// after the end of the session or connection, a message gets the reason. So both lanes give the
// same answers.
//
// A command other than a run or a wait is encoded like a message and copied to a place; its answer
// may come to the same place. Places lie behind the arena and have an allocator of their own. So
// they take no room from the caller, no call of the caller can free one, and no tensor can reach
// one. A place ends with the answer. If no answer comes, the daemon may still write there, so the
// place stays until the life ends.

#include "lane.h"

#include "answers.h"
#include "client/src/arena.h"
#include "client/src/error.h"
#include "peer.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { LEAST_CORES_TO_SPIN = 3, SPIN_US = 50, MAX_SPIN_US = 1000000 };
enum { MAX_PLACE = 64 << 10 }; // bytes; larger commands go as messages

struct lane {
    pid_t pid;
    struct connection *connection;
    int bell;
    struct connection_watcher watcher;
    uint8_t *bytes;         // of the arena
    uint64_t places_offset; // from there on; a multiple of a page
    struct arena *places;   // which bytes of them are taken; owned; NULL: there are none
    bool open;              // `answers` is initialised
    struct answers answers;
};

// Where a command and its answer lie: a place, behind the arena.
struct place {
    uint64_t offset, size; // size 0: none
    void *copy;            // malloc'd: `size` bytes for the answer; NULL: it needs none
};

// ---- choosing ----

static enum aule_status choose_lane(struct lane_plan *plan)
{
    const char *asked = getenv("AULE_LANE");
    plan->choice = LANE_AUTO;
    if (!asked || !asked[0])
        return AULE_OK;
    if (strcmp(asked, "nng") != 0 && strcmp(asked, "ring") != 0)
        return fail(AULE_INVALID, "AULE_LANE is \"%s\"; it may be nng or ring", asked);
    plan->choice = asked[0] == 'n' ? LANE_NNG : LANE_RING;
    return AULE_OK;
}

static bool has_free_cores(void)
{
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof cores, &cores) == 0 &&
           CPU_COUNT(&cores) >= LEAST_CORES_TO_SPIN;
}

static enum aule_status choose_spin(int spin_us, struct lane_plan *plan)
{
    const char *asked = getenv("AULE_RING_SPIN");
    unsigned long us = spin_us > 0 ? (unsigned long)spin_us : 0;
    if (spin_us < -1 || us > MAX_SPIN_US)
        return fail(AULE_INVALID, "ring_spin_us = %d; it may be from -1 to %d", spin_us,
                    MAX_SPIN_US);
    if (spin_us == 0 && asked && asked[0]) {
        char *end;
        us = strtoul(asked, &end, 10);
        if (asked[0] < '0' || asked[0] > '9' || *end || us > MAX_SPIN_US)
            return fail(AULE_INVALID, "AULE_RING_SPIN is \"%s\"; it is microseconds, from 0 to %d",
                        asked, MAX_SPIN_US);
    } else if (spin_us == 0) {
        us = has_free_cores() ? SPIN_US : 0;
    }
    plan->spin_ns = (int64_t)us * 1000;
    return AULE_OK;
}

enum aule_status lane_choose(int spin_us, struct lane_plan *plan)
{
    enum aule_status status = choose_lane(plan);
    return status == AULE_OK ? choose_spin(spin_us, plan) : status;
}

// ---- opening ----

static enum aule_status check_rings(const struct wire_hello_reply *hello)
{
    uint64_t size = ring_size(hello->ring_entries, hello->ring_entry_size);
    uint64_t rest = ring_size(hello->ring_entries, WIRE_COMPLETION_SIZE), end = hello->arena_offset;
    uint64_t first = hello->submission_ring_offset, second = hello->completion_ring_offset;
    if (ring_good_number(hello->ring_entries) && first >= WIRE_PAGE && first % WIRE_PAGE == 0 &&
        second % WIRE_PAGE == 0 && first < second && second - first >= size && second < end &&
        end - second >= rest)
        return AULE_OK;
    return fail(AULE_MISMATCH,
                "segment %s: rings of %u entries at %ju and %ju do not fit before the arena at %ju",
                hello->segment_name, hello->ring_entries, (uintmax_t)first, (uintmax_t)second,
                (uintmax_t)end);
}

// The doorbell is a socket in the folder of the daemon's socket.
static enum aule_status connect_bell(struct lane *lane, const char *path, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path) + 1 : 0;
    int size = snprintf(address.sun_path, sizeof address.sun_path, "%.*s%s", folder, path, name);
    if (strchr(name, '/') || size < 0 || (size_t)size >= sizeof address.sun_path)
        return fail(AULE_MISMATCH, "the name %s of the doorbell of the daemon at %s is not valid",
                    name, path);
    lane->bell = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (lane->bell < 0 && (errno == EMFILE || errno == ENFILE))
        return fail_no_descriptor(address.sun_path);
    if (lane->bell < 0 ||
        connect(lane->bell, (const struct sockaddr *)&address, sizeof address) != 0)
        return fail(AULE_DAEMON_GONE, "the doorbell %s: %s", address.sun_path, strerror(errno));
    return peer_check_file(address.sun_path);
}

static void on_connection_end(void *context)
{
    struct lane *lane = context;
    ring_interrupt(&lane->answers.ring);
}

static void open_answers(struct lane *lane, const struct wire_hello_reply *hello,
                         const struct segment *segment, int64_t spin_ns)
{
    const struct ring_place place = {
        .submissions = (char *)segment->base + hello->submission_ring_offset,
        .completions = (char *)segment->base + hello->completion_ring_offset,
        .num_entries = hello->ring_entries,
        .submission_size = hello->ring_entry_size,
        .completion_size = WIRE_COMPLETION_SIZE,
    };
    answers_init(&lane->answers, &place, spin_ns);
    lane->open = true;
    lane->watcher = (struct connection_watcher){.ended = on_connection_end, .context = lane};
    connection_watch(lane->connection, &lane->watcher);
}

// With LANE_AUTO an unreachable doorbell is no failure: messages do as well.
static enum aule_status reach_bell(struct lane *lane, enum lane_choice choice, const char *path,
                                   const char *name, bool *reached)
{
    if (choice == LANE_AUTO)
        error_mute(true);
    enum aule_status status = connect_bell(lane, path, name ? name : "");
    if (choice == LANE_AUTO)
        error_mute(false);
    *reached = status == AULE_OK;
    return choice == LANE_AUTO ? AULE_OK : status;
}

static enum aule_status not_offered(const char *path, const struct wire_hello_reply *hello)
{
    if (hello->ring_entries)
        return fail(
            AULE_VERSION,
            "AULE_LANE is ring, but the rings of the daemon at %s have entries of %u bytes, not %u",
            path, hello->ring_entry_size, WIRE_SUBMISSION_SIZE);
    return fail(AULE_UNSUPPORTED,
                "AULE_LANE is ring, but the daemon at %s offers no ring lane (--ring-entries)",
                path);
}

static enum aule_status make_places(struct lane *lane, const struct segment *segment)
{
    if (segment->places_size == 0)
        return AULE_OK;
    lane->places_offset = segment->arena_size;
    return arena_create(segment->places_size, &lane->places);
}

enum aule_status lane_open(const struct lane_plan *plan, const char *path,
                           const struct wire_hello_reply *hello, const struct lane_parts *parts,
                           struct lane **out)
{
    *out = NULL;
    bool fits = hello->ring_entries && hello->ring_entry_size == WIRE_SUBMISSION_SIZE;
    if (!fits && plan->choice == LANE_RING)
        return not_offered(path, hello);
    if (!fits || plan->choice == LANE_NNG)
        return AULE_OK;
    struct lane *lane = calloc(1, sizeof *lane);
    if (!lane)
        return fail(AULE_NO_MEMORY, "no memory for the ring lane");
    lane->pid = getpid();
    lane->connection = parts->connection;
    lane->bytes = parts->segment->arena;
    lane->bell = -1;
    bool reached = false;
    enum aule_status status = check_rings(hello);
    if (status == AULE_OK)
        status = make_places(lane, parts->segment);
    if (status == AULE_OK)
        status = reach_bell(lane, plan->choice, path, hello->doorbell, &reached);
    if (reached) {
        open_answers(lane, hello, parts->segment, plan->spin_ns);
        *out = lane;
    } else {
        lane_close(lane);
    }
    return status;
}

void lane_close(struct lane *lane)
{
    if (!lane)
        return;
    if (lane->bell >= 0)
        close(lane->bell);
    if (lane->open && lane->pid == getpid())
        answers_finish(&lane->answers);
    arena_destroy(lane->places);
    free(lane);
}

uint32_t lane_num_entries(const struct lane *lane)
{
    return lane ? lane->answers.ring.place.num_entries : 0;
}

// ---- entries ----

static enum aule_status no_answer(struct lane *lane, const char *command,
                                  const struct timeout *timeout, struct answer *answer)
{
    enum aule_status status = connection_end_error(lane->connection, command);
    if (status != AULE_OK)
        return status;
    answer->missing = true;
    if (answers_broken(&lane->answers))
        return fail(AULE_MALFORMED, "%s: the daemon's ring has more answers than requests",
                    command);
    return fail(AULE_TIMEOUT, "the daemon did not answer %s within %d ms", command, timeout->ms);
}

// False: the ring had no place.
static bool ask(struct lane *lane, struct wire_submission *submission,
                const struct timeout *timeout, struct answer *answer,
                struct wire_completion *completion, enum aule_status *status)
{
    struct waiter waiter;
    enum answers_place place = answers_submit(&lane->answers, submission, &waiter);
    if (place == ANSWERS_NO_PLACE)
        return false;
    if (place == ANSWERS_PLACED_ASLEEP)
        // Failures do not matter: a full queue has rung already, and a dead daemon is noticed
        // elsewhere.
        send(lane->bell, "", 1, MSG_NOSIGNAL);
    *status = AULE_OK;
    if (answers_await(&lane->answers, &waiter, timeout))
        *completion = waiter.completion;
    else
        *status = no_answer(lane, wire_command_name((int)submission->command), timeout, answer);
    return true;
}

// ---- commands in places ----

// False: no place is free.
static bool take_place(struct lane *lane, uint64_t size, struct place *place)
{
    error_mute(true); // the command goes as a message then, so that nothing has failed
    const bool taken = arena_alloc(lane->places, size, &place->offset) == AULE_OK;
    error_mute(false);
    place->offset += lane->places_offset;
    place->size = taken ? size : 0;
    return taken;
}

static void drop_place(struct lane *lane, struct place *place, bool answered)
{
    if (place->size && answered)
        arena_free(lane->places, place->offset - lane->places_offset);
    free(place->copy);
    *place = (struct place){.size = 0};
}

// False: the command must go as a message, and nothing is taken. Once the daemon has the command,
// its answer must not be lost for want of memory, so its copy is allocated here.
static bool place_command(struct lane *lane, const struct wire_request *request,
                          enum wire_answer expected, struct wire_submission *submission,
                          struct place *place)
{
    struct wire_buffer buffer;
    if (wire_encode_request(request, &buffer, NULL) != STATUS_OK)
        return false;
    const uint64_t room = wire_reply_room(request), size = buffer.size > room ? buffer.size : room;
    const bool copies = !wire_fits_completion(expected);
    bool placed = size <= MAX_PLACE && (!copies || (place->copy = malloc(size))) &&
                  take_place(lane, size, place);
    if (placed) {
        memcpy(lane->bytes + place->offset, buffer.data, buffer.size);
        submission->message = (struct wire_span){.offset = place->offset, .count = buffer.size};
        submission->room = size;
    } else {
        drop_place(lane, place, true);
    }
    wire_buffer_finish(&buffer);
    return placed;
}

// The answer that lies in the place. Without it, what the daemon did is lost.
static enum aule_status read_place(const struct lane *lane, struct place *place, uint64_t size,
                                   const char *command, struct answer *answer)
{
    enum aule_status status;
    if (size > place->size) {
        status =
            fail(AULE_MALFORMED, "%s was answered with %" PRIu64 " bytes in a place of %" PRIu64,
                 command, size, place->size);
    } else {
        answer->message = place->copy;
        place->copy = NULL;
        memcpy(answer->message, lane->bytes + place->offset, size);
        status = answer_decode(answer, size, command);
    }
    answer->missing = status != AULE_OK;
    return status;
}

// ---- answers ----

// The daemon has ended the ticket already. So if there is no memory for the sentence, the status
// alone is reported.
static void read_wait(const struct wire_completion *completion, struct answer *answer)
{
    if (completion->text[0])
        answer->message = strdup(completion->text);
    answer->reply.wait = (struct wire_wait_reply){
        .run_status = completion->run_status,
        .gpu_ns = completion->gpu_ns,
        .num_runs = completion->num_runs,
        .num_sessions = completion->num_sessions,
        .run_message = answer->message,
    };
}

// Turns the completion into the answer that a message would have brought.
static enum aule_status read_answer(const struct lane *lane, struct place *place,
                                    const struct wire_completion *completion,
                                    enum wire_answer expected, const char *command,
                                    struct answer *answer)
{
    const struct wire_reply told = {.status = completion->status,
                                    .message = completion->text,
                                    .answer = (enum wire_answer)completion->answer};
    enum aule_status status = answer_judge(&told, expected, command);
    answer->reply.ticket = completion->ticket;
    if (status != AULE_OK)
        return status;
    answer->reply.answer = expected;
    switch (expected) {
    case WIRE_ANSWER_EMPTY: return AULE_OK;
    case WIRE_ANSWER_RUN: answer->reply.run.ticket = completion->ticket; return AULE_OK;
    case WIRE_ANSWER_WAIT: read_wait(completion, answer); return AULE_OK;
    default: break;
    }
    status = read_place(lane, place, completion->ticket, command, answer);
    if (status == AULE_OK)
        status = answer_judge(&answer->reply, expected, command);
    if (status != AULE_OK)
        answer_drop(answer);
    return status;
}

// ---- one command ----

// False: the command must go as a message.
static bool submission_of(struct lane *lane, const struct wire_request *request,
                          enum wire_answer expected, struct wire_submission *submission,
                          struct place *place)
{
    *submission = (struct wire_submission){.command = request->command};
    switch (request->command) {
    case WIRE_COMMAND_RUN: submission->run = request->run; return true;
    case WIRE_COMMAND_WAIT: submission->wait = request->wait; return true;
    default: break;
    }
    return lane->places && (wire_command_rules(request->command) & WIRE_BY_RING) &&
           place_command(lane, request, expected, submission, place);
}

bool lane_call(struct lane *lane, const struct wire_request *request, const struct timeout *timeout,
               enum wire_answer expected, struct answer *answer, enum aule_status *status)
{
    const char *command = wire_command_name(request->command);
    struct wire_submission submission;
    struct wire_completion completion;
    struct place place = {.size = 0};
    *answer = (struct answer){.message = NULL};
    if (!lane || !submission_of(lane, request, expected, &submission, &place))
        return false;
    const bool asked = ask(lane, &submission, timeout, answer, &completion, status);
    const bool answered = asked && *status == AULE_OK;
    if (answered)
        *status = read_answer(lane, &place, &completion, expected, command, answer);
    drop_place(lane, &place, answered || !asked);
    return asked;
}
