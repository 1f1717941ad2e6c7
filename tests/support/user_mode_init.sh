#!/bin/bash
# The first process of a Linux in user mode: its root is the machine's own, read-only; everything below $HERE/disk is its own disk.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
ln -sf /proc/self/fd /dev/fd
ip link set lo up
mount -t ext4 /dev/ubda "$HERE/disk"
mkdir -p "$HERE/disk/out" "$HERE/disk/tmp"
chmod 1777 "$HERE/disk/tmp"
mount --bind "$HERE/disk/tmp" /var/tmp
mount -t hostfs -o "$HERE/out" none "$HERE/disk/out"
mount -t cgroup2 none /sys/fs/cgroup
export TMPDIR="$HERE/disk/tmp"
cd "$TREE" || exit 1
bash "$HERE/command" > "$HERE/disk/out/log" 2>&1
echo $? > "$HERE/disk/out/exit"
sync
echo o > /proc/sysrq-trigger
sleep 60
