//! Field and label selectors: equality only, which is what kubelets, kubectl and kube-rs send.

use super::failure::ApiFailure;
use serde_json::Value;

/// Which objects a request is about.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Selector {
    terms: Vec<Term>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Term {
    path: Vec<String>,
    wanted: Requirement,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Requirement {
    Is(String),
    IsNot(String),
    Exists,
    Lacks,
}

impl Selector {
    /// From the `fieldSelector` and `labelSelector` of a query; a namespace in the path is one
    /// more term.
    pub(super) fn parse(
        fields: Option<&str>,
        labels: Option<&str>,
        namespace: Option<&str>,
    ) -> Result<Selector, ApiFailure> {
        let mut terms = Vec::new();
        for text in split(fields) {
            let (path, wanted) = comparison(text).ok_or_else(|| {
                ApiFailure::bad_request(format!("unable to parse the field selector {text:?}"))
            })?;
            // Of an Event (pkg/registry/core/event, `ToSelectableFields`).
            let path = if path == "source" { "source.component" } else { path };
            terms.push(Term { path: path.split('.').map(String::from).collect(), wanted });
        }
        for text in split(labels) {
            if text.contains(['(', ' ']) {
                return Err(ApiFailure::bad_request(format!(
                    "the lab's apiserver knows no sets in label selectors: {text:?}"
                )));
            }
            let (label, wanted) =
                comparison(text).unwrap_or_else(|| match text.strip_prefix('!') {
                    Some(label) => (label, Requirement::Lacks),
                    None => (text, Requirement::Exists),
                });
            let path = ["metadata", "labels", label].map(String::from).to_vec();
            terms.push(Term { path, wanted });
        }
        if let Some(namespace) = namespace {
            let path = ["metadata", "namespace"].map(String::from).to_vec();
            terms.push(Term { path, wanted: Requirement::Is(namespace.into()) });
        }
        Ok(Selector { terms })
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        self.terms.iter().all(|term| {
            let mut value = object;
            for part in &term.path {
                value = &value[part.as_str()];
            }
            // An absent field is an empty one.
            match &term.wanted {
                Requirement::Is(text) => value.as_str().unwrap_or_default() == text,
                Requirement::IsNot(text) => value.as_str().unwrap_or_default() != text,
                Requirement::Exists => !value.is_null(),
                Requirement::Lacks => value.is_null(),
            }
        })
    }
}

fn split(selector: Option<&str>) -> impl Iterator<Item = &str> {
    selector.into_iter().flat_map(|text| text.split(',')).map(str::trim).filter(|t| !t.is_empty())
}

fn comparison(text: &str) -> Option<(&str, Requirement)> {
    if let Some((path, value)) = text.split_once("!=") {
        return Some((path, Requirement::IsNot(value.into())));
    }
    let (path, value) = text.split_once("==").or_else(|| text.split_once('='))?;
    Some((path, Requirement::Is(value.into())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn terms_are_joined_by_and() {
        let pod = json!({
            "metadata": { "name": "web", "namespace": "default", "labels": { "app": "a" } },
            "spec": { "nodeName": "n1" }, "source": { "component": "kubelet" },
        });
        for (fields, labels, namespace, matches) in [
            (None, None, None, true),
            (Some("spec.nodeName=n1"), None, None, true),
            (Some("spec.nodeName==n1,metadata.name=other"), None, None, false),
            (Some("spec.nodeName!=n1"), None, None, false),
            (Some("status.podIP="), None, None, true),
            (Some("source=kubelet"), None, None, true),
            (Some("source=other"), None, None, false),
            (None, Some("app=a"), Some("default"), true),
            (None, Some("app=b"), None, false),
            (None, Some("app,!tier"), None, true),
            (None, Some("!app"), None, false),
            (None, None, Some("other"), false),
        ] {
            let selector = Selector::parse(fields, labels, namespace).unwrap();
            assert_eq!(selector.matches(&pod), matches, "{fields:?} {labels:?} {namespace:?}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        assert!(Selector::parse(Some("spec.nodeName"), None, None).is_err());
        assert!(Selector::parse(None, Some("app in (a)"), None).is_err());
    }
}
