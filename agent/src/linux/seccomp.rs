//! What this process may still ask of the kernel once the programs run: a seccomp filter of its own on all its
//! threads. A call that is not listed fails with EPERM; nothing is killed for it.

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads,
};
use std::{collections::BTreeMap, process};

/// Files, sockets, memory, threads, clocks, and bpf(2) for the programs' maps and links.
#[rustfmt::skip]
const CALLS: &[c_long] = &[
    libc::SYS_accept4, libc::SYS_bind, libc::SYS_bpf, libc::SYS_brk, libc::SYS_capget, libc::SYS_capset,
    libc::SYS_clock_getres, libc::SYS_clock_gettime, libc::SYS_clock_nanosleep, libc::SYS_close,
    libc::SYS_close_range, libc::SYS_connect, libc::SYS_dup, libc::SYS_dup3, libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_eventfd2, libc::SYS_exit,
    libc::SYS_exit_group, libc::SYS_faccessat, libc::SYS_faccessat2, libc::SYS_fadvise64,
    libc::SYS_fallocate, libc::SYS_fchmod, libc::SYS_fchmodat, libc::SYS_fcntl, libc::SYS_fdatasync,
    libc::SYS_flock, libc::SYS_fstat, libc::SYS_fstatfs, libc::SYS_fsync, libc::SYS_ftruncate,
    libc::SYS_futex, libc::SYS_getcwd, libc::SYS_getdents64, libc::SYS_getegid, libc::SYS_geteuid,
    libc::SYS_getgid, libc::SYS_getpeername, libc::SYS_getpgid, libc::SYS_getpid, libc::SYS_getppid,
    libc::SYS_getrandom, libc::SYS_getrusage, libc::SYS_getsockname, libc::SYS_getsockopt,
    libc::SYS_gettid, libc::SYS_gettimeofday, libc::SYS_getuid, libc::SYS_ioctl, libc::SYS_landlock_add_rule,
    libc::SYS_landlock_create_ruleset, libc::SYS_landlock_restrict_self, libc::SYS_listen, libc::SYS_lseek, libc::SYS_madvise, libc::SYS_membarrier, libc::SYS_mkdirat, libc::SYS_mmap,
    libc::SYS_mprotect, libc::SYS_mremap, libc::SYS_munmap, libc::SYS_nanosleep, libc::SYS_newfstatat,
    libc::SYS_openat, libc::SYS_openat2, libc::SYS_pipe2, libc::SYS_ppoll,
    libc::SYS_prctl, libc::SYS_pread64, libc::SYS_preadv, libc::SYS_prlimit64, libc::SYS_pselect6,
    libc::SYS_pwrite64, libc::SYS_pwritev, libc::SYS_read, libc::SYS_readlinkat, libc::SYS_readv,
    libc::SYS_recvfrom, libc::SYS_recvmmsg, libc::SYS_recvmsg, libc::SYS_renameat, libc::SYS_renameat2,
    libc::SYS_restart_syscall, libc::SYS_rseq, libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn, libc::SYS_sched_getaffinity, libc::SYS_sched_yield, libc::SYS_sendmmsg,
    libc::SYS_sendmsg, libc::SYS_sendto, libc::SYS_set_robust_list, libc::SYS_setsockopt,
    libc::SYS_shutdown, libc::SYS_sigaltstack, libc::SYS_socketpair, libc::SYS_statfs, libc::SYS_statx,
    libc::SYS_sysinfo, libc::SYS_uname, libc::SYS_unlinkat, libc::SYS_write, libc::SYS_writev,
];

/// Older forms of these, which aarch64 does not have.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const OLD_CALLS: &[c_long] = &[
    libc::SYS_access, libc::SYS_arch_prctl, libc::SYS_dup2, libc::SYS_epoll_wait, libc::SYS_lstat,
    libc::SYS_mkdir, libc::SYS_open, libc::SYS_pipe, libc::SYS_poll, libc::SYS_readlink, libc::SYS_rename,
    libc::SYS_rmdir, libc::SYS_stat, libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[c_long] = &[];

/// What running a program takes, and waiting for it.
const RUN: [c_long; 3] = [libc::SYS_execve, libc::SYS_wait4, libc::SYS_waitid];

/// Sockets of these families. A netlink socket is not needed: the C library does without.
const FAMILIES: [i32; 3] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];

/// clone(2) with any of these makes a namespace.
const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// Filters the system calls of all threads, for good. `runs_programs`: programs may be run (a kubeconfig may name one
/// that gets credentials).
///
/// Needs `no_new_privs`, or CAP_SYS_ADMIN.
pub fn confine(runs_programs: bool) -> Result<(), seccompiler::Error> {
    // A filter cannot read clone3's flags, which are in memory. Where it fails so, the C library uses clone(2).
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
    apply_filter_all_threads(&program(clone3, SeccompAction::Allow, unknown)?)?;
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    apply_filter_all_threads(&program(rules(runs_programs)?, refused, SeccompAction::Allow)?)
}

