//! The kubelet's own API (`--kubelet-api`): whether it still has a pod that looks like a leak. Only `/pods` is asked:
//! `/runningpods` and `/stats` make the kubelet fill its cache of running pods, and just after a deletion that makes
//! the very leak (kubernetes#107730).

use super::{
    answer::{AnswerStream, HttpRequest, RequestFailure},
    client,
    errors::describe,
    shape,
    watch::pod,
};
use crate::{
    linux::clock,
    sources::{cut::Cuts, json::JsonEvent},
};
use anyhow::Context as _;
use coroner_core::{
    ids::PodUid,
    input::{Input, KubeletEvent, Received},
    output::AskKubelet,
};
use kube::{Client, Config, client::ClientBuilder};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{sync::mpsc, time::Instant, time::timeout};
use tracing::{info, warn};

/// Since this version `nodes/pods` suffices (KubeletFineGrainedAuthz); before it `nodes/proxy` is needed, which also
/// allows to run a command in any pod of the node.
const FINE_GRAINED: (u32, u32) = (1, 33);
/// The kubelet is asked no more often.
const EVERY: Duration = Duration::from_secs(60);
/// An answer takes no longer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Pods that are read.
const MAX_PODS: usize = 8_192;
/// The kubelet's port.
pub const KUBELET_PORT: u16 = 10_250;

/// What the adapter needs.
#[derive(Clone, Debug)]
pub struct KubeletApiOptions {
    /// A kubeconfig, for the credentials; `None`: as for the apiserver.
    pub kubeconfig: Option<PathBuf>,
    /// The node's name, for which the kubelet's certificate must be.
    pub node: String,
    /// The node's address.
    pub address: String,
    /// The kubelet's port.
    pub port: u16,
    /// The certificates (DER) of the kubelet's CA; `None`: the apiserver's.
    pub ca: Option<Vec<Vec<u8>>>,
    /// The kubelet's certificate is not verified.
    pub insecure: bool,
    /// `nodes/proxy` may be used where `nodes/pods` does not exist.
    pub allows_proxy: bool,
}

/// Answers until either channel closes.
pub async fn ask_kubelet(
    options: KubeletApiOptions,
    to: mpsc::Sender<Received>,
    mut requests: mpsc::Receiver<AskKubelet>,
) -> anyhow::Result<()> {
    let client = connect(&options).await?;
    let send = async |event| {
        let received = Received { at: clock::boot_now(), input: Input::Kubelet(event) };
        to.send(received).await.is_ok()
    };
    if !send(KubeletEvent::Askable).await {
        return Ok(());
    }
    let mut next = Instant::now();
    let (mut refused, mut failed) = (false, false);
    while let Some(AskKubelet { pods, version }) = requests.recv().await {
        if Instant::now() < next {
            continue;
        }
        if !options.allows_proxy && version.is_none_or(|version| version < FINE_GRAINED) {
            if !std::mem::replace(&mut refused, true) {
                info!(
                    "the kubelet's API is not asked: before Kubernetes 1.33 that needs nodes/proxy, which also allows \
                     to run commands in any pod of the node; --kubelet-api nodes-proxy accepts that"
                );
            }
            continue;
        }
        next = Instant::now() + EVERY;
        let asked = clock::boot_now();
        let error = match timeout(ANSWER_LIMIT, pods_of(&client)).await {
            Ok(Ok(known)) => {
                let has = pods.into_iter().map(|uid| {
                    let has = known.contains(&uid);
                    (uid, has)
                });
                failed = false;
                if !send(KubeletEvent::Known { asked, pods: has.collect() }).await {
                    break;
                }
                continue;
            }
            Ok(Err(failure)) => describe(&failure, failure.code(), "get of nodes/pods"),
            Err(_) => "it did not answer in time".to_owned(),
        };
        if !std::mem::replace(&mut failed, true) {
            warn!(
                error,
                "the kubelet's API does not say which pods it has; a certificate that its own CA did not sign is \
                 refused unless --kubelet-api-ca or --kubelet-api-insecure is set"
            );
        }
    }
    Ok(())
}

async fn connect(options: &KubeletApiOptions) -> anyhow::Result<Client> {
    let mut config: Config = client::config(options.kubeconfig.as_deref()).await?;
    let address = match options.address.contains(':') {
        true => format!("https://[{}]:{}", options.address, options.port),
        false => format!("https://{}:{}", options.address, options.port),
    };
    config.cluster_url = address.parse().context("the node's address is no address")?;
    config.tls_server_name = Some(options.node.clone());
    config.accept_invalid_certs = options.insecure;
    config.proxy_url = None;
    if let Some(ca) = &options.ca {
        config.root_cert = Some(ca.clone());
    }
    config.read_timeout = Some(ANSWER_LIMIT);
    config.connect_timeout = Some(ANSWER_LIMIT);
    Ok(ClientBuilder::try_from(config).context("cannot use the kubelet's address")?.build())
}

/// The certificates of a PEM file, for [`KubeletApiOptions::ca`].
///
/// # Errors
/// It cannot be read, or has none.
pub fn certificates(file: &Path) -> Result<Vec<Vec<u8>>, String> {
    use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject as _};
    let pem = std::fs::read(file).map_err(|error| error.to_string())?;
    let ders = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
    let ders: Vec<_> = ders.map(|der| der.to_vec()).collect();
    if ders.is_empty() { Err("it has no certificate".to_owned()) } else { Ok(ders) }
}

/// The UIDs of the pods that the kubelet has, mirror pods by their static pods'.
async fn pods_of(client: &Client) -> Result<BTreeSet<PodUid>, RequestFailure> {
    let request: HttpRequest = http::Request::get("/pods")
        .body(Vec::new())
        .map_err(|_| RequestFailure::Unexpected("a request"))?;
    let mut answer = AnswerStream::to(client, request, &shape::IDENTITIES).await?;
    let (cuts, mut known) = (Cuts::default(), BTreeSet::new());
    while let Some(event) = answer.next(&cuts).await? {
        let JsonEvent::Item(item) = event else { return Ok(known) };
        match pod(&item) {
            Some(pod) if known.len() < MAX_PODS => {
                known.extend(pod.mirror_of);
                known.insert(PodUid::new(pod.uid));
            }
            // A pod that is not understood may be any of them.
            _ => return Err(RequestFailure::Unexpected("a pod")),
        }
    }
    Err(RequestFailure::Short)
}
