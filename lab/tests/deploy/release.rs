//! Installing, upgrading and uninstalling as docs/install.md has it: what a real helm and a real kubectl leave in the lab's
//! apiserver after each step.

use crate::{chart, manifests, tools::Tool};
use anyhow::{Context as _, Result, ensure};
use coroner_lab_cluster::apiserver::{
    Apiserver, ApiserverOptions, ResourceKind, Store, write_kubeconfig,
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
};
use tempfile::TempDir;

/// What belongs to the user, not to the release.
const OWN: [&str; 2] = ["Namespace coroner", "Secret coroner-tls"];

/// The kinds of Prometheus' operator.
const OPERATOR: [&str; 2] =
    ["podmonitors.monitoring.coreos.com", "prometheusrules.monitoring.coreos.com"];

/// Who installs coroner in a cluster without Prometheus' operator.
pub(crate) struct User {
    store: Store,
    home: TempDir,
}

impl User {
    pub(crate) fn of(store: Store, url: &str) -> Result<Self> {
        let home = tempfile::tempdir()?;
        write_kubeconfig(url, &home.path().join("kubeconfig"))?;
        Ok(Self { store, home })
    }

    /// Makes a namespace as the docs do.
    pub(crate) fn create_namespace(&self) -> Result<()> {
        self.kubectl("create namespace coroner")?;
        self.kubectl("label namespace coroner pod-security.kubernetes.io/enforce=privileged")?;
        Ok(())
    }

    /// With a namespace, and a Secret in it.
    fn with_namespace(apiserver: &Apiserver) -> Result<Self> {
        let user = Self::of(apiserver.store(), &apiserver.url())?;
        user.create_namespace()?;
        let secret = json!({ "metadata": { "name": "coroner-tls" }, "type": "kubernetes.io/tls" });
        user.store.create(ResourceKind::Secret, "coroner", secret)?;
        Ok(user)
    }

    pub(crate) fn helm(&self, command: &str) -> Result<String> {
        let chart = chart::chart().display().to_string();
        let place = |word| if word == "deploy/chart" { &*chart } else { word };
        chart::run_helm(self.home.path(), &command.split(' ').map(place).collect::<Vec<_>>())
    }

    /// With these values.
    pub(crate) fn install(&self, values: &Value) -> Result<String> {
        self.release("install", values)
    }

    /// To these values, and no others of before.
    pub(crate) fn upgrade(&self, values: &Value) -> Result<String> {
        self.release("upgrade", values)
    }

    fn release(&self, verb: &str, values: &Value) -> Result<String> {
        let file = self.home.path().join("values.json");
        fs::write(&file, values.to_string())?;
        let values = file.display();
        self.helm(&format!("{verb} coroner deploy/chart --namespace coroner --values {values}"))
    }

    /// Creates the definitions of the operator's kinds.
    fn add_operator(&self) -> Result<()> {
        for name in OPERATOR {
            let definition = json!({ "metadata": { "name": name } });
            self.store.create(ResourceKind::CustomResourceDefinition, "", definition)?;
        }
        Ok(())
    }

    /// Deletes them, and with them the objects of these kinds.
    fn remove_operator(&self) -> Result<()> {
        self.kubectl("delete customresourcedefinitions --all").map(drop)
    }

