"""The wings of the package and their rooms, read from its imports: ``python -m tools.rooms`` draws them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = [
    "FLOORS", "PACKAGE", "ROOT_FILES", "WINGS", "arrows_between_files", "circles", "files", "imports", "room_in_wing",
    "room_of",
]  # fmt: skip

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gspo_lightning"
PICTURE = ROOT / "docs" / "architecture.png"
ROOT_FILES = {"__init__", "__main__", "cli"}
"""All the Python files that lie beside the wings; whatever else there is has a wing."""
WINGS: dict[str, list[str]] = {
    "commands": ["data", "inspect", ".", "evaluate", "plan", "fit_reward", "export", "doctor", "fit", "compare"],
    "training": ["callbacks", ".", "evaluation", "reward_models", "suites"],
    "loop": ["experience", "critic", "update", "advantages", "old_policy", "metrics"],
    "objectives": ["."],
    "rollouts": [
        "conversations", "agents", "vllm", "wrapping", "verify", "recording", "serving", "sampler", "environments", ".",
        "gateway",
    ],
    "data": ["prompts", "corpus"],
    "rewards": ["judge", "gym", "logic", "instructions", "code", "workers", "math", "sandbox", "."],
    "policy": [
        "model_checks", "load", "strategies", "numerics", ".", "parallel", "adapters", "packing", "routing", "states",
        "attention", "kernels", "unsaid", "vision", "tiny", "hub",
    ],
    "report": ["view", ".", "collapse", "statistics"],
    "resume": ["."],
    "core": [
        "metric_table", "signatures", "registry", "moved_names", "neutral_sampling", "thinking", "types", "rows",
        "transfer", "host_memory", "tolerance", "parsing", "faults", "variables", "distributed", "addresses", "turn",
        "temp_files", "randomness", "pictures", "output", "bodies", "escape", "extras", "errors",
    ],
}  # fmt: skip
"""From the top wing down, and the rooms of each: a wing may import the wings below it, a room the rooms below it.

