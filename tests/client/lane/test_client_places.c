// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_places.c - which commands the library sends through the arena and the ring, and what
// it does with the answers, also with those that no daemon gives. Each test is a process with a
// fake daemon in it, whose rings a thread of the test serves.

#include "rigs/client_world.h"
#include "schema/ring.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

// The library copies the sentence of a failed run. The linker redirects it here.
static _Thread_local bool no_memory;
char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);

char *__wrap_strdup(const char *text)
{
    return no_memory ? NULL : __real_strdup(text);
}

enum { ENTRIES = 4, SUBMISSIONS_AT = WIRE_PAGE, COMPLETIONS_AT = 3 * WIRE_PAGE };

// What the fake's end of the ring does with a command in the arena.
enum trick { HONEST, TOO_LARGE, OTHER_KIND, GARBAGE, REFUSED, REFUSED_IN_PLACE, SILENT };

static struct rings {
    struct ring_daemon end;
    atomic_int trick; // enum trick
    uint32_t entries;
    pthread_t thread;
    atomic_bool stopping;
    atomic_uint seen[WIRE_COMMAND_COUNT]; // by ring
    int bell;
    struct sockaddr_un bell_address;
} rings;

static enum fake_action greet(struct fake_daemon *daemon, const struct wire_request *request,
                              struct wire_reply *reply)
{
    if (request->command != WIRE_COMMAND_HELLO)
        return FAKE_ANSWER;
    reply->hello.ring_entries = rings.entries;
    reply->hello.ring_entry_size = WIRE_SUBMISSION_SIZE;
    reply->hello.doorbell = "daemon.bell";
    reply->hello.submission_ring_offset = SUBMISSIONS_AT;
    reply->hello.completion_ring_offset = COMPLETIONS_AT;
    const struct ring_place place = {
        .submissions = daemon->segment + SUBMISSIONS_AT,
        .completions = daemon->segment + COMPLETIONS_AT,
        .num_entries = rings.entries,
        .submission_size = WIRE_SUBMISSION_SIZE,
        .completion_size = WIRE_COMPLETION_SIZE,
    };
    ring_daemon_init(&rings.end, &place);
    ring_wake_up(&rings.end); // it polls, so that nobody rings
    return FAKE_ANSWER;
}

// As the fake answers a message, but with its own numbers.
static struct wire_reply reply_to(const struct wire_request *request)
{
    static const int32_t blocks[] = {40, 41, 42};
    struct wire_reply reply = {.message = "", .answer = WIRE_ANSWER_EMPTY};
    if (request->command == WIRE_COMMAND_BLOCKS_LEASE) {
        reply.answer = WIRE_ANSWER_BLOCKS_LEASE;
        reply.blocks_lease.blocks = (struct wire_ints){blocks, request->blocks_lease.count};
    }
    if (request->command == WIRE_COMMAND_BATCH_CREATE) {
        reply.answer = WIRE_ANSWER_BATCH_CREATE;
        reply.batch_create.batch = 99;
    }
    if (rings.trick == REFUSED_IN_PLACE) {
        reply.status = STATUS_QUOTA;
        reply.message = "refused in the place";
    }
    if (rings.trick == OTHER_KIND)
        reply.answer = WIRE_ANSWER_CACHE_STATE;
    return reply;
}

static void put_reply(const struct wire_submission *submission, struct wire_completion *completion)
{
    static uint64_t message[WIRE_PAGE];
    struct wire_request request;
    struct error error;
    uint8_t *place = fake_arena(&fake) + submission->message.offset;
    ck_assert_uint_le(submission->message.count, sizeof message);
    ck_assert_uint_ge(submission->message.offset, FAKE_ARENA);
    ck_assert_uint_le(submission->message.offset + submission->room, FAKE_ARENA + fake.places_size);
    memcpy(message, place, submission->message.count);
    ck_assert_int_eq(wire_decode_request(message, submission->message.count, &request, &error),
                     STATUS_OK);
    ck_assert_uint_eq(request.command, submission->command);
    ck_assert_uint_eq(request.epoch, fake.epoch);
    ck_assert_uint_ge(submission->room, wire_reply_room(&request));
    const struct wire_reply reply = reply_to(&request);
    struct wire_buffer buffer;
    ck_assert_int_eq(wire_encode_reply(&reply, &buffer, &error), STATUS_OK);
    if (reply.answer != WIRE_ANSWER_EMPTY)
        memcpy(place, buffer.data, buffer.size);
    if (rings.trick == GARBAGE)
        memset(place, 0xa5, buffer.size);
    completion->answer =
        reply.answer == WIRE_ANSWER_CACHE_STATE ? WIRE_ANSWER_BLOCKS_LEASE : reply.answer;
    completion->ticket = rings.trick == TOO_LARGE ? submission->room + 1 : buffer.size;
    wire_buffer_finish(&buffer);
}