    pub(crate) fn kubectl(&self, command: &str) -> Result<String> {
        let output = Command::new(Tool::Kubectl.find()?)
            .args(command.split(' '))
            .env("KUBECONFIG", self.home.path().join("kubeconfig"))
            .env("HOME", self.home.path())
            .output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {command}: {error}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// All that there is, but for the namespace `default` and the kinds of the operator.
    fn objects(&self) -> BTreeMap<String, Value> {
        let kinds = ResourceKind::all()
            .filter(|kind| *kind != ResourceKind::CustomResourceDefinition)
            .flat_map(|kind| self.store.list(kind).1);
        let mut all = chart::objects(kinds.map(|object| Value::clone(&object)).collect());
        all.remove("Namespace default");
        all
    }

    /// There are the objects of the newest revision as helm has rendered them, what belongs to the user, and a Secret of
    /// helm's for each revision of its history; nothing else. Gives them, and what became of the revisions.
    fn has_exactly_the_release(&self) -> Result<(BTreeMap<String, Value>, Vec<String>)> {
        let found = self.objects();
        let manifest = self.helm("get manifest coroner --namespace coroner")?;
        let manifest = chart::objects(serde_saphyr::from_multiple(&manifest)?);
        let history = self.helm("history coroner --namespace coroner --output json")?;
        let history: Vec<Value> = serde_json::from_str(&history)?;
        let secret =
            |one: &Value| format!("Secret sh.helm.release.v1.coroner.v{}", one["revision"]);
        let wanted = manifest.keys().cloned().chain(OWN.map(String::from));
        let wanted: BTreeSet<_> = wanted.chain(history.iter().map(secret)).collect();
        assert_eq!(found.keys().cloned().collect::<BTreeSet<_>>(), wanted);
        for (name, wanted) in &manifest {
            let mut found = found[name].clone();
            let metadata = found["metadata"].take();
            assert_eq!(metadata["annotations"]["meta.helm.sh/release-name"], "coroner", "{name}");
            found["metadata"] = wanted["metadata"].clone();
            assert_eq!(found, *wanted, "{name}: what is there is on the left");
            assert_eq!(metadata["labels"], wanted["metadata"]["labels"], "{name}");
        }
        let status = |one: &Value| one["status"].as_str().unwrap_or_default().to_owned();
        Ok((found, history.iter().map(status).collect()))
    }
}

fn container(objects: &BTreeMap<String, Value>) -> &Value {
    &objects["DaemonSet coroner"]["spec"]["template"]["spec"]["containers"][0]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_step_leaves_what_the_docs_say() -> Result<()> {
    let apiserver = Apiserver::start(ApiserverOptions::default()).await?;
    let user = User::with_namespace(&apiserver)?;
    let notes = user.helm("install coroner deploy/chart --namespace coroner")?;
    assert!(notes.contains("no Prometheus Operator"), "{notes}");
    assert!(!notes.contains("PodSecurity"), "the namespace has the label: {notes}");
    let (installed, revisions) = user.has_exactly_the_release()?;
    assert_eq!(revisions, ["deployed"]);

    user.add_operator()?;
    let notes = user.upgrade(&json!({
        "config": {"leak-threshold": "10m"}, "networkPolicy": {"enabled": true},
    }))?;
    assert!(!notes.contains("no Prometheus Operator"), "{notes}");
    let (upgraded, revisions) = user.has_exactly_the_release()?;
    assert_eq!(revisions, ["superseded", "deployed"]);
    let new: Vec<_> = upgraded.keys().filter(|name| !installed.contains_key(*name)).collect();
    assert_eq!(
        new,
        [
            "NetworkPolicy coroner",
            "PodMonitor coroner",
            "PrometheusRule coroner",
            "Secret sh.helm.release.v1.coroner.v2",
        ]
    );
    let flag = json!({ "name": "CORONER_LEAK_THRESHOLD", "value": "10m" });
    let has_flag =
        |objects| container(objects)["env"].as_array().is_some_and(|all| all.contains(&flag));
    assert!(has_flag(&upgraded) && !has_flag(&installed));

    // Nothing of an upgrade that fails before it begins.
    let refused = user.upgrade(&json!({ "config": {"leak-treshold": "10m"} }));
    assert!(refused.is_err());
    assert_eq!(user.objects(), upgraded);

    user.helm("rollback coroner --namespace coroner")?;
    let (rolled_back, revisions) = user.has_exactly_the_release()?;
    assert_eq!(revisions, ["superseded", "superseded", "deployed"]);
    assert_eq!(container(&rolled_back), container(&installed));
    for (name, object) in &installed {
        assert_eq!(rolled_back[name]["metadata"]["uid"], object["metadata"]["uid"], "{name}");
    }

    user.helm("uninstall coroner --namespace coroner")?;
    assert_eq!(user.objects().keys().collect::<Vec<_>>(), OWN);
    user.kubectl("delete namespace coroner")?;
    assert_eq!(user.objects(), BTreeMap::new());
    let (_, definitions) = user.store.list(ResourceKind::CustomResourceDefinition);
    assert_eq!(definitions.len(), OPERATOR.len());
    Ok(())
}

/// From each set of values to the next: nothing immutable changes, and nothing of the one before remains.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_can_be_upgraded_to_any_values() -> Result<()> {
    let apiserver = Apiserver::start(ApiserverOptions::default()).await?;
    let user = User::with_namespace(&apiserver)?;
    user.helm("install coroner deploy/chart --namespace coroner")?;
    for (name, (_, values)) in chart::same_as() {
        user.upgrade(&values).with_context(|| name)?;
        user.has_exactly_the_release().with_context(|| name)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_install_without_its_namespace_leaves_nothing() -> Result<()> {
    let apiserver = Apiserver::start(ApiserverOptions::default()).await?;
    let user = User::of(apiserver.store(), &apiserver.url())?;
    let error = user.helm("install coroner deploy/chart --namespace coroner").unwrap_err();
    assert!(error.to_string().contains("namespaces \"coroner\" not found"), "{error}");
    assert_eq!(user.objects(), BTreeMap::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_kinds_are_gone_is_installed_again() -> Result<()> {
    let apiserver = Apiserver::start(ApiserverOptions::default()).await?;
    let user = User::with_namespace(&apiserver)?;
    user.add_operator()?;
    user.helm("install coroner deploy/chart --namespace coroner")?;
    let with = user.objects();
    user.remove_operator()?;
    let without = user.objects();
    let lost = with.keys().filter(|name| !without.contains_key(*name)).collect::<Vec<_>>();
    assert_eq!(lost, ["PodMonitor coroner", "PrometheusRule coroner"]);
    let error = user.upgrade(&json!({})).unwrap_err().to_string();
    assert!(error.contains("no matches for kind \"PodMonitor\""), "{error}");
    assert!(user.helm("uninstall coroner --namespace coroner").is_err());

    user.kubectl("delete secret --namespace coroner --selector owner=helm,name=coroner")?;
    user.helm("install coroner deploy/chart --namespace coroner")?;
    let (again, revisions) = user.has_exactly_the_release()?;
    assert_eq!(revisions, ["deployed"]);
    let uid =
        |objects: &BTreeMap<String, Value>| objects["DaemonSet coroner"]["metadata"]["uid"].clone();
    assert_eq!(uid(&again), uid(&with), "it is another DaemonSet");

    // In time: the release gives these objects up first.
    user.add_operator()?;
    user.upgrade(&json!({}))?;
    user.upgrade(&json!({ "podMonitor": {"enabled": false}, "rules": {"enabled": false} }))?;
    user.remove_operator()?;
    user.helm("uninstall coroner --namespace coroner")?;
    assert_eq!(user.objects().keys().collect::<Vec<_>>(), OWN);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_kubectl_applies_it_deletes() -> Result<()> {
    let apiserver = Apiserver::start(ApiserverOptions::default()).await?;
    let user = User::of(apiserver.store(), &apiserver.url())?;
    user.add_operator()?;
    let folders = ["base", "monitoring"].map(|name| manifests::deploy().join(name));
    let mut wanted = BTreeMap::new();
    for folder in &folders {
        user.kubectl(&format!("apply -k {}", folder.display()))?;
        wanted.append(&mut chart::kustomized(folder)?);
    }
    let found = user.objects();
    assert_eq!(found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
    assert_eq!(container(&found), container(&wanted));
    user.kubectl(&format!("delete -k {}", folders[1].display()))?;
    user.kubectl(&format!("delete -k {} --ignore-not-found", folders[0].display()))?;
    assert_eq!(user.objects(), BTreeMap::new());
    Ok(())
}
