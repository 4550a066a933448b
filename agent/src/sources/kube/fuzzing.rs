//! Bytes of the apiserver's answers → inputs of the core, for the fuzz targets (`fuzz/targets`).

use super::{
    KubeCounters, decode,
    pod::{self, Node, Pod},
    watch::{self, WatchLine},
};
use crate::sources::cut::Cuts;
use coroner_core::input::{ApiNode, ApiPod};

/// The pods of a PodList that make sense.
pub fn list(body: &[u8]) -> Option<Vec<ApiPod>> {
    let mut pods = Vec::new();
    let list = decode::list(body, &Cuts::default(), |pod: Option<Pod>| {
        pods.extend(pod.as_ref().and_then(pod::pod));
        Ok(())
    });
    list.ok().map(|_| pods)
}

/// The pods of the lines of a watch, and whether each is gone.
pub fn events(lines: &[u8]) -> Vec<(ApiPod, bool)> {
    let (mut pods, counters) = (Vec::new(), KubeCounters::default());
    decode::lines(lines, &Cuts::default(), |line| {
        match line.and_then(|line| watch::read_line(line, &counters)) {
            Ok((WatchLine::Applied(pod), _)) => pods.push((*pod, false)),
            Ok((WatchLine::Deleted(pod), _)) => pods.push((*pod, true)),
            Ok(_) => {}
            Err(_) => return false,
        }
        true
    });
    pods
}

pub fn node(body: &[u8]) -> Option<ApiNode> {
    pod::node(&decode::object::<Node>(body, &Cuts::default()).ok()??)
}
