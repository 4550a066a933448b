//! The grammar of cgroup paths: what a directory below `kubepods` stands for.
//!
//! Sources: the kubelet's `cm/cgroup_manager_linux.go` and `cm/helpers_linux.go` (pods and QoS
//! levels, systemd and cgroupfs drivers), containerd's `internal/cri/server/helpers.go`
//! (`cri-containerd-<id>.scope`, or the id alone), CRI-O's `internal/config/cgmgr` (`crio-<id>`,
//! `crio-conmon-<id>`), dockershim and cri-dockerd (`docker-<id>.scope`). kind and k3s put the
//! whole tree below another root.

use crate::ids::{ContainerId, PodUid};

/// What one directory of the hierarchy stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CgroupKind {
    /// The root of all pods: `kubepods`, `kubepods.slice`, `kubelet-kubepods.slice`.
    Root,
    /// A QoS class: `burstable`, `kubepods-besteffort.slice`.
    Qos,
    Pod(PodUid),
    /// A container or a sandbox, which have the same form of name.
    Container(ContainerId),
    /// CRI-O's monitor of a container, outside the container.
    Conmon,
    /// Anything else, such as cgroups that a container creates.
    Other,
}

/// The pod and container of a whole path.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CgroupOwner {
    pub pod: Option<PodUid>,
    /// The container (or sandbox) that the path is in or below.
    pub container: Option<ContainerId>,
}

/// Classifies one directory by the last component of `name_or_path`.
///
/// A single component proves less than a path: `burstable` is a QoS class by name only, and a plain id is a
/// container below anything. [`parse`] reads the whole path.
pub fn classify(name_or_path: &str) -> CgroupKind {
    let name = name_or_path.trim_end_matches('/');
    let name = name.rsplit_once('/').map_or(name, |(_, last)| last);
    // containerd with the cgroupfs driver, below a kubelet with the systemd driver, uses the
    // `slice:prefix:id` notation as a directory name.
    if let [_, _, id] = name.split(':').collect::<Vec<_>>()[..] {
        return container_id(id).map_or(CgroupKind::Other, CgroupKind::Container);
    }
    let stem = name.strip_suffix(".slice").or_else(|| name.strip_suffix(".scope")).unwrap_or(name);
    if stem.starts_with("crio-conmon-") {
        return CgroupKind::Conmon;
    }
    let id = ["cri-containerd-", "crio-", "docker-"].iter().find_map(|p| stem.strip_prefix(p));
    if let Some(id) = container_id(id.unwrap_or(stem)) {
        return CgroupKind::Container(id);
    }
    if matches!(name, "burstable" | "besteffort") {
        return CgroupKind::Qos;
    }
    if let Some(uid) = stem.strip_prefix("pod").filter(|uid| is_uid(uid)) {
        return CgroupKind::Pod(pod_uid(uid));
    }
    let Some(rest) = below_kubepods(stem) else { return CgroupKind::Other };
    let below_qos = rest.strip_prefix("-burstable").or_else(|| rest.strip_prefix("-besteffort"));
    match (rest, below_qos, below_qos.unwrap_or(rest).strip_prefix("-pod")) {
        ("", ..) => CgroupKind::Root,
        (_, Some(""), _) => CgroupKind::Qos,
        (.., Some(uid)) if !uid.is_empty() => CgroupKind::Pod(pod_uid(uid)),
        _ => CgroupKind::Other,
    }
}