static void answer(const struct wire_submission *submission)
{
    uint64_t entry[WIRE_COMPLETION_SIZE / 8];
    struct wire_completion completion = {.sequence = submission->sequence};
    atomic_fetch_add(&rings.seen[submission->command], 1);
    if (rings.trick == SILENT)
        return;
    if (rings.trick == REFUSED) {
        completion.status = STATUS_QUOTA;
        completion.answer = WIRE_ANSWER_EMPTY;
        strcpy(completion.text, "no more than that");
    } else if (submission->message.count) {
        put_reply(submission, &completion);
    } else if (submission->command == WIRE_COMMAND_WAIT) {
        completion.answer = WIRE_ANSWER_WAIT;
        completion.run_status = STATUS_SEALED;
        strcpy(completion.text, "its block was sealed");
    } else {
        completion.answer = WIRE_ANSWER_RUN;
        completion.ticket = 1;
    }
    wire_put_completion(&completion, entry);
    ring_post(&rings.end, entry);
}

static void *serve_rings(void *context)
{
    uint64_t entry[WIRE_SUBMISSION_SIZE / 8];
    struct wire_submission submission;
    (void)context;
    while (!atomic_load(&rings.stopping)) {
        if (ring_take(&rings.end, entry) != RING_TAKEN) {
            usleep(100);
            continue;
        }
        wire_get_submission(entry, &submission);
        answer(&submission);
    }
    return NULL;
}

static struct aule_session *session;
static struct aule_cache *cache;

static void open_with(enum trick trick, uint64_t places_size)
{
    struct sockaddr_un *address = &rings.bell_address;
    rings.trick = trick;
    rings.entries = ENTRIES;
    address->sun_family = AF_UNIX;
    snprintf(address->sun_path, sizeof address->sun_path, "%s/daemon.bell", folder);
    rings.bell = socket(AF_UNIX, SOCK_DGRAM, 0);
    ck_assert_int_eq(bind(rings.bell, (const struct sockaddr *)address, sizeof *address), 0);
    setenv("AULE_LANE", "ring", 1);
    fake_start(&fake, path, greet, NULL);
    fake.head = 8 * WIRE_PAGE;
    fake.places_size = places_size;
    session = open_session(SHORT_MS);
    cache = open_cache(session);
    ck_assert_int_eq(pthread_create(&rings.thread, NULL, serve_rings, NULL), 0);
}

static void open_all(enum trick trick)
{
    open_with(trick, WIRE_PLACES_SIZE);
}

static void close_all(void)
{
    aule_cache_close(cache);
    aule_session_close(session);
    atomic_store(&rings.stopping, true);
    pthread_join(rings.thread, NULL);
    close(rings.bell);
    unlink(rings.bell_address.sun_path);
}

START_TEST(a_step_goes_by_the_ring_and_leaves_the_arena_empty)
{
    int32_t blocks[3], expected[] = {40, 41, 42};
    const int64_t slot = 1;
    open_all(HONEST);
    ck_assert_int_eq(aule_blocks_lease(cache, 3, 0, blocks), AULE_OK);
    ck_assert_mem_eq(blocks, expected, sizeof blocks);
    struct aule_batch *batch = create_batch(cache);
    const struct aule_advance advance = {.slot_mapping = &slot};
    ck_assert_int_eq(aule_batch_advance(batch, &advance), AULE_OK);
    aule_batch_destroy(batch);
    ck_assert_int_eq(aule_blocks_release(cache, 3, blocks), AULE_OK);
    static const enum wire_command commands[] = {
        WIRE_COMMAND_BLOCKS_LEASE, WIRE_COMMAND_BATCH_CREATE, WIRE_COMMAND_BATCH_ADVANCE,
        WIRE_COMMAND_BATCH_DESTROY, WIRE_COMMAND_BLOCKS_RELEASE};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        ck_assert_uint_eq(rings.seen[commands[i]], 1);
        ck_assert_uint_eq(fake.seen[commands[i]], 0);
    }
    expect_empty_arena(session);
    close_all();
}
END_TEST

