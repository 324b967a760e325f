// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// 03_n_best.c - n-best sampling: N forks of one prompt, each of which samples a text of its own.
// The prompt is computed once and its full blocks are stored once. Prints the likeliest text.

#include "toy_model.h"

#include <math.h>
#include <stdio.h>

enum { PROMPT = 70, WANTED = 24, N = 8 };

static struct toy_model model;

struct sample {
    struct aule_sequence *sequence;
    uint64_t random;
    double score;
};

static double next_random(struct sample *sample)
{
    sample->random = sample->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(sample->random >> 11) / 9007199254740992.0;
}

static void choose(struct sample *sample, const float *logits)
{
    double left = next_random(sample);
    int32_t token = 0;
    while (token < VOCABULARY - 1 && (left -= exp(toy_log_probability(logits, token))) > 0)
        token++;
    sample->score += toy_log_probability(logits, token);
    check(aule_sequence_append(sample->sequence, &token, 1), "append");
}

int main(void)
{
    int32_t prompt[PROMPT];
    struct sample samples[N];
    struct aule_step_entry entries[N];
    struct aule_cache_state state;
    toy_open(&model);
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = i * 13 % VOCABULARY;

    struct aule_sequence *sequence = toy_sequence(&model, prompt, PROMPT);
    entries[0] = (struct aule_step_entry){.sequence = sequence};
    toy_step(&model, entries, 1);
    const float *logits = model.logits[entries[0].row + entries[0].num_tokens - 1];
    for (uint32_t i = 0; i < N; i++) {
        samples[i] = (struct sample){.random = i + 1};
        check(aule_sequence_fork(sequence, &samples[i].sequence), "fork");
        choose(&samples[i], logits);
    }
    aule_sequence_destroy(sequence);

    for (int n = 1; n < WANTED; n++) {
        for (uint32_t i = 0; i < N; i++)
            entries[i] = (struct aule_step_entry){.sequence = samples[i].sequence};
        toy_step(&model, entries, N);
        for (uint32_t i = 0; i < N; i++)
            choose(&samples[i], model.logits[entries[i].row]);
    }
    check(aule_cache_state(model.cache, &state), "state");
    int best = 0;
    for (int i = 1; i < N; i++)
        best = samples[i].score > samples[best].score ? i : best;
    printf("sample %d has log probability %.3f; %d samples of %d tokens in %d blocks\n", best,
           samples[best].score, N, PROMPT + WANTED, (int)(state.leased_blocks + state.held_blocks));
    for (int i = 0; i < N; i++)
        aule_sequence_destroy(samples[i].sequence);
    toy_close(&model);
    // 70 tokens fill 4 blocks of 16, which all share; each sample has 2 more.
    return state.leased_blocks + state.held_blocks == 4 + 2 * N ? 0 : 1;
}