/// Parses a path from the hierarchy's root, `/kubepods/burstable/pod…/…`.
///
/// The outermost pod counts, and the outermost container in it: everything that a container nests belongs to
/// it, and a container above the pod is a kind node. Without a pod the innermost container counts.
pub fn parse(path: &str) -> CgroupOwner {
    let mut found = CgroupOwner::default();
    let mut above = CgroupKind::Other;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let level = match classify(name) {
            // Below the root every `pod…` is a pod: a manifest may set any UID.
            CgroupKind::Other if matches!(above, CgroupKind::Root | CgroupKind::Qos) => {
                match name.strip_prefix("pod").filter(|uid| !uid.is_empty()) {
                    Some(uid) => CgroupKind::Pod(PodUid::new(uid)),
                    None => CgroupKind::Other,
                }
            }
            level => level,
        };
        match &level {
            CgroupKind::Pod(uid) if found.pod.is_none() => {
                found = CgroupOwner { pod: Some(uid.clone()), container: None };
            }
            CgroupKind::Container(id) => {
                if found.pod.is_none()
                    && let Some((slice, _)) = name.split_once(':')
                    && let CgroupKind::Pod(uid) = classify(slice)
                {
                    found.pod = Some(uid);
                    found.container = None;
                }
                if found.pod.is_none() || found.container.is_none() {
                    found.container = Some(id.clone());
                }
            }
            CgroupKind::Conmon => return found,
            _ => {}
        }
        above = level;
    }
    found
}

/// The rest after `kubepods` in `kubepods…` or, as systemd nests slices, `<parent>-kubepods…`.
fn below_kubepods(stem: &str) -> Option<&str> {
    let at = stem.find("kubepods")?;
    (at == 0 || stem.as_bytes()[at - 1] == b'-').then(|| &stem[at + "kubepods".len()..])
}

/// 64 hex digits, the form of an id in all runtimes.
fn container_id(text: &str) -> Option<ContainerId> {
    let hex = text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    hex.then(|| ContainerId::new(text))
}

/// A UUID, whose dashes the systemd driver may replace by underscores, or the 32 hex digits of a static pod's
/// manifest hash.
fn is_uid(text: &str) -> bool {
    let hex = |b: u8| b.is_ascii_hexdigit();
    match text.len() {
        32 => text.bytes().all(hex),
        36 => text.bytes().enumerate().all(|(i, b)| match i {
            8 | 13 | 18 | 23 => matches!(b, b'-' | b'_'),
            _ => hex(b),
        }),
        _ => false,
    }
}

