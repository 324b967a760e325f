// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// exports.c - see exports.h. A packet has exactly the size of a request, or the connection is
// refused. Descriptors that a peer sends along are closed by the kernel, because recv() takes none.

#include "exports.h"

#include "base/clock.h"
#include "base/owner.h"
#include "log.h"
#include "server/process/limits.h"
#include "side_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static const int64_t patience_ns = 2 * NS_PER_S;
enum { STEPS_A_TURN = 32 }; // events that one exports_serve() takes

struct export_peer {
    int fd; // -1 = free
    struct exports_peer who;
    int64_t deadline_ns;
};

struct exports {
    struct exports_params params;
    struct side_socket side;
    int epoll_fd; // of the socket and the peers; it is in the dispatcher's set
    int spare_fd; // closed to accept and refuse when there are no descriptors
    uint32_t num_peers;
    struct export_peer peers[]; // [params.max_peers]
};

static enum status watch_all(struct exports *exports, struct error *error)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = exports->params.mark};
    exports->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    exports->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (exports->epoll_fd < 0 || exports->spare_fd < 0 ||
        epoll_ctl(exports->params.epoll_fd, EPOLL_CTL_ADD, exports->epoll_fd, &event) != 0)
        return error_set(error, STATUS_INTERNAL, "cannot watch a descriptor: %s", strerror(errno));
    return side_socket_open(&exports->side, exports->params.groups != NULL, exports->epoll_fd, NULL,
                            error);
}

enum status exports_open(const struct exports_params *params, struct exports **out,
                         struct error *error)
{
    *out = NULL;
    struct exports *exports =
        calloc(1, sizeof *exports + params->max_peers * sizeof(struct export_peer));
    if (!exports)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the export socket");
    exports->params = *params;
    exports->epoll_fd = exports->spare_fd = -1;
    for (uint32_t i = 0; i < params->max_peers; i++)
        exports->peers[i].fd = -1;
    side_socket_name(&exports->side, params->socket, ".export", "export socket", SOCK_SEQPACKET);
    enum status status = watch_all(exports, error);
    if (status == STATUS_OK)
        *out = exports;
    else
        exports_close(exports);
    return status;
}

// While all places are taken, new connections wait in the kernel's queue.
static void listen_on(struct exports *exports)
{
    const bool room = exports->num_peers < exports->params.max_peers;
    struct epoll_event event = {.events = room ? EPOLLIN : 0, .data.ptr = NULL};
    epoll_ctl(exports->epoll_fd, EPOLL_CTL_MOD, exports->side.fd, &event);
}

static void drop(struct exports *exports, struct export_peer *peer)
{
    if (peer->fd < 0)
        return;
    epoll_ctl(exports->epoll_fd, EPOLL_CTL_DEL, peer->fd, NULL); // see unwatch_owner()
    close(peer->fd);
    peer->fd = -1;
    exports->num_peers--;
    listen_on(exports);
}

void exports_close(struct exports *exports)
{
    if (!exports)
        return;
    for (uint32_t i = 0; i < exports->params.max_peers; i++)
        drop(exports, &exports->peers[i]);
    side_socket_close(&exports->side);
    if (exports->epoll_fd >= 0)
        close(exports->epoll_fd);
    if (exports->spare_fd >= 0)
        close(exports->spare_fd);
    free(exports);
}

void exports_remove(const struct exports *exports)
{
    if (exports)
        side_socket_remove(&exports->side);
}

const char *exports_name(const struct exports *exports)
{
    return exports ? exports->side.name : "";
}

// ---- answers ----

