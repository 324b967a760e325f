// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// node.c - see node.h.

#include "node.h"

#include "base/clock.h"
#include "base/list.h"
#include "io_thread.h"
#include "resolver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

enum {
    MOST_MOVES = 4, // of a unit from server to server
    MOST_ODD = 3,   // wrong answers in a row
    RESOLVE_POLL_MS = 2,
    MAP_PAUSE_MS = 200, // between two questions for the cluster's map
    FULL_PAUSE_MS = 1000,
};

struct node *node_create(struct tier_backend *redis, struct io_thread *io, uint8_t index,
                         const char *host, uint16_t port)
{
    struct node *node = calloc(1, sizeof *node);
    if (!node)
        return NULL;
    node->redis = redis;
    node->io = io;
    node->index = index;
    node->port = port;
    snprintf(node->host, sizeof node->host, "%s", host);
    snprintf(node->address, sizeof node->address, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host,
             (unsigned)port);
    breaker_init(&node->breaker, redis->stall_ns);
    for (int i = 0; i < MOST_CONNS; i++)
        conn_init(&node->conns[i], node);
    node->wants_trial = true;
    return node;
}

void node_destroy(struct node *node)
{
    if (!node)
        return;
    resolver_end(node->resolver);
    free(node);
}

bool node_is_broken(const struct node *node)
{
    return breaker_state(&node->breaker) != BREAKER_CLOSED;
}

bool node_has_room(const struct node *node, const struct unit *unit)
{
    const uint64_t bytes = unit_bytes(unit);
    return bytes == 0 || node->bytes_under_way == 0 || node->bytes_under_way + bytes <= NODE_BYTES;
}

// ---- units ----

static int queue_of(const struct unit *unit)
{
    const enum tier_kind kind = unit->work->job->kind;
    return kind == TIER_LOAD ? 1 : kind == TIER_STORE ? 2 : 0;
}

static void end_unit(struct unit *unit, enum stored_reason reason)
{
    io_thread_drop(unit->node->io, unit);
    unit_end(unit, reason);
}

void node_take(struct node *node, struct unit *unit)
{
    if (node_is_broken(node)) {
        end_unit(unit, STORED_BREAKER);
    } else if (queue_of(unit) == 2 && clock_now_ns() < node->full_until_ns) {
        end_unit(unit, STORED_FULL);
    } else {
        LIST_APPEND(node->queues[queue_of(unit)], unit);
        unit->place = UNIT_QUEUED;
        node->num_queued++;
    }
}

void node_unqueue(struct node *node, struct unit *unit)
{
    LIST_DELETE(node->queues[queue_of(unit)], unit);
    unit->place = UNIT_NOWHERE;
    node->num_queued--;
}

static struct unit *next_unit(const struct node *node)
{
    for (int i = 0; i < NODE_QUEUES; i++)
        if (node->queues[i])
            return node->queues[i];
    return NULL;
}

static void end_queued(struct node *node, enum stored_reason reason)
{
    struct unit *unit;
    while ((unit = next_unit(node))) {
        node_unqueue(node, unit);
        end_unit(unit, reason);
    }
}

void node_lost_unit(struct unit *unit, enum stored_reason reason)
{
    struct node *node = unit->node;
    const bool again = reason == STORED_CONNECTION && unit->tries++ == 0 && !node_is_broken(node) &&
                       !atomic_load(&node->redis->stopping);
    if (again)
        node_take(node, unit);
    else
        end_unit(unit, reason);
}

void node_answered(struct unit *unit, enum stored_reason reason)
{
    struct breaker *breaker = &unit->node->breaker;
    const bool proves = unit->work->job->kind != TIER_STORE; // "OK" is easily said
    if (proves && breaker->failures > 0 && breaker_state(breaker) == BREAKER_CLOSED)
        breaker_success(breaker);
    end_unit(unit, reason);
}

void node_value(struct node *node, const char *wrong)
{
    node->odd = wrong ? node->odd + 1 : 0;
    if (wrong)
        snprintf(node->oddity, sizeof node->oddity, "%s", wrong);
}

void node_full(struct node *node, int64_t now_ns)
{
    node->full_until_ns = now_ns + FULL_PAUSE_MS * NS_PER_MS;
}

