//! `deploy/chart`: the chart, rendered by a real helm, has the objects of the kustomizations.

use crate::{dashboards::model, manifest, manifests, tools::Tool};
use anyhow::{Context as _, Result, ensure};
use clap::{ArgAction, CommandFactory as _, Parser as _};
use coroner::config::args::Cli;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What renders a kustomization's objects from the chart: further arguments of `helm template`, and values.
pub(crate) fn same_as() -> BTreeMap<&'static str, (&'static [&'static str], Value)> {
    let crio = json!({
        "seccompProfile": {"type": "Localhost", "localhostProfile": "coroner.json"},
        "seLinuxOptions": {"type": "spc_t"},
    });
    let mut openshift = crio.clone();
    openshift["openshift"] = true.into();
    let bottlerocket =
        json!({"user": "system_u", "role": "system_r", "type": "super_t", "level": "s0"});
    let apparmor = json!({"type": "Localhost", "localhostProfile": "coroner"});
    BTreeMap::from([
        ("base", (&[][..], json!({}))),
        ("overlays/apparmor", (&[], json!({"appArmorProfile": apparmor}))),
        ("overlays/bottlerocket", (&[], json!({"seLinuxOptions": bottlerocket}))),
        ("overlays/cgroup-v1", (&[], json!({"config": {"cgroup-root": "/sys/fs/cgroup/memory"}}))),
        ("overlays/crio", (&[], crio)),
        ("overlays/events", (&[], json!({"config": {"events": true}}))),
        ("overlays/events-lookup", (&[], json!({"rbac": {"eventsLookup": true}}))),
        ("overlays/host-network", (&[], json!({"hostNetwork": true}))),
        ("overlays/kernel-5.10", (&[], json!({"extraCapabilities": ["SYS_RESOURCE"]}))),
        ("overlays/kubelet-api", (&[], json!({"config": {"kubelet-api": "pods"}}))),
        ("overlays/kubernetes-1.29", (&["--kube-version=1.29.0"], json!({}))),
        ("overlays/network-policy", (&[], json!({"networkPolicy": {"enabled": true}}))),
        ("overlays/openshift", (&[], openshift)),
        ("overlays/scrape-annotations", (&[], json!({"scrapeAnnotations": true}))),
        ("overlays/tls", (&[], json!({"tls": {"secretName": "coroner-tls"}}))),
    ])
}

/// The kinds of Prometheus' operator, as a cluster has them.
const OPERATOR: [&str; 3] = [
    "--api-versions=monitoring.coreos.com/v1",
    "--api-versions=monitoring.coreos.com/v1/PodMonitor",
    "--api-versions=monitoring.coreos.com/v1/PrometheusRule",
];

pub(crate) fn chart() -> PathBuf {
    manifests::deploy().join("chart")
}

/// What a release publishes depends on the chart's files alone, not on when they were written, and is the chart.
#[test]
fn the_packaged_chart_is_the_same_twice_and_has_the_same_objects() -> Result<()> {
    let time = jiff::Timestamp::UNIX_EPOCH;
    let packaged = || -> Result<(Vec<u8>, Vec<u8>)> {
        let home = tempfile::tempdir()?;
        // Links are followed, and each copy is as old as this.
        let (copy, from) = (home.path().join("chart"), chart());
        let copied = Command::new("cp").arg("-rL").arg(&from).arg(&copy).status()?;
        ensure!(copied.success(), "cannot copy {}", from.display());
        let (copy, to) = (copy.display().to_string(), home.path().display().to_string());
        run_helm(home.path(), &["package", &copy, "--destination", &to])?;
        let archives = fs::read_dir(home.path())?.filter_map(|entry| Some(entry.ok()?.path()));
        let mut archives = archives.filter(|file| file.extension().is_some_and(|end| end == "tgz"));
        let archive = fs::read(archives.next().context("helm made no archive")?)?;
        let repacked = coroner_image::repack(&archive, time)?;
        Ok((archive, repacked))
    };
    let (first, repacked) = packaged()?;
    // helm writes seconds.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let (second, again) = packaged()?;
    ensure!(first != second, "helm writes no times any more: the chart need not be repacked");
    ensure!(repacked == again, "the repacked archives differ");
    let home = tempfile::tempdir()?;
    let file = home.path().join("coroner.tgz");
    fs::write(&file, &repacked)?;
    let objects = |of: &Path| {
        let of = of.display().to_string();
        run_helm(home.path(), &["template", "coroner", &of, "--namespace=coroner"])
    };
    ensure!(objects(&file)? == objects(&chart())?, "the archive renders other objects");
    Ok(())
}

