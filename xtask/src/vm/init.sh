#!/bin/busybox sh
# The guest's first process: a world just large enough for the tests of the kernel programs.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root RUST_BACKTRACE=1 TMPDIR=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
# A NAME=VALUE that the kernel does not know is in its first process's environment.
if [ "$CORONER_CGROUP" = v1 ]; then
    # As systemd has it with systemd.unified_cgroup_hierarchy=no; what a kernel lacks is not there.
    mount -t tmpfs cgroup /sys/fs/cgroup
    for controller in cpuset cpu,cpuacct blkio memory devices freezer pids; do
        point=/sys/fs/cgroup/$controller
        mkdir "$point"
        mount -t cgroup -o "$controller" cgroup "$point" 2>/dev/null || rmdir "$point"
    done
else
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi
if [ -e /bin/apparmor_parser ]; then
    mount -t securityfs securityfs /sys/kernel/security
    apparmor_parser --replace --skip-cache --config-file /dev/null /apparmor ||
        echo "guest: AppArmor's profile was not loaded"
fi
export CORONER_TEST_AGENT=/coroner
ifconfig lo 127.0.0.1 up
echo "guest: Linux $(uname -r), cgroup $CORONER_CGROUP"
# For processes that share a CPU in turns (agent/tests/programs/stage.rs).
echo 1000 >/proc/sys/kernel/sched_rr_timeslice_ms
echo -1 >/proc/sys/kernel/sched_rt_runtime_us
# shellcheck disable=SC2086 # words
/test --test-threads=1 --nocapture $CORONER_GUEST_ARGUMENTS </dev/null 2>&1
status=$?
[ $status = 0 ] || dmesg | grep 'apparmor="DENIED"'
echo
echo "coroner-vm-exit:$status"
reboot -f
