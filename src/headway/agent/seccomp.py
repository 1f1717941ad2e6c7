"""The filter of system calls for isolated tasks, as a BPF program built here (H11).

A call in DENIED answers EPERM; `clone` with a namespace flag, sockets of unusual families and six ioctls do too; `clone3` answers
ENOSYS, so that C libraries fall back to `clone`, whose flags can be seen. Reserving blocks (`fallocate`, and three ioctls) answers
EOPNOTSUPP, so that C libraries write instead: a reservation fills any disk at once, before somebody could look. A program of another
architecture, or of the x32 interface, is killed. docs/security.md lists the calls; a test makes each of them.
"""

from __future__ import annotations

import errno
import platform
import struct

# name -> numbers on (x86_64, aarch64); None: the architecture has no such call.
DENIED: dict[str, tuple[int | None, int | None]] = {
    # the file system's shape
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "mount_setattr": (442, 442),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    # namespaces
    "unshare": (272, 97),
    "setns": (308, 268),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # the kernel itself
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "lookup_dcookie": (212, 18),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "vhangup": (153, 58),
    "nfsservctl": (180, 42),
    # keys of the kernel's ring, which is shared by user, not by namespace
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # clock and name of the machine
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
}
CLONE, CLONE3, SOCKET, IOCTL, PERSONALITY, FALLOCATE = (56, 220), (435, 435), (41, 198), (16, 29), (135, 92), (285, 47)
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWTIME (0x80 is part of the exit signal in clone, not a flag)
NAMESPACE_FLAGS = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000
FAMILIES = (1, 2, 10, 16)  # UNIX, INET, INET6, NETLINK: what programs use
TERMINAL_IOCTLS = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX type into the terminal of whoever looks
# BTRFS_IOC_SNAP_CREATE, SUBVOL_CREATE and those of version 2: what is in a subvolume is outside the wall around a task's folders (walls).
SUBVOLUME_IOCTLS = (0x5000_9401, 0x5000_940E, 0x5000_9417, 0x5000_9418)
RESERVING_IOCTLS = (0x4030_5828, 0x4030_582A, 0x4030_5839)  # FS_IOC_RESVSP, FS_IOC_RESVSP64, FS_IOC_ZERO_RANGE
FREEING_MODES = 0x02 | 0x08  # FALLOC_FL_PUNCH_HOLE, FALLOC_FL_COLLAPSE_RANGE
PERSONALITIES = (0, 0xFFFF_FFFF)

_ARCHITECTURES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ERRNO, _ALLOW = 0x8000_0000, 0x0005_0000, 0x7FFF_0000
_NUMBER, _ARCH, _ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; the low half of an argument on little-endian machines


def supported() -> bool:
    return platform.machine() in _ARCHITECTURES


def program(denied_errno: int = errno.EPERM) -> bytes:
    """The BPF program for this machine. Tests choose an errno no call gives by itself."""
    column, audit = _ARCHITECTURES[platform.machine()]
    lines: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if column == 0:
        lines += [(_AT_LEAST, 0, 1, 0x4000_0000), (_RETURN, 0, 0, _KILL)]
    deny, allow = (_RETURN, 0, 0, _ERRNO | denied_errno), (_RETURN, 0, 0, _ALLOW)
    lines += [(_EQUAL, 0, 1, CLONE3[column]), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    for numbers in DENIED.values():
        if (number := numbers[column]) is not None:
            lines += [(_EQUAL, 0, 1, number), deny]
    first = (_LOAD, 0, 0, _ARGUMENT)
    second = (_LOAD, 0, 0, _ARGUMENT + 8)
    lines += _block(CLONE[column], [first, (_ANY_BIT, 0, 1, NAMESPACE_FLAGS), deny, allow])
    lines += _block(SOCKET[column], [first, *_unless(FAMILIES, deny, allow)])
    lines += _block(PERSONALITY[column], [first, *_unless(PERSONALITIES, deny, allow)])
    unsupported = (_RETURN, 0, 0, _ERRNO | errno.EOPNOTSUPP)
    lines += _block(FALLOCATE[column], [second, (_ANY_BIT, 0, 1, FREEING_MODES), allow, unsupported])
    refused = _unless((*TERMINAL_IOCTLS, *SUBVOLUME_IOCTLS), allow, deny)[:-1]
    lines += _block(IOCTL[column], [second, *refused, *_unless(RESERVING_IOCTLS, allow, unsupported)])
    lines.append(allow)
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


Line = tuple[int, int, int, int]


def _block(number: int, inside: list[Line]) -> list[Line]:
    """For one call only: `inside`, which returns in every case."""
    return [(_EQUAL, 0, len(inside), number), *inside]


def _unless(values: tuple[int, ...], otherwise: Line, then: Line) -> list[Line]:
    """`then` when the loaded word is one of the values, else `otherwise`."""
    lines: list[Line] = []
    for value in values:
        lines += [(_EQUAL, 0, 1, value), then]
    return [*lines, otherwise]
