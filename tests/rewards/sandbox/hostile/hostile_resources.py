"""Time and memory."""

from __future__ import annotations

from hostile_program import Hostile, Stopped

KEEP = """
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
def keep(address, size=50 << 20):
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "")
    ctypes.memset(address, 1, size)
    libc.munmap(address + 4096, size - 4096)
"""
"""A page keeps all of what it was mapped with, and nothing of that is resident, or in the address space."""
MAPPED = "address = ctypes.addressof(ctypes.create_string_buffer(1 << 16)) + 4095 & -4096\n"

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
        "import mmap\nattempt('map', lambda: mmap.mmap(-1, 400 << 20, mmap.MAP_PRIVATE))",
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
    Hostile(
        "takes_memory_in_children_whose_first_thread_has_ended",
        "import threading\n"
        "def hold():\n"
        "    kept = b'x' * (100 << 20)\n"
        "    time.sleep(1)\n"
        "    os._exit(0)\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        threading.Thread(target=hold).start()\n"
        "        syscall(60, 93, 0)\n"
        "for _ in range(3):\n    os.wait()\n"
        "print('DONE')",
        Stopped("watch", "memory all processes together"),
        None,
    ),
    Hostile(
        "keeps_shared_memory_that_it_does_not_map",
        KEEP + "attempt('keep', lambda: [keep(libc.mmap(None, 50 << 20, 3, 0x21, -1, 0)) for _ in range(8)])",
        Stopped("seccomp", "finished keep EPERM"),
        Stopped("seccomp", "finished keep EPERM"),
    ),
    Hostile(
        "keeps_shared_memory_by_another_flag",
        KEEP + "attempt('keep', lambda: keep(libc.mmap(None, 50 << 20, 3, 0x23, -1, 0)))",
        Stopped("seccomp", "finished keep EPERM"),  # the kernel of today refuses it by itself, with EINVAL
        Stopped("seccomp", "finished keep EPERM"),
    ),
    Hostile(
        "keeps_shared_memory_of_a_device",
        KEEP + "attempt('keep', lambda: keep(libc.mmap(None, 50 << 20, 3, 1, os.open('/dev/zero', 2), 0)))",
        Stopped("files", "finished keep ENOENT"),
        Stopped("landlock", "finished keep EACCES"),
    ),
    Hostile(
        "reserves_memory_behind_its_output",
        "for descriptor in range(4):\n    attempt('reserve', lambda: syscall(285, 47, descriptor, 1, 0, 64 << 20))",
        Stopped("output", "finished" + " reserve EFBIG" * 4),
        Stopped("output", "finished" + " reserve EFBIG" * 4),
    ),
    Hostile(
        "asks_for_huge_pages",
        KEEP + "attempt('map', lambda: keep(libc.mmap(None, 2 << 20, 3, 0x40022, -1, 0), 2 << 20))",
        Stopped("seccomp", "finished map EPERM"),
        Stopped("seccomp", "finished map EPERM"),
    ),
    Hostile(
        "moves_its_memory_out_of_sight",
        MAPPED + "attempt('advise', lambda: syscall(28, 233, address, 4096, 21))",
        Stopped("seccomp", "finished advise EPERM"),
        Stopped("seccomp", "finished advise EPERM"),
    ),
    Hostile(
        "burns_the_cpu_in_children_that_nobody_waits_for",
        "attempt('ignore', lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))\n"
        "sys.stdout.flush()\n"
        "over = time.monotonic() + 30\n"
        "for _ in range(60):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        while time.process_time() < 0.03:\n            pass\n"
        "        os._exit(0)\n"
        "    try:\n        os.waitpid(child, 0)\n    except ChildProcessError:\n        pass\n"
        "    if time.monotonic() > over:\n        break\n"
        "print('DONE')",
        Stopped("watch", "timeout ignore EPERM timeout"),
        None,
    ),
    Hostile(
        "forgets_children_by_a_flag",
        "action = (ctypes.c_ulong * 4)(0, 2, 0, 0)\n"  # SIG_DFL and SA_NOCLDWAIT
        "attempt('forget', lambda: syscall(13, 134, 17, ctypes.addressof(action), 0, 8))",
        Stopped("seccomp", "finished forget EPERM"),
        None,
    ),
    Hostile(
        "asks_to_survive_when_memory_is_short",
        "attempt('adjust', lambda: open('/proc/self/oom_score_adj', 'w').write('0'))",
        Stopped("processes", "finished adjust EROFS"),
        Stopped("landlock", "finished adjust EACCES"),
    ),
]
