"""Numbers of allowed system calls per machine: ``name:x86_64:aarch64``, ``-`` for a call that the machine lacks.

Every other call is refused, whatever future kernels add. The numbers are those of the kernel's own headers
(``asm/unistd_64.h``, ``asm-generic/unistd.h``); a test compares them with libseccomp's if that is installed.
"""

from __future__ import annotations

ALWAYS = """
    read:0:63 write:1:64 open:2:- close:3:57 stat:4:- fstat:5:80 lstat:6:- poll:7:- lseek:8:62
    mprotect:10:226 munmap:11:215 brk:12:214 rt_sigprocmask:14:135 rt_sigreturn:15:139
    pread64:17:67 pwrite64:18:68 readv:19:65 writev:20:66 access:21:- pipe:22:- select:23:- sched_yield:24:124
    mremap:25:216 msync:26:227 mincore:27:232 dup:32:23 dup2:33:- pause:34:- nanosleep:35:101
    getitimer:36:102 alarm:37:- setitimer:38:103 getpid:39:172 sendfile:40:71 exit:60:93 wait4:61:260 uname:63:160
    flock:73:32 fsync:74:82 fdatasync:75:83 ftruncate:77:46 getdents:78:- getcwd:79:17 chdir:80:49
    fchdir:81:50 rename:82:- mkdir:83:- rmdir:84:- creat:85:- link:86:- unlink:87:- symlink:88:- readlink:89:-
    umask:95:166 gettimeofday:96:169 getrlimit:97:163 getrusage:98:165 sysinfo:99:179 times:100:153 getuid:102:174
    getgid:104:176 geteuid:107:175 getegid:108:177 setpgid:109:154 getppid:110:173 getpgrp:111:- setsid:112:157
    getgroups:115:158 getresuid:118:148 getresgid:120:150 getpgid:121:155 getsid:124:156 rt_sigpending:127:136
    rt_sigtimedwait:128:137 rt_sigsuspend:130:133 sigaltstack:131:132 statfs:137:43 fstatfs:138:44
    getpriority:140:141 sched_getparam:143:121 sched_getscheduler:145:120 sched_get_priority_max:146:125
    sched_get_priority_min:147:126 sched_getaffinity:204:123 arch_prctl:158:- gettid:186:178 futex:202:98 time:201:-
    getdents64:217:61 set_tid_address:218:96 restart_syscall:219:128 fadvise64:221:223 timer_create:222:107
    timer_settime:223:110 timer_gettime:224:108 timer_getoverrun:225:109 timer_delete:226:111 clock_gettime:228:113
    clock_getres:229:114 clock_nanosleep:230:115 exit_group:231:94 epoll_create:213:- epoll_create1:291:20
    epoll_ctl:233:21 epoll_wait:232:- epoll_pwait:281:22 epoll_pwait2:441:441 waitid:247:95 openat:257:56
    mkdirat:258:34 newfstatat:262:79 unlinkat:263:35 renameat:264:38 renameat2:316:276 linkat:265:37
    symlinkat:266:36 readlinkat:267:78 faccessat:269:48 faccessat2:439:439 pselect6:270:72 ppoll:271:73
    set_robust_list:273:99 get_robust_list:274:100 splice:275:76 tee:276:77 eventfd:284:- eventfd2:290:19
    timerfd_create:283:85 timerfd_settime:286:86 timerfd_gettime:287:87 fallocate:285:47 pipe2:293:59 dup3:292:24
    preadv:295:69 pwritev:296:70 preadv2:327:286 pwritev2:328:287 getrandom:318:278 statx:332:291 rseq:334:293
    copy_file_range:326:285 membarrier:324:283 close_range:436:436 getcpu:309:168 sendto:44:206 recvfrom:45:207
    shutdown:48:210 getsockopt:55:209
"""
"""Plain work: memory, threads' futexes, time, files that are open or can be opened, and file descriptors."""

METADATA = """
    chmod:90:- fchmod:91:52 fchmodat:268:53 truncate:76:45 utime:132:- utimes:235:- utimensat:280:88 futimesat:261:-
"""
"""Changes to files without an open file descriptor: harmless if no file of the machine can be named."""

AGENT = """
    connect:42:203 recvmsg:47:212 getsockname:51:204 getpeername:52:205 setsockopt:54:208 openat2:437:437
    sched_setaffinity:203:122 execve:59:221 fork:57:- vfork:58:- setrlimit:160:164 rt_sigaction:13:134
"""
"""What the command of an agent needs besides: to start programs, and to use sockets."""

SERVING = """
    accept:43:202 accept4:288:242 bind:49:200 listen:50:201 sendmmsg:307:269 recvmmsg:299:243 sendmsg:46:211
    fcntl:72:25 kill:62:129 tkill:200:130 tgkill:234:131
"""
"""What it may do besides where namespaces show it no other process and no network."""

CONDITIONAL = """
    setrlimit:160:164 fcntl:72:25 clone:56:220 clone3:435:435 fork:57:- vfork:58:- kill:62:129 tkill:200:130
    tgkill:234:131 socketpair:53:199 ioctl:16:29 prctl:157:167 prlimit64:302:261
    mmap:9:222 madvise:28:233 rt_sigaction:13:134 execve:59:221 socket:41:198 sendto:44:206 sendmsg:46:211
"""
"""Allowed for some arguments only; see ``seccomp.py``."""

_COLUMN = {"x86_64": 1, "aarch64": 2}


def numbers(table: str, machine: str) -> dict[str, int]:
    """Return name -> number on a machine (``os.uname().machine``).

    >>> numbers("read:0:63 stat:4:-", "aarch64")
    {'read': 63}
    """
    rows = (entry.split(":") for entry in table.split())
    return {row[0]: int(row[_COLUMN[machine]]) for row in rows if row[_COLUMN[machine]] != "-"}
