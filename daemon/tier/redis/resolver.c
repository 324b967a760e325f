// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// resolver.c - see resolver.h. Each look-up has a detached thread, which ends with it. The thread
// or the caller frees the look-up, whichever is last.

#include "resolver.h"

#include "url.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4 };

struct resolver {
    atomic_int refs;
    atomic_bool done; // then the thread does not touch what follows any more
    int count;
    char ips[MOST][RESOLVER_IP_SIZE];
    char host[REDIS_HOST_SIZE];
};

static void unref(struct resolver *resolver)
{
    if (atomic_fetch_sub(&resolver->refs, 1) == 1)
        free(resolver);
}

bool resolver_is_numeric(const char *host)
{
    struct in6_addr address;
    return inet_pton(AF_INET, host, &address) == 1 || strchr(host, ':');
}

static void *look_up(void *argument)
{
    struct resolver *resolver = argument;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    if (getaddrinfo(resolver->host, NULL, &hints, &list) != 0)
        list = NULL;
    for (const struct addrinfo *at = list; at && resolver->count < MOST; at = at->ai_next)
        resolver->count += getnameinfo(at->ai_addr, at->ai_addrlen, resolver->ips[resolver->count],
                                       RESOLVER_IP_SIZE, NULL, 0, NI_NUMERICHOST) == 0;
    if (list)
        freeaddrinfo(list);
    atomic_store(&resolver->done, true);
    unref(resolver);
    return NULL;
}

static bool start_thread(struct resolver *resolver)
{
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes) != 0)
        return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    const bool started = pthread_create(&thread, &attributes, look_up, resolver) == 0;
    pthread_attr_destroy(&attributes);
    return started;
}

struct resolver *resolver_begin(const char *host)
{
    struct resolver *resolver = calloc(1, sizeof *resolver);
    if (!resolver)
        return NULL;
    strcpy(resolver->host, host); // both have REDIS_HOST_SIZE
    atomic_init(&resolver->refs, 2);
    if (start_thread(resolver))
        return resolver;
    free(resolver);
    return NULL;
}

int resolver_poll(struct resolver *resolver, char (*ips)[RESOLVER_IP_SIZE], int most)
{
    if (!atomic_load(&resolver->done))
        return -1;
    const int count = resolver->count < most ? resolver->count : most;
    memcpy(ips, resolver->ips, (size_t)count * RESOLVER_IP_SIZE);
    return count;
}

void resolver_end(struct resolver *resolver)
{
    if (resolver)
        unref(resolver);
}