START_TEST(a_daemon_that_gives_no_places_gets_messages_but_for_runs)
{
    int32_t blocks[3];
    open_with(HONEST, 0);
    ck_assert_int_eq(aule_blocks_lease(cache, 3, 0, blocks), AULE_OK);
    ck_assert_uint_eq(fake.seen[WIRE_COMMAND_BLOCKS_LEASE], 1);
    struct aule_batch *batch = create_batch(cache);
    submit_one(batch);
    ck_assert_uint_eq(rings.seen[WIRE_COMMAND_RUN], 1);
    aule_batch_destroy(batch);
    expect_empty_arena(session);
    close_all();
}
END_TEST

static void *lease_in_vain(void *status)
{
    int32_t blocks[3];
    *(enum aule_status *)status = aule_blocks_lease(cache, 3, 0, blocks);
    return NULL;
}

static void wait_for_ring(enum wire_command command, unsigned count)
{
    for (int i = 0; i < DEADLINE_S * 1000 && atomic_load(&rings.seen[command]) < count; i++)
        usleep(1000);
    ck_assert_uint_eq(atomic_load(&rings.seen[command]), count);
}

// Each byte of the arena is the caller's, and a second free of the same memory frees no place.
START_TEST(a_lease_that_waits_takes_nothing_from_the_caller)
{
    pthread_t thread;
    enum aule_status status;
    void *freed;
    open_all(SILENT);
    ck_assert_int_eq(aule_arena_alloc(session, 100, &freed, NULL), AULE_OK);
    aule_arena_free(session, freed);
    ck_assert_int_eq(pthread_create(&thread, NULL, lease_in_vain, &status), 0);
    wait_for_ring(WIRE_COMMAND_BLOCKS_LEASE, 1);
    aule_arena_free(session, freed);
    aule_arena_free(session, (char *)aule_arena_base(session) + FAKE_ARENA);
    ck_assert_msg(strstr(aule_error(), "no allocation begins"), "%s", aule_error());
    expect_empty_arena(session);
    pthread_join(thread, NULL);
    ck_assert_int_eq(status, AULE_TIMEOUT);
    close_all();
}
END_TEST

enum { LARGE = 15000 }; // blocks; two such lists fill the places
static const int32_t many[20000];

static void *release_in_vain(void *status)
{
    *(enum aule_status *)status = aule_blocks_release(cache, LARGE, many);
    return NULL;
}

START_TEST(a_large_command_goes_as_a_message_and_so_does_one_that_finds_no_place)
{
    pthread_t threads[2];
    enum aule_status statuses[2];
    open_all(SILENT);
    ck_assert_int_eq(aule_blocks_release(cache, 20000, many), AULE_OK);
    ck_assert_uint_eq(fake.seen[WIRE_COMMAND_BLOCKS_RELEASE], 1);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, release_in_vain, &statuses[i]), 0);
    wait_for_ring(WIRE_COMMAND_BLOCKS_RELEASE, 2);
    ck_assert_int_eq(aule_blocks_release(cache, LARGE, many), AULE_OK);
    ck_assert_uint_eq(fake.seen[WIRE_COMMAND_BLOCKS_RELEASE], 2);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    ck_assert(statuses[0] == AULE_TIMEOUT || statuses[1] == AULE_TIMEOUT);
    close_all();
}
END_TEST

enum { THREADS = 6, ROUNDS = 60 };
static struct aule_batch *common_batch;
static atomic_int wrong;

static void *step_often(void *context)
{
    int32_t blocks[3];
    struct aule_ticket ticket;
    struct aule_tensor tensor;
    const struct aule_run_params run = {.num_heads = 1};
    (void)context;
    for (int i = 0; i < ROUNDS; i++) {
        bool good = aule_blocks_lease(cache, 3, 0, blocks) == AULE_OK &&
                    (blocks[0] == 40 || blocks[0] == 0) && blocks[2] == blocks[0] + 2 &&
                    aule_tensor_create(session, AULE_F32, 16, 1, 64, &tensor) == AULE_OK &&
                    aule_run_submit(common_batch, &run, 0, &ticket) == AULE_OK;
        aule_tensor_destroy(session, &tensor);
        good &= aule_blocks_release(cache, 3, blocks) == AULE_OK;
        atomic_fetch_add(&wrong, !good);
    }
    return NULL;
}

