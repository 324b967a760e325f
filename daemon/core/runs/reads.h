// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// reads.h - whether all keys that a run reads are written. A decode step costs what is new: each
// row of a batch's block table remembers how many blocks were found whole (block.h). Knows marks,
// not contents. Dispatcher thread only.

#ifndef AULE_CORE_READS_H
#define AULE_CORE_READS_H

#include "core/steps/batch.h"

// Call this with a run that run_check() has accepted, before written_begin(). UNWRITTEN: in some
// layer of the run, a sequence reads a key that no accepted run, import or copy has written, and
// this run does not write it either. All keys from the first to the last one that the sequence's
// queries see count as read. A gather reads them all. Runs with a mask and runs over the arena
// always pass.
enum status reads_check(struct batch *batch, const struct core_run_params *params,
                        struct error *error);

#endif
