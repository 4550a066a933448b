//! A line of the log, in klog's text or JSON, to what it says. Lines that no pattern has are left after their
//! message was looked up; only lines of the table are taken apart.

use super::{
    entry::{Draft, word},
    field::Field,
    klog, table,
    time::{LineTime, Moment, Receipt, moment},
};
use coroner_core::{
    ids::PodUid,
    input::{KubeletEntry, KubeletStatement},
    labels,
    time::{Anchor, WallTime},
};
use serde_json::{Map, Value as Json};
use std::borrow::Cow;

labels! {
    /// What became of a line of the kubelet's log: the label `result` of `coroner_kubelet_log_lines_total`.
    pub enum LineResult {
        /// It says something that the agent knows.
        Read = "read",
        /// It says something that the agent does not use.
        Skipped = "skipped",
        /// It begins as a line that the agent knows, and cannot be taken apart.
        NotUnderstood = "not_understood",
        /// It was written before this boot.
        OtherBoot = "other_boot",
        /// It is longer than the agent reads.
        TooLong = "too_long",
        /// It came when the budget was spent.
        OverBudget = "over_budget",
    }
}

/// What a line says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Parsed {
    pub(super) result: LineResult,
    /// One per pod.
    pub(super) entries: Vec<KubeletEntry>,
    /// `-v` that the line needs.
    pub(super) level: u8,
}

impl Parsed {
    fn nothing(result: LineResult) -> Self {
        Self { result, entries: Vec::new(), level: 0 }
    }
}

/// When a line of text was written, as it says: the zone of the node is found by it.
pub(super) fn time_of(line: &[u8]) -> Option<LineTime> {
    klog::line(klog::without_prefix(line)).map(|line| line.time)
}

/// When a line of text or JSON was written.
pub(super) fn time_of_either(line: &[u8]) -> Option<LineTime> {
    let json = klog::without_prefix(line);
    if json.first() != Some(&b'{') {
        return time_of(line);
    }
    let start = after(json, b"\"ts\":")?;
    let end = json[start..].iter().position(|byte| !matches!(byte, b'0'..=b'9' | b'.'))?;
    stamp(str::from_utf8(&json[start..start + end]).ok()?.parse().ok()?)
}

/// Where the value behind this sign begins in a line of JSON: time and message come among the first members.
fn after(line: &[u8], sign: &[u8]) -> Option<usize> {
    const HEAD: usize = 400;
    memchr::memmem::find(&line[..line.len().min(HEAD)], sign).map(|at| at + sign.len())
}

/// Reads a line.
pub(super) fn parse(line: &[u8], receipt: &Receipt) -> Parsed {
    let line = klog::without_prefix(line);
    if line.first() == Some(&b'{') {
        return json(line, receipt);
    }
    let Some(line) = klog::line(line) else { return Parsed::nothing(LineResult::Skipped) };
    let text = klog::without_mark(line.text);
    let Some((message, rest)) = klog::message(text) else {
        return match table::beginning(text) {
            Some(pattern) => unstructured(pattern, text, line.time, receipt),
            None => Parsed::nothing(LineResult::Skipped),
        };
    };
    let known = if message == table::EVENT {
        Some((KubeletStatement::EventStarted, table::EVENT_LEVEL))
    } else {
        table::structured(message).map(|pattern| (pattern.statement, pattern.level()))
    };
    let Some((statement, level)) = known else {
        return match table::beginning(message) {
            Some(pattern) => unstructured(pattern, message, line.time, receipt),
            None => Parsed::nothing(LineResult::Skipped),
        };
    };
    let fields = || {
        klog::fields(rest).filter_map(|(key, value)| {
            let key = str::from_utf8(key).ok().filter(|key| Draft::wants(key))?;
            Some((Cow::Borrowed(key), Field::of_text(value)))
        })
    };
    said(message == table::EVENT, statement, level, line.time, receipt, fields().collect())
}

/// Makes the entries of a line from its fields.
fn said(
    event: bool,
    statement: KubeletStatement,
    level: u8,
    time: LineTime,
    receipt: &Receipt,
    fields: Vec<(Cow<str>, Field)>,
) -> Parsed {
    let Some(at) = moment(time, receipt) else { return Parsed::nothing(LineResult::OtherBoot) };
    let mut draft = draft(statement, at);
    if event {
        for (key, field) in fields.iter().filter(|(key, _)| matches!(&**key, "reason" | "kind")) {
            draft.set(key, field);
        }
        let statement = draft.event_reason().and_then(table::event);
        let Some(statement) = statement else {
            return Parsed { level, ..Parsed::nothing(LineResult::Skipped) };
        };
        draft.entry.statement = statement;
    }
    for (key, field) in &fields {
        draft.set(key, field);
    }
    match draft.finish() {
        Some(entries) => Parsed { result: LineResult::Read, entries, level },
        None => Parsed { level, ..Parsed::nothing(LineResult::NotUnderstood) },
    }
}