/// Runs helm with a home folder, and perhaps a kubeconfig, in this folder.
pub(crate) fn run_helm(home: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(Tool::Helm.find()?)
        .args(arguments)
        // Nothing of a person's own settings, and nothing into the home folder.
        .env("KUBECONFIG", home.join("kubeconfig"))
        .env("HOME", home)
        .env("HELM_CONFIG_HOME", home)
        .env("HELM_CACHE_HOME", home)
        .env("HELM_DATA_HOME", home)
        .output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "helm {}: {error}", arguments.join(" "));
    Ok(String::from_utf8(output.stdout)?)
}

fn helm(arguments: &[&str], values: &Value) -> Result<String> {
    let work = tempfile::tempdir()?;
    let file = work.path().join("values.json");
    fs::write(&file, values.to_string())?;
    let (command, further) = arguments.split_first().context("no command")?;
    let release = if *command == "lint" { "--strict" } else { "coroner" };
    let (chart, values) = (chart().display().to_string(), format!("--values={}", file.display()));
    let fixed = [command, release, &chart, "--namespace=coroner", &values];
    run_helm(work.path(), &[&fixed[..], further].concat())
}

/// The objects by kind and name, without what only one of the two says of itself.
pub(crate) fn objects(documents: Vec<Value>) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for mut object in documents.into_iter().filter(|one| !one.is_null()) {
        // Not those of a pod: with them, a change of the chart alone would restart all agents.
        if let Some(labels) = object.pointer_mut("/metadata/labels").and_then(Value::as_object_mut)
        {
            labels.retain(|label, _| {
                !["helm.sh/chart", "app.kubernetes.io/managed-by"].contains(&&**label)
            });
        }
        let variables = "/spec/template/spec/containers/0/env";
        if let Some(variables) = object.pointer_mut(variables).and_then(Value::as_array_mut) {
            variables.sort_by_key(|one| one["name"].to_string());
        }
        let (kind, name) = (object["kind"].as_str(), object["metadata"]["name"].as_str());
        let key = format!("{} {}", kind.unwrap_or_default(), name.unwrap_or_default());
        assert!(all.insert(key.clone(), object).is_none(), "{key} twice");
    }
    all
}

fn rendered(further: &[&str], values: &Value) -> Result<BTreeMap<String, Value>> {
    let text = helm(&[&["template"], further].concat(), values)?;
    // No field that its kind does not have.
    let own: Vec<Value> = serde_saphyr::from_multiple(&text).context("not YAML")?;
    manifest::read(&text)?;
    Ok(objects(own))
}

pub(crate) fn kustomized(folder: &Path) -> Result<BTreeMap<String, Value>> {
    let output = Command::new(Tool::Kubectl.find()?).arg("kustomize").arg(folder).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(objects(serde_saphyr::from_multiple(&String::from_utf8(output.stdout)?)?))
}

/// Fails with what differs, not with all objects.
fn are_equal(name: &str, chart: &BTreeMap<String, Value>, own: &BTreeMap<String, Value>) {
    let keys = |all: &BTreeMap<String, Value>| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(chart), keys(own), "{name}");
    for (key, object) in own {
        assert_eq!(chart[key], *object, "{name}: {key}: the chart's is on the left");
    }
}

