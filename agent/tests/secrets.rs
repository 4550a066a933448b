//! What an apiserver answers holds other tenants' secrets: whatever cannot be read of it, and at whichever
//! level the agent and its libraries log, nothing of it is passed on.

use crate::{
    binary::{coroner, run},
    kube::kubeconfig,
};
use serde_json::json;
use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
};

const SECRET: &str = "hunter2";

/// Answers every request with this.
fn apiserver(status: &'static str, body: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            while head.read_line(&mut line).is_ok_and(|read| read > 2) {
                line.clear();
            }
            // A client that has seen enough hangs up.
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
                 connection: close\r\nx-secret: {SECRET}\r\n\r\n{body}",
                body.len()
            );
        }
    });
    format!("http://{address}")
}

#[test]
fn nothing_of_what_cannot_be_read_is_shown() {
    let env = format!(r#"[{{"name":"DB_PASSWORD","value":"{SECRET}"}}]"#);
    let pod = format!(
        r#"{{"metadata":{{"uid":"u","name":"n","namespace":"s"}},"spec":{{"containers":[{{"env":{env}}}],
        "terminationGracePeriodSeconds":"{SECRET}"}}}}"#
    );
    let list = |end: &str| {
        format!(
            r#"{{"kind":"PodList","metadata":{{"resourceVersion":"{SECRET}"}},"items":[{pod}{end}"#
        )
    };
    let levels = |n| format!(r#",{{"x":{}"{SECRET}"{}}}]}}"#, "[".repeat(n), "]".repeat(n));
    let folder = tempfile::tempdir().unwrap();
    for (status, body) in [
        ("200 OK", list("]}")),
        ("200 OK", list(&levels(200))),
        ("200 OK", list(&format!("}}{SECRET}"))),
        ("200 OK", list("")),
        ("200 OK", format!("<html>{SECRET}</html>")),
        ("200 OK", format!(r#""{SECRET}""#)),
        ("200 OK", format!("{SECRET}: \u{ff}")),
        ("403 Forbidden", format!("<html>{SECRET}</html>")),
        ("500 Oh", format!(r#"{{"password":"{SECRET}","message":["{SECRET}"]}}"#)),
    ] {
        let server = apiserver(status, body.clone());
        let file = kubeconfig(folder.path(), &server, &json!({}));
        for format in ["text", "json"] {
            let mut command = coroner("doctor --runtime-endpoint /nonexistent.sock --node n1");
            command.arg("--kubeconfig").arg(&file).args(["--log-format", format]);
            command.env("RUST_LOG", "trace");
            let (_, out, err) = run(&mut command);
            assert!(!out.contains(SECRET), "{body}: {out}");
            assert!(!err.contains(SECRET), "{body}: {err}");
            assert!(err.contains("coroner::sources::kube"), "our own lines are there: {err}");
            assert!(!err.contains("kube_client") && !err.contains("hyper"), "{err}");
        }
    }
}
