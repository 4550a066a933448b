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
if [ -e /bin/apparmor_parser ]; then
    mount -t securityfs securityfs /sys/kernel/security
    apparmor_parser --replace --skip-cache --config-file /dev/null /apparmor ||
        echo "guest: AppArmor's profile was not loaded"
fi
export CORONER_TEST_AGENT=/coroner
ifconfig lo 127.0.0.1 up
echo "guest: Linux $(uname -r)"
# For processes that share a CPU in turns (agent/tests/programs/stage.rs).
echo 1000 >/proc/sys/kernel/sched_rr_timeslice_ms
echo -1 >/proc/sys/kernel/sched_rt_runtime_us
# shellcheck disable=SC2046 # words
/test --test-threads=1 --nocapture $(cat /arguments) </dev/null 2>&1
status=$?
[ $status = 0 ] || dmesg | grep 'apparmor="DENIED"'
echo
echo "coroner-vm-exit:$status"
reboot -f
