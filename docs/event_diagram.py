"""Draws parts of the grammar of events: frames for what repeats, what may be left out, choices.

The pictures come from `stretto.core_events.grammar`, the data that `check_sequence` holds a loop
against, so they cannot say anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.parsers.rst import Directive

from stretto.core_events import Event
from stretto.core_events.grammar import PARTS, Choice, Repeat, Then

if TYPE_CHECKING:
    from sphinx.application import Sphinx

LINE, GAP, PAD, CHARACTER = 24, 6, 10, 7.4


@dataclass(frozen=True, slots=True)
class Box:
    """An event, or the name of another part."""

    text: str
    is_part: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """Several things one below the other (or, as alternatives, beside each other)."""

    label: str
    inside: tuple[Box | Frame, ...]
    beside: bool = False


def flatten(expression: Any) -> tuple[Any, ...]:
    """Return the links of a chain of expressions; nothing for the empty sequence."""
    if isinstance(expression, Then):
        return (*flatten(expression.first), *flatten(expression.second))
    return () if is_empty(expression) else (expression,)


def is_empty(expression: Any) -> bool:
    """Whether the expression stands for the sequence without events."""
    return isinstance(expression, Repeat) and is_never(expression.body)


def is_never(expression: Any) -> bool:
    """Whether the expression stands for no sequence at all."""
    return isinstance(expression, Choice) and not expression.options


def layout(links: tuple[Any, ...], own: str) -> tuple[Box | Frame, ...]:
    """Turn a chain into boxes and frames; other named parts become a single box."""
    found: list[Box | Frame] = []
    while links:
        name, taken = _part_at_start(links, own)
        if name:
            found.append(Box(name, is_part=True))
        else:
            taken = 1
            found.append(_draw_one(links[0], found, own))
        links = links[taken:]
    return tuple(found)


def _part_at_start(links: tuple[Any, ...], own: str) -> tuple[str, int]:
    """Return the longest other part with which the chain begins, and its length."""
    fits = [("", 0)]
    for name, part in PARTS.items():
        chain = flatten(part)
        if name != own and links[: len(chain)] == chain:
            fits.append((name, len(chain)))
    return max(fits, key=lambda fit: fit[1])


def _draw_one(link: Any, before: list[Box | Frame], own: str) -> Box | Frame:
    if isinstance(link, Event):
        return Box(link.name)
    if isinstance(link, Repeat):
        body = layout(flatten(link.body), own)
        if tuple(before[-len(body) :]) == body:  # once, and then any number of times
            del before[-len(body) :]
            return Frame("one or more times", body)
        return Frame("any number of times", body)
    options = sorted((option for option in link.options if not is_empty(option)), key=_first)
    drawn = [layout(flatten(option), own) for option in options]
    optional = len(options) < len(link.options)
    if len(drawn) == 1:
        return Frame("may be left out", drawn[0])
    label = "one of these, or none" if optional else "one of these"
    return Frame(label, tuple(Frame("", inside) for inside in drawn), beside=True)


def _first(expression: Any) -> int:
    """The place, in the order of a run, of the first event that an expression spells."""
    order = list(Event)
    if isinstance(expression, Event):
        return order.index(expression)
    if isinstance(expression, Then):
        return _first(expression.first)
    if isinstance(expression, Choice):
        return min(map(_first, expression.options), default=len(order))
    return _first(expression.body)


def size(item: Box | Frame) -> tuple[float, float]:
    """Return width and height in pixels."""
    if isinstance(item, Box):
        return len(item.text) * CHARACTER + 2 * PAD, LINE
    sizes = [size(one) for one in item.inside]
    head = LINE if item.label else 0
    if item.beside:
        width = sum(w for w, _ in sizes) + GAP * (len(sizes) - 1)
        height = max(h for _, h in sizes)
    else:
        width = max(w for w, _ in sizes)
        height = sum(h for _, h in sizes) + GAP * (len(sizes) - 1)
    return max(width, len(item.label) * CHARACTER) + 2 * PAD, height + head + PAD


def render(item: Box | Frame, x: float, y: float) -> str:
    """Return the item as SVG with its upper left corner at a point."""
    width, height = size(item)
    shape = f'x="{x}" y="{y}" width="{width:.1f}" height="{height}" rx="4"'
    if isinstance(item, Box):
        fill = ' fill="currentColor" fill-opacity="0.12"' if item.is_part else ' fill="none"'
        text = f'<text x="{x + PAD}" y="{y + 16}">{escape(item.text)}</text>'
        return f'<rect {shape} stroke="currentColor"{fill}/>{text}'
    dash = ' stroke-dasharray="4 3"' if "left out" in item.label or "none" in item.label else ""
    parts = [f'<rect {shape} stroke="currentColor" stroke-opacity="0.5" fill="none"{dash}/>']
    if item.label:
        parts.append(f'<text x="{x + PAD}" y="{y + 16}" opacity="0.7">{escape(item.label)}</text>')
    left, top = x + PAD, y + (LINE if item.label else PAD / 2)
    for one in item.inside:
        parts.append(render(one, left, top))
        w, h = size(one)
        left, top = (left + w + GAP, top) if item.beside else (left, top + h + GAP)
    return "".join(parts)


def draw(name: str) -> str:
    """Return the named part of a run as SVG."""
    whole = Frame(name, layout(flatten(PARTS[name]), name))
    width, height = size(whole)
    return (
        f'<svg role="img" aria-label="Order of events: {escape(name)}" '
        f'viewBox="-1 -1 {width + 2:.1f} {height + 2}" width="{width + 2:.1f}" '
        f'font-family="monospace" font-size="12" fill="currentColor">{render(whole, 0, 0)}</svg>'
    )


class EventDiagram(Directive):
    """``{event-diagram} batch`` draws a part of the grammar."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the picture."""
        name = self.arguments[0]
        if name not in PARTS:
            raise self.error(f"no part {name!r}; the parts are {', '.join(PARTS)}")
        return [nodes.raw("", f"<p>{draw(name)}</p>", format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("event-diagram", EventDiagram)
    return {"parallel_read_safe": True}
