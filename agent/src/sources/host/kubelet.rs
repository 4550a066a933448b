//! Which process is the kubelet.

use super::{HostView, table::Table};
use coroner_core::input::{DaemonProcess, DaemonState};

/// `comm` is cut to this: `include/linux/sched.h`, `TASK_COMM_LEN` without its end.
const COMM: usize = 15;

/// Looks for the kubelet by name.
///
/// Kubelets of other nodes may run on the same machine (kind): of several those count that share
/// the runtime's PID and mount namespaces, as far as these can be told. A child that a kubelet has
/// just forked and that has not exec'ed yet bears its name too: the parent counts. If it is still
/// not one, nothing is concluded.
pub(super) fn find(host: &HostView, table: &Table) -> DaemonState {
    let mut found: Vec<(u32, u64, u32)> = table
        .living()
        .filter(|(_, process)| host.kubelets.iter().any(|name| cut(name) == process.comm))
        .map(|(pid, process)| (pid, process.started, process.parent))
        .collect();
    let runtime = host.runtime.filter(|runtime| table.has(*runtime));
    if let Some(runtime) = runtime {
        let shares = |pid: u32, kind| {
            let ours = table.namespace(runtime.pid, kind).ok();
            ours.zip(table.namespace(pid, kind).ok()).map(|(ours, its)| ours == its)
        };
        // It must: the runtime could not run pods for a kubelet that cannot see their processes.
        found.retain(|(pid, ..)| shares(*pid, "pid") != Some(false));
        // It may: Talos runs it in a container.
        if found.iter().any(|(pid, ..)| shares(*pid, "mnt") == Some(true)) {
            found.retain(|(pid, ..)| shares(*pid, "mnt") != Some(false));
        }
    }
    let pids: Vec<u32> = found.iter().map(|(pid, ..)| *pid).collect();
    found.retain(|(_, _, parent)| !pids.contains(parent));
    match found[..] {
        [] => DaemonState::Absent,
        [(pid, started, _)] => DaemonState::Running { process: DaemonProcess { pid, started } },
        _ => DaemonState::Unknown,
    }
}

fn cut(name: &str) -> &str {
    name.get(..COMM).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::host::fake::Fake;

    fn found(fake: &Fake) -> DaemonState {
        find(&fake.host, &Table::read(&fake.host).unwrap())
    }

    fn running(process: DaemonProcess) -> DaemonState {
        DaemonState::Running { process }
    }

    #[test]
    fn by_name() {
        let mut fake = Fake::new();
        fake.kthreadd();
        fake.process(5, "kubelet-wrapper", 1, 50);
        fake.task(6, "kubelet", 'Z', 1, 60);
        assert_eq!(found(&fake), DaemonState::Absent);
        let one = fake.process(7, "kubelet", 1, 70);
        fake.process(8, "kubelet", 7, 80); // its child, before exec
        assert_eq!(found(&fake), running(one));
        fake.process(9, "k3s-server", 1, 90);
        assert_eq!(found(&fake), DaemonState::Unknown);
        fake.host.kubelets = vec!["kubelet-wrapper-of-mine".into()];
        assert_eq!(found(&fake), running(DaemonProcess { pid: 5, started: 50 }));
    }

    #[test]
    fn the_one_next_to_the_runtime() {
        let mut fake = Fake::new();
        fake.kthreadd();
        let runtime = fake.process(10, "containerd", 1, 100);
        let (near, far) =
            (fake.process(11, "kubelet", 1, 110), fake.process(12, "kubelet", 1, 120));
        assert_eq!(found(&fake), DaemonState::Unknown);
        fake.host.runtime = Some(runtime);
        assert_eq!(found(&fake), DaemonState::Unknown, "no namespace can be read");
        for (pid, mount) in [(10, 1), (11, 1), (12, 2)] {
            fake.namespace(pid, "mnt", mount);
        }
        assert_eq!(found(&fake), running(near));
        fake.ended(11);
        assert_eq!(found(&fake), running(far), "one in a container");
        for (pid, namespace) in [(10, 1), (12, 2)] {
            fake.namespace(pid, "pid", namespace);
        }
        assert_eq!(found(&fake), DaemonState::Absent, "one of another node");
    }
}