/// What an Event says that the kubelet has posted. `at`: its time, which has whole seconds; the anchor is this node's.
pub fn event(
    (reason, object, message): (&str, &str, &str),
    at: WallTime,
    anchor: &Anchor,
) -> Option<KubeletEntry> {
    const HALF: i64 = 500_000_000;
    let wall = WallTime(at.0.saturating_add(HALF));
    let at = Moment { wall, boot: anchor.boot(wall), uncertainty_ns: HALF.unsigned_abs() };
    let mut draft = draft(table::event(reason)?, at);
    draft.set("fieldPath", &Field::Text(object.into()));
    draft.set("message", &Field::Text(message.into()));
    Some(draft.entry)
}

fn draft(statement: KubeletStatement, at: Moment) -> Draft {
    Draft::new(KubeletEntry::new(at.boot, at.uncertainty_ns, at.wall, statement))
}

/// Lines of the volume manager: `… pod "name" (UID: "uid") …`, `Operation for "{volumeName:… podName:uid …}" failed`.
fn unstructured(
    pattern: &table::Pattern,
    text: &[u8],
    time: LineTime,
    receipt: &Receipt,
) -> Parsed {
    let Some(at) = moment(time, receipt) else { return Parsed::nothing(LineResult::OtherBoot) };
    let text = super::field::unquoted(text);
    let after = |sign: &str, end: &[char]| {
        let rest = text.split_once(sign)?.1;
        rest.split(end).next().and_then(word).map(PodUid::new)
    };
    let mut draft = draft(pattern.statement, at);
    draft.entry.pod = after("(UID: \"", &['"']).or_else(|| after(" podName:", &[' ', '}']));
    if let Some((_, error)) = text.split_once(" Error: ") {
        draft.set("err", &Field::Text(error.into()));
    }
    let level = pattern.level();
    match draft.finish() {
        Some(entries) => Parsed { result: LineResult::Read, entries, level },
        None => Parsed { level, ..Parsed::nothing(LineResult::NotUnderstood) },
    }
}

/// A line of `--logging-format=json` (`k8s.io/component-base/logs/json`).
fn json(line: &[u8], receipt: &Receipt) -> Parsed {
    // A line whose message is unknown is not taken apart.
    let Some(start) = after(line, b"\"msg\":\"") else {
        return Parsed::nothing(LineResult::Skipped);
    };
    let Some((message, _)) = klog::message(&line[start - 1..]) else {
        return Parsed::nothing(LineResult::NotUnderstood);
    };
    let event = message == table::EVENT;
    let structured = table::structured(message);
    let begins = table::beginning(message);
    if !event && structured.is_none() && begins.is_none() {
        return Parsed::nothing(LineResult::Skipped);
    }
    let Ok(mut members) = serde_json::from_slice::<Map<String, Json>>(line) else {
        return Parsed::nothing(LineResult::NotUnderstood);
    };
    let Some(time) = members.get("ts").and_then(Json::as_f64).and_then(stamp) else {
        return Parsed::nothing(LineResult::NotUnderstood);
    };
    let level = members.get("v").and_then(Json::as_u64).and_then(|level| u8::try_from(level).ok());
    if let Some(pattern) = begins.filter(|_| structured.is_none()) {
        let text = members.remove("msg").and_then(|text| text.as_str().map(str::to_owned));
        return unstructured(pattern, text.unwrap_or_default().as_bytes(), time, receipt);
    }
    let known = structured.map(|pattern| (pattern.statement, pattern.level()));
    let (statement, least) = known.unwrap_or((KubeletStatement::EventStarted, table::EVENT_LEVEL));
    let wanted = members.into_iter().filter(|(key, _)| Draft::wants(key));
    let fields = wanted.map(|(key, value)| (Cow::Owned(key), Field::of_json(value))).collect();
    said(event, statement, level.unwrap_or(least), time, receipt, fields)
}

