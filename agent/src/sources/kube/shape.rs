//! What is read of the apiserver's objects, and how much of it. Whatever is not named here is passed
//! over: environments, commands, managed fields, labels.
//!
//! The limits are far above what a sound object has; docs/security.md has them in a table, with the
//! memory that follows.

use super::convert::{MIRROR, TEMPLATE_HASH};
use crate::sources::{
    cut::Cut,
    json::Keep::{self, Bool, Each, First, Head, List, Number, Object, Presence, Text},
};

/// Finalizers of a pod. One is enough to say that the object is held.
pub(super) const MAX_FINALIZERS: usize = 16;
/// Containers of a pod, of each kind.
pub(super) const MAX_CONTAINERS: usize = 256;
/// Conditions of a pod or node.
pub(super) const MAX_CONDITIONS: usize = 64;
/// Owners of a pod.
pub(super) const MAX_OWNERS: usize = 8;

/// A uid, a time, a state, a number with its unit, a resource version.
const WORD: Keep = Text(64);
/// A name: what the apiserver allows (RFC 1123), and a prefix.
const NAME: Keep = Text(320);
/// A reason, an id, an image, the path of a binary.
const PHRASE: Keep = Text(256);
/// Only known beginnings matter (`MESSAGES` in `convert.rs`).
const MESSAGE: Keep = Head(64);
/// What is compared with a word that is known.
const KEYWORD: Keep = Head(64);

/// PodList.
pub(super) const PODS: Keep = Object(&[("metadata", LIST_METADATA), ("items", Each(&POD))]);

/// PodList, of which only the identities matter.
pub(super) const IDENTITIES: Keep =
    Object(&[("metadata", LIST_METADATA), ("items", Each(&IDENTITY))]);

const LIST_METADATA: Keep = Object(&[("resourceVersion", WORD), ("continue", Text(4096))]);

/// EventList.
pub(super) const EVENTS: Keep = Object(&[
    ("metadata", LIST_METADATA),
    (
        "items",
        Each(&Object(&[
            ("reason", KEYWORD),
            ("message", Head(256)),
            ("count", Number),
            ("firstTimestamp", WORD),
            ("lastTimestamp", WORD),
            ("eventTime", WORD),
            ("involvedObject", Object(&[("fieldPath", PHRASE)])),
            ("source", Object(&[("component", KEYWORD), ("host", NAME)])),
        ])),
    ),
]);

/// A line of a watch of pods. The object of an ERROR is a Status, that of a BOOKMARK a pod with
/// nothing but a version.
pub(super) const LINE: Keep = Object(&[("type", KEYWORD), ("object", POD)]);

/// The same of an ERROR, read from what [`LINE`] leaves of it.
pub(super) const STATUS: Keep = Object(&[
    ("code", Number),
    ("reason", KEYWORD),
    ("message", Head(512)),
    (
        "details",
        Object(&[
            ("name", NAME),
            ("kind", KEYWORD),
            ("causes", List(8, Cut::List, &Object(&[("reason", KEYWORD)]))),
        ]),
    ),
]);

pub(super) const POD: Keep = Object(&[
    ("metadata", METADATA),
    ("spec", SPEC),
    ("status", POD_STATUS),
    // Of the Status that an ERROR has for an object.
    ("code", Number),
    ("reason", KEYWORD),
    ("message", Head(512)),
]);

/// Pod, of which only the identity matters.
pub(super) const IDENTITY: Keep = Object(&[("metadata", METADATA)]);

const METADATA: Keep = Object(&[
    ("uid", WORD),
    ("namespace", WORD),
    ("name", NAME),
    ("resourceVersion", WORD),
    ("annotations", Object(&[(MIRROR, WORD)])),
    ("labels", Object(&[(TEMPLATE_HASH, WORD)])),
    (
        "ownerReferences",
        List(
            MAX_OWNERS,
            Cut::Owners,
            &Object(&[
                ("apiVersion", KEYWORD),
                ("kind", KEYWORD),
                ("name", NAME),
                ("controller", Bool),
            ]),
        ),
    ),
    ("creationTimestamp", WORD),
    ("deletionTimestamp", WORD),
    ("deletionGracePeriodSeconds", Number),
    ("finalizers", List(MAX_FINALIZERS, Cut::Finalizers, &NAME)),
]);

const SPEC: Keep = Object(&[
    ("terminationGracePeriodSeconds", Number),
    ("restartPolicy", WORD),
    ("containers", containers(&CONTAINER)),
    ("initContainers", containers(&CONTAINER)),
    ("ephemeralContainers", containers(&Object(&[("name", WORD), ("lifecycle", LIFECYCLE)]))),
]);

