// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// svg.h - a drawing of lines, boxes and text. It does not know what they mean.

#ifndef AULE_SVG_H
#define AULE_SVG_H

#include <stdio.h>

enum svg_anchor { SVG_LEFT, SVG_MIDDLE, SVG_RIGHT };

// Draws black on white, so that it reads the same on a dark page.
void svg_begin(FILE *file, double width, double height);
void svg_end(FILE *file);
void svg_box(FILE *file, double x, double y, double width, double height, const char *color);
void svg_line(FILE *file, double x1, double y1, double x2, double y2, const char *color);
void svg_dot(FILE *file, double x, double y, const char *color);
// `y` is the base line.
void svg_text(FILE *file, double x, double y, double size, enum svg_anchor anchor,
              const char *text);

#endif
