"""Other processes, the kernel, and privileges."""

from __future__ import annotations

from hostile_program import Hostile, Stopped

_BY_FILTER = "seccomp"


def _call(name: str, word: str, do: str) -> Hostile:
    stopped = Stopped(_BY_FILTER, f"finished {word} EPERM")
    return Hostile(name, f'attempt("{word}", lambda: {do})', stopped, stopped)


PROCESSES = [
    Hostile(
        "looks_at_other_processes",
        'found = attempt("look", lambda: os.listdir("/proc")) or []\n'
        "print([int(name) for name in found if name.isdigit()])",
        Stopped("processes", "finished look DONE [1]"),
        Stopped("landlock", "finished look EACCES []"),
    ),
    Hostile(
        "reads_the_parents_memory",
        'attempt(f"parent", lambda: open(f"/proc/{os.getppid()}/mem", "rb").close())',
        Stopped("processes", "finished parent ENOENT"),
        Stopped("landlock", "finished parent EACCES"),
    ),
    Hostile(
        "reads_the_parents_environment",
        'attempt("parent", lambda: open(f"/proc/{os.getppid()}/environ", "rb").close())',
        Stopped("processes", "finished parent ENOENT"),
        Stopped("landlock", "finished parent EACCES"),
    ),
    Hostile(
        "reads_the_environment_it_started_with",
        'text = attempt("read", lambda: open("/proc/self/environ").read()) or ""\n'
        'print("secret" if "GSPO_TEST_SECRET" in text else "nothing", sorted(os.environ))',
        Stopped("environment", "finished read DONE nothing []"),
        Stopped("landlock+environment", "finished read EACCES nothing []"),
    ),
    Hostile(
        "signals_its_parent",
        'print(os.getppid() > 0)\nattempt("kill", lambda: os.kill(os.getppid() or 12345, 0))',
        Stopped("processes", "finished False kill ESRCH"),
        Stopped("seccomp+landlock", "finished True kill EPERM"),
    ),
    Hostile(
        "signals_the_process_outside",
        'attempt("kill", lambda: os.kill(target["outside"], 0))',
        Stopped("", "finished kill ESRCH"),
        Stopped("", "finished kill EPERM"),
    ),
    Hostile(
        "signals_everything",
        'attempt("kill", lambda: os.kill(-1, 0))',
        Stopped("", "finished kill ESRCH"),
        Stopped("", "finished kill EPERM"),
    ),
    Hostile(
        "bombs_with_forks",
        "children = []\n"
        "def bomb():\n"
        "    for _ in range(60):\n"
        "        child = os.fork()\n"
        "        if child == 0:\n"
        "            time.sleep(5)\n"
        "            os._exit(0)\n"
        "        children.append(child)\n"
        'attempt("fork", bomb)\n'
        "for child in children:\n    os.kill(child, 9)\n",
        Stopped("tasks", "finished fork EAGAIN"),
        Stopped("seccomp", "finished fork EPERM"),
    ),
    Hostile(
        "bombs_with_threads",
        "import threading\n"
        "threading.stack_size(1 << 16 if target['namespaces'] else 1 << 24)\n"
        "over = threading.Event()\n"
        "try:\n"
        "    for _ in range(30):\n"
        "        threading.Thread(target=over.wait).start()\n"
        "    print('DONE')\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
        "over.set()",
        Stopped("tasks", "finished can't start new thread"),
        Stopped("memory", "finished can't start new thread"),
    ),
    Hostile(
        "leaves_a_child_behind",
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        libc.prctl(15, b'gspo-left-over', 0, 0, 0)\n"
        "        for descriptor in range(64):\n"
        "            try:\n                os.close(descriptor)\n            except OSError:\n                pass\n"
        "        time.sleep(20)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "time.sleep(0.3)\n"
        "print('left')",
        Stopped("processes", "finished left"),
        None,
    ),
    Hostile(
        "makes_a_process_of_its_own_under_landlock",
        'attempt("fork", lambda: os.fork() or os._exit(0))',
        None,
        Stopped("seccomp", "finished fork EPERM"),
    ),
    _call("executes_a_program", "exec", 'os.execv(sys.executable, [sys.executable, "-c", ""])'),
    _call("traces_a_process", "ptrace", "syscall(101, 117, 0, 0, 0, 0)"),
    _call("reads_memory_of_a_process", "vm_readv", "syscall(310, 270, os.getpid(), 0, 0, 0, 0, 0)"),
    _call("opens_a_handle_of_a_process", "pidfd_open", "syscall(434, 434, os.getpid(), 0)"),
    _call("makes_a_user_namespace", "unshare", "syscall(272, 97, 0x10000000)"),
    _call("asks_for_a_keyring", "keyctl", "syscall(250, 219, 0, -3, 1)"),
    _call("sets_up_io_uring", "io_uring", "syscall(425, 425, 1, 0)"),
    _call("catches_page_faults", "userfaultfd", "syscall(323, 282, 1)"),
    _call("counts_performance", "perf", "syscall(298, 241, 0, 0, -1, -1, 0)"),
    _call("turns_off_randomisation", "personality", "syscall(135, 92, 0x40000)"),
    _call("hides_memory_in_a_file", "memfd", 'os.memfd_create("hidden")'),
    _call("hides_memory_in_a_segment", "shmget", "syscall(31, 195, syscall(29, 194, 0, 4096, 0o600), 0, 0)"),
    _call("watches_files", "inotify", "syscall(294, 26, 0)"),
    _call("becomes_untraceable", "prctl", "syscall(157, 167, 4, 0, 0, 0, 0)"),
    _call("limits_another_process", "prlimit", "syscall(302, 261, os.getpid(), 7, 0, 0)"),
    Hostile(
        "calls_the_kernel_as_a_foreign_machine",
        "import mmap\n"
        "writable_code = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC\n"
        "page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, writable_code)\n"
        "page.write(bytes.fromhex('b814000000cd80c3'))\n"  # mov eax, 20 (getpid of i386); int 0x80; ret
        "address = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
        "print(ctypes.CFUNCTYPE(ctypes.c_int)(address)() == os.getpid())\n",
        Stopped("seccomp", "runtime_error SIGSYS"),
        Stopped("seccomp", "runtime_error SIGSYS"),
    ),
    Hostile(
        "uses_capabilities",
        "state = dict(line.split(':\\t', 1) for line in open('/proc/self/status') if ':\\t' in line)\n"
        "print(int(state['CapEff'], 16), int(state['CapPrm'], 16), int(state['NoNewPrivs']))",
        Stopped("privileges+uid", "finished 0 0 1"),
        None,
    ),
    Hostile(
        "owns_the_interpreter",
        "print(os.getuid() == 0, os.getgroups(), os.stat(os.__file__).st_uid == os.getuid())",
        Stopped("uid", "finished False [] False", root_only=True),
        None,
    ),
]
"""Where two layers stop a program in the same way, both are left out in the second run."""
