//! `deploy/chart`, rendered by the real helm: every object is one that Kubernetes takes, the pod has the privileges that
//! docs/security.md lists and no others, and `deploy/coroner.yaml` is the chart's rendering.

use crate::tools::{APPARMOR_PARSER, HELM, PYTHON, hold, workspace};
use anyhow::{Context as _, Result, bail, ensure};
use clap::{ArgAction, CommandFactory as _, Parser as _};
use coroner::config::args::Cli;
use k8s_openapi::{
    Resource,
    api::{
        apps::v1::DaemonSet,
        core::v1::{Container, PodSpec},
        rbac::v1::ClusterRole,
    },
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::{Command, Stdio},
};

/// The kinds of Prometheus' operator, as a cluster has them.
pub(crate) const OPERATOR: [&str; 3] = [
    "--api-versions=monitoring.coreos.com/v1",
    "--api-versions=monitoring.coreos.com/v1/PodMonitor",
    "--api-versions=monitoring.coreos.com/v1/PrometheusRule",
];
/// The oldest and the newest whose schemas there are.
const KUBERNETES: [&str; 2] = ["1.25.0", "1.37.0"];
const VALUES: &str = include_str!("values.yaml");

/// Runs helm on the chart, without anything of a person's own settings.
fn helm(arguments: &[&str], values: &Value) -> Result<String> {
    let home = tempfile::tempdir()?;
    let file = home.path().join("values.json");
    fs::write(&file, values.to_string())?;
    let mut command = Command::new(HELM.find()?);
    for name in ["HOME", "HELM_CONFIG_HOME", "HELM_CACHE_HOME", "HELM_DATA_HOME", "KUBECONFIG"] {
        command.env(name, home.path());
    }
    command.arg("--namespace=coroner").args(arguments).arg(workspace().join("deploy/chart"));
    let output = command.arg("--values").arg(&file).output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "helm {}: {error}", arguments.join(" "));
    Ok(String::from_utf8(output.stdout)?)
}

/// The chart's objects.
pub(crate) fn rendered(further: &[&str], values: &Value) -> Result<Vec<Value>> {
    let text = helm(&[&["template", "coroner"], further].concat(), values)?;
    serde_saphyr::from_multiple(&text).context("not YAML")
}

/// The object of a kind.
pub(crate) fn object<T: Resource + DeserializeOwned>(objects: &[Value]) -> Result<T> {
    let object = named(objects, T::KIND)?;
    Ok(serde_json::from_value(object.clone())?)
}

pub(crate) fn named<'a>(objects: &'a [Value], kind: &str) -> Result<&'a Value> {
    let object = objects.iter().find(|one| one["kind"] == kind);
    object.with_context(|| format!("there is no {kind}"))
}

#[test]
fn each_set_of_values_renders_objects_that_kubernetes_takes() -> Result<()> {
    helm(&["lint", "--strict"], &json!({}))?;
    let mut all = Vec::new();
    for (name, values) in serde_saphyr::from_str::<BTreeMap<String, Value>>(VALUES)? {
        for version in KUBERNETES {
            let kube_version = format!("--kube-version={version}");
            let objects = rendered(&[&OPERATOR[..], &[&kube_version]].concat(), &values)?;
            let tried = objects.iter().try_for_each(|one| has_what_it_needs(one, &values));
            tried.with_context(|| format!("{name}, Kubernetes {version}"))?;
            all.extend(objects.into_iter().map(|one| json!([name, version, one])));
        }
    }
    // One process for all of them: it reads schemas of 10 MB.
    let mut python = Command::new(PYTHON.find()?);
    python.arg("-B").arg(workspace().join("lab/tests/deploy/validate.py"));
    let mut python = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    serde_json::to_writer(python.stdin.take().context("no stdin")?, &all)?;
    let output = python.wait_with_output()?;
    let wrong = String::from_utf8(output.stdout)?;
    ensure!(output.status.success(), "validate.py: {}", output.status);
    ensure!(wrong.is_empty(), "{wrong}");
    Ok(())
}

