// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// 06_prefill_decode.c - one process computes prompts, another one samples: the prefill worker
// offers each sequence by the number of its request, and the decode worker takes it. Prints the
// texts. The prefill worker also samples each text itself, by a fork, to show that both get the
// same.

#include "toy_model.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROMPT = 70, WANTED = 24, REQUESTS = 3, WAIT_MS = 60000 };

static struct toy_model model;

static void sample(struct aule_sequence *sequence, int32_t *text)
{
    struct aule_step_entry entry = {.sequence = sequence};
    for (int i = 0; i < WANTED; i++) {
        entry.num_tokens = 0; // all that are not computed yet
        toy_step(&model, &entry, 1);
        text[i] = toy_best(model.logits[entry.row + entry.num_tokens - 1]);
        check(aule_sequence_append(sequence, &text[i], 1), "append");
    }
}

static const char *request_name(int request)
{
    static char name[32];
    snprintf(name, sizeof name, "request %d", request);
    return name;
}

// ---- the decode worker ----

static void decode(int pipe_end)
{
    toy_open(&model);
    for (int request = 0; request < REQUESTS; request++) {
        struct aule_sequence *sequence;
        int32_t text[WANTED];
        check(aule_sequence_take(model.cache, request_name(request), WAIT_MS, &sequence), "take");
        check(aule_sequence_accept(sequence), "accept");
        sample(sequence, text);
        aule_sequence_destroy(sequence);
        if (write(pipe_end, text, sizeof text) != sizeof text)
            _exit(1);
    }
    toy_close(&model);
}

// ---- the prefill worker ----

// Computes what the cache lacks of all tokens but the last one, whose output the decode worker
// needs.
static struct aule_sequence *prefill(int request)
{
    int32_t prompt[PROMPT];
    struct aule_sequence_info info;
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = (i * 13 + request) % VOCABULARY;
    struct aule_step_entry entry = {.sequence = toy_sequence(&model, prompt, PROMPT)};
    check(aule_sequence_info(entry.sequence, &info), "info");
    entry.num_tokens = PROMPT - 1 - info.num_computed;
    if (entry.num_tokens > 0)
        toy_step(&model, &entry, 1);
    return entry.sequence;
}

static int compare(int request, struct aule_sequence *own, int pipe_end)
{
    int32_t theirs[WANTED], mine[WANTED];
    int different = 0;
    sample(own, mine);
    if (read(pipe_end, theirs, sizeof theirs) != sizeof theirs)
        return 1;
    printf("%s:", request_name(request));
    for (int i = 0; i < WANTED; i++) {
        printf(" %d", (int)theirs[i]);
        different += theirs[i] != mine[i];
    }
    printf("\n");
    return different;
}

int main(void)
{
    int ends[2], different = 0, status;
    if (pipe(ends) != 0)
        return 1;
    pid_t worker = fork(); // before either side opens a session
    if (worker == 0) {
        decode(ends[1]);
        return 0;
    }
    close(ends[1]);
    toy_open(&model);
    for (int request = 0; request < REQUESTS; request++) {
        struct aule_sequence *sequence = prefill(request), *own;
        check(aule_sequence_fork(sequence, &own), "fork");
        check(aule_sequence_offer(sequence, request_name(request), WAIT_MS), "offer");
        different += compare(request, own, ends[0]);
        aule_sequence_destroy(own);
    }
    waitpid(worker, &status, 0);
    toy_close(&model);
    return different || status ? 1 : 0;
}
