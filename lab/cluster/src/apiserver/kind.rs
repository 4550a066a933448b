//! The kinds of object that the apiserver serves: a table, from which paths, discovery and everything else follow.

/// What the apiserver keeps. A custom kind is served while its CustomResourceDefinition exists.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ResourceKind {
    ClusterRole,
    ClusterRoleBinding,
    ConfigMap,
    CustomResourceDefinition,
    DaemonSet,
    Event,
    Namespace,
    NetworkPolicy,
    Node,
    Pod,
    PodMonitor,
    PodMonitoring,
    PrometheusRule,
    ResourceQuota,
    RoleBinding,
    Secret,
    ServiceAccount,
}

struct Row {
    kind: ResourceKind,
    name: &'static str,
    api_version: &'static str,
    resource: &'static str,
    short: &'static [&'static str],
    namespaced: bool,
    /// Whether it has the subresource `status`.
    status: bool,
}

macro_rules! table {
    ($($kind:ident $api_version:literal $resource:literal $short:tt $namespaced:literal $status:literal;)*) => {
        [$(Row {
            kind: ResourceKind::$kind,
            name: stringify!($kind),
            api_version: $api_version,
            resource: $resource,
            short: &$short,
            namespaced: $namespaced,
            status: $status,
        }),*]
    };
}

/// In the order of the kinds: apiVersion, plural, short names, whether it is namespaced, whether it has a status.
const TABLE: [Row; 17] = table! {
    ClusterRole "rbac.authorization.k8s.io/v1" "clusterroles" [] false false;
    ClusterRoleBinding "rbac.authorization.k8s.io/v1" "clusterrolebindings" [] false false;
    ConfigMap "v1" "configmaps" ["cm"] true false;
    CustomResourceDefinition "apiextensions.k8s.io/v1" "customresourcedefinitions" ["crd", "crds"] false true;
    DaemonSet "apps/v1" "daemonsets" ["ds"] true true;
    Event "v1" "events" ["ev"] true false;
    Namespace "v1" "namespaces" ["ns"] false true;
    NetworkPolicy "networking.k8s.io/v1" "networkpolicies" ["netpol"] true false;
    Node "v1" "nodes" ["no"] false true;
    Pod "v1" "pods" ["po"] true true;
    PodMonitor "monitoring.coreos.com/v1" "podmonitors" ["pmon"] true true;
    PodMonitoring "monitoring.googleapis.com/v1" "podmonitorings" [] true true;
    PrometheusRule "monitoring.coreos.com/v1" "prometheusrules" ["promrule"] true true;
    ResourceQuota "v1" "resourcequotas" ["quota"] true true;
    RoleBinding "rbac.authorization.k8s.io/v1" "rolebindings" [] true false;
    Secret "v1" "secrets" [] true false;
    ServiceAccount "v1" "serviceaccounts" ["sa"] true false;
};

impl ResourceKind {
    /// All of them.
    pub fn all() -> impl Iterator<Item = ResourceKind> {
        TABLE.iter().map(|row| row.kind)
    }

    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// The plural of the path.
    pub fn resource(self) -> &'static str {
        self.row().resource
    }

    /// The object's `kind`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The object's `apiVersion`.
    pub fn api_version(self) -> &'static str {
        self.row().api_version
    }

    pub(super) fn short_names(self) -> &'static [&'static str] {
        self.row().short
    }

    /// Whether it lives in a namespace.
    pub fn is_namespaced(self) -> bool {
        self.row().namespaced
    }

    /// Whether there is a subresource `status`, which alone changes the object's status.
    pub(super) fn has_status(self) -> bool {
        self.row().status
    }

    /// The name of the CustomResourceDefinition without which the kind is not served.
    pub(super) fn definition(self) -> Option<String> {
        let group = self.api_version().split('/').next().unwrap_or_default();
        group.starts_with("monitoring.").then(|| format!("{}.{group}", self.resource()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_order_of_the_kinds() {
        for (at, row) in TABLE.iter().enumerate() {
            assert_eq!(row.kind as usize, at, "{}", row.name);
        }
    }
}