const fn containers(one: &'static Keep) -> Keep {
    List(MAX_CONTAINERS, Cut::Containers, one)
}

const CONTAINER: Keep = Object(&[
    ("name", WORD),
    ("image", PHRASE),
    ("restartPolicy", WORD),
    // Whether there are any.
    ("restartPolicyRules", First(&Presence)),
    ("lifecycle", LIFECYCLE),
    ("livenessProbe", PROBE),
    ("startupProbe", PROBE),
    (
        "resizePolicy",
        List(4, Cut::List, &Object(&[("resourceName", WORD), ("restartPolicy", WORD)])),
    ),
    ("resources", Object(&[("requests", RESOURCES), ("limits", RESOURCES)])),
]);

/// Of no others can a resize be asked for (pkg/apis/core/validation, `supportedResizeResources`).
const RESOURCES: Keep = Object(&[("cpu", WORD), ("memory", WORD)]);

const LIFECYCLE: Keep =
    Object(&[("preStop", HANDLER), ("postStart", HANDLER), ("stopSignal", WORD)]);

const HANDLER: Keep = Object(&[
    ("exec", EXEC),
    ("httpGet", Presence),
    ("tcpSocket", Presence),
    ("sleep", Object(&[("seconds", Number)])),
]);

/// The binary, and none of its arguments.
const EXEC: Keep = Object(&[("command", First(&PHRASE))]);

const PROBE: Keep = Object(&[
    ("exec", EXEC),
    ("terminationGracePeriodSeconds", Number),
    ("failureThreshold", Number),
]);

const POD_STATUS: Keep = Object(&[
    ("phase", WORD),
    ("reason", PHRASE),
    ("message", MESSAGE),
    ("resize", WORD),
    (
        "conditions",
        List(
            MAX_CONDITIONS,
            Cut::Conditions,
            &Object(&[
                ("type", KEYWORD),
                ("status", KEYWORD),
                ("reason", PHRASE),
                ("message", MESSAGE),
            ]),
        ),
    ),
    ("containerStatuses", containers(&CONTAINER_STATUS)),
    ("initContainerStatuses", containers(&CONTAINER_STATUS)),
    ("ephemeralContainerStatuses", containers(&CONTAINER_STATUS)),
]);

const CONTAINER_STATUS: Keep = Object(&[
    ("name", WORD),
    ("started", Bool),
    ("restartCount", Number),
    ("containerID", PHRASE),
    ("state", STATE),
    ("lastState", STATE),
]);

const STATE: Keep = Object(&[
    ("waiting", Object(&[("reason", PHRASE)])),
    (
        "terminated",
        Object(&[
            ("containerID", PHRASE),
            ("exitCode", Number),
            ("reason", PHRASE),
            ("finishedAt", WORD),
        ]),
    ),
]);

pub(super) const NODE: Keep = Object(&[(
    "status",
    Object(&[
        ("nodeInfo", Object(&[("bootID", WORD), ("kubeletVersion", WORD)])),
        (
            "conditions",
            List(
                MAX_CONDITIONS,
                Cut::Conditions,
                &Object(&[("type", KEYWORD), ("status", KEYWORD)]),
            ),
        ),
    ]),
)]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::{
        cri,
        kube::room::{MAX_PODS, OWN, STORE},
    };

    fn bytes(keep: &Keep) -> String {
        match keep {
            Text(most) => format!("{most} bytes"),
            other => panic!("{other:?} is no text"),
        }
    }

    #[test]
    fn docs_security_md_has_the_limits() {
        let docs = include_str!("../../../../docs/security.md");
        let number = |number: usize| match number {
            4_096 => "4,096".to_owned(),
            65_536 => "65,536".to_owned(),
            small => small.to_string(),
        };
        for (what, kept) in [
            ("names of pods, finalizers", bytes(&NAME)),
            ("uids, namespaces, names of containers, times", bytes(&WORD)),
            ("reasons, ids, images, paths of binaries", bytes(&PHRASE)),
            ("finalizers of a pod", number(MAX_FINALIZERS)),
            ("containers of a pod, of each kind", number(MAX_CONTAINERS)),
            ("conditions of a pod or node", number(MAX_CONDITIONS)),
            ("owners of a pod", number(MAX_OWNERS)),
            ("pods of this node", number(MAX_PODS)),
            ("of a pod, whatever the others are", format!("{} KiB", OWN >> 10)),
            ("of all pods beyond that", format!("{} MiB", STORE >> 20)),
            ("ids and names from the runtime", format!("{} bytes", cri::convert::MAX_TEXT)),
        ] {
            let row = format!("| {what} | {kept} |");
            assert!(docs.contains(&row), "docs/security.md lacks {row}");
        }
    }
}