/// Dashboards and alerts name the node by a label that the scrape adds, and need two scrapes a minute.
fn has_what_it_needs(object: &Value, values: &Value) -> Result<()> {
    let node = match object["kind"].as_str().context("no kind")? {
        "PodMonitor" => "/spec/podMetricsEndpoints/0/relabelings/0/targetLabel",
        "VMPodScrape" => "/spec/podMetricsEndpoints/0/relabelConfigs/0/targetLabel",
        "PodMonitoring" => "/spec/targetLabels/metadata/2",
        "DaemonSet" => return has_no_more(&serde_json::from_value(object.clone())?, values),
        _ => return Ok(()),
    };
    ensure!(object.pointer(node) == Some(&json!("node")), "{object}");
    let endpoints = [&object["spec"]["podMetricsEndpoints"], &object["spec"]["endpoints"]];
    let interval = endpoints.iter().find_map(|all| all[0]["interval"].as_str());
    ensure!(matches!(interval, Some("15s" | "30s")), "not twice a minute: {interval:?}");
    Ok(())
}

fn has_no_more(set: &DaemonSet, values: &Value) -> Result<()> {
    let spec = set.spec.template.spec.as_ref().context("no spec")?;
    let selector = set.spec.selector.match_labels.as_ref().context("no selector")?;
    let pool = selector.get("coroner/node-pool").map(|name| &values["nodePools"][name]);
    let network = values["hostNetwork"].as_bool();
    let values = pool.unwrap_or(values);
    assert_eq!((spec.host_pid, spec.host_network, spec.host_ipc), (Some(true), network, None));
    assert_eq!(spec.init_containers, None);
    let [container] = &spec.containers[..] else { bail!("not one container") };
    let labels = set.metadata.labels.as_ref().context("no labels")?;
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(labels["helm.sh/chart"], format!("coroner-{version}"));
    assert_eq!(labels["app.kubernetes.io/version"], version);
    let context = container.security_context.as_ref().context("no securityContext")?;
    assert_eq!(context.privileged, Some(false));
    assert_eq!(context.allow_privilege_escalation, Some(false));
    assert_eq!(context.read_only_root_filesystem, Some(true));
    let capabilities = context.capabilities.as_ref().context("no capabilities")?;
    assert_eq!(capabilities.drop.as_deref(), Some(&["ALL".to_owned()][..]));
    let further = values["extraCapabilities"].as_array().into_iter().flatten();
    let wanted = ["BPF", "PERFMON", "SYS_PTRACE"].into_iter();
    let wanted: Vec<_> = wanted.chain(further.filter_map(Value::as_str)).collect();
    assert_eq!(capabilities.add.as_deref().unwrap_or_default(), wanted);
    let seccomp = context.seccomp_profile.as_ref().context("no seccomp profile")?;
    match &seccomp.localhost_profile {
        Some(name) => ensure!(workspace().join("deploy/seccomp").join(name).is_file(), "{name}"),
        None => {
            let wanted = values["seccompProfile"]["type"].as_str().unwrap_or("RuntimeDefault");
            assert_eq!(seccomp.type_, wanted);
        }
    }
    // /proc/1/root is closed under a runtime's own AppArmor profile.
    let meta = set.spec.template.metadata.as_ref().and_then(|meta| meta.annotations.as_ref());
    let annotation = "container.apparmor.security.beta.kubernetes.io/coroner";
    let annotation = meta.and_then(|all| all.get(annotation)).map(String::as_str);
    let field = context.app_armor_profile.as_ref().map(|profile| profile.type_.as_str());
    ensure!(
        matches!(
            (field, annotation),
            (Some("Unconfined" | "Localhost"), None)
                | (None, Some("unconfined" | "localhost/coroner"))
        ),
        "AppArmor: {field:?}, {annotation:?}"
    );
    let keeps_history = values["config"]["history-age"] != 0;
    only_its_own_can_be_written_to(spec, container, keeps_history)
}

/// Of the host: the directories of its own socket and history. All else is read-only, or a volume of the pod's own.
fn only_its_own_can_be_written_to(
    spec: &PodSpec,
    container: &Container,
    keeps_history: bool,
) -> Result<()> {
    let mut own = BTreeSet::from(["/run/coroner"]);
    own.extend(keeps_history.then_some("/var/lib/coroner"));
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let mut of_host = BTreeSet::new();
    for volume in spec.volumes.iter().flatten() {
        let mount = mounts.iter().find(|mount| mount.name == volume.name).context("no mount")?;
        let Some(host) = &volume.host_path else {
            let limited = volume.empty_dir.as_ref().is_some_and(|dir| dir.size_limit.is_some());
            ensure!(limited || volume.secret.is_some() && mount.read_only == Some(true));
            continue;
        };
        of_host.insert(host.path.as_str());
        if !own.contains(&*host.path) {
            assert_eq!(mount.read_only, Some(true), "{}", host.path);
            // What the host unmounts is to be gone here at once.
            assert_eq!(mount.mount_propagation.as_deref(), Some("HostToContainer"));
        }
    }
    own.insert("/sys/fs/cgroup");
    assert_eq!(of_host, own);
    Ok(())
}

