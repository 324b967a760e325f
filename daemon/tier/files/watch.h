// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// watch.h - tells which files come to a folder and go from it, whoever moves them. The kernel does
// not tell what other machines do. Knows no block.

#ifndef AULE_TIER_FILES_WATCH_H
#define AULE_TIER_FILES_WATCH_H

#include <stdbool.h>

struct watch {
    int fd, stop_fd; // owned
    int wd;          // of the folder
};

// False: no descriptor or watch is left; errno says why.
bool watch_open(struct watch *watch, const char *path);
// The path leads to another folder now. False: it is not watched, so there is no news until a later
// call succeeds; errno says why.
bool watch_follow(struct watch *watch, const char *path);
void watch_close(struct watch *watch); // takes one that did not open
void watch_stop(struct watch *watch);  // watch_run() returns soon; any thread

// `name` is lent. A file counts as come when it gets its name by a rename.
struct watch_calls {
    void (*came)(void *context, const char *name);
    void (*went)(void *context, const char *name);
    void (*lost)(void *context); // there was more news than the kernel keeps
    void (*tick)(void *context); // once a second, also while there is much news
    void *context;
};
// Calls them until watch_stop(). One thread.
void watch_run(struct watch *watch, const struct watch_calls *calls);

#endif