#[test]
fn chart_and_kustomizations_have_the_same_objects() -> Result<()> {
    let mut wanted = same_as();
    for folder in manifests::kustomizations()? {
        let name = folder.strip_prefix(manifests::deploy())?.display().to_string();
        if name == "monitoring" {
            continue;
        }
        let (further, mut values) =
            wanted.remove(&*name).with_context(|| format!("{name}: with which values?"))?;
        values["namespace"] = json!({"create": true});
        are_equal(&name, &rendered(further, &values)?, &kustomized(&folder)?);
    }
    assert!(wanted.is_empty(), "{wanted:?}");
    Ok(())
}

#[test]
fn objects_of_the_operator_are_there_where_it_is() -> Result<()> {
    let none = rendered(&[], &json!({}))?;
    let all = rendered(&OPERATOR, &json!({}))?;
    let further = all.into_iter().filter(|(key, _)| !none.contains_key(key)).collect();
    are_equal("monitoring", &further, &kustomized(&manifests::deploy().join("monitoring"))?);
    Ok(())
}

#[test]
fn dashboards_are_those_of_the_folder() -> Result<()> {
    let text = helm(&["template"], &json!({"dashboards": {"enabled": true}}))?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text)?;
    let maps = documents.iter().filter(|one| one["kind"] == "ConfigMap");
    let maps: BTreeMap<_, _> = maps
        .flat_map(|map| map["data"].as_object().into_iter().flatten())
        .map(|(file, content)| (file.clone(), content.as_str().unwrap_or_default().to_owned()))
        .collect();
    let mut files = BTreeMap::new();
    for dashboard in model::dashboards() {
        let file = format!("{}.json", dashboard.name);
        files.insert(file.clone(), fs::read_to_string(model::folder().join(file))?);
    }
    assert_eq!(maps, files);
    Ok(())
}

/// A number of the values replaces the threshold of that name, and nothing else.
#[test]
fn settings_and_overrides_change_the_rules_that_they_name() -> Result<()> {
    let rules = |values: Value| -> Result<String> {
        let objects = rendered(&OPERATOR, &json!({"rules": values}))?;
        Ok(serde_json::to_string_pretty(&objects["PrometheusRule coroner"])?)
    };
    let before = rules(json!({}))?;
    let after = rules(json!({"settings": {
        "leakingSandboxes": 17, "dashboards": "https://grafana.corp/", "runbooks": "https://books.corp/",
    }}))?;
    let expected = before
        .replace("10 # leakingSandboxes", "17 # leakingSandboxes")
        .replace("https://grafana.example.com", "https://grafana.corp")
        .replace(
            "https://github.com/coroner-dev/coroner/blob/main/dashboards/runbooks",
            "https://books.corp",
        );
    assert_ne!(before, after);
    assert_eq!(after, expected);
    let without = rules(json!({"disabled": ["CoronerOrphans"]}))?;
    assert!(before.contains("\"CoronerOrphans\"") && !without.contains("\"CoronerOrphans\""));
    let changed = rules(json!({"overrides": {"CoronerOrphans": {"for": "9h"}}}))?;
    assert!(!before.contains("\"9h\"") && changed.contains("\"9h\""));
    for wrong in [
        json!({"settings": {"leakingSandbox": 17}}),
        json!({"disabled": ["CoronerOrphan"]}),
        json!({"overrides": {"CoronerOrphan": {}}}),
    ] {
        assert!(rules(wrong.clone()).is_err(), "{wrong}");
    }
    Ok(())
}

#[test]
fn helm_finds_nothing_wrong_with_any_of_the_values() -> Result<()> {
    for (name, (_, values)) in same_as() {
        helm(&["lint"], &values).with_context(|| name)?;
    }
    Ok(())
}

