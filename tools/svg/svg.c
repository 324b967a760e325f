// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// svg.c - see svg.h.

#include "svg.h"

void svg_begin(FILE *file, double width, double height)
{
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
            "height=\"%.0f\" "
            "font-family=\"sans-serif\">\n",
            width, height, width, height);
    svg_box(file, 0, 0, width, height, "#ffffff");
}

void svg_end(FILE *file)
{
    fputs("</svg>\n", file);
}

void svg_box(FILE *file, double x, double y, double width, double height, const char *color)
{
    fprintf(file, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x,
            y, width, height, color);
}

void svg_line(FILE *file, double x1, double y1, double x2, double y2, const char *color)
{
    fprintf(file,
            "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
            "stroke-width=\"1.5\"/>\n",
            x1, y1, x2, y2, color);
}

void svg_dot(FILE *file, double x, double y, const char *color)
{
    fprintf(file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", x, y, color);
}

void svg_text(FILE *file, double x, double y, double size, enum svg_anchor anchor, const char *text)
{
    static const char *const anchors[] = {
        [SVG_LEFT] = "start", [SVG_MIDDLE] = "middle", [SVG_RIGHT] = "end"};
    fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%.0f\" text-anchor=\"%s\">", x, y, size,
            anchors[anchor]);
    for (; *text; text++) {
        switch (*text) {
        case '&': fputs("&amp;", file); break;
        case '<': fputs("&lt;", file); break;
        case '>': fputs("&gt;", file); break;
        default: fputc(*text, file);
        }
    }
    fputs("</text>\n", file);
}
