//! `deploy/`: every kustomization is rendered by a current kubectl, read strictly, and agrees with
//! itself and with the agent. Needs kubectl (`cargo xtask test deploy` names it).

use crate::{manifest, manifest::DeployedObject, manifest::PodMonitor, tools::Tool};
use anyhow::{Context as _, Result, ensure};
use clap::{CommandFactory as _, Parser as _};
use coroner::{
    config::args::{Cli, Command, DEFAULT_PORT, RunArgs},
    config::{Config, HostDefaults},
};
use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{Container, EnvVar, PodSpec, Volume},
        rbac::v1::{ClusterRole, PolicyRule},
    },
    apimachinery::pkg::{api::resource::Quantity, util::intstr::IntOrString},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

const NAME: &str = "coroner";

pub(crate) fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn render(directory: &Path) -> Result<Vec<DeployedObject>> {
    manifest::render(&Tool::Kubectl.find()?, directory)
}

/// Every kustomization that can be applied: `base`, `monitoring`, and each of `overlays`.
pub(crate) fn kustomizations() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![deploy()];
    while let Some(directory) = open.pop() {
        let file = directory.join("kustomization.yaml");
        if file.is_file() && !fs::read_to_string(&file)?.contains("kind: Component") {
            found.push(directory.clone());
        }
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            // No links: the chart has one to the dashboards.
            if entry.file_type()?.is_dir() {
                open.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Those with the DaemonSet, by their names.
fn variants() -> Result<BTreeMap<String, Vec<DeployedObject>>> {
    let mut variants = BTreeMap::new();
    for directory in kustomizations()? {
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let objects = render(&directory)?;
        if name != "monitoring" {
            variants.insert(name, objects);
        }
    }
    Ok(variants)
}

fn spec(set: &DaemonSet) -> &PodSpec {
    set.spec.template.spec.as_ref().expect("the DaemonSet's pods have a spec")
}

fn container(set: &DaemonSet) -> &Container {
    let containers = &spec(set).containers;
    assert_eq!((containers.len(), containers[0].name.as_str()), (1, NAME));
    &containers[0]
}

/// What the agent makes of the container's arguments, and of its variables, each of which is a flag.
fn arguments(set: &DaemonSet) -> Result<RunArgs> {
    let words = container(set).args.iter().flatten().cloned();
    let command = Cli::command();
    let run = command.find_subcommand("run").context("no `run`")?;
    let flag = |var: &EnvVar| {
        let is_it = |arg: &&clap::Arg| arg.get_env().is_some_and(|env| env == &*var.name);
        let arg = run.get_arguments().find(is_it).with_context(|| var.name.clone())?;
        let (long, value) = (arg.get_long().unwrap_or_default(), var.value.as_deref());
        match (arg.get_action().takes_values(), value.context("no value")?) {
            (true, value) => Ok(format!("--{long}={value}")),
            (false, value) => {
                ensure!(value == "true", "{long} is {value}");
                Ok(format!("--{long}"))
            }
        }
    };
    let variables = container(set).env.iter().flatten();
    let variables = variables.filter(|var| var.name.starts_with("CORONER_")).map(flag);
    let flags = variables.collect::<Result<Vec<_>>>()?;
    let cli = Cli::try_parse_from(["coroner".to_owned()].into_iter().chain(words).chain(flags))?;
    match cli.command {
        Command::Run(arguments) => Ok(arguments),
        other => anyhow::bail!("not `run`: {other:?}"),
    }
}

fn host_path(volume: &Volume) -> Option<&str> {
    volume.host_path.as_ref().map(|host| host.path.as_str())
}

#[test]
fn there_is_what_the_docs_name() -> Result<()> {
    let deploy = deploy();
    let found: BTreeSet<String> = kustomizations()?
        .iter()
        .map(|path| path.strip_prefix(&deploy).map(|path| path.display().to_string()))
        .collect::<Result<_, _>>()?;
    let wanted = [
        "apparmor",
        "bottlerocket",
        "cgroup-v1",
        "crio",
        "events",
        "events-lookup",
        "host-network",
        "kernel-5.10",
        "kubelet-api",
        "kubernetes-1.29",
        "network-policy",
        "openshift",
        "scrape-annotations",
        "tls",
    ];
    let wanted = wanted.map(|name| format!("overlays/{name}"));
    let wanted: BTreeSet<String> =
        wanted.into_iter().chain(["base".into(), "monitoring".into()]).collect();
    assert_eq!(found, wanted);
    for component in fs::read_dir(deploy.join("components"))? {
        let name = component?.file_name();
        assert!(deploy.join("overlays").join(&name).is_dir(), "{name:?} has no overlay");
    }
    Ok(())
}

#[test]
fn every_one_is_rendered_and_has_no_field_that_its_kind_has_not() -> Result<()> {
    for (name, objects) in variants()? {
        let wanted = if ["network-policy", "openshift"].contains(&&*name) { 7 } else { 6 };
        assert_eq!(objects.len(), wanted, "{name}: {objects:?}");
        manifest::daemon_set(&objects)?;
    }
    assert!(!render(&deploy().join("monitoring"))?.is_empty());
    Ok(())
}

#[test]
fn all_is_in_one_namespace_which_admits_it() -> Result<()> {
    for (variant, objects) in variants()? {
        let mut admits = false;
        for object in &objects {
            let (meta, namespaced) = match object {
                DeployedObject::Namespace(namespace) => {
                    let labels = namespace.metadata.labels.clone().unwrap_or_default();
                    let level = labels.get("pod-security.kubernetes.io/enforce");
                    // hostPID and hostPath: no lower level allows them.
                    admits = level.is_some_and(|level| level == "privileged");
                    (&namespace.metadata, false)
                }
                DeployedObject::ServiceAccount(one) => (&one.metadata, true),
                DeployedObject::ResourceQuota(one) => (&one.metadata, true),
                DeployedObject::DaemonSet(one) => (&one.metadata, true),
                DeployedObject::NetworkPolicy(one) => (&one.metadata, true),
                DeployedObject::ClusterRole(one) => (&one.metadata, false),
                DeployedObject::ClusterRoleBinding(one) => {
                    let subjects = one.subjects.clone().unwrap_or_default();
                    assert_eq!(subjects.len(), 1);
                    assert_eq!(subjects[0].namespace.as_deref(), Some(NAME));
                    assert_eq!(
                        (subjects[0].kind.as_str(), subjects[0].name.as_str()),
                        ("ServiceAccount", NAME)
                    );
                    assert_eq!(
                        (one.role_ref.kind.as_str(), one.role_ref.name.as_str()),
                        ("ClusterRole", NAME)
                    );
                    (&one.metadata, false)
                }
                DeployedObject::RoleBinding(one) => {
                    let subjects = one.subjects.clone().unwrap_or_default();
                    let subject = (subjects[0].name.as_str(), subjects[0].namespace.as_deref());
                    assert_eq!((subjects.len(), subject), (1, (NAME, Some(NAME))));
                    assert_eq!(one.metadata.namespace.as_deref(), Some(NAME), "{variant}");
                    continue;
                }
                other => panic!("{variant}: {other:?}"),
            };
            assert_eq!(meta.name.as_deref(), Some(NAME), "{variant}");
            assert_eq!(meta.namespace.as_deref(), namespaced.then_some(NAME), "{variant}");
        }
        assert!(admits, "{variant}");
    }
    Ok(())
}

#[test]
fn the_agent_understands_its_arguments_and_is_found_where_it_listens() -> Result<()> {
    for (variant, objects) in variants()? {
        let set = manifest::daemon_set(&objects)?;
        let run = arguments(set).with_context(|| variant.clone())?;
        let host = HostDefaults {
            node_name: Some("n1".into()),
            node_ip: None,
            page_size: 4096,
            debug_build: false,
        };
        let config = Config::validate(&run, &host).with_context(|| variant.clone())?;
        assert!(config.stay_unready, "{variant}");

        let container = container(set);
        let port = &container.ports.as_deref().context("no port")?[0];
        assert_eq!(
            (port.name.as_deref(), port.container_port),
            (Some("metrics"), DEFAULT_PORT.into())
        );
        assert_eq!(run.listen.port(), DEFAULT_PORT);
        let probes = [
            (&container.startup_probe, "/healthz"),
            (&container.liveness_probe, "/healthz"),
            (&container.readiness_probe, "/readyz"),
        ];
        for (probe, path) in probes {
            let http = probe.as_ref().and_then(|probe| probe.http_get.as_ref());
            let http = http.with_context(|| format!("{variant}: no probe of {path}"))?;
            assert_eq!(http.path.as_deref(), Some(path));
            let scheme = (variant == "tls").then_some("HTTPS");
            assert_eq!(http.scheme.as_deref(), scheme, "{variant}");
            assert_eq!(http.port, IntOrString::String("metrics".into()));
        }
        let meta = set.spec.template.metadata.as_ref().context("no metadata")?;
        let annotations = meta.annotations.as_ref().context("no annotations")?;
        let scrape = ["scrape", "port", "path"]
            .map(|what| annotations.get(&format!("prometheus.io/{what}")).map(String::as_str));
        let port = DEFAULT_PORT.to_string();
        let wanted = match variant.as_str() {
            "scrape-annotations" => [Some("true"), Some(&*port), Some("/metrics")],
            // Whoever has the operator would scrape everything twice.
            _ => [None; 3],
        };
        assert_eq!(scrape, wanted, "{variant}");

        let env = container.env.as_deref().unwrap_or_default();
        let named: Vec<_> = env.iter().map(|var| var.name.as_str()).collect();
        let own = named.iter().filter(|name| !name.starts_with("CORONER_"));
        assert_eq!(own.collect::<Vec<_>>(), [&"NODE_NAME", &"NODE_IPS"], "{variant}");
        assert_eq!(container.args.as_deref(), Some(&["run".to_owned()][..]), "{variant}");
        let name = env.iter().find(|var| var.name == "NODE_NAME");
        let field = name.and_then(|name| name.value_from.as_ref());
        let field = field.and_then(|from| from.field_ref.as_ref());
        assert_eq!(field.map(|field| field.field_path.as_str()), Some("spec.nodeName"));
    }
    Ok(())
}

#[test]
fn the_image_is_this_version_s() -> Result<()> {
    let image = format!("ghcr.io/coroner-dev/coroner:v{}", env!("CARGO_PKG_VERSION"));
    for (variant, objects) in variants()? {
        let container = container(manifest::daemon_set(&objects)?);
        assert_eq!(container.image.as_deref(), Some(image.as_str()), "{variant}");
        assert_eq!(container.command, None, "{variant}: the image's entrypoint is the agent");
    }
    Ok(())
}

#[test]
fn it_has_what_it_needs_and_no_more() -> Result<()> {
    for (variant, objects) in variants()? {
        let set = manifest::daemon_set(&objects)?;
        let spec = spec(set);
        let network = (variant == "host-network").then_some(true);
        assert_eq!((spec.host_pid, spec.host_network, spec.host_ipc), (Some(true), network, None));
        assert_eq!(spec.init_containers, None, "{variant}");
        let context = container(set).security_context.as_ref().context("no securityContext")?;
        assert_eq!(context.privileged, Some(false), "{variant}");
        assert_eq!(context.allow_privilege_escalation, Some(false), "{variant}");
        assert_eq!(context.read_only_root_filesystem, Some(true), "{variant}");
        assert_eq!((context.run_as_user, context.run_as_group), (Some(0), Some(0)), "{variant}");
        let capabilities = context.capabilities.as_ref().context("no capabilities")?;
        assert_eq!(capabilities.drop.as_deref(), Some(&["ALL".to_owned()][..]), "{variant}");
        let mut wanted = vec!["BPF", "PERFMON", "SYS_PTRACE"];
        if variant == "kernel-5.10" {
            wanted.push("SYS_RESOURCE");
        }
        assert_eq!(capabilities.add.as_deref().unwrap_or_default(), wanted, "{variant}");
        // In either form: otherwise /proc/1/root is closed where AppArmor is.
        let field = context.app_armor_profile.as_ref().map(|profile| profile.type_.as_str());
        let meta = set.spec.template.metadata.as_ref().and_then(|meta| meta.annotations.as_ref());
        let annotation = "container.apparmor.security.beta.kubernetes.io/coroner";
        let annotation = meta.and_then(|all| all.get(annotation)).map(String::as_str);
        let wanted = match variant.as_str() {
            "apparmor" => (Some("Localhost"), None),
            "kubernetes-1.29" => (None, Some("unconfined")),
            _ => (Some("Unconfined"), None),
        };
        assert_eq!((field, annotation), wanted, "{variant}");
        let seccomp = context.seccomp_profile.as_ref().context("no seccomp profile")?;
        match variant.as_str() {
            "crio" | "openshift" => {
                let name = seccomp.localhost_profile.as_deref().context("no profile")?;
                assert!(deploy().join("seccomp").join(name).is_file(), "{name} is not shipped");
            }
            _ => assert_eq!(seccomp.type_, "RuntimeDefault", "{variant}"),
        }
    }
    Ok(())
}

/// Read by the parser of a distribution, and named as the manifest names it. No kernel with AppArmor is needed for that.
#[test]
fn the_apparmor_profile_is_one() -> Result<()> {
    let variants = variants()?;
    let context = container(manifest::daemon_set(&variants["apparmor"])?).security_context.as_ref();
    let profile = context.and_then(|context| context.app_armor_profile.as_ref());
    let name = profile.and_then(|profile| profile.localhost_profile.as_deref());
    let name = name.context("no profile")?;
    let file = deploy().join("apparmor").join(name);
    let parser = Tool::ApparmorParser.find()?;
    let parse = |arguments: &[&str]| {
        // Neither is the kernel asked nor a cache read.
        std::process::Command::new(&parser).args(["-Q", "-K"]).args(arguments).arg(&file).output()
    };
    let parsed = parse(&[])?;
    ensure!(parsed.status.success(), "{}", String::from_utf8_lossy(&parsed.stderr));
    let names = parse(&["-N"])?;
    assert_eq!(String::from_utf8_lossy(&names.stdout).trim(), name);
    Ok(())
}

/// Where the agent makes its own socket.
const OWN: &str = "/run/coroner";

#[test]
fn of_the_host_only_its_own_socket_s_directory_can_be_written_to() -> Result<()> {
    for (variant, objects) in variants()? {
        let set = manifest::daemon_set(&objects)?;
        let run = arguments(set)?;
        let volumes = spec(set).volumes.clone().unwrap_or_default();
        let mounts = container(set).volume_mounts.clone().unwrap_or_default();
        let names: BTreeSet<_> = volumes.iter().map(|volume| volume.name.as_str()).collect();
        let mounted: BTreeSet<_> = mounts.iter().map(|mount| mount.name.as_str()).collect();
        assert_eq!(names, mounted, "{variant}: every volume is mounted, every mount has a volume");

        // One DaemonSet for all nodes: the runtime's socket is found through the host's root.
        assert_eq!(run.sources.node.cri, None, "{variant}");
        assert_eq!(run.sources.node.host_root, Path::new("/proc/1/root"), "{variant}");
        let of_host: BTreeSet<_> = volumes.iter().filter_map(host_path).collect();
        assert_eq!(of_host, BTreeSet::from([OWN, "/sys/fs/cgroup"]), "{variant}");
        for volume in &volumes {
            let mount =
                mounts.iter().find(|mount| mount.name == volume.name).context("no mount")?;
            if let Some(secret) = &volume.secret {
                assert_eq!((variant.as_str(), secret.optional), ("tls", None));
                assert_eq!(mount.read_only, Some(true), "{variant}");
                let files = [&run.tls_cert, &run.tls_key].map(|file| file.as_deref());
                let folder = files.map(|file| file.and_then(Path::parent));
                assert_eq!(folder, [Some(Path::new(&mount.mount_path)); 2], "{variant}");
                continue;
            }
            let Some(path) = host_path(volume) else {
                let empty = volume.empty_dir.as_ref().context("neither hostPath nor emptyDir")?;
                assert!(empty.size_limit.is_some(), "{variant}");
                assert_eq!(run.leaks.state_dir.as_deref(), Some(Path::new(&mount.mount_path)));
                continue;
            };
            assert_eq!(mount.mount_path, path, "{variant}");
            if path == OWN {
                assert_eq!(run.socket.parent(), Some(Path::new(OWN)), "{variant}");
                continue;
            }
            assert_eq!(mount.read_only, Some(true), "{variant}: {path}");
            // What the host unmounts is to be gone here at once.
            assert_eq!(mount.mount_propagation.as_deref(), Some("HostToContainer"), "{variant}");
        }
        if let Some(root) = &run.sources.node.cgroup_root {
            assert!(root.starts_with("/sys/fs/cgroup"), "{variant}: {}", root.display());
        }
    }
    Ok(())
}

#[test]
fn it_may_read_pods_and_its_node_and_write_events_only_where_asked_to() -> Result<()> {
    let allowed = |role: &ClusterRole| -> BTreeSet<(String, String, String)> {
        let each = |rule: &PolicyRule| {
            assert_eq!((&rule.resource_names, &rule.non_resource_urls), (&None, &None));
            let groups = rule.api_groups.clone().unwrap_or_default();
            let resources = rule.resources.clone().unwrap_or_default();
            let mut all = Vec::new();
            for group in &groups {
                for resource in &resources {
                    for verb in &rule.verbs {
                        all.push((group.clone(), resource.clone(), verb.clone()));
                    }
                }
            }
            all
        };
        role.rules.iter().flatten().flat_map(each).collect()
    };
    for (variant, objects) in variants()? {
        let role = objects.iter().find_map(|object| match object {
            DeployedObject::ClusterRole(role) => Some(role),
            _ => None,
        });
        let mut wanted = vec![
            ("", "nodes", "get"),
            ("", "pods", "get"),
            ("", "pods", "list"),
            ("", "pods", "watch"),
        ];
        if variant == "events" {
            wanted.push(("events.k8s.io", "events", "create"));
            wanted.push(("events.k8s.io", "events", "patch"));
        }
        if variant == "kubelet-api" {
            wanted.push(("", "nodes/pods", "get"));
        }
        if variant == "events-lookup" {
            wanted.push(("", "events", "list"));
        }
        let wanted = wanted.into_iter().map(|(a, b, c)| (a.into(), b.into(), c.into())).collect();
        assert_eq!(allowed(role.context("no ClusterRole")?), wanted, "{variant}");
        assert_eq!(arguments(manifest::daemon_set(&objects)?)?.events, variant == "events");
    }
    Ok(())
}

#[test]
fn it_runs_on_every_node_that_is_tested_and_stays_there() -> Result<()> {
    for (variant, objects) in variants()? {
        let set = manifest::daemon_set(&objects)?;
        let spec = spec(set);
        let labels = set.spec.template.metadata.as_ref().and_then(|meta| meta.labels.clone());
        let labels = labels.unwrap_or_default();
        let selector = set.spec.selector.match_labels.clone().unwrap_or_default();
        assert!(!selector.is_empty());
        assert!(selector.iter().all(|(key, value)| labels.get(key) == Some(value)), "{variant}");
        let nodes = spec.node_selector.clone().unwrap_or_default();
        assert_eq!(nodes.get("kubernetes.io/os").map(String::as_str), Some("linux"));
        assert!(!nodes.contains_key("kubernetes.io/arch"), "the image has all that are tested");
        let tolerations = spec.tolerations.as_deref().unwrap_or_default();
        let everything = |one: &k8s_openapi::api::core::v1::Toleration| {
            one.operator.as_deref() == Some("Exists") && one.key.is_none() && one.effect.is_none()
        };
        assert!(tolerations.iter().any(everything), "{variant}");
        let priority = spec.priority_class_name.as_deref();
        assert_eq!(priority, Some("system-node-critical"), "{variant}");
        let quota = objects.iter().find_map(|object| match object {
            DeployedObject::ResourceQuota(quota) => quota.spec.as_ref()?.scope_selector.as_ref(),
            _ => None,
        });
        let scopes = quota.and_then(|scope| scope.match_expressions.clone()).unwrap_or_default();
        assert_eq!(scopes[0].values.as_deref().unwrap_or_default(), [priority.unwrap_or_default()]);

        let resources = container(set).resources.clone().unwrap_or_default();
        let (limits, requests) =
            (resources.limits.unwrap_or_default(), resources.requests.unwrap_or_default());
        // Measured: agent/examples/many_sandboxes.rs.
        const PEAK_MIB: u64 = 82;
        assert!(mib(limits.get("memory"))? >= 2 * PEAK_MIB, "{variant}");
        assert!(mib(requests.get("memory"))? >= 32, "{variant}");
        assert!(requests.contains_key("cpu") && !limits.contains_key("cpu"), "{variant}");
    }
    Ok(())
}

fn mib(quantity: Option<&Quantity>) -> Result<u64> {
    let text = &quantity.context("no such quantity")?.0;
    let number = text.strip_suffix("Mi").with_context(|| format!("{text} is not in Mi"))?;
    Ok(number.parse()?)
}

#[test]
fn the_monitor_finds_the_port_and_keeps_the_metrics_own_labels() -> Result<()> {
    let base = render(&deploy().join("base"))?;
    let set = manifest::daemon_set(&base)?;
    let objects = render(&deploy().join("monitoring"))?;
    let monitor: &PodMonitor = objects
        .iter()
        .find_map(|object| match object {
            DeployedObject::PodMonitor(monitor) => Some(&**monitor),
            _ => None,
        })
        .context("no PodMonitor")?;
    assert_eq!(monitor.metadata.name.as_deref(), Some(NAME));
    assert_eq!(monitor.metadata.namespace.as_deref(), Some(NAME));
    let wanted = monitor.spec.selector.match_labels.clone().unwrap_or_default();
    let labels = set.spec.template.metadata.as_ref().and_then(|meta| meta.labels.clone());
    let labels = labels.unwrap_or_default();
    // The alerts' job, in whatever namespace; the operator's default is NAMESPACE/NAME.
    let job = monitor.spec.job_label.as_ref().and_then(|label| labels.get(label));
    assert_eq!(job.map(String::as_str), Some("coroner"));
    assert!(!wanted.is_empty() && wanted.iter().all(|(key, value)| labels.get(key) == Some(value)));
    ensure!(monitor.spec.pod_metrics_endpoints.len() == 1, "one port, one endpoint");
    let endpoint = &monitor.spec.pod_metrics_endpoints[0];
    assert!(endpoint.honor_labels);
    let ports = container(set).ports.iter().flatten();
    assert!(ports.into_iter().any(|port| port.name.as_deref() == Some(endpoint.port.as_str())));
    let node = endpoint.relabelings.iter().find(|one| one.target_label == "node");
    let sources = node.map(|one| one.source_labels.clone()).unwrap_or_default();
    assert_eq!(sources, ["__meta_kubernetes_pod_node_name"]);
    Ok(())
}
