//! A pod as kube-rs hands it over: reduced while it is read, so that neither managed fields nor
//! environments of this node's pods are ever held together, and tolerant, so that one pod which
//! makes no sense does not spoil a list.

use super::convert;
use coroner_core::input::ApiPod;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Resource, core::NamespaceResourceScope};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;
use std::borrow::Cow;

/// A pod, reduced. `None`: it makes no sense.
#[derive(Clone, Debug)]
pub(super) struct ReducedPod {
    /// The resource version only, which is all that the watch needs to go on.
    metadata: ObjectMeta,
    pub(super) pod: Option<ApiPod>,
}

impl<'de> Deserialize<'de> for ReducedPod {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        if !value.is_object() {
            return Err(D::Error::custom("a pod is an object"));
        }
        let version = value["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        let metadata = ObjectMeta { resource_version: version, ..ObjectMeta::default() };
        let pod = Pod::deserialize(value).ok().and_then(|pod| convert::pod(&pod));
        Ok(Self { metadata, pod })
    }
}

impl Resource for ReducedPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Pod::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Pod::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Pod::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Pod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
