// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// progress.c - see progress.h.

#include "progress.h"

#include "base/clock.h"
#include "units.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BAR = 24 };
#define SHOW_NS (100 * NS_PER_MS)

struct progress progress_begin(const char *what, uint64_t whole, bool quiet)
{
    struct progress progress = {.what = what,
                                .whole = whole ? whole : 1,
                                .started_ns = clock_now_ns(),
                                .shows = !quiet && isatty(STDERR_FILENO)};
    return progress;
}

void progress_show(struct progress *progress, uint64_t done)
{
    char done_text[UNITS_SIZE], whole[UNITS_SIZE], speed[UNITS_SIZE], bar[BAR + 1];
    const int64_t now_ns = clock_now_ns();
    if (!progress->shows || (progress->shown_ns && now_ns - progress->shown_ns < SHOW_NS))
        return;
    progress->shown_ns = now_ns;
    const double part = done < progress->whole ? (double)done / (double)progress->whole : 1,
                 seconds = (double)(now_ns - progress->started_ns) / 1e9;
    memset(bar, '.', BAR);
    memset(bar, '#', (size_t)(part * BAR));
    bar[BAR] = 0;
    fprintf(stderr, "\r%.40s [%s] %3d %%, %s of %s, %s/s\033[K", progress->what, bar,
            (int)(part * 100), units_bytes(done, done_text), units_bytes(progress->whole, whole),
            units_bytes(seconds > 0 ? (uint64_t)((double)done / seconds) : 0, speed));
}

void progress_end(struct progress *progress)
{
    if (progress->shown_ns)
        fprintf(stderr, "\r\033[K");
    progress->shows = false;
}
