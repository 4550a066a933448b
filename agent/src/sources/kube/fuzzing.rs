//! Bytes of the apiserver's answers → inputs of the core, as the adapter goes about it: for the
//! fuzz targets (`fuzz/targets`).

use super::{
    convert, shape,
    watch::{self, WatchLine},
};
use crate::sources::{
    cut::Cuts,
    json::{self, DocumentReader, JsonEvent, Keep},
};
use coroner_core::input::{ApiNode, ApiPod};
use k8s_openapi::api::core::v1::Node;

/// The pods of a PodList; `None` stands for one that makes no sense. The list comes in pieces of so
/// many bytes.
pub fn list(body: &[u8], piece: usize) -> Option<Vec<Option<ApiPod>>> {
    let (mut reader, mut pods) = (DocumentReader::new(&shape::PODS), Vec::new());
    for mut piece in body.chunks(piece.max(1)) {
        while let Some(event) = reader.next(&mut piece).ok()? {
            match event {
                JsonEvent::Item(item) => {
                    assert!(item.json.len() <= shape::POD.longest());
                    pods.push(watch::pod(&item));
                }
                JsonEvent::End(list) => {
                    assert!(list.json.len() <= shape::PODS.longest());
                    return watch::ListMetadata::of(&list).ok().map(|_| pods);
                }
            }
        }
    }
    None
}

/// The pod of a line of a watch, and whether it is gone.
pub fn event(line: &[u8]) -> Option<(ApiPod, bool)> {
    let line = whole(&shape::LINE, line)?;
    match watch::read_line(&line).ok()?.0 {
        WatchLine::Applied(pod) => Some((*pod?, false)),
        WatchLine::Deleted(pod) => Some((*pod, true)),
        WatchLine::Bookmark => None,
    }
}

/// A Node.
pub fn node(body: &[u8]) -> Option<ApiNode> {
    convert::node(&whole(&shape::NODE, body)?.decode::<Node>()?)
}

fn whole(shape: &'static Keep, text: &[u8]) -> Option<json::Reduced> {
    let reduced = json::reduce(shape, text, &Cuts::default()).ok()?;
    assert!(reduced.json.len() <= shape.longest());
    Some(reduced)
}
