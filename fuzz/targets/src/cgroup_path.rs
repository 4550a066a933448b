use crate::value;
use arbitrary::Arbitrary;
use coroner_core::cgroup_path::{CgroupKind, CgroupOwner, classify, parse};

#[derive(Arbitrary, Debug)]
enum Case<'a> {
    Any(&'a str),
    Made(Made),
}

/// A container's cgroup, as the kubelet's two drivers and the runtimes name it.
#[derive(Arbitrary, Debug)]
struct Made {
    systemd: bool,
    qos: Option<bool>,
    /// kind and k3s put the whole tree below another root.
    nested: bool,
    is_static: bool,
    uid: [u8; 16],
    id: [u8; 32],
    runtime: u8,
    below: bool,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Made {
    fn uid(&self) -> String {
        let hex = hex(&self.uid);
        if self.is_static {
            return hex;
        }
        let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        parts.join("-")
    }

    fn path(&self) -> String {
        let (uid, id) = (self.uid(), hex(&self.id));
        let class = match self.qos {
            None => "",
            Some(true) => "burstable",
            Some(false) => "besteffort",
        };
        let mut path = if self.nested { "/kubelet".to_owned() } else { String::new() };
        if self.systemd {
            let prefix = if self.nested { "kubelet-kubepods" } else { "kubepods" };
            path += &format!("/{prefix}.slice");
            let mut slice = prefix.to_owned();
            if !class.is_empty() {
                slice = format!("{slice}-{class}");
                path += &format!("/{slice}.slice");
            }
            path += &format!("/{slice}-pod{}.slice", uid.replace('-', "_"));
            let runtime = ["cri-containerd", "crio", "docker"][usize::from(self.runtime % 3)];
            path += &format!("/{runtime}-{id}.scope");
        } else {
            path += "/kubepods";
            if !class.is_empty() {
                path += &format!("/{class}");
            }
            path += &format!("/pod{uid}/");
            path += ["", "crio-"][usize::from(self.runtime % 2)];
            path += &id;
        }
        if self.below {
            path += "/init.scope";
        }
        path
    }
}

fn sound(parsed: &CgroupOwner) {
    if let Some(pod) = &parsed.pod {
        assert!(!pod.as_str().is_empty() && !pod.as_str().contains('/'), "{pod:?}");
    }
    if let Some(id) = &parsed.container {
        let id = id.as_str();
        assert!(id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id:?}");
    }
}

/// Cgroup paths: any text, and every path that a kubelet and a runtime make.
pub fn cgroup_path(bytes: &[u8]) {
    match value(bytes) {
        None => {}
        Some(Case::Any(path)) => {
            classify(path);
            let parsed = parse(path);
            sound(&parsed);
            assert_eq!(parse(&format!("/{path}/")), parsed, "slashes at the ends mean nothing");
            assert_eq!(parse(&path.replace('/', "//")), parsed, "nor do doubled ones");
            if parsed.pod.is_some() && parsed.container.is_some() {
                let below = format!("{path}/kubepods/pod{}", "0".repeat(32));
                assert_eq!(parse(&below), parsed, "what a container makes for itself is its own");
            }
        }
        Some(Case::Made(made)) => {
            let path = made.path();
            let parsed = parse(&path);
            assert_eq!(parsed.pod.as_ref().map(|pod| pod.as_str()), Some(&*made.uid()), "{path}");
            let id = parsed.container.as_ref().map(|id| id.as_str());
            assert_eq!(id, Some(&*hex(&made.id)), "{path}");
            if !made.below {
                assert!(matches!(classify(&path), CgroupKind::Container(_)), "{path}");
            }
        }
    }
}