fn program(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, seccompiler::Error> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, otherwise, matched, arch)?.try_into()?)
}

fn rules(runs_programs: bool) -> Result<BTreeMap<c_long, Vec<SeccompRule>>, seccompiler::Error> {
    let of_argument = |of: u8, how, value: u64| {
        let condition = SeccompCondition::new(of, SeccompCmpArgLen::Dword, how, value)?;
        SeccompRule::new(vec![condition])
    };
    let is = |of, value: u64| of_argument(of, SeccompCmpOp::Eq, value);
    let runs = RUN.iter().filter(|_| runs_programs);
    let calls = CALLS.iter().chain(OLD_CALLS).chain(runs);
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        calls.map(|call| (*call, Vec::new())).collect();
    let families: Result<_, _> = FAMILIES.iter().map(|family| is(0, *family as u64)).collect();
    rules.insert(libc::SYS_socket, families?);
    let no_namespace = SeccompCmpOp::MaskedEq(NAMESPACES as u64);
    rules.insert(libc::SYS_clone, vec![of_argument(0, no_namespace, 0)?]);
    rules.insert(libc::SYS_clone3, Vec::new()); // the other filter's
    // abort(3): to no other process.
    rules.insert(libc::SYS_tgkill, vec![is(0, process::id().into())?]);
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::set_no_new_privs;
    use std::{env, fs, io::Error, net::UdpSocket, process::Command, thread};

    /// Set in the process that confines itself: this test, run again.
    const CONFINED: &str = "CORONER_TEST_CONFINED";

    fn refused(result: c_long) -> bool {
        result == -1 && Error::last_os_error().raw_os_error() == Some(libc::EPERM)
    }

    #[test]
    fn what_the_agent_does_works_and_all_else_is_refused() {
        if env::var_os(CONFINED).is_none() {
            let own = env::current_exe().unwrap();
            let name = "what_the_agent_does_works_and_all_else_is_refused";
            let output =
                Command::new(own).args([name, "--nocapture"]).env(CONFINED, "1").output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
            return;
        }
        let (go, waits) = std::sync::mpsc::channel::<()>();
        let other = thread::spawn(move || {
            waits.recv().unwrap();
            Command::new("/bin/true").status()
        });
        set_no_new_privs(true).unwrap();
        confine(false).unwrap();
        // Threads, files, sockets.
        assert_eq!(thread::spawn(|| 7).join().unwrap(), 7);
        assert!(fs::read_to_string("/proc/self/status").unwrap().contains("Seccomp:\t2"));
        assert!(fs::read_dir("/proc/self/fd").unwrap().count() > 2);
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), "a").unwrap();
        fs::rename(folder.path().join("a"), folder.path().join("b")).unwrap();
        UdpSocket::bind("127.0.0.1:0").unwrap();
        std::os::unix::net::UnixListener::bind(folder.path().join("s")).unwrap();
        // A thread that ran before is confined, too.
        go.send(()).unwrap();
        assert_eq!(other.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EPERM));
        // SAFETY: each call is refused before it looks at its arguments, or has none that are read.
        unsafe {
            for call in [
                libc::SYS_execve,
                libc::SYS_ptrace,
                libc::SYS_mount,
                libc::SYS_umount2,
                libc::SYS_unshare,
                libc::SYS_setns,
                libc::SYS_process_vm_readv,
                libc::SYS_process_vm_writev,
                libc::SYS_perf_event_open,
                libc::SYS_init_module,
                libc::SYS_finit_module,
                libc::SYS_io_uring_setup,
                libc::SYS_userfaultfd,
                libc::SYS_keyctl,
                libc::SYS_kexec_load,
                libc::SYS_memfd_create,
                libc::SYS_pidfd_open,
                libc::SYS_pidfd_send_signal,
                libc::SYS_pidfd_getfd,
                libc::SYS_reboot,
                libc::SYS_setuid,
            ] {
                assert!(refused(libc::syscall(call, 0, 0, 0, 0, 0, 0)), "system call {call}");
            }
            assert!(refused(libc::syscall(libc::SYS_kill, libc::getppid(), 0)), "another process");
            let another = libc::getppid();
            assert!(refused(libc::syscall(libc::SYS_tgkill, another, another, 0)));
            for family in [libc::AF_NETLINK, libc::AF_PACKET] {
                assert!(refused(libc::socket(family, libc::SOCK_RAW, 0).into()), "family {family}");
            }
            let namespace = libc::CLONE_NEWUSER | libc::SIGCHLD;
            assert!(refused(libc::syscall(libc::SYS_clone, namespace, 0, 0, 0, 0)));
        }
    }
}
