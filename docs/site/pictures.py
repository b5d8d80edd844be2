"""The pictures of the concept pages, as SVG that is readable on light and dark pages.

Run `python docs/site/pictures.py` to write them to docs/pictures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "pictures"
INK, BLUE, RED, GREEN, AMBER = "#7d8590", "#4b8fe2", "#e2604b", "#2f9e77", "#c98a1b"

Point = tuple[float, float]


def picture(width: int, height: int, title: str, *parts: str) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img"'
    head += ' font-family="system-ui, sans-serif" font-size="14">'
    return "\n".join([head, f"<title>{title}</title>", *parts, "</svg>\n"])


def text(x: float, y: float, words: str, *, colour: str = INK, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}" text-anchor="{anchor}"{weight}>{words}</text>'


def line(points: Sequence[Point], colour: str = INK, width: float = 1.5, dash: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dashed}/>'


def box(x: float, y: float, width: float, height: float, colour: str, *lines: str) -> str:
    frame = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{colour}" '
    frame += f'fill-opacity="0.14" stroke="{colour}"/>'
    top = y + height / 2 + 5 - 9 * (len(lines) - 1)
    middle = x + width / 2
    words = [
        text(middle, top + 18 * index, one, colour=colour, anchor="middle", bold=not index)
        for index, one in enumerate(lines)
    ]
    return "\n".join([frame, *words])


def attack_power(rate: float, epsilon: float, delta: float = 1e-5) -> float:
    """The largest true-positive rate of any attack with this false-positive rate, by the definition.

    >>> round(attack_power(0.01, 3.0), 3)
    0.201
    """
    grow = math.exp(epsilon)
    return min(1.0, grow * rate + delta, 1 - (1 - delta - rate) / grow)


def attack() -> str:
    """What any attack can achieve, by epsilon."""
    left, top, size = 70, 20, 300

    def place(x: float, y: float) -> Point:
        return left + size * x, top + size * (1 - y)

    rates = [(index / 200) ** 2 for index in range(201)]
    parts = [line([place(0, 1), place(0, 0), place(1, 0)]), line([place(0, 0), place(1, 1)], dash="4 4")]
    for epsilon, colour in ((0.5, GREEN), (1, BLUE), (3, AMBER), (8, RED)):
        parts.append(line([place(rate, attack_power(rate, epsilon)) for rate in rates], colour, 2))
        parts.append(text(left + size + 14, place(0, _label(epsilon))[1], f"epsilon {epsilon:g}", colour=colour))
    parts.append(text(*place(0.52, 0.44), "guessing"))
    for share in (0, 0.5, 1):
        parts.append(text(left - 8, place(0, share)[1] + 5, f"{share:.0%}", anchor="end"))
        parts.append(text(place(share, 0)[0], top + size + 20, f"{share:.0%}", anchor="middle"))
    parts.append(text(left + size / 2, top + size + 42, "false alarms of the attack", anchor="middle"))
    parts.append(f'<g transform="rotate(-90 18 {top + size / 2})">')
    parts.append(text(18, top + size / 2, "members that it finds", anchor="middle") + "</g>")
    return picture(480, 380, "The best that any attack can do, for epsilon 0.5, 1, 3 and 8", *parts)


def _label(epsilon: float) -> float:
    return {8: 0.97, 3: 0.88, 1: 0.79, 0.5: 0.70}[epsilon]


def two_worlds() -> str:
    """The result with and without a record."""
    left, base, width, height = 30, 200, 520, 150

    def curve(centre: float) -> list[Point]:
        grid = [index / 100 for index in range(101)]
        return [(left + width * x, base - height * math.exp(-((x - centre) ** 2) / 0.045)) for x in grid]

    parts = [
        line([(left, base), (left + width, base)]),
        line(curve(0.43), BLUE, 2.5),
        line(curve(0.57), RED, 2.5),
        text(left + width * 0.15, 58, "trained without your record", colour=BLUE, anchor="middle"),
        text(left + width * 0.84, 58, "trained with it", colour=RED, anchor="middle"),
        text(left + width / 2, base + 24, "released model (all its weights, here as one axis)", anchor="middle"),
        text(left + width / 2, base + 46, "at every point: the higher curve is at most e^epsilon times the lower one,",
             anchor="middle"),
        text(left + width / 2, base + 66, "except for outcomes of probability delta", anchor="middle"),
    ]  # fmt: skip
    return picture(580, 280, "Two neighbouring datasets give nearly the same distribution of models", *parts)


def three_epsilons() -> str:
    """Where the three numbers lie."""
    y, parts = 90, [line([(30, 90), (610, 90)], width=2)]
    for x, name, what, colour, below in (
        (130, "audited", "an attack shows at least this", BLUE, True),
        (200, "claimed", "what the paper states", AMBER, False),
        (330, "true epsilon", "nobody knows it", INK, True),
        (490, "certified", "proven: never exceeded", GREEN, False),
    ):
        parts.append(f'<circle cx="{x}" cy="{y}" r="6" fill="{colour}"/>')
        offset = 28 if below else -34
        parts.append(text(x, y + offset, name, colour=colour, anchor="middle", bold=True))
        parts.append(text(x, y + offset + 17, what, colour=colour, anchor="middle"))
    parts.append(text(610, 112, "larger epsilon →", anchor="end"))
    return picture(
        640, 150, "Audited is below the true epsilon, certified is above it; a claim can be anywhere", *parts
    )


def proven() -> str:
    """What a certificate rests on."""
    parts = [
        box(10, 20, 210, 64, GREEN, "proven", "noise and composition"),
        box(10, 100, 210, 64, GREEN, "proven", "amplification by sampling"),
        box(10, 180, 210, 64, GREEN, "proven", "each method's own events"),
        box(225, 20, 210, 64, BLUE, "tested on every run", "no record moves another"),
        box(225, 100, 210, 64, BLUE, "tested on every run", "clipping bounds each record"),
        box(225, 180, 210, 64, BLUE, "tested on every run", "charge on disk first"),
        box(440, 20, 210, 64, AMBER, "your word", "discreet.public(...)"),
        box(440, 100, 210, 64, AMBER, "your word", "dataset[i] is record i alone"),
        box(440, 180, 210, 64, AMBER, "your word", "nothing else is published"),
        text(115, 275, "docs/proofs, tied to the code", anchor="middle"),
        text(330, 275, "finitely many inputs", anchor="middle"),
        text(545, 275, "listed in the statement", anchor="middle"),
    ]
    return picture(660, 290, "A certificate rests on proofs, on tests of every run, and on your word", *parts)


PICTURES = {"attack": attack, "two-worlds": two_worlds, "three-epsilons": three_epsilons, "proven": proven}


def main() -> None:
    for name, drawn in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(drawn(), encoding="utf-8")


if __name__ == "__main__":
    main()