// "MOVED 3999 host:port"; an empty host is the one that said it.
static struct node *read_target(const struct node *from, const char *text, unsigned *slot)
{
    char host[REDIS_HOST_SIZE];
    const char *address = strrchr(text, ' '), *colon = strrchr(text, ':');
    if (!address || !colon || colon < address || sscanf(text, "%*s %u", slot) != 1 ||
        *slot >= NUM_SLOTS)
        return NULL;
    const unsigned long port = strtoul(colon + 1, NULL, 10);
    const int length = (int)(colon - address - 1);
    if (port == 0 || port > UINT16_MAX || length >= REDIS_HOST_SIZE)
        return NULL;
    snprintf(host, sizeof host, "%.*s", length, address + 1);
    return store_node_at(from->redis, host[0] ? host : from->host, (uint16_t)port);
}

void node_sent_elsewhere(struct unit *unit, const char *text)
{
    unsigned slot;
    struct node *from = unit->node, *to = read_target(from, text, &slot);
    if (!to || unit->moves++ == MOST_MOVES) {
        node_value(from, text);
        end_unit(unit, STORED_STORE);
        return;
    }
    unit->asking = text[0] == 'A';
    if (!unit->asking) {
        store_set_slots(from->redis, slot, slot, to);
        atomic_store(&from->redis->wants_map, true);
    }
    io_thread_drop(from->io, unit);
    unit->node = to;
    unit->next = NULL;
    io_thread_give(to->io, unit);
}

// ---- what an operator is told ----

static void note(struct node *node, const char *sentence)
{
    char text[sizeof node->note];
    snprintf(text, sizeof text, "%s", sentence);
    pthread_mutex_lock(&node->redis->lock);
    const bool is_new = strcmp(node->note, text) != 0;
    memcpy(node->note, text, sizeof text);
    pthread_mutex_unlock(&node->redis->lock);
    if (is_new && text[0])
        store_say(node->redis, "redis %s: %s", node->address, text);
}

// What does not fit a cache that many write and nobody empties.
static void judge(struct node *node, const struct server_facts *facts)
{
    const bool expires = node->redis->expire_s != 0;
    const char *sentence = "";
    if (facts->replica && !facts->cluster)
        sentence = "it is a replica, so stores are refused; name its master";
    else if (!facts->policy[0])
        sentence = "INFO does not show maxmemory-policy, so it is not checked";
    else if (facts->maxmemory == 0)
        sentence = "maxmemory is 0, so it grows until the machine has no memory; set maxmemory, "
                   "and maxmemory-policy allkeys-lru";
    else if (strcmp(facts->policy, "noeviction") == 0)
        sentence =
            "maxmemory-policy is noeviction, so stores fail once it is full; set allkeys-lru";
    else if (strncmp(facts->policy, "volatile-", 9) == 0 && !expires)
        sentence = "maxmemory-policy evicts only keys that expire, and aule's do not; set "
                   "allkeys-lru";
    else if (strcmp(facts->policy, "volatile-ttl") == 0 || strstr(facts->policy, "-random"))
        sentence = "maxmemory-policy evicts without regard to use; allkeys-lru keeps what is used";
    else if (facts->appends)
        sentence = "appendonly is on, so each store is also written to its disk; set it to no";
    note(node, sentence);
}

// ---- failures ----

static void sync_broken(struct node *node, bool was)
{
    const bool is = node_is_broken(node);
    if (is && !was)
        atomic_fetch_add(&node->redis->num_broken, 1);
    else if (was && !is)
        atomic_fetch_sub(&node->redis->num_broken, 1);
}

static void close_conns(struct node *node, enum stored_reason reason)
{
    for (int i = 0; i < MOST_CONNS; i++)
        if (node->conns[i].state != CONN_DOWN)
            conn_close(&node->conns[i], reason);
}

// `at_once`: more trials are of no use before a pause.
static void failed(struct node *node, enum stored_reason reason, bool at_once, int64_t now_ns)
{
    const bool was = node_is_broken(node);
    const bool opened =
        at_once ? breaker_trip(&node->breaker, now_ns) : breaker_failure(&node->breaker, now_ns);
    sync_broken(node, was);
    if (atomic_load(&node->redis->is_cluster))
        atomic_store(&node->redis->wants_map, true);
    if (!opened)
        return;
    node->odd = 0;
    close_conns(node, reason);
    end_queued(node, STORED_BREAKER);
}

static bool has_conn(const struct node *node, enum conn_state state)
{
    for (int i = 0; i < MOST_CONNS; i++)
        if (node->conns[i].state == state)
            return true;
    return false;
}

