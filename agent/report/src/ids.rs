//! Identities as newtypes, so that none is mistaken for another.

use serde::{Deserialize, Serialize};
use std::{borrow::Borrow, fmt, sync::Arc};

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[serde(transparent)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(value_type = String))]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn new(text: impl AsRef<str>) -> Self {
                Self(Arc::from(text.as_ref()))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        // Equality, order and hash are the text's.
        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }
    };
}

text_id! {
    /// A pod's UID in the runtime. For a static pod this is the hash of its manifest (32 hex digits, no
    /// dashes), not the UID of its mirror object.
    PodUid
}
text_id! {
    /// The CRI's id of a pod sandbox: 64 hex digits, opaque.
    SandboxId
}
text_id! {
    /// The CRI's id of a container: 64 hex digits, opaque, without the `containerd://` prefix.
    ContainerId
}

/// A cgroup's id: `kernfs_node.id`, the inode number of its directory. Unique within one hierarchy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct CgroupId(pub u64);

/// A thread group's id (in user space: a PID) in the agent's PID namespace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct Tgid(pub u32);

impl fmt::Display for CgroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Tgid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
    /// UID in the runtime.
    pub uid: PodUid,
}

impl PodRef {
    /// A pod of which only the UID is known.
    pub fn nameless(uid: &PodUid) -> Self {
        Self { namespace: String::new(), name: String::new(), uid: uid.clone() }
    }
}

/// What a pod is a replica of.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Workload {
    /// The controller's kind: `Deployment`, `StatefulSet`, `DaemonSet`, `Job`, or another.
    pub kind: String,
    pub name: String,
}

impl fmt::Display for Workload {
    /// As kubectl takes it: `Deployment/web`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

impl Workload {
    /// A Job or the runs of a CronJob, to whose pods no Service sends clients.
    pub fn is_job(&self) -> bool {
        matches!(&*self.kind, "Job" | "CronJob")
    }
}

/// The kind of a container in its pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ContainerKind {
    /// spec.containers.
    #[default]
    Main,
    /// spec.initContainers.
    Init,
    /// spec.initContainers with restartPolicy Always.
    Sidecar,
    /// spec.ephemeralContainers.
    Ephemeral,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ContainerState {
    /// CONTAINER_CREATED.
    Created,
    /// CONTAINER_RUNNING.
    Running,
    /// CONTAINER_EXITED.
    Exited,
    /// CONTAINER_UNKNOWN, or a value this version does not know.
    Unknown,
}

impl ContainerState {
    pub fn words(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Exited => "exited",
            Self::Unknown => "in an unknown state",
        }
    }
}

/// The identity of a leaked resource: one leak each.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "thing", rename_all = "snake_case")]
pub enum LeakKey {
    /// A sandbox.
    Sandbox {
        id: SandboxId,
    },
    Shim {
        pid: u32,
        /// Start time, clock ticks.
        started: u64,
        /// The sandbox or container for which the shim was started.
        id: String,
    },
    Netns {
        name: String,
        inode: u64,
    },
    PodCgroup {
        /// The pod in the cgroup's name.
        pod: PodUid,
        cgroup: CgroupId,
    },
    Pod {
        uid: PodUid,
    },
}