/// Each of the flags that a container sets is parsed by the agent's own parser.
#[test]
fn flags_of_every_type_reach_the_agent() -> Result<()> {
    for (flag, value, expected) in [
        ("api-listen", json!(false), "off"),
        ("cri-events", json!(true), "true"),
        ("events", json!(false), "false"),
        ("events-lookup", json!(false), "off"),
        ("events-lookup", json!("1m"), "1m"),
        ("history-limit", json!(4_194_304), "4194304"),
        ("kubelet-api", json!(false), "off"),
        ("kubelet-log", json!(false), "off"),
        ("leak-threshold", json!("1m 30s"), "1m 30s"),
        ("log-level", json!(false), "off"),
        ("record-limit", json!("64MiB"), "64MiB"),
        ("ring-bytes", json!(4_194_304), "4194304"),
        ("socket", json!(false), "off"),
        ("traffic", json!(false), "off"),
        ("workload-metrics", json!(0), "0"),
    ] {
        let values = json!({"config": {flag: value}});
        let set = &rendered(&[], &values)?["DaemonSet coroner"];
        let variables = set["spec"]["template"]["spec"]["containers"][0]["env"].clone();
        let mut arguments = vec!["coroner".to_owned(), "run".to_owned()];
        let mut found = None;
        for variable in variables.as_array().into_iter().flatten() {
            let name = variable["name"].as_str().unwrap_or_default();
            let Some(name) = name.strip_prefix("CORONER_") else { continue };
            let name = name.to_lowercase().replace('_', "-");
            let text = variable["value"].as_str().with_context(|| name.clone())?;
            if name == flag {
                found = Some(text.to_owned());
            }
            // A flag without a value has one in its variable.
            match text {
                "true" => arguments.push(format!("--{name}")),
                "false" => {}
                text => arguments.push(format!("--{name}={text}")),
            }
        }
        assert_eq!(found.as_deref(), Some(expected), "{values}");
        Cli::try_parse_from(arguments).with_context(|| values.to_string())?;
    }
    Ok(())
}

/// What follows from other values, at its place in an object.
#[test]
fn values_change_what_follows_from_them() -> Result<()> {
    const POD: &str = "/spec/template/metadata";
    const CONTAINER: &str = "/spec/template/spec/containers/0";
    let tls = json!({"ca": {"secret": {"name": "coroner-tls", "key": "ca.crt"}}});
    let mounted = json!({"config": {"tls-cert": "/my/tls.crt", "tls-key": "/my/tls.key"}});
    let mut scraped = mounted.clone();
    scraped["podMonitor"] = json!({"tlsConfig": tls});
    let mut annotated = mounted.clone();
    annotated["scrapeAnnotations"] = true.into();
    let port = json!({"config": {"listen": ":9999"}, "scrapeAnnotations": true});
    let labels = json!({
        "commonLabels": {"team": "a", "app.kubernetes.io/part-of": "platform"},
        "podLabels": {"team": "b"}, "podMonitor": {"labels": {"team": "c"}},
        "podAnnotations": {"prometheus.io/path": "/other"}, "scrapeAnnotations": true,
    });
    let (set, monitor) = ("DaemonSet coroner", "PodMonitor coroner");
    let endpoint = "/spec/podMetricsEndpoints/0";
    for (values, object, place, expected) in [
        (&port, set, format!("{CONTAINER}/ports/0/containerPort"), json!(9999)),
        (&port, set, format!("{POD}/annotations/prometheus.io~1port"), json!("9999")),
        (&mounted, set, format!("{CONTAINER}/livenessProbe/httpGet/scheme"), json!("HTTPS")),
        (&annotated, set, format!("{POD}/annotations/prometheus.io~1scheme"), json!("https")),
        (&scraped, monitor, format!("{endpoint}/scheme"), json!("https")),
        (&scraped, monitor, format!("{endpoint}/tlsConfig"), tls.clone()),
        (&labels, set, "/metadata/labels/app.kubernetes.io~1part-of".to_owned(), json!("platform")),
        (&labels, set, "/metadata/labels/team".to_owned(), json!("a")),
        (&labels, set, format!("{POD}/labels/team"), json!("b")),
        (&labels, set, format!("{POD}/annotations/prometheus.io~1path"), json!("/other")),
        (&labels, monitor, "/metadata/labels/team".to_owned(), json!("c")),
    ] {
        let further: &[&str] = if object == monitor { &OPERATOR } else { &[] };
        let objects = rendered(further, values)?;
        assert_eq!(objects[object].pointer(&place), Some(&expected), "{values}: {place}");
    }
    // Prometheus would scrape with HTTPS, and refuse every certificate.
    let error = rendered(&OPERATOR, &mounted).err().context("no CA, and no error")?;
    assert!(error.to_string().contains("podMonitor.tlsConfig is empty"), "{error}");
    Ok(())
}

