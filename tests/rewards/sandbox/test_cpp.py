"""Hostile C++: what attacks the compiler ends within its limits, and what runs is held as Python is."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards.sandbox import End, Isolation, Kind, Limits, Outcome, Sandbox, choose, cpp

_MAIN = "int main() { }\n"
_PRINTS = (
    "#include <cstdio>\n#include <cerrno>\n#include <cstring>\n"
    "#define SAY(x) (errno = 0, (x), puts(strerrorname_np(errno)))\n"
)

HOSTILE: dict[str, tuple[str, str, str]] = {
    # while it is compiled
    "includes_a_device": ('#include "/dev/random"\n' + _MAIN, "syntax_error", ""),
    "includes_a_full_device": ('#include "/dev/full"\n' + _MAIN, "syntax_error", ""),
    "includes_a_secret": ('#include "{secret}"\n' + _MAIN, "syntax_error", ""),
    "includes_the_password_file": ('#include "/etc/shadow"\n' + _MAIN, "syntax_error", ""),
    "includes_itself": ('#include "program.cpp"\n' + _MAIN, "syntax_error", ""),
    "includes_a_secret_as_bytes": (
        '__asm__(".globl secret\\nsecret: .incbin \\"{secret}\\"\\n");\n' + _MAIN, "syntax_error", "",
    ),
    "includes_a_device_as_bytes": (
        '__asm__(".globl secret\\nsecret: .incbin \\"/dev/random\\", 0, 64\\n");\n' + _MAIN, "syntax_error", "",
    ),
    "nests_templates": (
        "template<int N> struct S { static const int v = S<N - 1>::v + S<N - 2>::v + S<N + 1>::v; };\n"
        "int main() { return S<1>::v; }", "syntax_error", "",
    ),
    "multiplies_templates": (
        "template<class T, int N> struct S { S<S<T, N>, N - 1> a; S<S<T*, N>, N - 1> b; };\n"
        "template<class T> struct S<T, 0> { };\nint main() { S<int, 200> s; }", "compile", "",
    ),
    "computes_while_it_is_compiled": (
        "constexpr long f(long n) { long s = 0; for (long i = 0; i < n; i++) s += i % 7; return s; }\n"
        "template<int N> struct S { static constexpr long v = f(30000000 - N) + S<N - 1>::v; };\n"
        "template<> struct S<0> { static constexpr long v = 0; };\nint main() { return S<800>::v; }", "compile", "",
    ),
    "has_a_huge_array": ("int a[1L << 40];\nint main() { return a[5]; }", "compile", ""),
    "has_a_huge_array_with_a_value": ("int a[1 << 28] = {1};\nint main() { return a[5]; }", "compile", ""),
    "fails_at_length": (
        "#define A(x) undefined_##x; x x x x x x x x\n#define B(x) A(x) A(x) A(x) A(x) A(x) A(x) A(x) A(x)\n"
        "#define C(x) B(x) B(x) B(x) B(x) B(x) B(x) B(x) B(x)\n#define D(x) C(x) C(x) C(x) C(x) C(x) C(x) C(x) C(x)\n"
        "#define E(x) D(x) D(x) D(x) D(x) D(x) D(x) D(x) D(x)\n#define F(x) E(x) E(x) E(x) E(x) E(x) E(x) E(x) E(x)\n"
        "int main() { F(F(z)) }", "compile", "",
    ),
    "fills_the_disk_of_the_compiler": ('__asm__(".fill 1 << 30, 1, 7");\n' + _MAIN, "compile", ""),
    "has_no_main": ("int f() { return 0; }", "syntax_error", ""),
    "is_python": ("print(input())", "syntax_error", ""),
    # while it runs
    "forks": (_PRINTS + "#include <unistd.h>\n#include <sys/wait.h>\nint main() { int made = 0;\n"
        "  for (int i = 0; i < 60; i++) { int p = fork(); if (p == 0) { sleep(3); _exit(0); } if (p > 0) made++; }\n"
        '  puts(made < 32 ? "bounded" : "not"); }', "finished", "bounded"),
    "takes_much_memory": ("#include <vector>\nint main() { std::vector<char> v(400 << 20, 1); return v[5] - 1; }",
        "runtime_error", ""),
    "maps_shared_memory": (_PRINTS + "#include <sys/mman.h>\n"
        "int main() { SAY(mmap(0, 1 << 20, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0)); }", "finished", "EPERM"),
    "reads_a_secret": (_PRINTS + 'int main() { SAY(fopen("{secret}", "r")); }', "finished", "ENOENT|EACCES"),
    "writes_outside": (_PRINTS + 'int main() { SAY(fopen("{folder}/made", "w")); }', "finished", "ENOENT|EACCES"),
    "lists_processes": (_PRINTS + '#include <dirent.h>\nint main() { DIR* d = opendir("/proc"); int n = 0;\n'
        "  if (d) while (dirent* e = readdir(d)) n += e->d_name[0] > '0' && e->d_name[0] <= '9';\n"
        '  puts(n < 2 ? "alone" : "not"); }', "finished", "alone"),
    "opens_a_socket": (_PRINTS + "#include <sys/socket.h>\nint main() { SAY(socket(AF_INET, SOCK_STREAM, 0)); }",
        "finished", "EPERM"),
    "executes_a_program": (_PRINTS + "#include <unistd.h>\n"
        'int main() { SAY(execl("/proc/self/exe", "python", "-c", "", nullptr)); }', "finished", "EPERM"),
    "asks_the_shell": ('#include <cstdlib>\n#include <cstdio>\n'
    'int main() { puts(system("true") ? "refused" : "ran"); }',
        "finished", "refused"),
    "acts_before_main": (_PRINTS + "#include <sys/socket.h>\n__attribute__((constructor)) void early() {"
        " SAY(socket(AF_INET, SOCK_STREAM, 0)); }\n" + _MAIN, "finished", "EPERM"),
    "acts_while_it_is_linked": (
        '#include <cstdio>\nlong found = -1;\nextern "C" {\nstatic void nothing() { }\n'
        "static void (*pick())() {\n#ifdef __x86_64__\n"
        '  long done; '
        'asm volatile("syscall" : "=a"(done) : "0"(41L), "D"(2L), "S"(1L), "d"(0L) : "rcx", "r11", "memory");\n'
        "  found = done;\n#endif\n  return nothing; }\n"
        'void chosen() __attribute__((ifunc("pick")));\n}\nint main() { chosen(); '
        'puts(found == -1 ? "EPERM" : "DONE"); }',
        "finished", "EPERM"),
    "loops": ("int main() { volatile int x = 0; while (true) x = x + 1; }", "timeout", ""),
    "sleeps": ("#include <unistd.h>\nint main() { sleep(100); }", "timeout", ""),
    "crashes": ("int main() { *(volatile int*) 8 = 1; }", "runtime_error", ""),
    "throws": ("int main() { throw 1; }", "runtime_error", ""),
    "returns_1": ('#include <cstdio>\nint main() { puts("7"); return 1; }', "runtime_error", ""),
    "prints_for_ever": ('#include <cstdio>\nint main() { while (true) puts("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"); }',
        "output_limit|timeout", ""),
}  # fmt: skip
"""Name -> source (with ``{secret}`` and ``{folder}`` of the test), how it must end, what it prints if it finishes.