A room is a folder of its wing, or a file that stands alone; ``.`` stands for all other files of the wing.
"""
FLOORS = ["__main__", "cli", "__init__", *WINGS]
GROUND = {"core"}
"""Imported by every wing: the picture leaves these arrows out."""


def files(package: str = "gspo_lightning") -> list[Path]:
    """The Python files of a package of the repository."""
    return sorted((ROOT / package).rglob("*.py"))


@functools.cache
def imports(source: str) -> tuple[tuple[int, str, str | None], ...]:
    """(line, module, name) of every import, those inside functions and under ``TYPE_CHECKING`` included."""
    return tuple(_imports(source))


def _imports(source: str) -> Iterator[tuple[int, str, str | None]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: use absolute imports"
            yield from ((node.lineno, str(node.module), alias.name) for alias in node.names)


def room_of(module: str, name: str | None = None) -> str | None:
    """The wing, or the file beside the wings, that an import reaches; None for other packages.

    >>> room_of("gspo_lightning.policy.tiny"), room_of("gspo_lightning", "rewards"), room_of("gspo_lightning", "x")
    ('policy', 'rewards', '__init__')
    >>> room_of("torch")
    """
    parts = module.split(".")
    if parts[0] != "gspo_lightning":
        return None
    if len(parts) > 1:
        return parts[1]
    return name if name is not None and name in FLOORS else "__init__"


def room_in_wing(module: str) -> tuple[str, str] | None:
    """The wing of a module and its room there; None beside the wings, and for the face of a wing, which hands names on.

    >>> room_in_wing("gspo_lightning.policy.load.gguf"), room_in_wing("gspo_lightning.policy.policy")
    (('policy', 'load'), ('policy', '.'))
    >>> room_in_wing("gspo_lightning.policy")
    """
    _, wing, room, *_ = [*module.split("."), "", ""]
    if wing not in WINGS or not room:
        return None
    return wing, room if room in WINGS[wing] or (PACKAGE / wing / room).is_dir() else "."


def arrows_between_files(*packages: str) -> dict[str, set[str]]:
    """Module -> the modules that it imports from; a name that a package hands on counts for where it comes from.

    Args:
        packages: of the repository; by default ours alone.
    """
    sources = [file for package in packages or ("gspo_lightning",) for file in files(package)]
    names = {".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f for f in sources}
    found = {module: list(imports(f.read_text(encoding="utf-8"))) for module, f in names.items()}
    handed_on = {
        (package, name): module
        for package, f in names.items()
        if f.name == "__init__.py"
        for _, module, name in found[package]
        if name is not None and f"{package}.{name}" not in names
    }

    def target(module: str, name: str | None) -> str | None:
        while handed_on.get((module, name), module) != module:  # type: ignore[arg-type]
            module = handed_on[module, name]  # type: ignore[index]
        full = f"{module}.{name}"
        return full if full in names else module if module in names else None

    return {
        module: {other for _, m, n in lines if (other := target(m, n)) is not None} for module, lines in found.items()
    }


def circles(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach one another (Tarjan's strongly connected components), and nodes that reach themselves.

    >>> circles({"a": {"b"}, "b": {"c"}, "c": {"b"}})
    [['b', 'c']]
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(arrows.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = [stack.pop()]
            while group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1 or node in arrows.get(node, ()):
                found.append(sorted(group))

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return found


def rooms() -> dict[str, tuple[int, set[str]]]:
    """Wing -> its lines, and the wings that it imports from; without the names that the package hands on."""
    found: dict[str, tuple[int, set[str]]] = {}
    for file in files():
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        text = file.read_text(encoding="utf-8")
        lines, used = found.get(room, (0, set()))
        others = {other for _, module, name in imports(text) if (other := room_of(module, name)) not in (None, room)}
        found[room] = lines + text.count("\n"), used | {str(other) for other in others}
    return {room: found[room] for room in FLOORS if room not in ("__init__", "__main__")}


def levels(arrows: Mapping[str, set[str]]) -> dict[str, int]:
    """How many floors a room stands above the ground: one more than the highest room that it uses.

    >>> levels({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    {'c': 0, 'b': 1, 'a': 2}
    """
    found: dict[str, int] = {}

    def level(room: str) -> int:
        if room not in found:
            found[room] = max((level(other) + 1 for other in arrows[room] if other in arrows), default=0)
        return found[room]

    return {room: level(room) for room in sorted(arrows, key=level)}


def direct(arrows: Mapping[str, set[str]]) -> set[tuple[str, str]]:
    """The arrows that no longer way says already."""

    def below(room: str) -> set[str]:
        return {x for other in arrows.get(room, ()) for x in {other} | below(other)}

    return {(a, b) for a, used in arrows.items() for b in used if not any(b in below(c) for c in used if c != b)}


def shelves(wing: str) -> list[str]:
    """The folders of a wing in its order, in at most two lines."""
    folders = [room for room in WINGS.get(wing, ()) if (PACKAGE / wing / room).is_dir() and room != "."]
    half = (len(folders) + 1) // 2 if len(folders) > 6 else len(folders)
    return [" ".join(line) for line in (folders[:half], folders[half:]) if line]


def longest(wing: str) -> str:
    """The longer line of :func:`shelves`."""
    return max(shelves(wing), key=len, default="")


def draw(path: Path = PICTURE) -> None:
    """Wings as boxes on their floors, as wide as they have lines, and what they import from as arrows."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import FancyBboxPatch

    found = rooms()
    arrows = {room: used & set(found) for room, (_, used) in found.items()}
    level, order = levels(arrows), list(found)
    figure, axes = plt.subplots(figsize=(11, 8.5))
    place: dict[str, tuple[float, float, float]] = {}
    for floor in range(max(level.values()) + 1):
        row = [room for room in order if level[room] == floor]
        widths = [max(1.3 + found[room][0] / 2600, 0.075 * len(longest(room))) for room in row]
        left = -(sum(widths) + 0.45 * (len(row) - 1)) / 2
        for room, width in zip(row, widths, strict=True):
            place[room] = (left, float(floor), width)
            left += width + 0.45
    for a, b in sorted(direct({room: used - GROUND for room, used in arrows.items()})):
        (x, y, w), (u, v, z) = place[a], place[b]
        bend = 0.0 if y - v == 1 else 0.12
        style = {"arrowstyle": "-|>", "color": "#7a8794", "lw": 0.9, "connectionstyle": f"arc3,rad={bend}"}
        axes.annotate("", (u + z / 2, v + 0.25), (x + w / 2, y - 0.25), arrowprops=style, zorder=1)
    for room, (x, y, w) in place.items():
        box = FancyBboxPatch(
            (x, y - 0.25), w, 0.5, boxstyle="round,pad=0.02", zorder=2, lw=1.1, edgecolor="#26323d",
            facecolor="#e8eef4" if (PACKAGE / room).is_dir() else "#f6f1e3",
        )  # fmt: skip
        axes.add_patch(box)
        name = f"{room}/" if (PACKAGE / room).is_dir() else f"{room}.py"
        below = "\n".join(shelves(room))
        axes.text(
            x + w / 2,
            y + 0.12 * bool(below) - 0.01,
            name,
            ha="center",
            va="center",
            fontsize=9.5,
            weight="bold",
            zorder=3,
        )
        axes.text(x + w / 2, y - 0.1, below, ha="center", va="center", fontsize=5.5, color="#4a5764", zorder=3)
    axes.autoscale_view()
    axes.set_axis_off()
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    draw()
    print(f"written: {PICTURE.relative_to(ROOT)}")
