// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// matrices.h - asks a device for its cooperative matrices and their sizes. Knows nothing of
// shaders. The thread that lists the devices.

#ifndef AULE_ENGINE_MATRICES_H
#define AULE_ENGINE_MATRICES_H

#include "adapter.h"

// Sets adapter->matrices except the lanes. The rest of *adapter is set.
void matrices_describe(const struct instance *instance, struct adapter *adapter);

#endif
