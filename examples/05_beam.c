// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// 05_beam.c - beam search: each step extends the BEAMS best texts by every token and keeps the
// BEAMS best of the results. A text that has several successors is forked. The program checks the
// winner's score by computing its text anew.

#include "toy_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { PROMPT = 37, WANTED = 30, BEAMS = 4 };

static struct toy_model model;

struct beam {
    struct aule_sequence *sequence;
    double score; // log probability
};

struct candidate {
    int parent;
    int32_t token;
    double score;
};

static int by_score(const void *a, const void *b)
{
    double x = ((const struct candidate *)a)->score, y = ((const struct candidate *)b)->score;
    return (x < y) - (x > y);
}

// Replaces the beams by the best successors. `rows` has the logits' row of each beam.
static int extend(struct beam *beams, int num_beams, const uint32_t *rows)
{
    struct candidate list[BEAMS * VOCABULARY];
    struct beam next[BEAMS];
    for (int b = 0; b < num_beams; b++)
        for (int32_t t = 0; t < VOCABULARY; t++)
            list[b * VOCABULARY + t] = (struct candidate){
                b, t, beams[b].score + toy_log_probability(model.logits[rows[b]], t)};
    qsort(list, (size_t)num_beams * VOCABULARY, sizeof *list, by_score);
    for (int i = 0; i < BEAMS; i++) {
        next[i].score = list[i].score;
        check(aule_sequence_fork(beams[list[i].parent].sequence, &next[i].sequence), "fork");
        check(aule_sequence_append(next[i].sequence, &list[i].token, 1), "append");
    }
    for (int b = 0; b < num_beams; b++)
        aule_sequence_destroy(beams[b].sequence);
    for (int i = 0; i < BEAMS; i++)
        beams[i] = next[i];
    return BEAMS;
}

static double score_anew(const int32_t *tokens)
{
    const struct aule_sequence_params params = {
        .tokens = tokens, .num_tokens = PROMPT + WANTED, .extra_key = "anew", .extra_key_size = 4};
    struct aule_step_entry entry = {.sequence = NULL};
    double score = 0;
    check(aule_sequence_create(model.cache, &params, &entry.sequence), "sequence");
    toy_step(&model, &entry, 1);
    for (int i = PROMPT; i < PROMPT + WANTED; i++)
        score += toy_log_probability(model.logits[entry.row + (uint32_t)i - 1], tokens[i]);
    aule_sequence_destroy(entry.sequence);
    return score;
}

int main(void)
{
    int32_t prompt[PROMPT];
    struct beam beams[BEAMS];
    toy_open(&model);
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = i * 17 % VOCABULARY;

    beams[0] = (struct beam){.sequence = toy_sequence(&model, prompt, PROMPT)};
    int num_beams = 1;
    for (int n = 0; n < WANTED; n++) {
        struct aule_step_entry entries[BEAMS];
        uint32_t rows[BEAMS];
        for (int b = 0; b < num_beams; b++)
            entries[b] = (struct aule_step_entry){.sequence = beams[b].sequence};
        toy_step(&model, entries, (uint32_t)num_beams);
        for (int b = 0; b < num_beams; b++)
            rows[b] = entries[b].row + entries[b].num_tokens - 1;
        num_beams = extend(beams, num_beams, rows);
    }
    double anew = score_anew(aule_sequence_tokens(beams[0].sequence));
    printf("the best of %d beams has log probability %.4f, computed anew %.4f\n", BEAMS,
           beams[0].score, anew);
    double score = beams[0].score;
    for (int b = 0; b < num_beams; b++)
        aule_sequence_destroy(beams[b].sequence);
    toy_close(&model);
    return fabs(score - anew) < 1e-3 ? 0 : 1;
}
