//! Which runtime is this node's, where several listen: docker's containerd beside k3s', a containerd that a CRI-O has
//! replaced. It is the one whose sandboxes' pods have cgroups here.

use super::{
    CriOptions,
    client::{CallFailure, Connection, CriError},
    endpoint::{KNOWN_SOCKETS, known},
};
use crate::linux::{
    blocking::{BlockingPool, CallError},
    cgroupfs,
    procfs::host_proc,
    socket_file::SocketFile,
};
use coroner_core::ids::PodUid;
use futures::future::join_all;
use std::{
    collections::BTreeSet,
    fmt::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tonic::Code;
use tracing::info;

/// A runtime that nobody waits for may not answer.
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, PartialEq, Eq, Debug)]
struct Candidate {
    path: PathBuf,
    answer: DialAnswer,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum DialAnswer {
    /// A container runtime, with the pods of its ready sandboxes.
    Runtime(String, BTreeSet<PodUid>),
    /// It does not speak the CRI, as docker's containerd mostly.
    NoCri,
    /// Nothing, for this reason.
    None(String),
}

/// The socket to connect to: the given one, or this node's runtime's.
pub(super) async fn socket(
    options: &CriOptions,
    pool: &BlockingPool,
) -> Result<SocketFile, String> {
    let root = options.host_root.clone();
    let hangs = |error: CallError| format!("cannot look for the runtime's socket: {error}");
    if let Some(path) = options.endpoint.clone().or_else(|| options.dialed.get().map(|it| it.path))
    {
        let shown = path.display().to_string();
        let opened =
            pool.call(move || super::endpoint::given(&root, &path)).await.map_err(hangs)?;
        return opened.map_err(|error| super::client::refused(&shown, &error));
    }
    let mut found = pool.call(move || known(&root)).await.map_err(hangs)?;
    if found.len() > 1 {
        let candidates = join_all(found.iter().map(|socket| ask(socket, options))).await;
        let root = options.cgroup_root.clone();
        let pods = pool.call(move || pods(root.as_deref())).await.map_err(hangs)?;
        let chosen = choose(&candidates, &pods)?;
        info!(candidates = list(&candidates, &pods), "several sockets of runtimes");
        return Ok(found.swap_remove(chosen));
    }
    found.pop().ok_or_else(|| nothing(&options.host_root))
}

fn pods(cgroup_root: Option<&Path>) -> BTreeSet<PodUid> {
    let Some(root) = cgroup_root else { return BTreeSet::new() };
    let trees = cgroupfs::kubepods_below(root);
    trees.iter().flat_map(|top| cgroupfs::pods_below(root, top)).map(|(_, pod)| pod).collect()
}

async fn ask(socket: &SocketFile, options: &CriOptions) -> Candidate {
    let asking = async {
        let proc = host_proc(&options.host_root);
        let limit = TIMEOUT.min(options.timeout);
        let connection =
            Connection::open(socket, &proc, limit, Arc::clone(&options.counters)).await?;
        let runtime = connection.runtime().await?;
        let sandboxes = connection.sandboxes(None).await?.valid.into_iter();
        let pods = sandboxes.filter(|one| one.ready).map(|one| one.pod).collect();
        Ok(DialAnswer::Runtime(runtime, pods))
    };
    let answer = asking.await.unwrap_or_else(|failure| match failure {
        CallFailure::Refused(CriError { code: Some(Code::Unimplemented), .. }) => DialAnswer::NoCri,
        failure => DialAnswer::None(CriError::from(failure).text),
    });
    Candidate { path: socket.id.path.clone(), answer }
}

/// The only one that can be this node's, or the only one with pods of this node. Pure.
fn choose(candidates: &[Candidate], pods: &BTreeSet<PodUid>) -> Result<usize, String> {
    let only = |wanted: &dyn Fn(&DialAnswer) -> bool| {
        let mut all = candidates.iter().enumerate().filter(|(_, one)| wanted(&one.answer));
        all.next().map(|(at, _)| at).filter(|_| all.next().is_none())
    };
    let has_pods = |answer: &DialAnswer| matches!(answer, DialAnswer::Runtime(_, its) if !its.is_disjoint(pods));
    only(&|answer| *answer != DialAnswer::NoCri).or_else(|| only(&has_pods)).ok_or_else(|| {
        format!(
            "cannot tell which container runtime is this node's: {}; set --runtime-endpoint to the \
             kubelet's containerRuntimeEndpoint",
            list(candidates, pods)
        )
    })
}

fn list(candidates: &[Candidate], pods: &BTreeSet<PodUid>) -> String {
    let mut text = String::new();
    for Candidate { path, answer } in candidates {
        let separator = if text.is_empty() { "" } else { "; " };
        let _ = write!(text, "{separator}{}: ", path.display());
        let _ = match answer {
            DialAnswer::Runtime(name, its) => {
                let here = its.intersection(pods).count();
                write!(text, "{name}, {here} of its {} pods have cgroups here", its.len())
            }
            DialAnswer::NoCri => write!(text, "no container runtime (it does not speak the CRI)"),
            DialAnswer::None(error) => write!(text, "{error}"),
        };
    }
    text
}

fn nothing(root: &Path) -> String {
    let tried = KNOWN_SOCKETS.map(|(path, whose)| format!("{path} ({whose})")).join(", ");
    let closed = std::fs::metadata(root.join("proc")).err().map_or_else(String::new, |error| {
        format!(
            " {} cannot be entered ({error}): set hostPID: true, grant SYS_PTRACE and run without \
             AppArmor and SELinux confinement, or mount the socket's directory into the pod.",
            root.display()
        )
    });
    format!(
        "no socket of a container runtime below {}.{closed} Tried {tried}; set --runtime-endpoint to \
         the kubelet's containerRuntimeEndpoint",
        root.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(uids: &[&str]) -> BTreeSet<PodUid> {
        uids.iter().map(|uid| PodUid::new(*uid)).collect()
    }

    #[test]
    fn the_runtime_with_this_nodes_pods_is_chosen() {
        let runtime = |its: &[&str]| DialAnswer::Runtime("containerd 2.1".into(), pods(its));
        let silent = || DialAnswer::None("connection refused".into());
        let table = [
            ("docker's containerd", vec![DialAnswer::NoCri, runtime(&[])], &[][..], Some(1)),
            ("docker's, with its CRI", vec![runtime(&[]), runtime(&["a"])], &["a"], Some(1)),
            ("another kubelet's", vec![runtime(&["z"]), runtime(&["a", "z"])], &["a"], Some(1)),
            ("one that does not run", vec![silent(), runtime(&["a"])], &["a", "b"], Some(1)),
            ("none has a pod yet", vec![runtime(&[]), runtime(&[])], &[], None),
            ("ours may be starting", vec![runtime(&[]), silent()], &["a"], None),
            ("ours may be starting", vec![DialAnswer::NoCri, silent()], &["a"], Some(1)),
            ("two kubelets", vec![runtime(&["a"]), runtime(&["b"])], &["a", "b"], None),
            ("two of docker's", vec![DialAnswer::NoCri, DialAnswer::NoCri], &["a"], None),
        ];
        for (what, answers, here, expected) in &table {
            let candidate = |(at, answer): (usize, &DialAnswer)| Candidate {
                path: format!("/run/{at}.sock").into(),
                answer: answer.clone(),
            };
            let candidates: Vec<_> = answers.iter().enumerate().map(candidate).collect();
            let chosen = choose(&candidates, &pods(here));
            assert_eq!(chosen.as_ref().ok(), expected.as_ref(), "{what}: {chosen:?}");
            let Err(error) = chosen else { continue };
            for wanted in ["/run/0.sock: ", "; /run/1.sock: ", "set --runtime-endpoint"] {
                assert!(error.contains(wanted), "{what}: {error}");
            }
        }
    }

    #[test]
    fn a_closed_root_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("proc")).unwrap();
        let open = nothing(folder.path());
        assert!(open.contains("MicroK8s") && !open.contains("SYS_PTRACE"), "{open}");
        let closed = nothing(&folder.path().join("closed"));
        assert!(closed.contains("cannot be entered") && closed.contains("SYS_PTRACE"), "{closed}");
    }
}