#[test]
fn the_permissions_are_those_that_the_flags_need() -> Result<()> {
    let base = ["get nodes", "get pods", "list pods", "watch pods"];
    for (config, further) in [
        (json!({}), &["list events"][..]),
        (json!({"events-lookup": "off"}), &[]),
        (json!({"events": true}), &["create events", "list events", "patch events"]),
    ] {
        let objects = rendered(&[], &json!({"config": config}))?;
        let role: ClusterRole = object(&objects)?;
        let mut found = BTreeSet::new();
        for rule in role.rules.iter().flatten() {
            assert_eq!((&rule.resource_names, &rule.non_resource_urls), (&None, &None));
            for resource in rule.resources.iter().flatten() {
                found.extend(rule.verbs.iter().map(|verb| format!("{verb} {resource}")));
            }
        }
        let wanted = base.iter().chain(further).map(|one| (*one).to_owned()).collect();
        assert_eq!(found, wanted, "{config}");
    }
    Ok(())
}

/// Two DaemonSets that select no pod of each other, with one identity that may do what any of them needs; and what has no
/// namespace has another name than in a release elsewhere.
#[test]
fn pools_and_releases_are_apart() -> Result<()> {
    let values = serde_saphyr::from_str::<Value>(VALUES)?["pools"].take();
    let objects = rendered(&[], &values)?;
    let is_set = |one: &&Value| one["kind"] == "DaemonSet";
    let sets: Vec<_> = objects.iter().filter(is_set).map(|one| &one["spec"]).collect();
    let [bottlerocket, crio] = &sets[..] else { bail!("{} DaemonSets", sets.len()) };
    let (pod, other) = (&bottlerocket["template"], &crio["template"]);
    assert_eq!(pod["spec"]["serviceAccountName"], other["spec"]["serviceAccountName"]);
    assert_ne!(bottlerocket["selector"], crio["selector"]);
    for set in [bottlerocket, crio] {
        let labels = set["selector"]["matchLabels"].as_object().context("no selector")?;
        ensure!(
            labels
                .iter()
                .all(|(name, value)| set["template"]["metadata"]["labels"][name] == *value)
        );
    }
    assert_eq!(
        pod["spec"]["nodeSelector"],
        json!({"kubernetes.io/os": "linux", "pool": "bottlerocket"})
    );
    let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let keys = |pod: &Value| -> Vec<_> {
        let terms = pod.pointer(terms).and_then(Value::as_array).into_iter().flatten();
        let all = terms.flat_map(|term| term["matchExpressions"].as_array().into_iter().flatten());
        all.filter_map(|one| one["key"].as_str().map(str::to_owned)).collect()
    };
    let virtual_nodes = ["eks.amazonaws.com/compute-type", "type", "virtualization"];
    assert_eq!(keys(pod), virtual_nodes);
    assert_eq!(keys(other), [&["pool"][..], &virtual_nodes].concat());
    let role: ClusterRole = object(&objects)?;
    ensure!(role.rules.iter().flatten().any(|rule| rule.verbs.contains(&"create".to_owned())));
    let names = |objects: Vec<Value>| -> BTreeSet<String> {
        let all = objects.iter().filter(|one| one["metadata"]["namespace"].is_null());
        all.map(|one| format!("{} {}", one["kind"], one["metadata"]["name"])).collect()
    };
    let (here, there) = (names(objects), names(rendered(&["--namespace=other"], &values)?));
    ensure!(here.len() == 2 && here.is_disjoint(&there), "{here:?}, {there:?}");
    Ok(())
}

const HEAD: &str = "\
# The objects of deploy/chart with its default values, for `kubectl apply -f` and Kubernetes 1.30 or later. Written by
# `cargo xtask docs`: change the chart.
";

#[test]
fn generated_manifest_is_the_charts() -> Result<()> {
    let values = json!({"namespace": {"create": true}});
    hold("deploy/coroner.yaml", &format!("{HEAD}{}", helm(&["template", "coroner"], &values)?))
}

