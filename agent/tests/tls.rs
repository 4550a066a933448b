//! HTTPS, by the binary and by its library: who is trusted, what follows a change of the files, and
//! that nobody is told what stands in them.

use crate::binary::{coroner, run, serving};
use coroner::{
    outputs::http::tls::{Certificate, TlsFiles},
    store::{history::History, leaks::LeakStore},
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::{
    fs,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, pem::PemObject},
    },
};

/// A certificate authority in a folder of its own, and what it has signed there.
struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { folder, issuer: Issuer::new(params, key) }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes `tls.crt` and `tls.key`, as cert-manager does, for `name`.
    fn sign(&self, name: &str) -> TlsFiles {
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let cert = self.file("tls.crt");
        let files = TlsFiles { cert, key: self.file("tls.key") };
        fs::write(&files.cert, params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }
}

/// Serves an agent that has seen nothing yet until the test ends; its port.
fn agent(certificate: Arc<Certificate>) -> u16 {
    serving::serve_tls(serving::state(History::in_memory(), LeakStore::default()), certificate)
}

/// The first line of the answer to a client that trusts this authority, or why there is none.
async fn ask(port: u16, authority: &Authority) -> io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.file("ca.crt")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let name = "localhost".try_into().unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn files_that_change_are_taken_and_broken_ones_are_not() {
    let (old, new) = (Authority::new(), Authority::new());
    let files = old.sign("localhost");
    let certificate = Certificate::open(files.clone()).unwrap();
    let port = agent(Arc::clone(&certificate));
    // Who connects and says nothing, or nonsense, keeps nobody waiting.
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
    }
    silent[0].write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    ask(port, &old).await.unwrap();
    drop(silent);
    assert!(!certificate.refresh().unwrap(), "nothing has changed");

    let fresh = new.sign("localhost");
    fs::copy(&fresh.cert, &files.cert).unwrap();
    let said = certificate.refresh().unwrap_err().to_string();
    assert!(said.contains("use a matching pair"), "{said}");
    fs::remove_file(&files.key).unwrap();
    assert!(certificate.refresh().unwrap_err().to_string().contains("cannot read the file"));
    ask(port, &old).await.unwrap();

    fs::copy(&fresh.key, &files.key).unwrap();
    assert!(certificate.refresh().unwrap(), "now they are a pair");
    ask(port, &new).await.unwrap();
    let said = ask(port, &old).await.unwrap_err().to_string();
    assert!(said.contains("invalid peer certificate"), "{said}");
    assert!(!certificate.refresh().unwrap(), "and it is told once");
}

/// Without a runtime.
const RUN: &str = "run --no-api --runtime-endpoint /nowhere.sock --listen 127.0.0.1:0 --api-listen off --socket off";

/// Something secret, in a file that was given by mistake.
const SECRET: &str = "hunter2";

#[test]
fn files_that_cannot_be_used_are_refused_and_not_shown() {
    let authority = Authority::new();
    let files = authority.sign("localhost");
    let write = |name: &str, content: &str| {
        let file = authority.file(name);
        fs::write(&file, content).unwrap();
        file
    };
    let secret = write("secret", &format!("token: {SECRET}\n"));
    let section = write("section", &format!("-----BEGIN {SECRET}\n{SECRET}\n"));
    let no_base64 = format!("-----BEGIN CERTIFICATE-----\n{SECRET}!\n-----END CERTIFICATE-----\n");
    let no_certificate = write("no_certificate", &no_base64);
    let no_key = write("no_key", &no_base64.replace("CERTIFICATE", "PRIVATE KEY"));
    let der = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let no_der = write("no_der", der);
    let odd_key = write("odd_key", &der.replace("CERTIFICATE", "PRIVATE KEY"));
    let nothing = PathBuf::from("/no/such/file");
    let (cert, key) = (&files.cert, &files.key);
    let cases: [(&Path, &Path, &str); 11] = [
        (&nothing, key, "--tls-cert /no/such/file: cannot read the file"),
        (cert, &nothing, "--tls-key /no/such/file: cannot read the file"),
        (&secret, key, "contains no certificate"),
        (&section, key, "contains no certificate"),
        (&no_certificate, key, "contains no certificate"),
        (&no_der, key, "cannot use"),
        (key, cert, "contains no certificate"),
        (cert, &secret, "contains no private key"),
        (cert, &section, "contains no private key"),
        (cert, &no_key, "contains no private key"),
        (cert, &odd_key, "cannot use"),
    ];
    for (cert, key, wanted) in cases {
        let files = TlsFiles { cert: cert.to_owned(), key: key.to_owned() };
        let error = Certificate::open(files).unwrap_err();
        let (shown, debug) = (format!("{error:#}"), format!("{error:?}"));
        assert!(shown.contains(wanted), "{shown}");
        assert!(!shown.contains(SECRET) && !debug.contains(SECRET), "{shown} {debug}");
    }
    let args = format!("{RUN} --tls-cert {} --tls-key {}", secret.display(), key.display());
    let (code, _, err) = run(&mut coroner(&args));
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("contains no certificate") && !err.contains(SECRET), "{err}");
}

#[tokio::test]
async fn run_serves_https() {
    let authority = Authority::new();
    let files = authority.sign("localhost");
    let args = format!(
        "{RUN} --log-format json --keep-running-unready --tls-cert {} --tls-key {}",
        files.cert.display(),
        files.key.display()
    );
    let mut child = coroner(&args).stderr(Stdio::piped()).spawn().unwrap();
    let log = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let address = log
        .map(|line| serde_json::from_str::<serde_json::Value>(&line).expect("every line is JSON"))
        .find_map(|event| Some((event["address"].as_str()?.to_owned(), event["https"].clone())));
    let (address, https) = address.expect("the address is logged");
    assert_eq!(https, true);
    let port = address.rsplit(':').next().unwrap().parse().unwrap();
    let answer = ask(port, &authority).await;
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(answer.unwrap(), "HTTP/1.1 200 OK");
}
