//! The lab's network plugins, of the Container Network Interface
//! (<https://www.cni.dev/docs/spec/>), versions 0.3.0 to 1.0.0.
//!
//! Under the name `loopback`, which containerd calls for every sandbox with a network namespace of
//! its own, it brings `lo` up there. Under any other name it gives the sandbox an address and an interface
//! on the lab's bridge: see [`coroner_workload::network`].

mod addresses;

use addresses::Addresses;
use coroner_workload::{
    loopback,
    network::{self, Dual},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    env,
    ffi::OsStr,
    fmt,
    fs::File,
    io::{self, Read as _},
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// The variable that makes this program a plugin: what it is to do.
pub(crate) const COMMAND: &str = "CNI_COMMAND";

/// The name under which it is the loopback plugin.
const LOOPBACK: &str = "loopback";

/// What it speaks. containerd 1.6's own configuration of the loopback plugin is of 0.3.1.
const VERSIONS: [&str; 4] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0"];

/// No configuration is longer.
const MAX_CONFIGURATION: u64 = 1 << 20;

/// The network's configuration, from stdin.
#[derive(Deserialize)]
struct CniNetwork {
    #[serde(rename = "cniVersion")]
    version: String,
    /// Where the addresses are kept.
    addresses: Option<PathBuf>,
    /// The network namespace with the lab's bridge.
    node: Option<PathBuf>,
}

/// What is asked, from the environment.
struct CniRequest {
    container: String,
    /// Empty or gone where the sandbox' network is taken down a second time.
    namespace: PathBuf,
    interface: String,
    /// The name of its pod; empty: the runtime does not tell it.
    pod: String,
}

/// The longest name that an interface has.
const NAME: usize = libc::IFNAMSIZ - 1;

/// Why it cannot be done: an error result of the specification.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
struct CniFailure {
    code: u32,
    msg: String,
}

impl CniFailure {
    /// The version is not spoken here.
    const VERSION: u32 = 1;
    /// The environment is not a plugin's.
    const ENVIRONMENT: u32 = 4;
    /// A file, or the kernel.
    const IO: u32 = 5;
    /// The configuration is no JSON, or not that of a network.
    const DECODE: u32 = 6;
    /// The configuration lacks something, or it asks for too much.
    const NETWORK: u32 = 7;
    /// It may work later.
    const LATER: u32 = 11;

    fn new(code: u32, msg: impl fmt::Display) -> Self {
        Self { code, msg: msg.to_string() }
    }

    fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        Self::new(Self::IO, format_args!("{what}: {error}"))
    }
}