/// As in a user's kustomization.
#[test]
fn monitor_beside_the_component_tls_scrapes_https() -> Result<()> {
    let work = tempfile::tempdir()?;
    // Kustomize takes other folders by relative paths only.
    let up = "../".repeat(fs::canonicalize(work.path())?.components().count());
    let deploy = format!("{up}{}", fs::canonicalize(manifests::deploy())?.display());
    let file = json!({
        "resources": [format!("{deploy}/base"), format!("{deploy}/monitoring")],
        "components": [format!("{deploy}/components/tls")],
    });
    fs::write(work.path().join("kustomization.yaml"), file.to_string())?;
    let monitor = &kustomized(work.path())?["PodMonitor coroner"];
    assert_eq!(monitor["spec"]["podMetricsEndpoints"][0]["scheme"], "https");
    Ok(())
}

#[test]
fn values_that_do_not_exist_are_refused() -> Result<()> {
    for wrong in [
        json!({"config": null}),
        json!({"config": {"traffic": true}}),
        json!({"config": {"kubelet-api": "node"}}),
        json!({"config": {"api-listen": true}}),
        json!({"config": {"events": "1"}}),
        json!({"config": {"leak-threshold": 600}}),
        json!({"config": {"leak-threshold": "600"}}),
        json!({"config": {"events-lookup": "10"}}),
        json!({"config": {"ring-bytes": "1GiB"}}),
        json!({"config": {"history-limit": 2.5}}),
        json!({"config": {"state-dir": false}}),
        json!({"config": {"listen": "9999"}}),
        json!({"config": {"tls-cert": "/my/tls.crt"}}),
        json!({"tls": {"clientCA": true}}),
        json!({"networkPolicy": {"enabled": true, "from": []}}),
        json!({"networkPolicy": {"enabled": true, "from": null}}),
        json!({"commonLabels": {"app.kubernetes.io/name": "other"}}),
        json!({"podLabels": {"app.kubernetes.io/name": "other"}}),
        json!({"seccompProfile": {"type": "Localhost"}}),
        json!({"appArmorProfile": {"type": "Unconfined", "localhostProfile": "coroner"}}),
        json!({"rules": {"settings": {"leakingSandboxes": "1 or vector(1)"}}}),
        json!({"rules": {"settings": {"runbooks": "books"}}}),
        json!({"rules": {"overrides": {"CoronerOrphans": {"alert": "Other"}}}}),
        json!({"image": {"digset": ""}}),
        json!({"image": {"digest": "sha256:1"}}),
        json!({"config": {"leak-treshold": "10m"}}),
        json!({"tls": {"secretName": true}}),
        json!({"seccompProfile": {"type": "runtime/default"}}),
    ] {
        let error =
            helm(&["template"], &wrong).err().with_context(|| format!("{wrong} is accepted"))?;
        assert!(error.to_string().contains("values don't meet the specifications"), "{error}");
    }
    Ok(())
}