/// Milliseconds since the epoch, with a fraction.
fn stamp(millis: f64) -> Option<LineTime> {
    let nanos = millis * 1e6;
    (nanos.is_finite() && nanos.abs() < 9e18).then_some(LineTime::Wall(WallTime(nanos as i64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_core::{
        input::{
            KubeletChange, KubeletKillReason, KubeletPodSource, KubeletProbe,
            KubeletStatement as Says,
        },
        time::Anchor,
    };

    fn receipt() -> Receipt {
        // 2026-11-23T15:00:00Z.
        let wall_ns = 1_795_446_000_000_000_000;
        let anchor = Anchor { boot_ns: 1_000_000_000_000_000, wall_ns };
        Receipt::File { anchor, near: WallTime(wall_ns), zone: 0 }
    }

    fn text(rest: &str) -> Parsed {
        let line = format!("I1123 14:18:35.558172  315900 kubelet.go:2124] {rest}");
        parse(line.as_bytes(), &receipt())
    }

    fn one(parsed: Parsed) -> KubeletEntry {
        assert_eq!((parsed.result, parsed.entries.len()), (LineResult::Read, 1), "{parsed:?}");
        parsed.entries.into_iter().next().unwrap()
    }

    #[test]
    fn the_time_of_a_line_is_found_in_text_and_json() {
        let json = br#"{"ts":1795446000000.172,"caller":"kubelet/kubelet.go:1","msg":"x","v":2}"#;
        let wall = LineTime::Wall(WallTime(1_795_446_000_000_172_032));
        assert_eq!(time_of_either(json), Some(wall));
        assert_eq!(time_of(json), None, "it has no zone");
        let text = b"I1123 14:18:10.000000  1 kubelet.go:1] \"x\"";
        assert!(time_of(text).is_some());
        assert_eq!(time_of_either(text), time_of(text));
        for torn in ["{", "{\"ts\":", "{\"ts\":17", "{\"ts\":1.2.3,", "{\"msg\":1}", ""] {
            assert_eq!(time_of_either(torn.as_bytes()), None, "{torn}");
        }
    }

    #[test]
    fn text_and_json_say_the_same() {
        let wall = 1_795_446_000_000_000_000 - (41 * 60 + 24) * 1_000_000_000 - 441_828_000;
        let of_text = one(text(r#""SyncLoop REMOVE" source="file" pods=["a/b"]"#));
        assert_eq!(of_text.wall, WallTime(wall));
        let line = format!(
            r#"{{"ts":{}.172,"caller":"kubelet/kubelet.go:1","msg":"SyncLoop REMOVE","v":2,"source":"file","pods":[{{"name":"b","namespace":"a"}}]}}"#,
            wall / 1_000_000
        );
        let parsed = parse(line.as_bytes(), &receipt());
        assert_eq!(parsed.level, 2);
        let of_json = one(parsed);
        assert!(of_json.wall.0.abs_diff(wall) < 1_000, "a float has no more");
        assert_eq!(
            KubeletEntry {
                wall: of_text.wall,
                time: of_text.time,
                uncertainty_ns: of_text.uncertainty_ns,
                ..of_json
            },
            of_text
        );
        assert_eq!(
            (of_text.source, of_text.name.as_deref()),
            (Some(KubeletPodSource::File), Some("b"))
        );
    }

    #[test]
    fn a_line_of_several_pods_is_an_entry_each() {
        let parsed = text(r#""SyncLoop ADD" source="api" pods=[a/b c/d]"#);
        let names: Vec<_> = parsed.entries.iter().filter_map(|one| one.name.as_deref()).collect();
        assert_eq!(names, ["b", "d"]);
        assert_eq!(text(r#""SyncLoop ADD" source="file" pods=[]"#).result, LineResult::Read);
    }

    #[test]
    fn reasons_changes_and_failures_are_read() {
        let entry = one(text(
            r#""Message for Container of pod" containerName="c" containerStatusID={"Type":"containerd","ID":"47fa"} pod="default/i" containerMessage="Container c failed liveness probe, will be restarted""#,
        ));
        assert_eq!(entry.reason, Some(KubeletKillReason::LivenessProbe));
        assert_eq!(entry.container_id.unwrap().as_str(), "47fa");
        let entry = one(text(
            r#""SyncLoop (PLEG): event for pod" pod="default/leak1" event=&{ID:cfdb Type:ContainerDied Data:ddd8}"#,
        ));
        assert_eq!(entry.change, Some(KubeletChange::Died));
        let entry = one(text(
            r#""Error syncing pod, skipping" err="failed to \"KillContainer\" for \"c\" with KillContainerError: \"rpc error: x\"" pod="default/l" podUID=4393f462"#,
        ));
        assert_eq!(
            (&*entry.failures[0].action, entry.pod.unwrap().as_str()),
            ("KillContainer", "4393f462")
        );
        let entry = one(text(
            r#""StopPodSandbox from runtime service failed" err="rpc error: failed to destroy network for sandbox \"d3\": plugin type=\"calico\" failed (delete)" podSandboxID="d3""#,
        ));
        assert_eq!(entry.statement, Says::CniFailed);
        assert!(entry.error.unwrap().contains("calico"));
        let entry = one(text(
            r#""Back-off restarting failed container" err="back-off 10s restarting failed container=a pod=p_default(48a8-a)""#,
        ));
        assert_eq!((entry.name.as_deref(), entry.pod.unwrap().as_str()), (Some("p"), "48a8-a"));
        let entry = one(text(
            r#"Operation for "{volumeName:kubernetes.io/nfs/u-data podName:9ad0 nodeName:}" failed. No retries permitted until 2026 (durationBeforeRetry 500ms). Error: UnmountVolume.TearDown failed for volume "data": busy"#,
        ));
        assert_eq!(
            (entry.statement, entry.pod.unwrap().as_str()),
            (Says::VolumeOperationFailed, "9ad0")
        );
        let entry = one(text(
            r#""operationExecutor.UnmountVolume started for volume \"m\" (UniqueName: \"x\") pod \"9ad0\" (UID: \"9ad0c\") ""#,
        ));
        assert_eq!((entry.statement, entry.pod.unwrap().as_str()), (Says::UnmountStarted, "9ad0c"));
        let entry = one(text(
            r#""Failed to delete cgroup paths" cgroupName=["kubepods","besteffort","pod9ad0"] err="busy""#,
        ));
        assert_eq!(entry.pod.unwrap().as_str(), "9ad0");
    }

    #[test]
    fn events_of_pods_are_read_by_their_reason() {
        let event = |kind: &str, reason: &str, message: &str| {
            text(&format!(
                r#""Event occurred" object="default/p" fieldPath="spec.containers{{a}}" kind="{kind}" apiVersion="v1" type="Normal" reason="{reason}" message="{message}""#
            ))
        };
        let entry =
            one(event("Pod", "Killing", "Container a definition changed, will be restarted"));
        let wanted = (Says::EventKilling, Some(KubeletKillReason::DefinitionChanged));
        assert_eq!((entry.statement, entry.reason), wanted);
        assert_eq!(entry.container.as_deref(), Some("a"));
        let entry = one(event("Pod", "Unhealthy", "Liveness probe failed: hunter2"));
        assert!(!format!("{entry:?}").contains("hunter2") && entry.probe.is_some());
        let probe = |message: &str| one(event("Pod", "Unhealthy", message)).probe;
        let combined = "(combined from similar events): Startup probe failed: hunter2";
        assert_eq!(probe(combined), Some(KubeletProbe::Startup));
        let of_another = "Readiness probe failed: Liveness probe failed: hunter2";
        assert_eq!(probe(of_another), Some(KubeletProbe::Readiness));
        assert_eq!(probe("Liveness probe errored: probe failed: x"), None, "it is no failure");
        assert_eq!(event("Node", "Killing", "x").result, LineResult::Skipped);
        assert_eq!(event("Pod", "Scheduled", "x").result, LineResult::Skipped);
    }

    #[test]
    fn commands_and_what_they_print_are_never_kept() {
        let lines = [
            r#""Exec lifecycle hook for Container in Pod failed" execCommand=["sh","-c","hunter2"] containerName="a" pod="default/p" message="hunter2" err="command 'hunter2' exited with 1: ""#,
            r#""PreStop hook failed" err="command 'hunter2' exited with 137: " pod="default/p" podUID="u" containerName="a" containerID="containerd://f3""#,
            r#""Probe failed" probeType="Liveness" pod="default/p" podUID="u" containerName="c" probeResult="failure" output="hunter2""#,
            r#""Error syncing pod, skipping" err="failed to \"StartContainer\" for \"a\" with PostStartHookError: \"Exec lifecycle hook ([sh -c hunter2]) for Container\"" pod="default/p" podUID="u""#,
            r#""Patch status for pod" pod="default/p" podUID="u" patch="{\"hunter2\":1}""#,
        ];
        for line in lines {
            let entry = one(text(line));
            assert!(!format!("{entry:?}").contains("hunter2"), "{entry:?}");
        }
    }

    #[test]
    fn what_is_unknown_is_skipped_and_what_lacks_its_pod_is_not_understood() {
        assert_eq!(text(r#""Something else" pod="a/b""#).result, LineResult::Skipped);
        assert_eq!(text("error while reading /proc").result, LineResult::Skipped);
        assert_eq!(text(r#""SyncPod enter" pod="a"#).result, LineResult::NotUnderstood);
        let old =
            parse(br#"I0101 00:00:00.000000 1 a.go:1] "SyncPod enter" pod="a/b""#, &receipt());
        assert_eq!(old.result, LineResult::OtherBoot);
        assert_eq!(
            parse(b"{\"msg\":\"SyncPod enter\"", &receipt()).result,
            LineResult::NotUnderstood
        );
    }
}
