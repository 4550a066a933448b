//! The HTTP server by its router: what each page answers, and what it says to nonsense.

use crate::binary::serving::{self, sample, state};
use axum::{
    body::Body,
    http::{Method, Request, StatusCode},
};
use coroner::{
    linux::clock,
    outputs::http::{Audience, SharedState, router},
    sources::kernel::StartReport,
    store::{history::History, leaks::LeakStore},
};
use coroner_core::input::{ApiEvent, CriEvent, Input, Received};
use coroner_report::{
    Cause, ContainerDeath, Leak, LeakKey, List, PodTermination, Verdict, Workload,
};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use std::{collections::BTreeMap, io::Read as _, sync::Arc, time::Duration};
use tower::ServiceExt;

/// An agent that has just started, with three accounts: a.1, b.1, a.2. b took longest, has one container, and ended last.
fn agent() -> Arc<SharedState> {
    let history = History::in_memory();
    for (name, life) in [("a", 1), ("b", 1), ("a", 2)] {
        let mut account = sample();
        account.pod.namespace = format!("ns-{name}");
        account.pod.name = name.into();
        account.pod.uid = format!("uid-{name}").as_str().into();
        account.life = life;
        account.workload = Some(Workload { kind: "Deployment".into(), name: name.into() });
        if name == "b" {
            account.took = Duration::from_secs(90);
            account.ended.boot = account.ended.boot + Duration::from_secs(60);
            account.containers.truncate(1);
            account.containers[0].verdict = Verdict::OomKilled;
            (account.cause, account.findings) = (Cause::TaintEviction, Vec::new());
        }
        for death in &mut account.containers {
            death.pod = Some(account.pod.clone());
            death.id = format!("{name}{life}-{}", death.name).as_str().into();
            history.died(Box::new(death.clone()), false);
        }
        history.terminated(Box::new(account), false);
    }
    state(history, LeakStore::default())
}

async fn ask(shared: &Arc<SharedState>, method: Method, uri: &str) -> (StatusCode, String) {
    ask_with(shared, Audience::Node, method, uri).await
}