/// Does what `command` says and prints the result, or why there is none.
pub(crate) fn answer(command: &OsStr) -> ExitCode {
    let name = env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let is_loopback = name.file_name() == Some(OsStr::new(LOOPBACK));
    match act(command, is_loopback) {
        Ok(Some(result)) => {
            println!("{result}");
            ExitCode::SUCCESS
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(failure) => {
            let version = VERSIONS[VERSIONS.len() - 1];
            println!(
                "{}",
                json!({ "cniVersion": version, "code": failure.code, "msg": failure.msg })
            );
            ExitCode::FAILURE
        }
    }
}

fn act(command: &OsStr, is_loopback: bool) -> Result<Option<Value>, CniFailure> {
    let command = command.to_str().unwrap_or_default();
    if command == "VERSION" {
        return Ok(Some(
            json!({ "cniVersion": VERSIONS[VERSIONS.len() - 1], "supportedVersions": VERSIONS }),
        ));
    }
    if !matches!(command, "ADD" | "DEL" | "CHECK") {
        return Err(CniFailure::new(
            CniFailure::ENVIRONMENT,
            format_args!("{COMMAND} is {command:?}: this plugin knows ADD, DEL, CHECK and VERSION"),
        ));
    }
    let network = network(io::stdin())?;
    let request = CniRequest::of_environment()?;
    match (command, is_loopback) {
        ("ADD", true) => {
            loopback::enter_and_bring_up(&request.namespace)
                .map_err(|error| CniFailure::io("cannot bring lo up", &error))?;
            let addresses = [("127.0.0.1/8".to_owned(), "4")];
            let (version, namespace) = (&network.version, &request.namespace);
            Ok(Some(result(version, LOOPBACK_INTERFACE, namespace, &addresses)))
        }
        // The interface goes with its namespace.
        (_, true) => Ok(None),
        ("ADD", false) => {
            let addresses = network.addresses()?;
            let given = request.connect(&network, addresses.take(&request.container)?);
            if given.is_err() {
                // Nothing stays of what failed, whether the runtime calls DEL now or not.
                let _ = request.disconnect(&network);
                let _ = addresses.give_back(&request.container);
            }
            let given = with_prefixes(given?);
            Ok(Some(result(&network.version, &request.interface, &request.namespace, &given)))
        }
        ("DEL", false) => {
            let addresses = network.addresses()?;
            addresses.may_give_back(&request.pod)?;
            request.disconnect(&network)?;
            addresses.give_back(&request.container).map(|()| None)
        }
        (_, false) => network.addresses()?.check(&request.container).map(|()| None),
    }
}

/// From arguments such as `IgnoreUnknown=1;K8S_POD_NAMESPACE=lab;K8S_POD_NAME=web`.
fn pod(arguments: &str) -> &str {
    arguments.split(';').find_map(|one| one.strip_prefix("K8S_POD_NAME=")).unwrap_or_default()
}

const LOOPBACK_INTERFACE: &str = "lo";

fn network(configuration: impl io::Read) -> Result<CniNetwork, CniFailure> {
    let mut text = String::new();
    configuration
        .take(MAX_CONFIGURATION)
        .read_to_string(&mut text)
        .map_err(|error| CniFailure::io("cannot read the configuration", &error))?;
    let network: CniNetwork =
        serde_json::from_str(&text).map_err(|error| CniFailure::new(CniFailure::DECODE, error))?;
    if VERSIONS.contains(&network.version.as_str()) {
        return Ok(network);
    }
    Err(CniFailure::new(
        CniFailure::VERSION,
        format_args!("version {:?}: this plugin speaks {}", network.version, VERSIONS.join(", ")),
    ))
}

impl CniNetwork {
    fn node(&self) -> Result<&Path, CniFailure> {
        self.node.as_deref().ok_or_else(|| {
            CniFailure::new(
                CniFailure::NETWORK,
                "the configuration has no \"node\": the network namespace with the lab's bridge",
            )
        })
    }

    fn addresses(&self) -> Result<Addresses<'_>, CniFailure> {
        match &self.addresses {
            Some(directory) => Ok(Addresses::new(directory)),
            None => Err(CniFailure::new(
                CniFailure::NETWORK,
                "the configuration has no \"addresses\": the directory that keeps them",
            )),
        }
    }
}

impl CniRequest {
    fn of_environment() -> Result<Self, CniFailure> {
        let variable = |name: &str| {
            env::var(name).map_err(|error| {
                CniFailure::new(CniFailure::ENVIRONMENT, format_args!("{name}: {error}"))
            })
        };
        Ok(Self {
            container: variable("CNI_CONTAINERID")?,
            namespace: env::var_os("CNI_NETNS").unwrap_or_default().into(),
            interface: variable("CNI_IFNAME")?,
            pod: pod(&env::var("CNI_ARGS").unwrap_or_default()).into(),
        })
    }
}

impl CniRequest {
    /// The name of the sandbox's port at the bridge.
    fn port(&self) -> String {
        let id = self.container.chars().filter(char::is_ascii_alphanumeric);
        "veth".chars().chain(id).take(NAME).collect()
    }

    fn connect(&self, network: &CniNetwork, address: Ipv4Addr) -> Result<Dual, CniFailure> {
        let open = |path: &Path| {
            File::open(path).map_err(|error| {
                CniFailure::io(format_args!("cannot open {}", path.display()), &error)
            })
        };
        let (node, own) = (open(network.node()?)?, open(&self.namespace)?);
        network::attach(&node, &own, &self.port(), &self.interface, address).map_err(|error| {
            CniFailure::io(
                format_args!("cannot connect {} with the bridge", self.container),
                &error,
            )
        })
    }

    fn disconnect(&self, network: &CniNetwork) -> Result<(), CniFailure> {
        network::detach(network.node()?, &self.port())
            .map_err(|error| CniFailure::io(format_args!("cannot remove {}", self.port()), &error))
    }
}

/// As text, each with its version of IP.
fn with_prefixes(given: Dual) -> Vec<(String, &'static str)> {
    let v4 = (format!("{}/{}", given.v4, network::PREFIX), "4");
    let v6 = given.v6.map(|v6| (format!("{v6}/{}", network::PREFIX_V6), "6"));
    std::iter::once(v4).chain(v6).collect()
}

