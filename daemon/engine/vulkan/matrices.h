// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// matrices.h - asks a device for its cooperative matrices and their sizes. The thread that lists
// the devices.

#ifndef AULE_ENGINE_MATRICES_H
#define AULE_ENGINE_MATRICES_H

#include "adapter.h"

// Fills adapter->matrices but for `lanes`; the rest of *adapter is there.
void matrices_describe(const struct instance *instance, struct adapter *adapter);

#endif
