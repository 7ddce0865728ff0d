"""The tables of docs/from_trl.md and docs/from_verl.md, from the words in messages: ``python -m tools.foreign``."""

from __future__ import annotations

import re
from pathlib import Path

from gspo_lightning.commands.fit.foreign import Table, read_words

__all__ = ["PAGES", "with_tables"]

DOCS = Path(__file__).parents[1] / "docs"
PAGES: dict[Path, dict[str, Table]] = {
    DOCS / "from_trl.md": {"TRL": read_words("trl"), "transformers": read_words("transformers")},
    DOCS / "from_verl.md": {"verl": read_words("verl")},
}
"""Page -> name of a marker -> its table."""


def rows(table: Table, theirs: str) -> str:
    """A table of Markdown for each subject; words with the same answer share a row."""
    found = []
    for subject, words in table.items():
        answers: dict[tuple[str, str], list[str]] = {}
        for name, word in words.items():
            ours = ", ".join(f"`{one}`" for one in word.ours) or "none"
            answers.setdefault((ours, word.note.replace("|", chr(92) + "|")), []).append(f"`{name}`")
        lines = [f"### {subject}", "", f"| {theirs} | here | what differs |", "|---|---|---|"]
        lines += [f"| {', '.join(names)} | {ours} | {note} |" for (ours, note), names in answers.items()]
        found.append("\n".join(lines))
    return "\n\n".join(found)


def with_tables(page: Path) -> str:
    """A page as it is, with tables as they should be."""
    text = page.read_text(encoding="utf-8")
    for name, table in PAGES[page].items():
        begin, end = f"<!-- table: {name} -->", f"<!-- end: {name} -->"
        pattern = re.compile(rf"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        assert pattern.search(text), f"{page.name} has no {begin}"
        made = f"{begin}\n\n{rows(table, name)}\n\n{end}"
        text = pattern.sub(lambda _, made=made: made, text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    for file in PAGES:
        file.write_text(with_tables(file), encoding="utf-8")
        print(f"written: {file.name}")
