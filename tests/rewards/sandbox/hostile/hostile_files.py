"""Files: secrets, writes outside, links, disk, descriptors."""

from __future__ import annotations

from hostile_program import Hostile, Stopped

FILES = [
    Hostile(
        "reads_a_secret",
        'attempt("read", lambda: open(target["secret"]).read())',
        Stopped("files", "finished read ENOENT"),
        Stopped("landlock", "finished read EACCES"),
    ),
    Hostile(
        "lists_a_folder",
        'attempt("list", lambda: os.listdir(target["folder"]))',
        Stopped("files", "finished list ENOENT"),
        Stopped("landlock", "finished list EACCES"),
    ),
    Hostile(
        "makes_a_file_outside",
        'attempt("make", lambda: open(target["folder"] + "/made", "x").close())',
        Stopped("files", "finished make ENOENT"),
        Stopped("landlock", "finished make EACCES"),
    ),
    Hostile(
        "overwrites_a_file_outside",
        'attempt("write", lambda: open(target["scratch"], "r+").close())',
        Stopped("files", "finished write ENOENT"),
        Stopped("landlock", "finished write EACCES"),
    ),
    Hostile(
        "removes_a_file_outside",
        'attempt("remove", lambda: os.unlink(target["scratch"]))',
        Stopped("files", "finished remove ENOENT"),
        Stopped("landlock", "finished remove EACCES"),
    ),
    Hostile(
        "makes_a_folder_outside",
        'attempt("mkdir", lambda: os.mkdir(target["folder"] + "/made"))',
        Stopped("files", "finished mkdir ENOENT"),
        Stopped("landlock", "finished mkdir EACCES"),
    ),
    Hostile(
        "changes_a_mode_outside",
        'attempt("chmod", lambda: os.chmod(target["scratch"], 0o600))',
        Stopped("files", "finished chmod ENOENT"),
        Stopped("seccomp", "finished chmod EPERM"),
    ),
    Hostile(
        "sets_times_outside",
        'attempt("utime", lambda: os.utime(target["scratch"], (1, 1)))',
        Stopped("files", "finished utime ENOENT"),
        Stopped("seccomp", "finished utime EPERM"),
    ),
    Hostile(
        "truncates_by_name",
        'attempt("truncate", lambda: os.truncate(target["scratch"], 0))',
        Stopped("files", "finished truncate ENOENT"),
        Stopped("seccomp", "finished truncate EPERM"),
    ),
    Hostile(
        "follows_a_symbolic_link_out",
        'attempt("link", lambda: os.symlink(target["secret"], "here"))\nattempt("read", lambda: open("here").read())',
        Stopped("files", "finished link DONE read ENOENT"),
        Stopped("landlock", "finished link EACCES read ENOENT"),
    ),
    Hostile(
        "links_a_file_into_its_folder",
        'attempt("link", lambda: os.link(target["scratch"], "here"))',
        Stopped("files", "finished link ENOENT"),
        Stopped("landlock", "finished link EXDEV"),
    ),
    Hostile(
        "writes_into_the_interpreter",
        "try:\n    open(os.__file__, 'r+').close()\nexcept OSError:\n    print('refused')",
        Stopped("", "finished refused"),
        Stopped("", "finished refused"),
    ),
    Hostile(
        "writes_beside_its_folder",
        'attempt("write", lambda: open(os.path.dirname(os.getcwd().rstrip("/")) + "/made", "w").close())',
        Stopped("", "finished write EROFS"),
        Stopped("landlock", "finished write EACCES"),
    ),
    Hostile(
        "fills_the_disk",
        "def fill():\n"
        "    for number in range(12):\n"
        '        with open(f"file{number}", "wb") as file:\n'
        "            file.write(bytes(1 << 20))\n"
        "        time.sleep(0.05)\n"
        'attempt("fill", fill)',
        Stopped("disk", "finished fill ENOSPC"),
        Stopped("disk", "output_limit disk"),
    ),
    Hostile(
        "makes_many_files",
        "def fill():\n"
        "    for number in range(100):\n"
        '        open(f"file{number}", "wb").close()\n'
        "        time.sleep(0.002)\n"
        "    time.sleep(0.1)\n"
        'attempt("fill", fill)',
        Stopped("disk", "finished fill ENOSPC"),
        Stopped("disk", "output_limit disk"),
    ),
    Hostile(
        "fills_the_disk_with_files_that_it_removes",
        "kept = []\n"
        "def fill():\n"
        "    for number in range(12):\n"
        '        kept.append(open("file", "wb"))\n'
        '        os.unlink("file")\n'
        "        kept[-1].write(bytes(1 << 20))\n"
        "        time.sleep(0.05)\n"
        'attempt("fill", fill)',
        Stopped("disk", "finished fill ENOSPC"),
        Stopped("disk", "output_limit disk"),
    ),
    Hostile(
        "fills_the_disk_with_files_that_it_maps_and_removes",
        "import mmap\n"
        "kept = []\n"
        "def fill():\n"
        "    for number in range(12):\n"
        '        with open("file", "w+b") as file:\n'
        '            os.unlink("file")\n'
        "            file.write(bytes(1 << 20))\n"
        "            file.flush()\n"
        "            kept.append(mmap.mmap(file.fileno(), 4096))\n"
        "        time.sleep(0.05)\n"
        'attempt("fill", fill)',
        Stopped("disk", "finished fill ENOSPC"),
        Stopped("disk", "output_limit disk"),
    ),
    Hostile(
        "fills_the_disk_with_empty_files",
        "def fill():\n"
        '    with open("file", "wb") as file:\n'
        "        syscall(285, 47, file.fileno(), 1, 0, 32 << 20)\n"
        "        time.sleep(0.2)\n"
        'attempt("fill", fill)',
        Stopped("disk+output", "finished fill EFBIG"),
        Stopped("disk", "output_limit disk"),
    ),
    Hostile(
        "writes_one_large_file",
        'attempt("write", lambda: open("file", "wb").write(bytes(6 << 20)))',
        Stopped("output", "finished write EFBIG"),
        Stopped("output", "finished write EFBIG"),
    ),
    Hostile(
        "floods_its_output",
        'for _ in range(100):\n    sys.stdout.write(" " * 100_000)\n    sys.stdout.flush()',
        Stopped("output", "output_limit OSError: [Errno 27] File too large"),
        Stopped("output", "output_limit OSError: [Errno 27] File too large"),
    ),
    Hostile(
        "opens_many_files",
        'kept = []\nattempt("open", lambda: [kept.append(open("/dev/null")) for _ in range(100)])',
        Stopped("descriptors", "finished open EMFILE"),
        Stopped("descriptors", "finished open EMFILE"),
    ),
]