async fn ask_with(
    shared: &Arc<SharedState>,
    audience: Audience,
    method: Method,
    uri: &str,
) -> (StatusCode, String) {
    let request = Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
    let answer = router(shared.clone(), audience).oneshot(request).await.unwrap();
    let status = answer.status();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn get(shared: &Arc<SharedState>, uri: &str) -> (StatusCode, String) {
    ask(shared, Method::GET, uri).await
}

async fn listed(shared: &Arc<SharedState>, query: &str) -> Vec<String> {
    let (status, body) = get(shared, &format!("/api/v1/terminations{query}")).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let list: List<PodTermination> = serde_json::from_str(&body).unwrap();
    list.items.iter().map(|item| format!("{}.{}", item.pod.name, item.life)).collect()
}

#[tokio::test]
async fn lists_the_newest_first_and_filters() {
    let agent = agent();
    let end = clock::anchor().wall(sample().ended.boot + Duration::from_secs(30));
    let (since, until) = (format!("since={end}"), format!("until={end}"));
    let (all, a, b) = (["b.1", "a.2", "a.1"], &["a.2", "a.1"][..], &["b.1"][..]);
    for (query, wanted) in [
        ("", &all[..]),
        ("limit=1", b),
        ("namespace=ns-a", a),
        ("namespace=ns-a&pod=b", &[]),
        ("pod=a&limit=1", &["a.2"]),
        ("pod=uid-b", b),
        ("workload=a", a),
        ("workload=Deployment%2Fb", b),
        ("workload=StatefulSet%2Fb", &[]),
        (&since, b),
        (&until, a),
        ("since=1s", &[]),
        ("over=89s", b),
        ("over=90s", &[]),
        ("sort=took", &all),
        ("sort=ended", &all),
        ("verdict=oom_killed", b),
        ("container=web", &all),
        ("container=proxy", a),
        ("container=proxy&verdict=stop_signal_ignored", a),
        ("container=proxy&verdict=graceful", &[]), // that is the other one's
        ("cause=taint_eviction", b),
        ("cause=api_delete&verdict=oom_killed", b), // of the container
        ("cause=taint_eviction&verdict=graceful", &[]),
        ("finding=runtime_restarted", a), // of the pod
        ("finding=children_not_signalled", a),
        ("finding=children_not_signalled&container=web", &[]),
        ("finding=frozen", &[]),
    ] {
        assert_eq!(listed(&agent, &format!("?{query}")).await, wanted, "{query}");
    }
    let more = async |query| after::<PodTermination>(&agent, query, "").await.more;
    assert!(!more("/api/v1/terminations?limit=3").await);
    let (_, body) = get(&agent, "/api/v1/deaths?namespace=ns-a").await;
    let deaths: List<ContainerDeath> = serde_json::from_str(&body).unwrap();
    let mut ids: Vec<&str> = deaths.items.iter().map(|death| death.id.as_str()).collect();
    assert_eq!(ids.len(), 4);
    ids.truncate(2);
    assert_eq!(ids, ["a2-proxy", "a1-proxy"], "of the same time the last one first");
}

#[tokio::test]
async fn one_pod_by_uid_and_life() {
    let agent = agent();
    for (uri, life) in [("uid-a", 2), ("uid-a?life=1", 1), ("uid-b", 1)] {
        let (status, body) = get(&agent, &format!("/api/v1/terminations/{uri}")).await;
        assert_eq!(status, StatusCode::OK, "{uri}");
        assert_eq!(serde_json::from_str::<PodTermination>(&body).unwrap().life, life, "{uri}");
    }
    for uri in ["uid-c", "uid-a?life=3"] {
        let (status, body) = get(&agent, &format!("/api/v1/terminations/{uri}")).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{uri}");
        assert!(body.contains("--history-age"), "{body}");
    }
}

#[tokio::test]
async fn nonsense_is_answered_in_words() {
    let agent = agent();
    let cases = [
        (Method::GET, "/nothing", StatusCode::NOT_FOUND, "not found; see /"),
        (Method::GET, "/api/v1/terminations?limit=many", StatusCode::BAD_REQUEST, "limit"),
        (Method::GET, "/api/v1/terminations?since=soon", StatusCode::BAD_REQUEST, "30m or 1d"),
        (Method::GET, "/api/v1/terminations?limit=-1", StatusCode::BAD_REQUEST, "limit"),
        (Method::GET, "/api/v1/terminations?nmaespace=x", StatusCode::BAD_REQUEST, "nmaespace"),
        (Method::GET, "/api/v1/terminations/uid-a?life=x", StatusCode::BAD_REQUEST, "life"),
        (Method::GET, "/api/v1/terminations/%1b%5b2J?life=9", StatusCode::NOT_FOUND, "2J"),
        (Method::GET, "/api/v1/deaths?%1b%5b2J=1", StatusCode::BAD_REQUEST, "2J"),
        (
            Method::GET,
            "/api/v1/terminations?verdict=gracefull",
            StatusCode::BAD_REQUEST,
            "oom_killed",
        ),
        (Method::GET, "/api/v1/deaths?cause=x", StatusCode::BAD_REQUEST, "api_delete"),
        (Method::GET, "/api/v1/deaths?finding=x", StatusCode::BAD_REQUEST, "unkillable"),
        (Method::GET, "/api/v1/deaths?sort=x", StatusCode::BAD_REQUEST, "took"),
        (Method::GET, "/api/v1/deaths?over=long", StatusCode::BAD_REQUEST, "60s"),
        (Method::GET, "/api/v1/deaths?until=2026", StatusCode::BAD_REQUEST, "2026-11-28T02:00:00Z"),
        (Method::GET, "/api/v1/leaks?cause=api_delete", StatusCode::BAD_REQUEST, "finalizer"),
        (Method::GET, "/api/v1/leaks?verdict=graceful", StatusCode::BAD_REQUEST, "leaks have none"),
        (Method::GET, "/readyz?format=xml", StatusCode::BAD_REQUEST, "xml"),
        (Method::POST, "/metrics", StatusCode::METHOD_NOT_ALLOWED, "only GET"),
    ];
    for (method, uri, wanted, word) in cases {
        let (status, body) = ask(&agent, method, uri).await;
        assert_eq!(status, wanted, "{uri}");
        assert!(body.contains(word), "{uri}: {body}");
        let text = body.strip_suffix('\n').expect("a line");
        assert!(!text.contains(char::is_control), "what is repeated moves no cursor: {text:?}");
    }
}

#[tokio::test]
async fn the_index_names_every_page() {
    let agent = agent();
    let (status, body) = get(&agent, "/").await;
    assert_eq!(status, StatusCode::OK);
    let pages = body.split_whitespace().filter(|word| word.starts_with('/'));
    for page in pages.map(|page| page.replace("UID", "uid-a")) {
        let (status, _) = get(&agent, &page).await;
        assert_ne!(status, StatusCode::NOT_FOUND, "{page}");
    }
}

/// Which checks fail when is a matter of the store.
#[tokio::test]
async fn readiness_and_liveness_are_statuses() {
    let agent = agent();
    let (status, body) = get(&agent, "/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(body.matches("FAILING").count(), 1, "the kernel side comes first: {body}");
    let at = clock::boot_now();
    let connected = CriEvent::Connected { runtime: "containerd 1.7".into(), process: None };
    {
        let mut health = agent.health.lock();
        let hooks = BTreeMap::from([("cgroup_mkdir", Ok(()))]);
        health.kernel_started(StartReport { hooks, ..StartReport::default() });
        health.note(&Received { at, input: Input::Cri(connected) });
        health.note(&Received { at, input: Input::Api(ApiEvent::Snapshot { pods: vec![] }) });
    }
    let (status, body) = get(&agent, "/readyz?format=json").await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["ready"], true);
    let checks = body["checks"].as_array().unwrap();
    let cri = checks.iter().find(|check| check["name"] == "cri").unwrap();
    assert_eq!((&cri["severity"], &cri["found"]), (&"ok".into(), &"containerd 1.7".into()));
    assert_eq!(get(&agent, "/healthz").await.0, StatusCode::OK);
    let long_ago = clock::boot_now() - Duration::from_secs(11);
    agent.health.lock().note(&Received { at: long_ago, input: Input::Tick });
    let (status, body) = get(&agent, "/healthz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(body.contains("stalled"), "{body}");
}

#[tokio::test]
async fn the_network_is_told_of_no_pod() {
    let agent = agent();
    let ask = async |uri: &str| ask_with(&agent, Audience::Network, Method::GET, uri).await;
    for page in ["terminations/uid-a?life=1", "leaks?after=1-1", "deaths", "openapi.json", "other"]
    {
        let (status, said) = ask(&format!("/api/v1/{page}")).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{page}: {said}");
        assert!(
            said.contains("not served on this port") && !said.contains("uid-a"),
            "{page}: {said}"
        );
    }
    let (status, said) = ask("/").await;
    assert_eq!(status, StatusCode::OK);
    assert!(said.contains("/api/v1/*: ") && !said.contains("/api/v1/leaks"), "{said}");
    let (_, said) = get(&agent, "/").await;
    assert!(said.contains("/api/v1/leaks"), "{said}");
    for page in ["/metrics", "/healthz", "/readyz"] {
        let shown = get(&agent, page).await;
        let hidden = ask(page).await;
        assert_eq!(hidden.0, shown.0, "{page} is the same");
    }
    let (status, _) = ask_with(&agent, Audience::Network, Method::POST, "/api/v1/leaks").await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
}

/// A page of evil.example that has its name resolve to 127.0.0.1 reads nothing through a port-forward.
#[tokio::test]
async fn a_forwarded_port_is_named_by_an_address() {
    let agent = agent();
    let ask = async |uri: &str, host: Option<&str>| {
        let mut request = Request::builder().uri(uri);
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let request = request.body(Body::empty()).unwrap();
        let answer = router(agent.clone(), Audience::Forwarded).oneshot(request).await.unwrap();
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
        answer.status()
    };
    let (own, foreign) = (
        ["127.0.0.1:9471", "[::1]:9471", "localhost", "LOCALHOST:1", "10.0.0.7"],
        ["evil.example", "127.0.0.1.evil.example:9471", "localhost.evil.example", "", "a b"],
    );
    for uri in ["/api/v1/terminations", "/api/v1/leaks?after=1-1", "/api/v1/openapi.json"] {
        for host in own {
            assert_eq!(ask(uri, Some(host)).await, StatusCode::OK, "{uri} {host}");
        }
        for host in foreign {
            assert_eq!(ask(uri, Some(host)).await, StatusCode::FORBIDDEN, "{uri} {host}");
        }
        assert_eq!(ask(uri, None).await, StatusCode::FORBIDDEN, "{uri}");
    }
}

#[tokio::test]
async fn a_scrape_is_shared_for_a_second() {
    let agent = agent();
    let (_, first) = get(&agent, "/metrics").await;
    agent.metrics.request_dropped(coroner::outputs::metrics::Adapter::Cri);
    // However long this takes, it is within the second.
    agent.scrape.lock()[0].as_mut().unwrap().0 = clock::boot_now() + Duration::from_secs(3600);
    let (_, second) = get(&agent, "/metrics").await;
    assert_eq!(first, second);
    let long_ago = clock::boot_now() - Duration::from_secs(2);
    agent.scrape.lock()[0].as_mut().unwrap().0 = long_ago;
    let (_, third) = get(&agent, "/metrics").await;
    assert_ne!(first, third);
}

#[tokio::test]
async fn a_scrape_is_compressed_for_whom_accepts_it() {
    let agent = agent();
    let (_, plain) = get(&agent, "/metrics").await;
    for (accepted, is_compressed) in
        [("gzip", true), ("deflate, gzip;q=0.5", true), ("identity", false), ("gzip;q=0", false)]
    {
        let request = Request::get("/metrics").header("accept-encoding", accepted);
        let request = request.body(Body::empty()).unwrap();
        let answer = router(agent.clone(), Audience::Network).oneshot(request).await.unwrap();
        let coding = answer.headers().get("content-encoding").cloned();
        assert_eq!(coding.is_some_and(|coding| coding == "gzip"), is_compressed, "{accepted}");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let mut text = String::new();
        if is_compressed {
            flate2::read::GzDecoder::new(&body[..]).read_to_string(&mut text).unwrap();
        } else {
            text = String::from_utf8(body.to_vec()).unwrap();
        }
        assert_eq!(text, plain, "{accepted}");
    }
}

#[tokio::test]
async fn the_envelope_names_the_node_and_its_boot() {
    let agent = agent();
    for path in ["terminations", "deaths", "leaks", "leaks?namespace=none"] {
        let (_, body) = get(&agent, &format!("/api/v1/{path}")).await;
        let list: List<serde_json::Value> = serde_json::from_str(&body).unwrap();
        assert_eq!((&*list.node, &*list.boot_id), ("n1", "b\"1"), "{body}");
        assert_eq!(list.detection.is_some(), path.starts_with("leaks"), "{body}");
    }
}

fn leak(id: &str) -> Arc<Leak> {
    let key = LeakKey::Sandbox { id: id.into() };
    Arc::new(Leak { key, ..serving::leak() })
}

/// What a list has after a cursor.
async fn after<T: DeserializeOwned>(shared: &Arc<SharedState>, uri: &str, cursor: &str) -> List<T> {
    let (status, body) = get(shared, &format!("{uri}&after={cursor}")).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    serde_json::from_str(&body).unwrap()
}

#[tokio::test]
async fn a_cursor_brings_what_is_new_or_corrected() {
    let agent = agent();
    let ask = async |cursor: &str| {
        let uri = "/api/v1/terminations?namespace=ns-a";
        let list = after::<PodTermination>(&agent, uri, cursor).await;
        let items: Vec<_> = list.items.iter().map(|item| (item.life, item.revision)).collect();
        (list.complete, items, list.cursor)
    };
    let revision = sample().revision;
    // Unknown ones begin again: of another run, of none.
    for unknown in ["", "x", "1-1"] {
        assert_eq!(ask(unknown).await.1, [(2, revision), (1, revision)], "{unknown}");
        assert!(ask(unknown).await.0, "{unknown}");
    }
    let cursor = ask("").await.2;
    assert_eq!(ask(&cursor).await, (false, vec![], cursor.clone()));

    let mut report = sample();
    report.pod.namespace = "other".into();
    agent.history.terminated(Box::new(report.clone()), false);
    (report.pod.namespace, report.pod.uid) = ("ns-a".into(), "uid-a".into());
    report.life = 3;
    agent.history.terminated(Box::new(report.clone()), false);
    (report.life, report.revision) = (2, 7);
    agent.history.terminated(Box::new(report), false);
    let (complete, changed, newer) = ask(&cursor).await;
    assert!(!complete);
    assert_eq!(changed, [(3, revision), (2, 7)], "the oldest change first");
    assert_eq!(ask(&newer).await.1, []);

    // What a limit cuts comes with the next answer.
    let (mut cursor, mut seen) = (cursor, Vec::new());
    for _ in 0..3 {
        let uri = "/api/v1/terminations?namespace=ns-a&limit=1";
        let page = after::<PodTermination>(&agent, uri, &cursor).await;
        seen.extend(page.items.iter().map(|item| item.life));
        cursor = page.cursor;
    }
    assert_eq!(seen, [3, 2]);
    // A reader who has the items of another run drops what is not there: nothing may be left out.
    let again = after::<PodTermination>(&agent, "/api/v1/terminations?limit=1", "1-1").await;
    let all = after::<PodTermination>(&agent, "/api/v1/terminations?limit=100", "").await;
    assert!(again.complete && again.items.len() > 1);
    assert_eq!(again.items.len(), all.items.len());
    let (status, _) = get(&agent, "/api/v1/terminations?limit=0").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_cursor_brings_the_leaks_that_are_resolved() {
    let agent = agent();
    let put = |id: &str| agent.leaks.lock().put(leak(id));
    let end = |id: &str| {
        let resolved_at = Some(leak(id).confirmed);
        let gone = Leak { resolved_at, ..Leak::clone(&leak(id)) };
        agent.leaks.lock().remove(Arc::new(gone));
    };
    let ask = async |cursor: &str| after::<Leak>(&agent, "/api/v1/leaks?since=1m", cursor).await;
    let all = async || after::<Leak>(&agent, "/api/v1/leaks?limit=9", "").await;
    put("gone");
    put("0");
    end("gone");
    let first = all().await;
    assert!(first.complete && first.items.len() == 1 && first.detection.is_some());
    // One came and went between two answers: nothing of it is shown.
    put("1");
    end("1");
    end("0");
    let second = ask(&first.cursor).await;
    assert!(!second.complete && second.items.len() == 1, "however old it is");
    assert!(second.items[0].resolved_at.is_some());
    assert_eq!(second.items[0].key, leak("0").key);
    assert!(ask(&second.cursor).await.items.is_empty());

    // The agent keeps the last 256: a client that has not seen the others begins again.
    (0..300).for_each(|n| put(&n.to_string()));
    let (_, body) = get(&agent, "/api/v1/leaks?limit=9").await;
    let few: List<Leak> = serde_json::from_str(&body).unwrap();
    assert!(few.items.len() == 9 && few.more);
    let before = all().await.cursor;
    (0..256).for_each(|n| end(&n.to_string()));
    assert_eq!(ask(&before).await.items.len(), 256);
    end("256");
    assert!(ask(&before).await.complete, "it would miss some");
}
