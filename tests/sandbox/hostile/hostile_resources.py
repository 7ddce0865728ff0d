"""Time and memory."""

from __future__ import annotations

from hostile_program import Hostile, Stopped

RESOURCES = [
    Hostile(
        "burns_the_cpu",
        "while True:\n    pass",
        Stopped("watch", "timeout timeout"),
        Stopped("watch", "timeout timeout"),
    ),
    Hostile(
        "burns_the_cpu_in_one_call",
        "sum(range(1 << 60))",
        Stopped("watch", "timeout timeout"),
        Stopped("watch", "timeout timeout"),
    ),
    Hostile(
        "burns_the_cpu_in_children",
        "children = []\n"
        "for _ in range(3):\n"
        "    children.append(os.fork())\n"
        "    if children[-1] == 0:\n"
        "        while True:\n            pass\n"
        "for child in children:\n    os.waitpid(child, 0)\n"
        "print('DONE')",
        Stopped("watch", "timeout timeout"),
        None,
    ),
    Hostile(
        "ignores_the_cpu_limit",
        "signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True:\n    pass",
        Stopped("watch", "timeout timeout"),
        Stopped("watch", "timeout timeout"),
    ),
    Hostile("sleeps_for_ever", "time.sleep(1000)", Stopped("", "timeout asleep"), Stopped("", "timeout asleep")),
    Hostile(
        "waits_for_a_lock_for_ever",
        "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
        Stopped("", "timeout asleep"),
        Stopped("", "timeout asleep"),
    ),
    Hostile(
        "takes_much_memory",
        "print(len(bytearray(400 << 20)))",
        Stopped("memory", "memory MemoryError:"),
        Stopped("memory", "memory MemoryError:"),
    ),
    Hostile(
        "maps_much_memory",
        "import mmap\nattempt('map', lambda: mmap.mmap(-1, 400 << 20))",
        Stopped("memory", "finished map ENOMEM"),
        Stopped("memory", "finished map ENOMEM"),
    ),
    Hostile(
        "takes_memory_in_children",
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        kept = b'x' * (100 << 20)\n"
        "        time.sleep(1)\n"
        "        os._exit(0)\n"
        "for _ in range(3):\n    os.wait()\n"
        "print('DONE')",
        Stopped("watch", "memory all processes together"),
        None,
    ),
]
