#!/bin/busybox sh
# The guest's first process: a world just large enough for the tests of the kernel programs.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root RUST_BACKTRACE=1 TMPDIR=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ifconfig lo 127.0.0.1 up
echo "guest: Linux $(uname -r)"
/test --test-threads=1 --nocapture </dev/null 2>&1
status=$?
echo
echo "coroner-vm-exit:$status"
reboot -f
