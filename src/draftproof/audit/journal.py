"""The journal of a run: every generation as it came, so that an interrupted audit goes on where it stopped.

One JSON line a generation after a header that names the run. A resumed run scores the journal again, in its order and
with the same randomness, and then asks the engine for what is missing: its result is that of a run without a break.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from draftproof import ParameterError
from draftproof.audit.engine import Generation

_VERSION: Final = 1


class Journal:
    """A file of generations. path None keeps nothing.

    header: what the run is; a file that another run has written is refused with ParameterError. A line that was cut
    short is dropped, and what came after it: it is asked for again.
    """

    def __init__(self, path: str | Path | None, header: Mapping[str, Any]) -> None:
        self._path = None if path is None else Path(path)
        self._header = {"draftproof_audit": _VERSION, **header}
        self.recorded: dict[int, Generation] = self._read()

    def add(self, generations: Mapping[int, Generation]) -> None:
        """Appends generations, by their requests' numbers, and flushes them."""
        self.recorded.update(generations)
        if self._path is None:
            return
        with self._path.open("a", encoding="utf-8") as stream:
            for number, generation in generations.items():
                line = {
                    "number": number,
                    "token_ids": generation.token_ids,
                    "pass_starts": generation.pass_starts,
                    "logprobs": generation.logprobs,
                    "text": generation.text,
                }
                stream.write(json.dumps(line) + "\n")

    def _read(self) -> dict[int, Generation]:
        if self._path is None:
            return {}
        header = json.loads(json.dumps(self._header, default=str))
        if not self._path.exists() or not self._path.stat().st_size:
            try:
                self._path.write_text(json.dumps(header) + "\n", encoding="utf-8")
            except OSError as error:
                raise ParameterError("journal", str(self._path), "a file that can be written", str(error)) from error
            return {}
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        if _parsed(lines[0]) != header:
            raise ParameterError(
                "journal", str(self._path), "the journal of this very run", "give another file, or remove this one"
            )
        found: dict[int, Generation] = {}
        kept = [lines[0]]
        for line in lines[1:]:
            entry = _parsed(line)
            if entry is None or not line.endswith("\n"):
                break
            found[int(entry["number"])] = _generation(entry)
            kept.append(line)
        if len(kept) < len(lines):
            self._path.write_text("".join(kept), encoding="utf-8")
        return found


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


def _generation(entry: Mapping[str, Any]) -> Generation:
    def values(name: str) -> Any:
        return None if entry[name] is None else tuple(entry[name])

    return Generation(tuple(entry["token_ids"]), values("pass_starts"), values("logprobs"), entry["text"])
