// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// url.h - redis://[user:password@]host:port[,host:port...] as a struct. Knows no sockets. An error
// never shows the part before the @, nor what a password file has. Any thread.

#ifndef AULE_TIER_REDIS_URL_H
#define AULE_TIER_REDIS_URL_H

#include "schema/status.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    REDIS_URL_HOSTS = 16,  // servers that a URL may name; a cluster tells its others by itself
    REDIS_HOST_SIZE = 256, // bytes of a host's name with its NUL
    REDIS_WORD_SIZE = 512, // bytes of a user's name, or of a password, with its NUL
    REDIS_PORT = 6379,     // where the URL has no port
};

struct redis_host {
    char name[REDIS_HOST_SIZE]; // a name, an IPv4 address, or an IPv6 address without brackets
    uint16_t port;
};

struct redis_url {
    bool tls; // rediss://
    uint32_t num_hosts;
    struct redis_host hosts[REDIS_URL_HOSTS];
    char user[REDIS_WORD_SIZE];     // "": the server's default user
    char password[REDIS_WORD_SIZE]; // "": none
};

// Whether `text` begins with redis:// or rediss://.
bool redis_url_is_one(const char *text);

// Reads `text`. User and password may have %XX. On failure *url is all zeroes. STATUS_INVALID.
enum status redis_url_parse(const char *text, struct redis_url *url, struct error *error);

// Takes the password from the first line of a file that only its owner may read. STATUS_INVALID:
// the URL has a password, too, or others may read the file; STATUS_NOT_FOUND.
enum status redis_url_password_file(struct redis_url *url, const char *path, struct error *error);

// Overwrites user and password.
void redis_url_forget(struct redis_url *url);

#endif
