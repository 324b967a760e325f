// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// cost.c - see cost.h. Measures by both clocks: a call longer than a few microseconds may be
// interrupted; for a shorter one, asking the kernel for CPU time takes as long as the call.

#include "cost.h"

#include "core/audit/audit.h"
#include "tools/bench/wrong.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

enum { INTERRUPTED_US = 20 };

static double cpu_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

struct moment cost_begin(void)
{
    double cpu = cpu_us();
    return (struct moment){now_us(), cpu};
}

bool cost_note(struct cost *cost, struct moment begin)
{
    double wall = now_us() - begin.wall_us;
    return samples_add(&cost->samples, 0,
                       wall < INTERRUPTED_US ? wall : fmin(wall, cpu_us() - begin.cpu_us));
}

bool cost_say(struct cost *cost, const struct study *study, struct bare_core *core, uint32_t size)
{
    struct figure figure = study_figure(study, "core", NULL, 0);
    struct error error = {0};
    uint32_t units = cost->units ? cost->units : size;
    if (!study->options.check)
        samples_times(&cost->samples, true, &figure.times);
    samples_finish(&cost->samples);
    figure.checked = core_check(core->core, &error);
    if (!figure.checked)
        wrong_say("%s", error.text);
    snprintf(figure.name, sizeof figure.name, "%s", cost->name);
    figure_add_given(&figure, "size", size, cost->unit);
    figure_add(&figure, "unit_ns", 1e3 * figure.times.median_us / units, "ns each");
    figure_add_given(&figure, "aim_ns", cost->aim_ns, "");
    return study_say(study, &figure);
}

void blocks_shuffle(int32_t *blocks, uint32_t count)
{
    uint64_t state = 0x1234567 + count;
    for (uint32_t i = count; i > 1; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t other = (uint32_t)((state >> 33) % i);
        int32_t held = blocks[i - 1];
        blocks[i - 1] = blocks[other];
        blocks[other] = held;
    }
}