``compile`` is any failure of the compiler within its limits.
"""
SLOW = ("multiplies_templates", "computes_while_it_is_compiled", "fails_at_length")
"""These burn the compiler's CPU until it is over."""
SHORT = (
    "includes_a_secret",
    "includes_a_device",
    "includes_a_secret_as_bytes",
    "forks",
    "reads_a_secret",
    "opens_a_socket",
)
"""What both kinds are given in the tests of every day."""
LIMITS = Limits(cpu_s=0.5, memory_mb=200, file_mb=4)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Not under /tmp: a program sees a /tmp of its own even without the layer that hides files."""
    made = Path(tempfile.mkdtemp(prefix="gspo-target-", dir="/var/tmp"))
    made.chmod(0o777)
    (made / "secret").write_text("a_secret_word")
    (made / "secret").chmod(0o666)
    yield made
    (made / "secret").unlink()
    made.rmdir()


def isolation(kind: Kind) -> Isolation:
    try:
        chosen = choose(kind.value)
    except UserError as error:
        pytest.skip(str(error))
    if cpp.missing(chosen):
        pytest.skip(cpp.missing(chosen))
    return chosen


def case(kind: Kind, name: str) -> object:
    everyday = name not in SLOW and (kind is Kind.BUBBLEWRAP or name in SHORT)
    return pytest.param(kind, name, marks=() if everyday else pytest.mark.long, id=f"{kind}-{name}")


@pytest.mark.parametrize(("kind", "name"), [case(k, n) for k in (Kind.BUBBLEWRAP, Kind.LANDLOCK) for n in HOSTILE])
def test_hostile_cpp_ends_within_its_limits(kind: Kind, name: str, folder: Path) -> None:
    template, end, words = HOSTILE[name]
    chosen = isolation(kind)
    program = template.replace("{secret}", str(folder / "secret")).replace("{folder}", str(folder))
    library = cpp.compiled(chosen, program)
    assert sorted(os.listdir(folder)) == ["secret"]
    if end in ("syntax_error", "compile") and isinstance(library, Outcome):
        assert "a_secret_word" not in library.detail
        assert library.end is not End.FINISHED if end == "compile" else library.end == end, library
        return
    assert isinstance(library, bytes), library
    with Sandbox(chosen.kind, chosen.python, "", LIMITS, library=library) as box:
        outcome = box.run({"stdin": True, "input": ""})
    if end in ("syntax_error", "compile"):  # refused later, when it is loaded
        assert outcome.end in (End.MEMORY, End.SYNTAX_ERROR), outcome
        return
    assert outcome.end in end.split("|"), outcome
    if end == "finished":
        assert outcome.stdout.strip() in words.split("|"), outcome
    assert sorted(os.listdir(folder)) == ["secret"]


def test_bubblewrap_has_a_compiler_where_it_was_installed() -> None:
    if os.environ.get("GSPO_TESTS_EXPECT") != "bubblewrap":
        pytest.skip("only make test-sandbox installs it")
    assert cpp.missing(choose(Kind.BUBBLEWRAP.value)) == ""