// The ring has fewer entries than there are threads, so some commands go as messages.
START_TEST(threads_of_a_session_share_the_ring_and_its_places)
{
    pthread_t threads[THREADS];
    open_all(HONEST);
    common_batch = create_batch(cache);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, step_often, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    ck_assert_int_eq(wrong, 0);
    ck_assert_uint_gt(rings.seen[WIRE_COMMAND_BLOCKS_LEASE], 0);
    ck_assert_uint_eq(rings.seen[WIRE_COMMAND_BLOCKS_LEASE] + fake.seen[WIRE_COMMAND_BLOCKS_LEASE],
                      THREADS * ROUNDS);
    aule_batch_destroy(common_batch);
    expect_empty_arena(session);
    close_all();
}
END_TEST

static const struct {
    enum trick trick;
    enum aule_status status;
    bool ends; // the session: the leased ids are lost
    const char *text;
} tricks[] = {
    {TOO_LARGE, AULE_MALFORMED, true, "BLOCKS_LEASE was answered with"},
    {OTHER_KIND, AULE_MALFORMED, false, "BLOCKS_LEASE was answered with kind"},
    {GARBAGE, AULE_MALFORMED, true, "the answer to BLOCKS_LEASE"},
    {REFUSED, AULE_QUOTA, false, "no more than that"},
    {REFUSED_IN_PLACE, AULE_QUOTA, false, "refused in the place"},
};

START_TEST(an_answer_that_no_daemon_gives_is_an_error_with_its_values)
{
    int32_t blocks[3];
    open_all(tricks[_i].trick);
    expect(aule_blocks_lease(cache, 3, 0, blocks), tricks[_i].status, tricks[_i].text);
    expect_empty_arena(session);
    rings.trick = HONEST;
    ck_assert_int_eq(aule_blocks_lease(cache, 3, 0, blocks),
                     tricks[_i].ends ? AULE_DAEMON_GONE : AULE_OK);
    close_all();
}
END_TEST

START_TEST(a_run_that_failed_is_told_by_its_status_if_its_sentence_has_no_memory)
{
    open_all(HONEST);
    struct aule_batch *batch = create_batch(cache);
    const struct aule_ticket ticket = submit_one(batch);
    expect(aule_ticket_wait(session, ticket, SHORT_MS, NULL), AULE_SEALED, "its block was sealed");
    no_memory = true;
    const enum aule_status status = aule_ticket_wait(session, ticket, SHORT_MS, NULL);
    no_memory = false;
    expect(status, AULE_SEALED, aule_status_text(AULE_SEALED));
    ck_assert_uint_eq(rings.seen[WIRE_COMMAND_WAIT], 2);
    aule_batch_destroy(batch);
    close_all();
}
END_TEST

START_TEST(a_command_without_an_answer_ends_the_session)
{
    int32_t blocks[3];
    open_all(SILENT);
    expect(aule_blocks_lease(cache, 3, 0, blocks), AULE_TIMEOUT, "BLOCKS_LEASE");
    expect(aule_blocks_lease(cache, 3, 0, blocks), AULE_DAEMON_GONE, "BLOCKS_LEASE");
    expect_empty_arena(session);
    close_all();
}
END_TEST

int main(void)
{
    const struct entry places[] = {
        {a_step_goes_by_the_ring_and_leaves_the_arena_empty, 0},
        {a_daemon_that_gives_no_places_gets_messages_but_for_runs, 0},
        {a_lease_that_waits_takes_nothing_from_the_caller, 0},
        {a_large_command_goes_as_a_message_and_so_does_one_that_finds_no_place, 0},
        {threads_of_a_session_share_the_ring_and_its_places, 0},
        {an_answer_that_no_daemon_gives_is_an_error_with_its_values,
         sizeof tricks / sizeof *tricks},
        {a_run_that_failed_is_told_by_its_status_if_its_sentence_has_no_memory, 0},
        {a_command_without_an_answer_ends_the_session, 0},
        {NULL, 0}};
    Suite *suite = suite_create("client, places");
    add(suite, "places", places);
    return check_main(suite);
}