/// A success: one interface in the sandbox, with its addresses.
fn result(
    version: &str,
    interface: &str,
    namespace: &Path,
    addresses: &[(String, &'static str)],
) -> Value {
    let ips = addresses.iter().map(|(address, of)| {
        let mut ip = json!({ "address": address, "interface": 0 });
        if version.starts_with("0.") {
            // Gone since 1.0.0, compulsory before.
            ip["version"] = json!(of);
        }
        ip
    });
    json!({
        "cniVersion": version,
        "interfaces": [{ "name": interface, "sandbox": namespace }],
        "ips": ips.collect::<Vec<_>>(),
        "dns": {},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_is_not_spoken_is_refused_with_those_that_are() {
        for version in VERSIONS {
            assert!(network(format!(r#"{{"cniVersion":"{version}"}}"#).as_bytes()).is_ok());
        }
        let refused = network(&br#"{"cniVersion":"9.0.0"}"#[..]).err().unwrap();
        assert_eq!(refused.code, CniFailure::VERSION);
        assert!(refused.msg.contains("9.0.0") && refused.msg.contains("1.0.0"), "{}", refused.msg);
        for bad in ["", "[]", "{}", "{"] {
            assert_eq!(network(bad.as_bytes()).err().unwrap().code, CniFailure::DECODE, "{bad:?}");
        }
    }

    #[test]
    fn without_a_directory_there_are_no_addresses() {
        let network = network(&br#"{"cniVersion":"1.0.0"}"#[..]).ok().unwrap();
        assert_eq!(network.addresses().err().unwrap().code, CniFailure::NETWORK);
    }

    #[test]
    fn the_pod_s_name_is_among_the_arguments() {
        assert_eq!(
            pod("IgnoreUnknown=1;K8S_POD_NAMESPACE=lab;K8S_POD_NAME=web;K8S_POD_UID=1"),
            "web"
        );
        assert_eq!(pod(""), "");
    }

    #[test]
    fn without_a_node_there_is_nothing_to_connect_with() {
        let network = network(&br#"{"cniVersion":"1.0.0"}"#[..]).ok().unwrap();
        let request = CniRequest {
            container: "0123456789abcdef".into(),
            namespace: "/nonexistent".into(),
            interface: "eth0".into(),
            pod: "web".into(),
        };
        assert_eq!(request.port(), "veth0123456789a");
        assert_eq!(request.disconnect(&network).unwrap_err().code, CniFailure::NETWORK);
        assert_eq!(request.connect(&network, network::NODE).unwrap_err().code, CniFailure::NETWORK);
        let network = CniNetwork { node: Some("/nonexistent".into()), ..network };
        assert_eq!(request.disconnect(&network), Ok(()), "the node is gone");
        assert_eq!(request.connect(&network, network::NODE).unwrap_err().code, CniFailure::IO);
    }

    #[test]
    fn a_result_is_of_the_network_s_own_version() {
        let v4 = Ipv4Addr::new(10, 244, 0, 2);
        let both = with_prefixes(Dual { v4, v6: Some(network::v6_of(v4)) });
        let old = result("0.4.0", "eth0", Path::new("/run/netns/cni-1"), &both);
        assert_eq!(
            (&old["ips"][0]["version"], &old["ips"][1]["version"]),
            (&json!("4"), &json!("6"))
        );
        let new = result("1.0.0", "eth0", Path::new("/run/netns/cni-1"), &both);
        assert_eq!(new["ips"][0].get("version"), None);
        assert_eq!(new["interfaces"][0]["sandbox"], "/run/netns/cni-1");
        assert_eq!(new["ips"][0]["address"], "10.244.0.2/16");
        assert_eq!(new["ips"][1]["address"], "fd63:6f72:6f6e::af4:2/64");
        assert_eq!(with_prefixes(Dual { v4, v6: None }).len(), 1);
    }

    #[test]
    fn what_is_no_command_is_said_so() {
        let failure = act(OsStr::new("GC"), false).unwrap_err();
        assert_eq!(failure.code, CniFailure::ENVIRONMENT);
        let versions = act(OsStr::new("VERSION"), true).unwrap().unwrap();
        assert_eq!(versions["supportedVersions"][3], "1.0.0");
    }
}
