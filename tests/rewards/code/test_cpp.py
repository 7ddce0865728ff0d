"""C++ answers: compiled once, judged by the tests and rules of Python's, paid in the language that was asked."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards import CodeExecutor
from gspo_lightning.rewards.sandbox import Kind, choose, cpp

HONEST = {
    "adds": (
        "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b << '\\n'; }",
        "3 4",
        "7",
    ),
    "reads_with_scanf": (
        '#include <cstdio>\nint main() { long long s = 0; int x; while (scanf("%d", &x) == 1) s += x; '
        'printf("%lld\\n", s); }',
        "1 2 3\n4",
        "10",
    ),
    "reads_lines": (
        "#include <iostream>\n#include <string>\nusing namespace std;\n"
        "int main() { string s; int n = 0; while (getline(cin, s)) n += s.size(); cout << n; return 0; }",
        "ab\ncde\n\nf",
        "6",
    ),
    "uses_all_of_the_library": (
        "#include <bits/stdc++.h>\nusing namespace std;\n"
        "int main() {\n  ios::sync_with_stdio(false); cin.tie(nullptr);\n  int n; cin >> n;\n"
        "  map<string, int> count;\n"
        "  for (int i = 0; i < n; i++) { string s; cin >> s; count[s]++; }\n"
        "  priority_queue<pair<int, string>> queue;\n  for (auto& [word, k] : count) queue.push({k, word});\n"
        '  while (!queue.empty()) { cout << queue.top().second << " " << queue.top().first << "\\n"; '
        'queue.pop(); }\n}',
        "4 b a b c",
        "b 2\nc 1\na 1",
    ),
    "is_of_this_decade": (
        "#include <bit>\n#include <ranges>\n#include <algorithm>\n#include <vector>\n#include <iostream>\n"
        "int main() { std::vector<unsigned> v{3, 1, 2}; std::ranges::sort(v);\n"
        "  for (auto x : v | std::views::reverse) std::cout << std::popcount(x) << ' '; }",
        "",
        "2 1 1",
    ),
    "has_large_global_arrays": (
        "#include <cstdio>\nint a[20000000]; long long prefix[5000005];\n"
        "int main() { int n; scanf(\"%d\", &n); for (int i = 0; i < 20000000; i++) a[i] = i % n;\n"
        "  for (int i = 1; i <= 5000000; i++) prefix[i] = prefix[i - 1] + a[i]; printf(\"%lld\\n"
        "\", prefix[5000000]); }",
        "10",
        "22500000",
    ),
    "recurses_deeply": (
        "#include <cstdio>\nint next_of[1000005];\nint depth(int v) { return v ? 1 + depth(next_of[v]) : 0; }\n"
        'int main() { for (int i = 1; i <= 700000; i++) next_of[i] = i - 1; printf("%d\\n", depth(700000)); }',
        "",
        "700000",
    ),
    "has_objects_before_and_after_main": (
        "#include <cstdio>\nstruct Noise { Noise() { puts(\"before\"); } ~Noise() { puts(\"after\"); } } noise;\n"
        'int main() { puts("main"); }',
        "",
        "before\nmain\nafter",
    ),
    "catches_exceptions": (
        "#include <iostream>\n#include <stdexcept>\n#include <vector>\n"
        "int main() { std::vector<int> v(3); try { v.at(7) = 1; "
        "} catch (const std::out_of_range&) { std::cout << 7; } }",
        "",
        "7",
    ),
    "has_threads": (
        "#include <iostream>\n#include <thread>\n#include <atomic>\nstd::atomic<int> total; thread_local int mine;\n"
        "void work() { for (int i = 0; i < 1000; i++) { mine++; total++; } }\n"
        "int main() { std::thread a(work), b(work); a.join(); b.join(); std::cout << total << ' ' << mine; }",
        "",
        "2000 0",
    ),
    "names_things_as_the_library_does": (
        "#include <cstdio>\nint read() { int x; scanf(\"%d\", &x); return x; }\n"
        "int write(int x) { return printf(\"%d\\n\", x); }\n"
        "int y1, link, time_of[3];\nint main() { y1 = read(); link = read(); write(y1 * link); }",
        "6 7",
        "42",
    ),
    "calls_exit_within": ('#include <cstdio>\n#include <cstdlib>\nint main() { printf("7"); exit(0); }', "", "7"),
    "asks_for_faster_code": (
        '#pragma GCC optimize("O3,unroll-loops")\n#pragma GCC target("sse4.2")\n#include <cstdio>\n'
        "int main() { unsigned h = 1; for (int i = 0; i < 1000; i++) h = h * 31 + i; printf(\"%u\\n\", h); }",
        "",
        str(functools.reduce(lambda h, i: (h * 31 + i) % 2**32, range(1000), 1)),
    ),
    "writes_a_file_of_its_own": (
        '#include <cstdio>\nint main() { FILE* f = fopen("x.txt", "w"); fputs("7", f); fclose(f);\n'
        '  int x; fscanf(fopen("x.txt", "r"), "%d", &x); printf("%d", x); }',
        "",
        "7",
    ),
}  # fmt: skip
SHORT = ("adds", "reads_with_scanf", "recurses_deeply")
"""What is compiled by both kinds in the tests of every day."""
ADD = HONEST["adds"][0]


def stdin(text: str, expected: str, **more: Any) -> dict[str, Any]:
    return {"type": "stdin", "tests": [{"input": text, "output": expected}], **more}


@functools.cache
def executor_of(kind: Kind) -> CodeExecutor:
    try:
        return CodeExecutor(isolation=kind.value, language="cpp", timeout_s=3)
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def executor() -> CodeExecutor:
    return executor_of(choose().kind)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, marks=() if kind is Kind.BUBBLEWRAP or name in SHORT else pytest.mark.long)
        for kind in (Kind.BUBBLEWRAP, Kind.LANDLOCK)
        for name in HONEST
    ],
)
def test_honest_program_passes(kind: Kind, name: str) -> None:
    program, text, expected = HONEST[name]
    score = executor_of(kind).score(f"So:\n```cpp\n{program}\n```\n", stdin(text, expected))
    assert (score.reward, score.detail) == (1.0, "")


def test_equal_cpp_answers_are_compiled_once_for_all_tests(
    executor: CodeExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs: list[str] = []
    compile_for_real = cpp._compile
    monkeypatch.setattr(
        cpp, "_compile", lambda isolation, text: programs.append(text) or compile_for_real(isolation, text)
    )
    program = ADD + "// once"
    answer = {"type": "stdin", "tests": [{"input": f"{i} 1", "output": str(i + 1)} for i in range(5)]}
    answer["tests"].append({"input": "1 1", "output": "3"})
    assert [executor.score(program, answer).detail for _ in range(2)] == ["wrong_answer in test 6 of 6, 5 passed"] * 2
    assert programs == [program]


def test_cpp_compile_error_is_cached(executor: CodeExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[str] = []
    compile_for_real = cpp._compile
    monkeypatch.setattr(
        cpp, "_compile", lambda isolation, text: programs.append(text) or compile_for_real(isolation, text)
    )
    for _ in range(2):
        score = executor.score("int main() { return twice; }", stdin("", ""))
        assert (score.reward, score.status, score.detail) == (0.0, "model_error", "syntax_error in test 1 of 1")
    assert len(programs) == 1


def test_a_comparison_and_a_checker_judge_it_as_they_judge_python(executor: CodeExecutor) -> None:
    assert executor.score(ADD, stdin("3 4", "7.0", comparison="tolerance")).reward == 1.0
    checker = "def check(text, expected, printed):\n    return int(printed) % 10 == 7"
    assert executor.score(ADD, stdin("13 4", "anything", checker=checker)).reward == 1.0
    assert executor.score(ADD, stdin("13 5", "anything", checker=checker)).reward == 0.0


PYTHON = "a, b = map(int, input().split())\nprint(a + b)"


@pytest.mark.parametrize(
    ("language", "completion", "reward", "detail"),
    [
        ("cpp", f"```cpp\n{ADD}\n```", 1.0, ""),
        ("cpp", f"```c++17\n{ADD}\n```", 1.0, ""),
        ("cpp", f"```\n{ADD}\n```\nwhich prints\n```\n7\n```", 1.0, ""),
        ("cpp", ADD, 1.0, ""),
        ("cpp", f"In Python:\n```python\n{PYTHON}\n```\nand in C++:\n```cpp\n{ADD}\n```", 1.0, ""),
        ("python", f"In Python:\n```python\n{PYTHON}\n```\nand in C++:\n```cpp\n{ADD}\n```", 1.0, ""),
        ("cpp", f"```python\n{PYTHON}\n```", 0.0, "wrong_language: the program is marked python, not cpp"),
        ("cpp", f"```rust\n{PYTHON}\n```", 0.0, "wrong_language: the program is marked rust, not cpp"),
        ("python", f"```cpp\n{ADD}\n```", 0.0, "wrong_language: the program is marked cpp, not python"),
        ("cpp", PYTHON, 0.0, "syntax_error in test 1 of 1"),
        ("python", ADD, 0.0, "syntax_error in test 1 of 1"),
    ],
)
def test_the_language_that_was_asked_is_paid(
    executor: CodeExecutor, language: str, completion: str, reward: float, detail: str
) -> None:
    score = executor.score(completion, stdin("3 4", "7", language=language))
    assert (score.reward, score.detail) == (reward, detail)
    assert score.status == ("ok" if reward else "model_error")


def test_the_record_decides_before_the_option(executor: CodeExecutor) -> None:
    assert executor.score(PYTHON, stdin("3 4", "7", language="python")).reward == 1.0
    score = executor.score(ADD, stdin("3 4", "7", language="c"))
    assert (score.status, score.detail) == ("missing", "language is 'c'; it must be python or cpp")


@pytest.mark.parametrize(
    "answer",
    [
        {"type": "call", "entry_point": "f", "tests": [{"input": [1], "output": 1}]},
        {"type": "assert", "tests": ["assert f(1) == 1"]},
    ],
)
def test_tests_of_functions_are_for_python_only(executor: CodeExecutor, answer: dict[str, Any]) -> None:
    score = executor.score(ADD, answer)
    reason = f"{answer['type']} tests are for Python programs; a C++ program needs stdin tests"
    assert (score.status, score.detail) == ("missing", reason)


def test_without_a_compiler_the_record_is_missing_and_the_option_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp, "_toolchain", lambda: None)
    cpp.missing.cache_clear()
    try:
        score = CodeExecutor().score(ADD, stdin("3 4", "7", language="cpp"))
        with pytest.raises(
            UserError, match=r"CodeExecutor.language.*is cpp, but there is no C\+\+ compiler: install g\+\+"
        ):
            CodeExecutor(language="cpp")
    finally:
        cpp.missing.cache_clear()
    reason = "there is no C++ compiler: install g++ (make sandbox, or apt-get install g++)"
    assert (score.reward, score.status, score.detail) == (None, "missing", reason)


def test_an_unknown_language_is_refused() -> None:
    with pytest.raises(UserError, match=r"CodeExecutor.language.*is 'rust'; it must be python, cpp or marked"):
        CodeExecutor(language="rust")  # type: ignore[arg-type]
