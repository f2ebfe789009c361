"""A plan in words and numbers, as an object: text in a terminal, a table in a notebook."""

from __future__ import annotations

import html
import threading
from dataclasses import dataclass
from typing import Any

_recording = threading.local()


def note_pytorch(reason: str) -> None:
    """Called where a drop-in leaves a call to PyTorch: heard by foveal.explain()."""
    notes = getattr(_recording, "notes", None)
    if notes is not None:
        notes.append(reason)


def note_no_gradient(reason: str) -> None:
    """Called where nothing computes the gradient of a call that foveal.explain() explains."""
    _recording.refusals.append(reason)


def listen() -> None:
    """Starts listening in this thread."""
    _recording.notes, _recording.refusals = [], []


def stop_listening() -> tuple[list[str], list[str]]:
    """Ends it; why calls were left to PyTorch, and why gradients have no kernel."""
    heard = _recording.notes, _recording.refusals
    _recording.notes = None
    return heard


def is_listening() -> bool:
    """Whether foveal.explain() is running in this thread."""
    return getattr(_recording, "notes", None) is not None


def _microseconds(value: float) -> str:
    return f"{value / 1000:.3g} ms" if value >= 1000 else f"{value:.3g} us"


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"


@dataclass(frozen=True)
class Explanation:
    """What runs for a problem and why: `kernel`, `configuration`, `verdicts` (every kernel of the
    table with its reason), `notes`, `workspace_bytes`, `predicted_time_us` and `roofline_time_us`.
    `details` has everything, as `foveal explain --json` prints it. `backward` is the same for the
    gradient with respect to those of its tensors that require one, or None."""

    details: dict[str, Any]
    backward: Explanation | None = None

    @property
    def problem(self) -> str:
        return self.details["problem"]

    @property
    def device(self) -> str:
        return self.details["device"].get("name", "")

    @property
    def kernel(self) -> str:
        """The chosen kernel, "torch" where a drop-in leaves the call to PyTorch, "" where none
        can."""
        return self.details["kernel"]

    @property
    def configuration(self) -> str:
        return self.details["configuration"]

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        return self.details["verdicts"]

    @property
    def notes(self) -> list[str]:
        return self.details["notes"]

    @property
    def workspace_bytes(self) -> int:
        return self.details["workspace_bytes"]

    @property
    def predicted_time_us(self) -> float:
        return self.details["predicted_time_us"]

    @property
    def roofline_time_us(self) -> float:
        return max(self.details["compute_time_us"], self.details["memory_time_us"])

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("problem", self.problem), ("device", self.device),
                ("kernel", self.kernel or "none")]
        if self.configuration:
            rows.append(("configuration", self.configuration))
        if self.predicted_time_us:
            rows.append(("predicted", f"{_microseconds(self.predicted_time_us)} (roofline "
                                      f"{_microseconds(self.roofline_time_us)})"))
            rows.append(("workspace", _bytes(self.workspace_bytes)))
        rows += [("note", note) for note in self.notes]
        return rows

    def __repr__(self) -> str:
        rows = self._rows() + [(f"{verdict['outcome']}: {verdict['name']}", verdict["reason"])
                               for verdict in self.verdicts]
        width = max(len(name) for name, _ in rows)
        text = "\n".join(f"{name:<{width}}  {text}" for name, text in rows)
        return text if self.backward is None else f"{text}\n\n{self.backward!r}"

    def _repr_html_(self) -> str:
        def row(name: str, text: str, tag: str = "td") -> str:
            return (f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
                    f"<{tag} style='text-align:left'>{html.escape(text)}</{tag}></tr>")

        body = "".join(row(name, text) for name, text in self._rows())
        kernels = "".join(f"<tr>{''.join(map(_html_cell, _verdict_cells(verdict)))}</tr>"
                          for verdict in self.verdicts)
        head = "".join(f"<th style='text-align:left'>{name}</th>"
                       for name in ("kernel", "outcome", "reason", "predicted"))
        table = f"<table>{body}</table><table><tr>{head}</tr>{kernels}</table>"
        return table if self.backward is None else table + self.backward._repr_html_()


def _verdict_cells(verdict: dict[str, Any]) -> tuple[str, str, str, str]:
    time_us = verdict["predicted_time_us"]
    return (verdict["name"], verdict["outcome"], verdict["reason"],
            _microseconds(time_us) if time_us else "")


def _html_cell(text: str) -> str:
    return f"<td style='text-align:left'>{html.escape(text)}</td>"


def of_recorded(recorded: list[dict[str, Any]], refusals: list[str]) -> Explanation:
    """Of the first of the passes that a call would run; an attention with its gradient, where one
    was recorded or refused."""
    first, *others = recorded
    name, _, operands = first["problem"].partition(" ")
    if name != "forward":
        return Explanation(first)
    for details in others:
        if details["problem"].startswith(f"backward {operands}"):
            return Explanation(first, Explanation(details))
    if refusals:
        return Explanation(first, _without_plan("backward", "", refusals[0]))
    return Explanation(first)


def left_to_pytorch(reason: str) -> Explanation:
    return _without_plan("scaled_dot_product_attention", "torch",
                         f"PyTorch's own function computes it: {reason}")


def _without_plan(problem: str, kernel: str, note: str) -> Explanation:
    return Explanation({
        "problem": problem, "device": {}, "kernel": kernel, "configuration": "", "verdicts": [],
        "workspace_bytes": 0, "predicted_time_us": 0.0, "compute_time_us": 0.0,
        "memory_time_us": 0.0, "notes": [note],
    })