fn pod_uid(escaped: &str) -> PodUid {
    PodUid::new(escaped.replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const OTHER: &str = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";
    const UID: &str = "8dbc5577-d0e2-4706-8787-57d52c03ddf2";
    const ESCAPED: &str = "8dbc5577_d0e2_4706_8787_57d52c03ddf2";
    const STATIC: &str = "bad66ee59a4de7f24d8f4a47d6e2e7a9";

    #[test]
    fn every_level_is_told_by_its_name() {
        let pod = |uid: &str| CgroupKind::Pod(PodUid::new(uid));
        let container = || CgroupKind::Container(ContainerId::new(ID));
        let table: &[(&str, CgroupKind)] = &[
            ("kubepods", CgroupKind::Root),
            ("kubepods.slice", CgroupKind::Root),
            ("/kubelet.slice/kubelet-kubepods.slice", CgroupKind::Root),
            ("kubelet", CgroupKind::Other),
            ("burstable", CgroupKind::Qos),
            ("kubepods-besteffort.slice", CgroupKind::Qos),
            ("kubelet-kubepods-burstable.slice", CgroupKind::Qos),
            ("pod{uid}", pod(UID)),
            ("pod{static}", pod(STATIC)),
            ("kubepods-pod{escaped}.slice", pod(UID)),
            ("kubepods-burstable-pod{escaped}.slice", pod(UID)),
            ("kubepods-besteffort-pod{static}.slice", pod(STATIC)),
            ("kubelet-kubepods-besteffort-pod{escaped}.slice", pod(UID)),
            ("kubepods-podmy_own_uid.slice", pod("my-own-uid")),
            ("kubepods-pod.slice", CgroupKind::Other),
            ("podman-{id}", CgroupKind::Other),
            ("pods", CgroupKind::Other),
            ("{id}", container()),
            ("/kubepods/pod{uid}/{id}", container()),
            ("/kubepods/pod{uid}/{id}/", container()),
            ("cri-containerd-{id}.scope", container()),
            ("crio-{id}.scope", container()),
            ("crio-{id}", container()),
            ("docker-{id}.scope", container()),
            ("kubepods-besteffort-pod{escaped}.slice:cri-containerd:{id}", container()),
            ("crio-conmon-{id}.scope", CgroupKind::Conmon),
            ("crio-conmon-{id}", CgroupKind::Conmon),
            ("cri-containerd-0123.scope", CgroupKind::Other),
            ("mykubepods.slice", CgroupKind::Other),
            ("init.scope", CgroupKind::Other),
            ("a:b:c", CgroupKind::Other),
            ("", CgroupKind::Other),
            ("/", CgroupKind::Other),
        ];
        for (name, level) in table {
            assert_eq!(classify(&expand(name)), *level, "{name}");
        }
    }

    #[test]
    fn paths_give_pod_and_container() {
        let table: &[(&str, Option<&str>, Option<&str>)] = &[
            // containerd, CRI-O and cri-dockerd, systemd driver
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{escaped}.slice/cri-containerd-{id}.scope",
                Some(UID),
                Some(ID),
            ),
            ("/kubepods.slice/kubepods-pod{escaped}.slice/crio-{id}.scope", Some(UID), Some(ID)),
            (
                "/kubepods.slice/kubepods-pod{escaped}.slice/crio-{id}.scope/container",
                Some(UID),
                Some(ID),
            ),
            ("/kubepods.slice/kubepods-pod{escaped}.slice/crio-conmon-{id}.scope", Some(UID), None),
            (
                "/kubepods.slice/kubepods-pod{static}.slice/docker-{id}.scope",
                Some(STATIC),
                Some(ID),
            ),
            // cgroupfs driver
            ("/kubepods/burstable/pod{uid}/{id}", Some(UID), Some(ID)),
            ("/kubepods/pod{uid}/crio-{id}", Some(UID), Some(ID)),
            ("/kubepods/besteffort/pod{static}/{id}", Some(STATIC), Some(ID)),
            ("/kubepods/besteffort/podmy-own/{id}", Some("my-own"), Some(ID)),
            ("/somewhere/podmy-own/{id}", None, Some(ID)),
            // what a container nests in itself is its own
            ("/kubepods/pod{uid}/{id}/docker/{other}", Some(UID), Some(ID)),
            ("/kubepods/pod{uid}/{id}/kubepods/pod{static}/{other}", Some(UID), Some(ID)),
            // another root above: kind, k3s
            (
                "/system.slice/docker-{other}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{escaped}.slice/cri-containerd-{id}.scope",
                Some(UID),
                Some(ID),
            ),
            ("/docker/{other}/kubelet/kubepods/burstable/pod{uid}/{id}", Some(UID), Some(ID)),
            ("/k3s/kubepods/pod{uid}/{id}", Some(UID), Some(ID)),
            // drivers that disagree
            (
                "/system.slice/containerd.service/kubepods-burstable-pod{escaped}.slice:cri-containerd:{id}",
                Some(UID),
                Some(ID),
            ),
            // no pod level: cgroupsPerQOS=false
            ("/k8s.io/{id}", None, Some(ID)),
            ("/kubepods/burstable/pod{uid}", Some(UID), None),
            ("/kubepods/burstable", None, None),
            ("/system.slice/sshd.service", None, None),
            ("/", None, None),
            ("", None, None),
        ];
        for (path, pod, container) in table {
            let expected = CgroupOwner {
                pod: pod.map(PodUid::new),
                container: container.map(ContainerId::new),
            };
            assert_eq!(parse(&expand(path)), expected, "{path}");
        }
    }

    fn expand(text: &str) -> String {
        text.replace("{id}", ID)
            .replace("{other}", OTHER)
            .replace("{uid}", UID)
            .replace("{escaped}", ESCAPED)
            .replace("{static}", STATIC)
    }
}