/// Each of the flags that a container sets is parsed by the agent's own parser: YAML reads an unquoted `off` as false, and
/// helm large numbers as floats.
#[test]
fn flags_of_every_type_reach_the_agent() -> Result<()> {
    for (flag, value, expected) in [
        ("api-listen", json!(false), "--api-listen=off"),
        ("events", json!(true), "--events"),
        ("events-lookup", json!(false), "--events-lookup=off"),
        ("ring-bytes", json!(4_194_304), "--ring-bytes=4194304"),
        ("leak-threshold", json!("1m 30s"), "--leak-threshold=1m 30s"),
        ("log-level", json!(false), "--log-level=off"),
        ("socket", json!(false), "--socket=off"),
        ("traffic", json!(false), "--traffic=off"),
        ("workload-metrics", json!(0), "--workload-metrics=0"),
    ] {
        let objects = rendered(&[], &json!({"config": {flag: value}}))?;
        let set: DaemonSet = object(&objects)?;
        let container = &set.spec.template.spec.context("no spec")?.containers[0];
        let mut arguments = vec!["coroner".to_owned(), "run".to_owned()];
        for variable in container.env.iter().flatten() {
            let Some(name) = variable.name.strip_prefix("CORONER_") else { continue };
            let name = name.to_lowercase().replace('_', "-");
            match variable.value.as_deref().context("no value")? {
                // A flag without a value has one in its variable.
                "true" => arguments.push(format!("--{name}")),
                text => arguments.push(format!("--{name}={text}")),
            }
        }
        ensure!(arguments.iter().any(|one| one == expected), "{arguments:?}");
        Cli::try_parse_from(arguments).context(flag)?;
    }
    Ok(())
}

#[test]
fn the_schema_has_every_flag() -> Result<()> {
    let schema = fs::read(workspace().join("deploy/chart/values.schema.json"))?;
    let schema: Value = serde_json::from_slice(&schema)?;
    let command = Cli::command();
    let run = command.find_subcommand("run").context("no `run`")?;
    let flags = run.get_arguments().chain(command.get_arguments());
    // By its name: whether it takes no value.
    let flags: BTreeMap<&str, bool> = flags
        .filter(|one| one.get_env().is_some())
        .filter_map(|one| Some((one.get_long()?, matches!(one.get_action(), ArgAction::SetTrue))))
        .collect();
    let known = schema["properties"]["config"]["properties"].as_object().context("no flags")?;
    let known = known.iter().map(|(name, value)| (&**name, value["type"] == "boolean")).collect();
    assert_eq!(flags, known);
    Ok(())
}

/// Those that would deploy something else than they seem to.
#[test]
fn values_that_mean_something_else_are_refused() -> Result<()> {
    for wrong in [
        json!({"config": {"leak-treshold": "10m"}}),
        json!({"config": {"traffic": true}}),
        json!({"config": {"leak-threshold": "600"}}),
        json!({"config": {"tls-cert": "/my/tls.crt"}}),
        json!({"tls": {"clientCA": true}}), // of an older release
        // No list of peers allows everyone.
        json!({"networkPolicy": {"enabled": true, "from": []}}),
        json!({"podLabels": {"app.kubernetes.io/name": "other"}}),
        // It would have an agent on every node beside those of the other pools.
        json!({"nodePools": {"all": {"tolerations": []}}}),
        // The monitors would scrape it without TLS.
        json!({"nodePools": {"a": {"nodeSelector": {"a": "b"}, "config": {"tls-cert": "c", "tls-key": "k"}}}}),
        json!({"seccompProfile": {"type": "Localhost"}}),
        json!({"rules": {"settings": {"leakingSandboxes": "1 or vector(1)"}}}),
    ] {
        let error = helm(&["template"], &wrong).err().with_context(|| format!("{wrong}"))?;
        assert!(error.to_string().contains("values don't meet the specifications"), "{error}");
    }
    for (wrong, reason) in [
        // Prometheus would scrape with HTTPS, and refuse every certificate.
        (json!({"tls": {"secretName": "coroner-tls"}}), "podMonitor.tlsConfig is empty"),
        (json!({"fullnameOverride": "agents"}), "agents does not contain coroner"),
    ] {
        let error = rendered(&OPERATOR, &wrong).err().context(reason)?;
        assert!(error.to_string().contains(reason), "{error}");
    }
    Ok(())
}

/// Read by the parser of a distribution, and named as the values name it. No kernel with AppArmor is needed for that.
#[test]
fn the_apparmor_profile_is_one() -> Result<()> {
    let file = workspace().join("deploy/apparmor/coroner");
    // Neither is the kernel asked nor a cache read.
    let output = Command::new(APPARMOR_PARSER.find()?).args(["-Q", "-K"]).arg(&file).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    ensure!(fs::read_to_string(file)?.contains("\nprofile coroner "));
    Ok(())
}
