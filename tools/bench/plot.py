#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Draw lines that `aule-bench run --json` has written as SVG, on standard output.

    tools/bench/plot.py [FILE...] >results.svg

A workload is a bar: how much of the ceiling it reached; a line with the keys `peer` and `peer_us`
gets a mark for another engine. The study `isolation` is drawn on one logarithmic axis: median, p99
(dot) and worst, alone and beside each kind of load. Other studies are not drawn. FILE -: standard
input, as without FILE.
"""

from __future__ import annotations

import fileinput
import json
import math
import sys
from html import escape
from typing import Any

WIDTH, BAR, TITLE, LABEL, VALUES = 960, 22, 44, 250, 380
ROW, HEAD, FOOT, SPREAD_LABEL, SPREAD = 26, 52, 24, 190, 470
GREY, BLUE, RED = "#e8e8e8", "#3b7dd8", "#d8483b"

Line = dict[str, Any]
out: list[str] = []


def _box(x: float, y: float, width: float, height: float, color: str) -> None:
    out.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
               f'fill="{color}"/>')


def _line(x1: float, y1: float, x2: float, y2: float, color: str) -> None:
    out.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" '
               'stroke-width="1.5"/>')


def _text(x: float, y: float, size: int, anchor: str, words: str) -> None:
    out.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">'
               f'{escape(words, quote=False)}</text>')


def _bars(results: list[Line], top: float) -> None:
    full = WIDTH - LABEL - VALUES
    _text(10, top - 14, 15, "start", "Workloads: how much of the ceiling measured in the same run "
         "is reached; red: a peer")
    for y, r in zip(range(int(top), 1 << 30, BAR), results, strict=False):
        dim, ratio = r.get("head_dim") or 128, r.get("ceiling_ratio") or 0
        label = f"{r['workload']} {r['dtype']}" + (f" head_dim {dim}" if dim != 128 else "")
        label += f" {r['variant']}" + (f" via {r['via']}" if r["via"] != "engine" else "")
        memory = r["gb_per_s"] > 10 * r["tflops"]
        value = f"{r['median_us']:.1f} us, {r['gb_per_s' if memory else 'tflops']:.0f} "
        value += "GB/s" if memory else "TFLOP/s"
        value += f", {100 * ratio:.1f} %" if ratio else ""
        value += f"; {r['peer']} {r['peer_us']:.1f} us" if "peer_us" in r else ""
        _text(LABEL - 8, y + 14, 12, "end", label)
        _box(LABEL, y + 2, full, BAR - 6, GREY)
        _box(LABEL, y + 2, full * min(ratio, 1), BAR - 6, BLUE)
        if "peer_us" in r:
            x = LABEL + full * min(ratio * r["median_us"] / r["peer_us"], 1)
            _line(x, y + 1, x, y + BAR - 3, RED)
        _text(LABEL + full + 8, y + 14, 12, "start", value + ("" if r["checked"] else ", WRONG"))
    _line(LABEL + full, top, LABEL + full, top + BAR * len(results), "#444444")


def _spread(results: list[Line], top: float) -> None:
    low = min(math.floor(math.log10(max(min(r["alone_us"], r["median_us"]), 1))) for r in results)
    high = max(math.ceil(math.log10(max(r["alone_worst_us"], r["worst_us"], 10))) for r in results)
    y = top + HEAD - 12

    def at(us: float) -> float:
        return SPREAD_LABEL + SPREAD * (math.log10(max(us, 1)) - low) / (high - low)

    _text(10, top + 16, 15, "start", "A light neighbour's decode: median, p99 (dot) and worst; "
         "grey: alone, red: beside")
    for power in range(low, high + 1):
        x, bottom = at(10**power), y + ROW * len(results)
        _line(x, y, x, bottom, "#e0e0e0")
        _text(x, bottom + 14, 11, "middle", f"{10 ** (power - 3):g} ms")
    for r in results:
        _text(SPREAD_LABEL - 8, y + 15, 12, "end", r["case"])
        for dy, color, keys in ((7, "#8a8a8a", ("alone_us", "alone_p99_us", "alone_worst_us")),
                                (17, RED, ("median_us", "p99_us", "worst_us"))):
            p50, p99, worst = (at(r[key]) for key in keys)
            _line(p50, y + dy, worst, y + dy, color)
            for x in (p50, worst):
                _line(x, y + dy - 4, x, y + dy + 4, color)
            out.append(f'<circle cx="{p99:.1f}" cy="{y + dy:.1f}" r="3" fill="{color}"/>')
        _text(SPREAD_LABEL + SPREAD + 12, y + 15, 11, "start",
             f"p99 {r['p99_us'] / 1e3:.3g} ms (alone {r['alone_p99_us'] / 1e3:.3g}), "
             f"worst {r['worst_us'] / 1e3:.3g} ms" + ("" if r["checked"] else ", WRONG"))
        y += ROW


def main() -> int:
    """Draw the files of the command line."""
    results = []
    if "--help" in sys.argv:
        print(__doc__)
        return 0
    for row in fileinput.input():  # noqa: SIM115
        try:
            result = json.loads(row)
            if not result["median_us"]:
                raise ValueError("it was not measured")
            results.append(result)
        except (ValueError, KeyError, TypeError) as why:
            sys.exit(f"plot.py: line {fileinput.filelineno()} of {fileinput.filename()} "
                     f"is no result: {why}")
    bars = [r for r in results if "case" not in r]
    spread = [r for r in results if r["workload"] == "isolation"]
    if left := sorted({r["workload"] for r in results} -
                      {r["workload"] for r in bars + spread}):
        print(f"plot.py: studies have no bars: {', '.join(left)}", file=sys.stderr)
    if not bars and not spread:
        sys.exit("plot.py: there is no result to draw")
    top = 2 * TITLE + BAR * len(bars) if bars else TITLE
    height = top + (HEAD + ROW * len(spread) + FOOT if spread else 0) + 10
    out.append(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
               f'width="{WIDTH}" height="{height}" font-family="sans-serif">')
    _box(0, 0, WIDTH, height, "#ffffff")
    _text(10, 22, 13, "start", f"{results[0]['device']}, {results[0]['driver']}")
    if bars:
        _bars(bars, 2 * TITLE - 12)
    if spread:
        _spread(spread, top)
    print("\n".join([*out, "</svg>"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