/// The names of objects and of their fields, but not of those that a user fills: `resources`, labels.
fn names(value: &Value, schema: &Value, path: &str, wrong: &mut Vec<String>) {
    let (Some(fields), Some(known)) = (value.as_object(), schema["properties"].as_object()) else {
        return;
    };
    for (name, value) in fields {
        match known.get(name) {
            Some(schema) => names(value, schema, &format!("{path}.{name}"), wrong),
            None => wrong.push(format!("{path}.{name} is not in the schema")),
        }
    }
    let closed = ["user", "role", "type", "level", "global"];
    let missing =
        known.keys().filter(|name| !fields.contains_key(*name) && !closed.contains(&&***name));
    wrong.extend(missing.map(|name| format!("{path}.{name} is not in values.yaml")));
}

#[test]
fn the_schema_has_every_value_and_every_flag() -> Result<()> {
    let schema: Value = serde_json::from_slice(&fs::read(chart().join("values.schema.json"))?)?;
    let values: Value = serde_saphyr::from_str(&fs::read_to_string(chart().join("values.yaml"))?)?;
    let mut wrong = Vec::new();
    let mut without_flags = schema.clone();
    without_flags["properties"]["config"] = json!({});
    names(&values, &without_flags, "", &mut wrong);
    assert!(wrong.is_empty(), "{wrong:#?}");

    let command = Cli::command();
    let run = command.find_subcommand("run").context("no `run`")?;
    let flags =
        run.get_arguments().chain(command.get_arguments()).filter(|one| one.get_env().is_some());
    // By its name: whether it takes no value.
    let flags: BTreeMap<&str, bool> = flags
        .filter_map(|one| Some((one.get_long()?, matches!(one.get_action(), ArgAction::SetTrue))))
        .collect();
    let known = &schema["properties"]["config"]["properties"];
    let known = known.as_object().context("no flags")?.iter();
    let known = known.map(|(name, value)| (&**name, value["type"] == "boolean")).collect();
    assert_eq!(flags, known);
    Ok(())
}

#[test]
fn the_version_is_the_agents() -> Result<()> {
    let about: Value = serde_saphyr::from_str(&fs::read_to_string(chart().join("Chart.yaml"))?)?;
    for field in ["version", "appVersion"] {
        assert_eq!(about[field], env!("CARGO_PKG_VERSION"), "{field}");
    }
    let image = |values: Value| -> Result<Value> {
        let set = &rendered(&[], &values)?["DaemonSet coroner"];
        Ok(set["spec"]["template"]["spec"]["containers"][0]["image"].clone())
    };
    let digest = format!("sha256:{}", "0".repeat(64));
    let named = json!({"image": {"repository": "r.corp/coroner", "tag": "t", "digest": digest}});
    assert_eq!(image(named)?, format!("r.corp/coroner:t@{digest}"));
    Ok(())
}

/// They are the only file that `helm template` does not show.
#[test]
fn the_notes_are_in_the_chart_and_name_what_the_cluster_lacks() -> Result<()> {
    let notes = |values: Value| -> Result<String> {
        let text = helm(&["install", "--dry-run=client"], &values)?;
        let (_, notes) = text.split_once("NOTES:\n").context("no notes")?;
        Ok(notes.to_owned())
    };
    let label =
        "kubectl label namespace coroner --overwrite pod-security.kubernetes.io/enforce=privileged";
    let all = notes(json!({}))?;
    assert!(all.contains("kubectl -n coroner rollout status ds/coroner"), "{all}");
    assert!(all.contains(label) && all.contains("no Prometheus Operator"), "{all}");
    let quiet = notes(json!({
        "namespace": {"create": true}, "podMonitor": {"enabled": false}, "rules": {"enabled": false},
    }))?;
    assert!(!quiet.contains(label) && !quiet.contains("no Prometheus Operator"), "{quiet}");
    Ok(())
}
