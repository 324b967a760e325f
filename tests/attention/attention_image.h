// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_image.h - where a batch's tensors go in an arena's bytes. For attention_batch.c.

#ifndef AULE_ATTENTION_IMAGE_H
#define AULE_ATTENTION_IMAGE_H

#include "attention_batch.h"

// Places every tensor of the batch, whose metadata is there, and writes what is read. False: no
// memory, or the image is full.
bool attention_image_fill(struct attention_image *image, struct attention_batch *batch,
                          const uint32_t *order, struct dice *dice);

#endif
