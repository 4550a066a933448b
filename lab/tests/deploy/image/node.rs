//! What surrounds a pod: a network of its own with an apiserver and a name server in it, and what the
//! kubelet puts into its root.

use super::{dns, unpacked::Image};
use crate::tls::TlsFront;
use coroner_lab_cluster::{apiserver::Apiserver, apiserver::ApiserverOptions};
use coroner_workload::loopback;
use serde_json::{Value, json};
use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub(crate) const NAME: &str = "apiserver.coroner.test";

/// A network namespace with an apiserver, by https, and a name server.
pub(crate) struct NodeNetwork {
    front: TlsFront,
    asked: Arc<AtomicUsize>,
    _runtime: Runtime,
    _apiserver: Apiserver,
}

impl NodeNetwork {
    /// Makes one, and calls `body` within it.
    pub(crate) fn within(body: impl FnOnce(&NodeNetwork) + Send) {
        let inside = || {
            loopback::make_and_bring_up().expect("root, and a kernel with network namespaces");
            let asked = dns::serve(NAME);
            // Its threads are of this thread's making, and so in this network.
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap();
            let (apiserver, front) = runtime.block_on(async {
                let apiserver = Apiserver::start(ApiserverOptions::default()).await.unwrap();
                apiserver.store().create_pod(&pod()).unwrap();
                let front = TlsFront::of(NAME, apiserver.address()).await.unwrap();
                (apiserver, front)
            });
            let network = NodeNetwork { front, asked, _runtime: runtime, _apiserver: apiserver };
            body(&network);
        };
        // A thread of its own, for it cannot come back.
        thread::scope(|scope| scope.spawn(inside).join()).unwrap();
    }

    /// How often the name server has been asked since this was called last.
    pub(crate) fn questions(&self) -> usize {
        self.asked.swap(0, Ordering::Relaxed)
    }
}

fn pod() -> k8s_openapi::api::core::v1::Pod {
    serde_json::from_value(json!({
        "metadata": { "name": "web", "namespace": "default" },
        "spec": { "nodeName": "here", "containers": [{ "name": "main", "image": "x" }] },
    }))
    .unwrap()
}

/// A root with the image in it and, where given, two of the kubelet's files.
pub(crate) struct Pod {
    root: TempDir,
}

impl Pod {
    pub(crate) fn of(image: &Image, resolv_conf: Option<&str>, hosts: Option<&str>) -> Self {
        let root = tempfile::tempdir().unwrap();
        image.write(root.path());
        for (name, content) in [("etc/resolv.conf", resolv_conf), ("etc/hosts", hosts)] {
            if let Some(content) = content {
                write(&root.path().join(name), content);
            }
        }
        Self { root }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("chroot");
        command.arg(self.root.path()).arg("/coroner").args(args).stdin(Stdio::null());
        command
    }

    /// What the program says, with nothing in its environment.
    pub(crate) fn coroner(&self, args: &[&str]) -> Output {
        self.command(args)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .output()
            .unwrap()
    }

    /// What `coroner doctor` says of the apiserver, as whom a cluster makes it: by its service
    /// account, and with the apiserver's name in the environment.
    pub(crate) fn apiserver(&self, network: &NodeNetwork) -> (String, String) {
        let account = self.root.path().join("var/run/secrets/kubernetes.io/serviceaccount");
        write(&account.join("token"), "not.a.token");
        write(&account.join("namespace"), "coroner");
        write(&account.join("ca.crt"), &network.front.certificate);
        let output = self
            .command(&[
                "doctor",
                "--output",
                "json",
                "--node",
                "here",
                "--runtime-endpoint",
                "/nowhere.sock",
            ])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("KUBERNETES_SERVICE_HOST", NAME)
            .env("KUBERNETES_SERVICE_PORT", network.front.address.port().to_string())
            .output()
            .unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let checks = answer["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["name"] == "apiserver").unwrap();
        let text = |key: &str| check[key].as_str().unwrap().to_owned();
        (text("outcome"), text("found"))
    }
}

fn write(file: &Path, content: &str) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, content).unwrap();
}