static bool open_conn(struct node *node, struct conn *conn, int64_t now_ns)
{
    return conn_open(conn, node->ips[node->ip], node->port, now_ns);
}

// A name may have several addresses, of which not all are served.
static bool tries_next_address(struct conn *conn, int64_t now_ns)
{
    struct node *node = conn->node;
    while (node->ip + 1 < node->num_ips) {
        node->ip++;
        conn_close(conn, STORED_CONNECTION);
        if (open_conn(node, conn, now_ns))
            return true;
    }
    node->ip = 0;
    if (!resolver_is_numeric(node->host))
        node->num_ips = 0; // look it up again
    return false;
}

void node_conn_failed(struct conn *conn, enum stored_reason reason, const char *why, int64_t now_ns)
{
    struct node *node = conn->node;
    const enum conn_state state = conn->state;
    char sentence[sizeof node->note];
    if (state == CONN_CONNECTING && tries_next_address(conn, now_ns))
        return;
    snprintf(sentence, sizeof sentence, "%s%s",
             state == CONN_CONNECTING ? "cannot connect: "
             : state == CONN_SECURING ? ""
             : state == CONN_HELLO    ? "no welcome: "
                                      : "the connection failed: ",
             why);
    conn_close(conn, reason);
    note(node, sentence);
    if (state != CONN_UP && !has_conn(node, CONN_UP))
        end_queued(node, reason);
    failed(node, reason, reason == STORED_DENIED, now_ns);
}

// ---- connecting ----

struct map_reader {
    struct tier_backend *redis;
    const struct node *asked;
};

static void take_range(void *context, uint32_t first, uint32_t last, const char *host,
                       uint16_t port)
{
    const struct map_reader *reader = context;
    struct node *node = store_node_at(reader->redis, host[0] ? host : reader->asked->host, port);
    if (node)
        store_set_slots(reader->redis, first, last, node);
}

void node_connected(struct conn *conn)
{
    struct node *node = conn->node;
    struct map_reader reader = {node->redis, node};
    const bool was = node_is_broken(node);
    if (!conn->greeted)
        atomic_fetch_add(&node->redis->connects, 1);
    atomic_store(&node->used_memory, conn->hello.facts.used_memory);
    atomic_store(&node->maxmemory, conn->hello.facts.maxmemory);
    atomic_store(&node->facts_ns, clock_now_ns());
    atomic_store(&node->wants_facts, false);
    if (conn->hello.facts.cluster)
        atomic_store(&node->redis->is_cluster, true);
    if (conn->hello.step == HELLO_SLOTS) {
        hello_each_range(&conn->hello, take_range, &reader);
        atomic_store(&node->redis->wants_map, false);
    }
    if (was) // else only an answer to a command of ours shows that it works
        breaker_success(&node->breaker);
    sync_broken(node, was);
    judge(node, &conn->hello.facts);
}

// Whether the node has an address to connect to. Looks one up if it has none.
static bool has_address(struct node *node, int64_t now_ns)
{
    if (node->num_ips > 0)
        return true;
    if (resolver_is_numeric(node->host)) {
        snprintf(node->ips[0], sizeof node->ips[0], "%.47s", node->host);
        node->num_ips = 1;
        return true;
    }
    if (!node->resolver)
        node->resolver = resolver_begin(node->host);
    const int count = node->resolver ? resolver_poll(node->resolver, node->ips, MOST_IPS) : 0;
    if (count < 0)
        return false;
    resolver_end(node->resolver);
    node->resolver = NULL;
    node->num_ips = (uint32_t)count;
    if (count == 0) {
        node->wants_trial = false;
        note(node, "its name has no address");
        failed(node, STORED_CONNECTION, false, now_ns);
        end_queued(node, STORED_CONNECTION);
    }
    return count > 0;
}

static uint32_t most_conns(const struct node *node)
{
    const uint32_t nodes = atomic_load(&node->redis->num_nodes);
    const uint32_t each = node->redis->connections / (nodes ? nodes : 1);
    return each == 0 ? 1 : each < MOST_CONNS ? each : MOST_CONNS;
}

