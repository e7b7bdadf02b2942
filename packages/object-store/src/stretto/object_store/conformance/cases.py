"""Keys and ranges that back ends tend to get wrong."""

from __future__ import annotations

CLEAN_KEYS: dict[str, str] = {
    "plain": "plain.txt",
    "nested": "a/b/c/d/e/f.bin",
    "spaces": "sp ace/a b .txt",
    "plus": "plus+sign+.txt",
    "percent": "100%/%41%/%2F%zz.txt",
    "hash": "#hash#/x#y",
    "question": "q?x=1&y=2",
    "equals_and_at": "a=b/c@d",
    "quotes": 'it\'s "quoted"',
    "brackets": "a[0]{1}(2)<3>",
    "symbols": "~!$^*,;|`",
    "colon": "c:d/12:30:45",
    "backslash": "back\\slash",
    "hidden": ".hidden/.file",
    "dots_inside": "a..b/c...",
    "leading_dash": "-rf/--all",
    "unicode": "ünï/日本語/файл/🎼.txt",
    "composed": "composed/\u00e9",
    "decomposed": "decomposed/e\u0301",
    "no_break_space": "a\u00a0b",
    "joiner": "a\u200db",
    "upper": "Upper/CASE",
    "longest": "/".join(["x" * 127] * 8),
}
"""Keys that every store holds, by what is odd about them."""

UNCLEAN_KEYS: dict[str, str] = {
    "empty": "",
    "leading_slash": "/a",
    "trailing_slash": "a/",
    "only_slash": "/",
    "empty_part": "a//b",
    "dot": ".",
    "dot_part": "a/./b",
    "dot_dot": "..",
    "dot_dot_part": "a/../b",
    "escape": "../../etc/passwd",
    "dot_dot_end": "a/..",
    "nul": "a\0b",
    "newline": "a\nb",
    "tab": "a\tb",
    "delete": "a\x7fb",
    "c1_control": "a\x85b",
    "surrogate": "a\udc80b",
    "too_long": "x" * 1025,
    "too_long_in_bytes": "é" * 513,
}
"""Keys that every store refuses, by what is wrong with them."""

RANGES: tuple[tuple[int, int], ...] = (
    (0, 1),
    (0, 10),
    (3, 7),
    (9, 10),
    (5, 100),
    (0, 1_000_000),
    (0, 0),
    (10, 10),
    (10, 20),
    (50, 60),
)
"""Ranges of an object of ten bytes; each gives what ``data[start:end]`` gives."""
