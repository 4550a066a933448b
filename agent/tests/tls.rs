//! HTTPS, by the binary and by its library: who is trusted, what follows a change of the files, and
//! that nobody is told what stands in them.

mod binary;
#[path = "binary/serving.rs"]
mod serving;

use binary::{coroner, run};
use coroner::{
    linux::clock,
    outputs::{
        http::{
            Audience, SharedState,
            tls::{Certificate, TlsFiles},
        },
        metrics::Metrics,
    },
    store::{health::Health, leaks::LeakStore, terminations::History},
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};
use tempfile::TempDir;

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

    fn ca(&self) -> String {
        self.file("ca.crt").display().to_string()
    }

    /// Writes `tls.crt` and `tls.key`, as cert-manager does, for `name`.
    fn sign(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> TlsFiles {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let cert = self.file("tls.crt");
        let files = TlsFiles { cert, key: self.file("tls.key") };
        fs::write(&files.cert, params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }
}

/// Serves an agent that has seen nothing yet until the test ends; its port.
fn agent(certificate: Option<Arc<Certificate>>) -> u16 {
    let health = Health::new(false, clock::boot_now());
    let metrics = Metrics::new().unwrap();
    let shared = Arc::new(SharedState::new(health, History::new(1), LeakStore::default(), metrics));
    serving::serve(shared, Audience::Node, certificate)
}

/// Asks for the terminations: whether there was an answer, and else the error.
fn ask(url: &str, ca: &str) -> Result<(), String> {
    let (code, out, err) = run(&mut coroner(&format!("terminations --url {url} {ca}")));
    if code == 0 {
        assert!(out.contains("NAMESPACE"), "{out}");
        return Ok(());
    }
    assert_eq!((code, &*out), (1, ""), "{err}");
    Err(err)
}

#[test]
fn an_agent_is_trusted_by_its_authority_and_its_name() {
    let ours = Authority::new();
    let port = agent(Some(Certificate::open(ours.sign("localhost", |_| {})).unwrap()));
    let ca = format!("--ca-file {}", ours.ca());
    ask(&format!("https://localhost:{port}"), &ca).unwrap();

    let theirs = Authority::new();
    let other = format!("--ca-file {}", theirs.ca());
    let not_a_ca = format!("--ca-file {}", ours.file("tls.key").display());
    for (host, ca, wanted) in [
        ("https://localhost", "", "set --ca-file"),
        ("https://localhost", &*other, "set --ca-file"),
        ("https://127.0.0.1", &*ca, "use a host name that the certificate contains"),
        ("http://localhost", "", "try https://"),
        ("https://localhost", &*not_a_ca, "contains no certificate"),
        ("https://localhost", "--ca-file /no/such/file", "cannot read the file"),
    ] {
        let said = ask(&format!("{host}:{port}"), ca).expect_err(host);
        assert!(said.contains(wanted), "{host} {ca}: {said}");
        assert!(!said.contains("PRIVATE KEY"), "{said}");
    }

    let port = agent(None);
    let said = ask(&format!("https://localhost:{port}"), &ca).unwrap_err();
    assert!(said.contains("try http://"), "{said}");
    ask(&format!("http://localhost:{port}"), "").unwrap();
}

#[test]
fn an_agent_with_an_old_certificate_is_told_to_need_another() {
    let authority = Authority::new();
    let files = authority.sign("localhost", |params| params.not_after = date_time_ymd(2020, 1, 1));
    let port = agent(Some(Certificate::open(files).unwrap()));
    let ca = format!("--ca-file {}", authority.ca());
    let said = ask(&format!("https://localhost:{port}"), &ca).unwrap_err();
    assert!(said.contains("expired") && said.contains("--tls-cert"), "{said}");
}

#[test]
fn who_connects_and_says_nothing_keeps_nobody_waiting() {
    let authority = Authority::new();
    let port = agent(Some(Certificate::open(authority.sign("localhost", |_| {})).unwrap()));
    let silent: Vec<TcpStream> =
        (0..8).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    let mut nonsense = TcpStream::connect(("127.0.0.1", port)).unwrap();
    nonsense.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    ask(&format!("https://localhost:{port}"), &format!("--ca-file {}", authority.ca())).unwrap();
    drop(silent);
}

#[test]
fn another_agent_is_not_looked_for_where_one_is_not_trusted() {
    let authority = Authority::new();
    let port = agent(Some(Certificate::open(authority.sign("localhost", |_| {})).unwrap()));
    let other = Authority::new();
    for command in ["explain", "leaks"] {
        let (code, out, err) = run(&mut coroner(&format!(
            "{command} --url https://localhost:{port} --ca-file {}",
            other.ca()
        )));
        assert_eq!((code, &*out), (1, ""), "{command}: {err}");
        assert!(err.contains("is not trusted"), "{command}: {err}");
    }
}

#[test]
fn files_that_change_are_taken_and_broken_ones_are_not() {
    let (old, new) = (Authority::new(), Authority::new());
    let files = old.sign("localhost", |_| {});
    let certificate = Certificate::open(files.clone()).unwrap();
    let url = format!("https://localhost:{}", agent(Some(Arc::clone(&certificate))));
    let (by_old, by_new) = (format!("--ca-file {}", old.ca()), format!("--ca-file {}", new.ca()));
    ask(&url, &by_old).unwrap();
    assert!(!certificate.refresh().unwrap(), "nothing has changed");

    let fresh = new.sign("localhost", |_| {});
    fs::copy(&fresh.cert, &files.cert).unwrap();
    let said = certificate.refresh().unwrap_err().to_string();
    assert!(said.contains("use a matching pair"), "{said}");
    fs::remove_file(&files.key).unwrap();
    assert!(certificate.refresh().unwrap_err().to_string().contains("cannot read the file"));
    ask(&url, &by_old).unwrap();

    fs::copy(&fresh.key, &files.key).unwrap();
    assert!(certificate.refresh().unwrap(), "now they are a pair");
    ask(&url, &by_new).unwrap();
    ask(&url, &by_old).unwrap_err();
    assert!(!certificate.refresh().unwrap(), "and it is told once");
}

/// Something secret, in a file that was given by mistake.
const SECRET: &str = "hunter2";

#[test]
fn files_that_cannot_be_used_are_refused_and_not_shown() {
    let authority = Authority::new();
    let files = authority.sign("localhost", |_| {});
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
    let args = format!(
        "run --no-api --runtime-endpoint /nowhere.sock --listen 127.0.0.1:0 --api-listen off --socket off --tls-cert {} --tls-key {}",
        secret.display(),
        key.display()
    );
    let (code, _, err) = run(&mut coroner(&args));
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("contains no certificate") && !err.contains(SECRET), "{err}");
}

#[test]
fn run_serves_https() {
    let authority = Authority::new();
    let files = authority.sign("localhost", |_| {});
    let args = format!(
        "run --no-api --runtime-endpoint /nowhere.sock --listen 127.0.0.1:0 --api-listen off --socket off --log-format json --keep-running-unready \
         --tls-cert {} --tls-key {}",
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
    let port = address.rsplit(':').next().unwrap();
    let answer =
        ask(&format!("https://localhost:{port}"), &format!("--ca-file {}", authority.ca()));
    child.kill().unwrap();
    child.wait().unwrap();
    // TLS is spoken; the API is served elsewhere.
    assert!(answer.unwrap_err().contains("403 Forbidden: the API is not served on this port"));
}