// Opens one more connection if none is being opened.
static void connect_more(struct node *node, int64_t now_ns)
{
    const uint32_t most = most_conns(node);
    if (has_conn(node, CONN_CONNECTING) || has_conn(node, CONN_SECURING) ||
        has_conn(node, CONN_HELLO) || !has_address(node, now_ns))
        return;
    for (uint32_t i = 0; i < most; i++) {
        struct conn *conn = &node->conns[i];
        if (conn->state != CONN_DOWN)
            continue;
        node->wants_trial = false;
        if (!open_conn(node, conn, now_ns)) {
            conn->state = CONN_CONNECTING;
            node_conn_failed(conn, STORED_CONNECTION, "no socket, or no such address", now_ns);
        }
        return;
    }
}

// ---- moving on ----

static void fill(struct node *node, struct conn *conn, int64_t now_ns)
{
    struct unit *unit;
    while (conn->state == CONN_UP && (unit = next_unit(node)) && conn_takes(conn, unit)) {
        node_unqueue(node, unit);
        conn_put(conn, unit, now_ns);
    }
    if (conn->state == CONN_UP && conn->piece < conn->num_pieces)
        conn_send(conn, now_ns);
}

static bool wants_map(struct tier_backend *redis, int64_t now_ns)
{
    return atomic_load(&redis->wants_map) && atomic_load(&redis->is_cluster) &&
           now_ns - atomic_load(&redis->map_asked_ns) >= MAP_PAUSE_MS * NS_PER_MS;
}

// Asks for the cluster's map, or what INFO says, on a connection that has nothing else to do.
static void ask_for_news(struct node *node, int64_t now_ns)
{
    const bool map = wants_map(node->redis, now_ns);
    if (!map && !atomic_load(&node->wants_facts))
        return;
    for (int i = 0; i < MOST_CONNS; i++) {
        struct conn *conn = &node->conns[i];
        if (conn->state == CONN_UP && conn->num_sents == 0) {
            if (map)
                atomic_store(&node->redis->map_asked_ns, now_ns);
            conn_greet(conn, now_ns);
            return;
        }
    }
}

// Ends connections on which nothing moves. Returns when the next one may be so.
static int64_t check_stalls(struct node *node, int64_t now_ns)
{
    int64_t wake_ns = FOREVER;
    for (int i = 0; i < MOST_CONNS; i++) {
        struct conn *conn = &node->conns[i];
        // This thread may have had no processor, so what has come meanwhile is read first.
        if (conn_waits(conn) && conn_stalls_ns(conn) <= now_ns)
            conn_event(conn, EPOLLIN, now_ns);
        if (!conn_waits(conn))
            continue;
        const int64_t until_ns = conn_stalls_ns(conn);
        if (until_ns > now_ns)
            wake_ns = until_ns < wake_ns ? until_ns : wake_ns;
        else
            node_conn_failed(conn, STORED_TIMEOUT, "it does not answer in time", now_ns);
    }
    return wake_ns;
}

static void work(struct node *node, int64_t now_ns)
{
    ask_for_news(node, now_ns);
    for (int i = 0; i < MOST_CONNS; i++)
        fill(node, &node->conns[i], now_ns);
    const struct unit *unit = next_unit(node);
    if ((unit ? node_has_room(node, unit) : node->wants_trial) && !node_is_broken(node))
        connect_more(node, now_ns);
}

int64_t node_drive(struct node *node, int64_t now_ns)
{
    if (node->odd >= MOST_ODD) {
        char sentence[sizeof node->note];
        snprintf(sentence, sizeof sentence, "%d answers in a row were wrong; the last: %s",
                 MOST_ODD, node->oddity);
        note(node, sentence);
        node->odd = 0;
        failed(node, STORED_STORE, true, now_ns);
    }
    if (breaker_tries(&node->breaker, now_ns))
        node->wants_trial = true;
    if (breaker_state(&node->breaker) == BREAKER_CLOSED)
        work(node, now_ns);
    else if (breaker_state(&node->breaker) == BREAKER_HALF_OPEN && node->wants_trial)
        connect_more(node, now_ns);
    int64_t wake_ns = check_stalls(node, now_ns);
    if (breaker_state(&node->breaker) == BREAKER_OPEN && node->breaker.until_ns < wake_ns)
        wake_ns = node->breaker.until_ns;
    if (node->resolver && now_ns + RESOLVE_POLL_MS * NS_PER_MS < wake_ns)
        wake_ns = now_ns + RESOLVE_POLL_MS * NS_PER_MS;
    return wake_ns;
}

void node_stop(struct node *node, enum stored_reason reason)
{
    close_conns(node, reason);
    end_queued(node, reason);
}
