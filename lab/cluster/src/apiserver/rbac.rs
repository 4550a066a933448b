//! What a service account may do: what the ClusterRoles say to which it is bound (plugin/pkg/auth/authorizer/rbac). Everyone
//! else may do everything. There are neither Roles nor groups, and discovery is for all.

use super::{failure::ApiFailure, kind::ResourceKind, request::Target, store::Store};
use serde_json::Value;

/// The token of a user who may not list Events, and the extension of that user's kubeconfig.
pub(crate) const NO_EVENTS: &str = "may-not-list-events";

/// Before the namespace and the name of a service account, with which it is the account's user name and here its token, too.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// The token of a service account.
pub fn token(namespace: &str, name: &str) -> String {
    format!("{SERVICE_ACCOUNT}{namespace}:{name}")
}

pub(super) fn authorize(
    store: &Store,
    user: &str,
    verb: &str,
    target: &Target,
) -> Result<(), ApiFailure> {
    let allowed = match user.strip_prefix(SERVICE_ACCOUNT).and_then(|it| it.split_once(':')) {
        Some(account) => {
            rules(store, account, target).iter().any(|rule| allows(rule, verb, target))
        }
        None => user != NO_EVENTS || target.kind != ResourceKind::Event || verb != "list",
    };
    if allowed {
        return Ok(());
    }
    let (resource, group) = (target.resource(), target.group());
    let place = match target.namespace.as_deref() {
        None | Some("") => "at the cluster scope".to_owned(),
        Some(namespace) => format!("in the namespace {namespace:?}"),
    };
    let what = format!("resource {resource:?} in API group {group:?} {place}");
    Err(ApiFailure::forbidden(user, verb, &resource, &what))
}

/// All rules that hold for an account where a request goes.
fn rules(store: &Store, (namespace, name): (&str, &str), target: &Target) -> Vec<Value> {
    let everywhere = store.list(ResourceKind::ClusterRoleBinding).1;
    let in_namespace = store.list(ResourceKind::RoleBinding).1.into_iter().filter(|binding| {
        target.namespace.as_deref().is_some_and(|it| binding["metadata"]["namespace"] == it)
    });
    let is_subject = |subject: &Value| {
        subject["kind"] == "ServiceAccount"
            && subject["namespace"] == namespace
            && subject["name"] == name
    };
    let bindings = everywhere.into_iter().chain(in_namespace);
    let bindings = bindings
        .filter(|it| it["subjects"].as_array().is_some_and(|all| all.iter().any(is_subject)));
    let roles = bindings.filter_map(|binding| {
        store.get(ResourceKind::ClusterRole, "", binding["roleRef"]["name"].as_str()?).ok()
    });
    roles.flat_map(|role| role["rules"].as_array().cloned().unwrap_or_default()).collect()
}

fn allows(rule: &Value, verb: &str, target: &Target) -> bool {
    let has = |list: &str, wanted: &str| {
        let all = rule[list].as_array();
        all.is_some_and(|all| all.iter().any(|one| one == "*" || one == wanted))
    };
    let named = rule["resourceNames"].as_array().is_none_or(Vec::is_empty)
        || target.name.as_deref().is_some_and(|name| has("resourceNames", name));
    has("apiGroups", target.group())
        && has("resources", &target.resource())
        && has("verbs", verb)
        && named
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_account_may_do_what_its_role_says_and_others_everything() {
        let store = Store::new(16);
        let role = json!({
            "metadata": { "name": "reader" },
            "rules": [
                { "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"] },
                { "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"] },
                { "apiGroups": [""], "resources": ["nodes"], "verbs": ["get"], "resourceNames": ["n"] },
            ],
        });
        store.create(ResourceKind::ClusterRole, "", role).unwrap();
        let binding = json!({
            "metadata": { "name": "a" },
            "roleRef": { "kind": "ClusterRole", "name": "reader" },
            "subjects": [{ "kind": "ServiceAccount", "namespace": "x", "name": "agent" }],
        });
        store.create(ResourceKind::ClusterRoleBinding, "", binding).unwrap();
        let agent = token("x", "agent");
        for (user, verb, path, allowed) in [
            (&*agent, "list", "/api/v1/pods", true),
            (&agent, "get", "/api/v1/namespaces/b/pods/p", true),
            (&agent, "watch", "/api/v1/pods", false),
            (&agent, "patch", "/api/v1/namespaces/b/pods/p/status", false),
            (&agent, "create", "/apis/events.k8s.io/v1/namespaces/b/events", true),
            (&agent, "create", "/api/v1/namespaces/b/events", false),
            (&agent, "get", "/api/v1/nodes/n", true),
            (&agent, "get", "/api/v1/nodes/other", false),
            (&token("y", "agent"), "list", "/api/v1/pods", false),
            (NO_EVENTS, "list", "/api/v1/events", false),
            (NO_EVENTS, "list", "/api/v1/pods", true),
            ("", "delete", "/api/v1/nodes/n", true),
        ] {
            let target = Target::parse(path).unwrap();
            let said = authorize(&store, user, verb, &target);
            assert_eq!(said.is_ok(), allowed, "{user:?} {verb} {path}: {said:?}");
        }
    }
}
