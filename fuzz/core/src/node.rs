//! The node's daemons and its status.

use coroner_core::input::{
    ApiEvent, ApiNode, Daemon, DaemonProcess, DaemonState, HostEvent, Input,
};

pub(crate) fn has(mask: u8, index: usize) -> bool {
    mask & 1 << (index % 8) != 0
}

/// The node's daemons and its status.
pub(crate) fn node(how: u8) -> Input {
    let daemon = if has(how, 2) { Daemon::Runtime } else { Daemon::Kubelet };
    let state = match how & 3 {
        0 => DaemonState::Running { process: process(0, how) },
        1 => DaemonState::Ended { process: process(0, how) },
        2 => DaemonState::Absent,
        _ => DaemonState::Unknown,
    };
    let boot_id = format!("boot-{}", how >> 6);
    match how >> 3 & 3 {
        0 | 1 => Input::Host(HostEvent::Daemon { daemon, state }),
        2 => Input::Host(HostEvent::Boot { boot_id: has(how, 2).then_some(boot_id) }),
        _ if has(how, 2) => {
            Input::Api(ApiEvent::NodeUnknown { missing: has(how, 0), error: "gone".into() })
        }
        _ => {
            let ready = has(how, 0).then(|| has(how, 1));
            Input::Api(ApiEvent::Node(ApiNode {
                boot_id,
                kubelet_version: "v1.33.0".into(),
                ready,
            }))
        }
    }
}

pub(crate) fn process(pid: u32, how: u8) -> DaemonProcess {
    DaemonProcess { pid: 100 + pid, started: u64::from(how >> 5) }
}

/// What is known of a healthy node: no leak is certain without it.
pub(crate) fn healthy_node() -> [Input; 3] {
    // In the bits of `node`: the host's boot, the apiserver's node of the same boot, a kubelet that runs.
    [0b1_0100, 0b1_1011, 0].map(node)
}
