// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// resolver.c - see resolver.h. getaddrinfo_a() has no descriptor to wait on, so its state is
// polled.

#include "resolver.h"

#include "base/clock.h"
#include "url.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>

struct resolver {
    struct gaicb request;
    struct addrinfo hints;
    char host[REDIS_HOST_SIZE];
};

bool resolver_is_numeric(const char *host)
{
    struct in6_addr address;
    return inet_pton(AF_INET, host, &address) == 1 || strchr(host, ':');
}

struct resolver *resolver_begin(const char *host)
{
    struct resolver *resolver = calloc(1, sizeof *resolver);
    if (!resolver)
        return NULL;
    strcpy(resolver->host, host); // both have REDIS_HOST_SIZE
    resolver->hints.ai_socktype = SOCK_STREAM;
    resolver->request.ar_name = resolver->host;
    resolver->request.ar_request = &resolver->hints;
    if (getaddrinfo_a(GAI_NOWAIT, (struct gaicb *[]){&resolver->request}, 1, NULL) == 0)
        return resolver;
    free(resolver);
    return NULL;
}

int resolver_poll(struct resolver *resolver, char (*ips)[RESOLVER_IP_SIZE], int most)
{
    const int state = gai_error(&resolver->request);
    int count = 0;
    if (state == EAI_INPROGRESS)
        return -1;
    for (const struct addrinfo *at = state == 0 ? resolver->request.ar_result : NULL;
         at && count < most; at = at->ai_next)
        count += getnameinfo(at->ai_addr, at->ai_addrlen, ips[count], RESOLVER_IP_SIZE, NULL, 0,
                             NI_NUMERICHOST) == 0;
    return count;
}

static bool is_over(struct resolver *resolver, int64_t deadline_ns)
{
    const struct gaicb *const list[] = {&resolver->request};
    gai_cancel(&resolver->request);
    while (gai_error(&resolver->request) == EAI_INPROGRESS) {
        const int64_t left_ns = deadline_ns == FOREVER ? NS_PER_S : deadline_ns - clock_now_ns();
        const struct timespec time = clock_timespec(left_ns > 0 ? left_ns : 0);
        if (left_ns <= 0)
            return false;
        gai_suspend(list, 1, &time);
    }
    return true;
}

void resolver_end(struct resolver *resolver, int64_t deadline_ns)
{
    if (!resolver || !is_over(resolver, deadline_ns))
        return;
    if (resolver->request.ar_result)
        freeaddrinfo(resolver->request.ar_result);
    free(resolver);
}
