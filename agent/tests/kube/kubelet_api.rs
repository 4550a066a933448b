//! The kubelet's API over TLS: whom the agent trusts, what it asks for, and when it does not ask.

use super::kubeconfig;
use coroner::sources::kube::{KubeletApiOptions, ask_kubelet, certificates};
use coroner_core::{
    ids::PodUid,
    input::{Input, KubeletEvent},
    output::AskKubelet,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::mpsc,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{PrivateKeyDer, pem::PemObject as _},
    },
};

/// A kubelet whose certificate names a node.
struct Kubelet {
    port: u16,
    /// Its CA, in this folder.
    ca: PathBuf,
    folder: TempDir,
    /// The first lines of its requests.
    requests: Arc<Mutex<Vec<String>>>,
}

impl Kubelet {
    async fn of(node: &str, status: u16, body: Value) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let ca = folder.path().join("ca.crt");
        let own = params.self_signed(&key).expect("a CA");
        std::fs::write(&ca, own.pem()).expect("the CA's file");
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([node.to_owned()]).expect("a name");
        let cert = params.signed_by(&key, &issuer).expect("a certificate").der().clone();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("protocols")
            .with_no_client_auth()
            .with_single_cert(vec![cert], key)
            .expect("a server's certificate");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("the address").port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                // A client that does not trust it ends here.
                let Ok(mut stream) = acceptor.accept(socket).await else { continue };
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = stream.read_u8().await else { break };
                    request.push(byte);
                }
                let line =
                    String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned();
                seen.lock().expect("no test panics while it holds this").push(line);
                let body = match &body {
                    Value::String(text) => text.clone(),
                    object => object.to_string(),
                };
                let head = format!(
                    "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all((head + &body).as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        });
        Self { port, ca, folder, requests }
    }

    /// What the agent makes of it for two pods, of which the kubelet has one; `None`: no answer.
    async fn asked(
        &self,
        version: (u32, u32),
        change: impl FnOnce(&mut KubeletApiOptions),
    ) -> Option<Vec<bool>> {
        let mut options = KubeletApiOptions {
            kubeconfig: Some(kubeconfig(self.folder.path(), "http://127.0.0.1:1")),
            node: "n1".into(),
            address: "127.0.0.1".into(),
            port: self.port,
            ca: Some(certificates(&self.ca).expect("a CA")),
            insecure: false,
            allows_proxy: false,
        };
        change(&mut options);
        let (to, mut events) = mpsc::channel(8);
        let (ask, requests) = mpsc::channel(8);
        let pods = ["here", "gone"].map(PodUid::new).to_vec();
        ask.send(AskKubelet { pods, version: Some(version) }).await.expect("there is room");
        drop(ask);
        ask_kubelet(options, to, requests).await.expect("the adapter ends with its questions");
        let mut known = None;
        while let Some(received) = events.recv().await {
            match received.input {
                Input::Kubelet(KubeletEvent::Askable) => {}
                Input::Kubelet(KubeletEvent::Known { pods, .. }) => {
                    known = Some(pods.iter().map(|(_, has)| *has).collect());
                }
                other => panic!("{other:?}"),
            }
        }
        known
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no test panics while it holds this").clone()
    }
}

fn pods() -> Value {
    let mut pod = super::pod("p", 1);
    pod["metadata"]["uid"] = json!("here");
    json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [pod] })
}

const NEW: (u32, u32) = (1, 33);
const OLD: (u32, u32) = (1, 32);

#[tokio::test]
async fn its_certificate_is_verified_unless_the_flag_says_not() {
    let kubelet = Kubelet::of("n1", 200, pods()).await;
    assert_eq!(kubelet.asked(NEW, |_| {}).await, Some(vec![true, false]));
    assert_eq!(kubelet.requests(), ["GET /pods HTTP/1.1"], "and nothing else");
    // Another CA, and another node's certificate: nothing is sent to them.
    let stranger = Kubelet::of("n1", 200, pods()).await;
    assert_eq!(
        stranger.asked(NEW, |options| options.ca = certificates(&kubelet.ca).ok()).await,
        None
    );
    assert!(stranger.requests().is_empty());
    let other = Kubelet::of("n2", 200, pods()).await;
    assert_eq!(other.asked(NEW, |_| {}).await, None);
    assert!(other.requests().is_empty());
    let not_verified =
        |options: &mut KubeletApiOptions| (options.ca, options.insecure) = (None, true);
    assert_eq!(other.asked(NEW, not_verified).await, Some(vec![true, false]));
}

#[tokio::test]
async fn nodes_proxy_is_not_used_unless_the_flag_says_so() {
    let kubelet = Kubelet::of("n1", 200, pods()).await;
    assert_eq!(kubelet.asked(OLD, |_| {}).await, None);
    assert!(kubelet.requests().is_empty());
    let proxy = |options: &mut KubeletApiOptions| options.allows_proxy = true;
    assert_eq!(kubelet.asked(OLD, proxy).await, Some(vec![true, false]));
}

#[tokio::test]
async fn what_is_no_list_of_pods_is_no_answer() {
    let whole = pods().to_string();
    for (status, body) in [
        (403, json!("Forbidden (user=x, verb=get, resource=nodes, subresource=pods)")),
        (401, json!("Unauthorized")),
        (500, json!("")),
        (200, json!("}garbage{")),
        (200, json!("")),
        (200, json!(whole[..whole.len() - 2])),
        (200, json!({ "kind": "PodList", "items": [{ "metadata": {} }] })),
    ] {
        let text = format!("{status} {body}");
        let kubelet = Kubelet::of("n1", status, body).await;
        assert_eq!(kubelet.asked(NEW, |_| {}).await, None, "{text}");
        assert_eq!(kubelet.requests().len(), 1, "{text}");
    }
}
