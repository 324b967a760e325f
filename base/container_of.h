// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// container_of.h - leads from a member to the struct that holds it. Lists, heaps and callbacks know
// only the member.

#ifndef AULE_CONTAINER_OF_H
#define AULE_CONTAINER_OF_H

#include <stddef.h>

#define container_of(pointer, type, member)                                                        \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

#endif
