// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// url.c - see url.h.

#include "url.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char plain[] = "redis://", encrypted[] = "rediss://";

bool redis_url_is_one(const char *text)
{
    return strncmp(text, plain, strlen(plain)) == 0 ||
           strncmp(text, encrypted, strlen(encrypted)) == 0;
}

// ---- user and password ----

static int digit(char letter)
{
    return isdigit((unsigned char)letter)    ? letter - '0'
           : isxdigit((unsigned char)letter) ? tolower((unsigned char)letter) - 'a' + 10
                                             : -1;
}

// Decodes %XX of [from, end) into to[REDIS_WORD_SIZE]. An error does not show the text.
static enum status decode(const char *from, const char *end, char *to, const char *what,
                          struct error *error)
{
    size_t used = 0;
    for (; from < end; from++) {
        char letter = *from;
        if (letter == '%') {
            int high = end - from > 2 ? digit(from[1]) : -1, low = high >= 0 ? digit(from[2]) : -1;
            if (low < 0 || high * 16 + low == 0)
                return error_set(error, STATUS_INVALID,
                                 "the URL's %s has a %% without two hexadecimal digits, or %%00",
                                 what);
            letter = (char)(high * 16 + low);
            from += 2;
        }
        if (used + 1 >= REDIS_WORD_SIZE)
            return error_set(error, STATUS_INVALID, "the URL's %s has more than %d bytes", what,
                             REDIS_WORD_SIZE - 1);
        to[used++] = letter;
    }
    to[used] = '\0';
    return STATUS_OK;
}

// [from, at) is what stands before the @: "user:password", ":password" or "user".
static enum status parse_login(const char *from, const char *at, struct redis_url *url,
                               struct error *error)
{
    const char *colon = memchr(from, ':', (size_t)(at - from));
    if (!colon)
        return error_set(error, STATUS_INVALID,
                         "the URL has an @ and no password before it; write user:password@, or "
                         ":password@ for the default user");
    enum status status = decode(from, colon, url->user, "user", error);
    return status ? status : decode(colon + 1, at, url->password, "password", error);
}

// ---- hosts ----

// An error names a host by its place in the list, not by its text: in a URL without its @, the
// password stands where a port should.
static bool parse_port(const char *from, const char *end, uint16_t *port)
{
    unsigned long number = 0;
    const char *at = from;
    for (; at < end && isdigit((unsigned char)*at) && number <= UINT16_MAX; at++)
        number = number * 10 + (unsigned long)(*at - '0');
    *port = (uint16_t)number;
    return at == end && at > from && number > 0 && number <= UINT16_MAX;
}

static bool is_name(const char *from, const char *end, bool bracketed)
{
    for (; from < end; from++)
        if (!isalnum((unsigned char)*from) && !strchr(bracketed ? ":.%" : "-._", *from))
            return false;
    return true;
}

// [from, end) is "host", "host:port" or "[address]:port". NULL, or what is wrong.
static const char *parse_host(const char *from, const char *end, struct redis_host *host)
{
    if (from == end)
        return "is empty";
    bool bracketed = *from == '[';
    const char *name = from + bracketed;
    const char *stop = memchr(name, bracketed ? ']' : ':', (size_t)(end - name));
    if (!stop && bracketed)
        return "has a [ without its ]";
    if (!stop)
        stop = end;
    if (stop == name)
        return "is empty";
    if (stop - name >= REDIS_HOST_SIZE)
        return "has a name of more than 255 bytes";
    if (!is_name(name, stop, bracketed))
        return "has a letter that no host's name has; does the URL lack its @?";
    memcpy(host->name, name, (size_t)(stop - name));
    host->port = REDIS_PORT;
    const char *rest = stop + bracketed;
    if (rest == end)
        return NULL;
    return *rest == ':' && parse_port(rest + 1, end, &host->port)
               ? NULL
               : "has a port that is not a number from 1 to 65535; does the URL lack its @?";
}

static enum status parse_hosts(const char *from, const char *end, struct redis_url *url,
                               struct error *error)
{
    for (;;) {
        const char *comma = memchr(from, ',', (size_t)(end - from));
        if (url->num_hosts == REDIS_URL_HOSTS)
            return error_set(error, STATUS_INVALID, "the URL names more than %d servers",
                             REDIS_URL_HOSTS);
        const char *wrong = parse_host(from, comma ? comma : end, &url->hosts[url->num_hosts++]);
        if (wrong)
            return error_set(error, STATUS_INVALID, "server %u of the URL %s", url->num_hosts,
                             wrong);
        if (!comma)
            return STATUS_OK;
        from = comma + 1;
    }
}

// ---- the whole ----

static enum status parse(const char *text, struct redis_url *url, struct error *error)
{
    if (!redis_url_is_one(text))
        return error_set(error, STATUS_INVALID,
                         "the URL does not begin with redis:// or rediss://");
    url->tls = strncmp(text, encrypted, strlen(encrypted)) == 0;
    text += strlen(url->tls ? encrypted : plain);
    // The last @, so that a password with an @ or a / that is not written as %XX shows nowhere.
    const char *at = strrchr(text, '@'), *hosts = at ? at + 1 : text;
    const char *slash = strchr(hosts, '/'), *end = slash ? slash : hosts + strlen(hosts);
    if (slash && strcmp(slash, "/") != 0 && strcmp(slash, "/0") != 0)
        return error_set(error, STATUS_INVALID,
                         "the URL ends with a path; aule uses database 0 only");
    enum status status = at ? parse_login(text, at, url, error) : STATUS_OK;
    return status ? status : parse_hosts(hosts, end, url, error);
}

enum status redis_url_parse(const char *text, struct redis_url *url, struct error *error)
{
    memset(url, 0, sizeof *url);
    enum status status = parse(text, url, error);
    if (status) {
        redis_url_forget(url);
        memset(url, 0, sizeof *url);
    }
    return status;
}

static enum status read_password(int fd, struct redis_url *url, const char *path,
                                 struct error *error)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        return error_set(error, STATUS_INVALID, "%s is no file", path);
    if (info.st_mode & (S_IRWXG | S_IRWXO))
        return error_set(error, STATUS_INVALID,
                         "%s has a password, and others than its owner may open it (mode %03o); "
                         "chmod 600 it",
                         path, (unsigned)(info.st_mode & 0777));
    ssize_t got = read(fd, url->password, sizeof url->password);
    if (got < 0)
        return error_set(error, STATUS_INVALID, "%s: %s", path, strerror(errno));
    const char *line = memchr(url->password, '\n', (size_t)got);
    size_t length = line ? (size_t)(line - url->password) : (size_t)got;
    bool fits = length < sizeof url->password && !memchr(url->password, '\0', length);
    explicit_bzero(url->password + (fits ? length : 0), sizeof url->password - (fits ? length : 0));
    if (!fits || length == 0)
        return error_set(error, STATUS_INVALID,
                         "the first line of %s is empty, has more than %d bytes, or has a NUL byte",
                         path, REDIS_WORD_SIZE - 1);
    return STATUS_OK;
}

enum status redis_url_password_file(struct redis_url *url, const char *path, struct error *error)
{
    if (url->password[0])
        return error_set(error, STATUS_INVALID,
                         "the password stands in the URL and in %s; leave one out", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return error_set(error, STATUS_NOT_FOUND, "%s: %s", path, strerror(errno));
    enum status status = read_password(fd, url, path, error);
    close(fd);
    return status;
}

void redis_url_forget(struct redis_url *url)
{
    explicit_bzero(url->user, sizeof url->user);
    explicit_bzero(url->password, sizeof url->password);
}