// The peer's queue is empty, so one packet always fits. A peer that has gone gets nothing.
static void answer(int peer, const struct wire_export_answer *answer, int fd)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec bytes = {(void *)answer, sizeof *answer};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    if (sendmsg(peer, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        log_debug("export socket: an answer was not sent: %s", strerror(errno));
}

static void refuse(int peer, const struct error *error)
{
    struct wire_export_answer reply = {.status = error->status};
    snprintf(reply.message, sizeof reply.message, "%.*s", (int)sizeof reply.message - 1,
             error->text);
    log_info("export socket: refused: %s", error->text);
    answer(peer, &reply, -1);
}

static enum status check_request(const struct wire_export_request *request, ssize_t size,
                                 struct error *error)
{
    if (size == (ssize_t)sizeof *request &&
        memcmp(request->magic, WIRE_EXPORT_MAGIC, sizeof request->magic) == 0)
        return STATUS_OK;
    return error_set(error, STATUS_MALFORMED, "a packet of %zd bytes is no request of an export",
                     size);
}

// One packet of one peer; its end ends the connection.
static void serve_peer(struct exports *exports, struct export_peer *peer)
{
    struct wire_export_request request;
    struct error error = {.status = STATUS_OK};
    int fd = -1;
    ssize_t size = recv(peer->fd, &request, sizeof request, MSG_DONTWAIT | MSG_TRUNC);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (size > 0) {
        enum status status = check_request(&request, size, &error);
        if (status == STATUS_OK)
            status = exports->params.redeem(exports->params.context, request.token, &peer->who, &fd,
                                            &error);
        if (status == STATUS_OK)
            answer(peer->fd, &(struct wire_export_answer){.status = STATUS_OK}, fd);
        else
            refuse(peer->fd, &error);
    }
    if (fd >= 0)
        close(fd);
    drop(exports, peer);
}

// ---- connections ----

static struct export_peer *free_place(struct exports *exports)
{
    for (uint32_t i = 0; i < exports->params.max_peers; i++) {
        if (exports->peers[i].fd < 0)
            return &exports->peers[i];
    }
    return NULL;
}

static enum status check_user(const struct exports *exports, const struct place_user *user,
                              struct error *error)
{
    const struct places places = {.what = "connections to the export socket",
                                  .option = "a sixteenth of --max-connections",
                                  .most = exports->params.max_peers,
                                  .share = exports->params.tenant_share,
                                  .group_word = ""};
    struct places_taken taken = {0};
    for (uint32_t i = 0; i < exports->params.max_peers; i++)
        if (exports->peers[i].fd >= 0)
            places_count(&taken, user, &exports->peers[i].who.user);
    enum status status = places_check_user(exports->params.groups, user, error);
    return status == STATUS_OK ? places_check(&places, &taken, user, error) : status;
}

static enum status admit(struct exports *exports, int fd, int64_t now_ns, struct error *error)
{
    struct ucred credentials;
    socklen_t size = sizeof credentials;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
        return error_set(error, STATUS_DENIED, "a peer without credentials");
    const struct place_user user =
        places_user(exports->params.groups, credentials.uid, credentials.gid);
    enum status status = check_user(exports, &user, error);
    if (status != STATUS_OK)
        return status;
    struct export_peer *place = free_place(exports);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = place};
    if (epoll_ctl(exports->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        return error_set(error, STATUS_NO_MEMORY, "cannot watch a descriptor: %s", strerror(errno));
    const int pidfd = owner_open(fd);
    *place = (struct export_peer){
        fd, {user, (uint64_t)credentials.pid, owner_number(pidfd)}, now_ns + patience_ns};
    if (pidfd >= 0)
        close(pidfd);
    exports->num_peers++;
    listen_on(exports);
    return STATUS_OK;
}

// Without it the socket would stay readable, and the client would not learn why nobody accepts.
static void refuse_without_descriptors(struct exports *exports)
{
    struct error error;
    limits_no_descriptor(&error);
    if (exports->spare_fd >= 0)
        close(exports->spare_fd);
    int fd = accept4(exports->side.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        refuse(fd, &error);
        close(fd);
    }
    exports->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void accept_one(struct exports *exports, int64_t now_ns)
{
    struct error error;
    int fd = accept4(exports->side.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE))
        refuse_without_descriptors(exports);
    if (fd < 0 || admit(exports, fd, now_ns, &error) == STATUS_OK)
        return;
    refuse(fd, &error);
    close(fd);
}

void exports_serve(struct exports *exports, int64_t now_ns)
{
    struct epoll_event events[STEPS_A_TURN];
    int count = epoll_wait(exports->epoll_fd, events, STEPS_A_TURN, 0);
    for (int i = 0; i < count; i++) {
        struct export_peer *peer = events[i].data.ptr;
        if (!peer)
            accept_one(exports, now_ns);
        else if (peer->fd >= 0)
            serve_peer(exports, peer);
    }
}

int64_t exports_expire(struct exports *exports, int64_t now_ns)
{
    int64_t next_ns = FOREVER;
    for (uint32_t i = 0; exports && i < exports->params.max_peers; i++) {
        struct export_peer *peer = &exports->peers[i];
        if (peer->fd >= 0 && peer->deadline_ns <= now_ns)
            drop(exports, peer);
        else if (peer->fd >= 0 && peer->deadline_ns < next_ns)
            next_ns = peer->deadline_ns;
    }
    return next_ns;
}
