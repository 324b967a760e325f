// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// 04_speculative.c - speculative decoding: a cheap draft proposes K tokens, one step verifies them
// all, and truncating drops those that the model would not have chosen. The text is the same as
// with greedy decoding, which this program checks.

#include "toy_model.h"

#include <stdio.h>
#include <string.h>

enum { PROMPT = 40, WANTED = 60, K = 4 };

static struct toy_model model;

static void greedy(const int32_t *prompt, int32_t *text)
{
    struct aule_sequence *sequence = toy_sequence(&model, prompt, PROMPT);
    for (int n = 0; n < WANTED; n++) {
        struct aule_step_entry entry = {.sequence = sequence};
        toy_step(&model, &entry, 1);
        text[n] = toy_best(model.logits[entry.row + entry.num_tokens - 1]);
        check(aule_sequence_append(sequence, &text[n], 1), "append");
    }
    aule_sequence_destroy(sequence);
}

// A real draft is a small model. This one knows the text but for every seventh token.
static void propose(const int32_t *text, int n, int32_t *draft)
{
    for (int i = 0; i < K; i++)
        draft[i] = n + i < WANTED && (n + i) % 7 != 6 ? text[n + i] : 0;
}

static int speculate(const int32_t *prompt, const int32_t *expected, int32_t *text)
{
    struct aule_sequence *sequence = toy_sequence(&model, prompt, PROMPT);
    struct aule_step_entry entry = {.sequence = sequence};
    int n = 0, steps = 1;
    toy_step(&model, &entry, 1);
    text[n++] = toy_best(model.logits[entry.row + entry.num_tokens - 1]);
    for (; n < WANTED; steps++) {
        // One step computes the last token that is certain and the K that are proposed.
        int32_t tokens[1 + K] = {text[n - 1]};
        propose(expected, n, tokens + 1);
        check(aule_sequence_append(sequence, tokens, 1 + K), "append");
        entry.num_tokens = 1 + K;
        toy_step(&model, &entry, 1);
        int accepted = 0;
        while (n < WANTED) {
            text[n] = toy_best(model.logits[entry.row + (uint32_t)accepted]);
            n++;
            if (accepted == K || text[n - 1] != tokens[1 + accepted])
                break;
            accepted++;
        }
        struct aule_sequence_info info;
        check(aule_sequence_info(sequence, &info), "info");
        check(aule_sequence_truncate(sequence, info.num_tokens - (uint32_t)(K - accepted)),
              "truncate");
    }
    aule_sequence_destroy(sequence);
    return steps;
}

int main(void)
{
    int32_t prompt[PROMPT], expected[WANTED], text[WANTED];
    toy_open(&model);
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = i * 11 % VOCABULARY;
    greedy(prompt, expected);
    int steps = speculate(prompt, expected, text);
    toy_close(&model);
    printf("%d tokens in %d steps\n", WANTED, steps);
    return memcmp(text, expected, sizeof text) == 0 && steps < WANTED / 2 ? 0 : 1;
}
