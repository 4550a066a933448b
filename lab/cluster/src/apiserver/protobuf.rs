//! Kubernetes' protobuf, in which typed clients of Go send bodies: what kubectl (`create namespace`) and helm (its
//! releases) set of a Namespace, a Secret and the options of a deletion.

use super::failure::ApiFailure;
use k8s_openapi::{
    ByteString,
    api::core::v1::{Namespace, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use prost::Message;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

pub(super) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// staging/src/k8s.io/apimachinery/pkg/runtime/serializer/protobuf/protobuf.go
const MAGIC: &[u8] = b"k8s\0";

/// runtime.Unknown
#[derive(Message)]
struct Envelope {
    #[prost(message, optional, tag = "1")]
    of: Option<TypeMeta>,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(Message)]
struct TypeMeta {
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(Message)]
struct Metadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(map = "string, string", tag = "11")]
    labels: HashMap<String, String>,
    #[prost(map = "string, string", tag = "12")]
    annotations: HashMap<String, String>,
}

/// Of a Secret. A Namespace has other fields but for the first.
#[derive(Message)]
struct SecretFields {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
    #[prost(map = "string, bytes", tag = "2")]
    data: HashMap<String, Vec<u8>>,
    #[prost(string, tag = "3")]
    type_: String,
}

#[derive(Message)]
struct NamespaceFields {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
}

#[derive(Message)]
struct DeleteFields {
    #[prost(int64, optional, tag = "1")]
    grace: Option<i64>,
    #[prost(message, optional, tag = "2")]
    preconditions: Option<Preconditions>,
    #[prost(string, optional, tag = "4")]
    propagation: Option<String>,
}

#[derive(Message)]
struct Preconditions {
    #[prost(string, optional, tag = "1")]
    uid: Option<String>,
    #[prost(string, optional, tag = "2")]
    version: Option<String>,
}

pub(super) fn decode(body: &[u8]) -> Result<Value, ApiFailure> {
    let broken = |error: prost::DecodeError| ApiFailure::bad_request(error.to_string());
    let body = body.strip_prefix(MAGIC).ok_or_else(|| ApiFailure::bad_request("no protobuf"))?;
    let Envelope { of, raw } = Envelope::decode(body).map_err(broken)?;
    let kind = of.unwrap_or_default().kind;
    let object = match &*kind {
        "Namespace" => {
            let fields = NamespaceFields::decode(&*raw).map_err(broken)?;
            serde_json::to_value(Namespace {
                metadata: metadata(fields.metadata),
                ..Default::default()
            })
        }
        "Secret" => {
            let fields = SecretFields::decode(&*raw).map_err(broken)?;
            let data = fields.data.into_iter().map(|(key, value)| (key, ByteString(value)));
            serde_json::to_value(Secret {
                metadata: metadata(fields.metadata),
                data: Some(data.collect()),
                type_: Some(fields.type_),
                ..Default::default()
            })
        }
        "DeleteOptions" => {
            let fields = DeleteFields::decode(&*raw).map_err(broken)?;
            let Preconditions { uid, version } = fields.preconditions.unwrap_or_default();
            Ok(json!({
                "gracePeriodSeconds": fields.grace,
                "propagationPolicy": fields.propagation,
                "preconditions": { "uid": uid, "resourceVersion": version },
            }))
        }
        _ => return Err(ApiFailure::media_type(&format!("{MEDIA_TYPE} of a {kind}"))),
    };
    object.map_err(|error| ApiFailure::bad_request(error.to_string()))
}

fn metadata(given: Option<Metadata>) -> ObjectMeta {
    let given = given.unwrap_or_default();
    let sorted = |map: HashMap<_, _>| {
        Some(BTreeMap::from_iter(map)).filter(|map: &BTreeMap<String, String>| !map.is_empty())
    };
    ObjectMeta {
        name: Some(given.name),
        namespace: Some(given.namespace).filter(|namespace| !namespace.is_empty()),
        labels: sorted(given.labels),
        annotations: sorted(given.annotations),
        ..Default::default()
    }
}
