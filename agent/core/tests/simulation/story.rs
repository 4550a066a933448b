//! How one history goes: which container ends, when and why, and what becomes of its pod.

use super::{
    kubelet::{Builder, by_itself},
    plan::{Container, Fault, Plan, Story, Why},
    truth::{BEGIN, PAUSE_CGROUP, POD_CGROUP, TrueEnd, Truth, name, sandbox_id, uid},
};
use coroner_core::testkit::{self, *};

impl Truth {
    pub(crate) fn of(plan: &Plan) -> Self {
        let begin = BEGIN;
        let story = begin + 2_000 + plan.ran;
        let mut builder = Builder {
            plan,
            random: fastrand::Rng::with_seed(plan.jitter),
            kernel: Vec::new(),
            runtime: Vec::new(),
            changes: Vec::new(),
            ends: Vec::new(),
            attempts: Vec::new(),
            posted: Vec::new(),
            story,
        };
        let pod = format!("/kubepods/pod{}", uid());
        for (cgroup, parent, name) in
            [(POD_CGROUP, None, pod), (PAUSE_CGROUP, Some(POD_CGROUP), sandbox_id().to_string())]
        {
            builder.kernel.push((begin, created(cgroup, parent, &name)));
        }
        builder.changes.push((begin - 500, Box::new(|_| ())));
        builder.changes.push((begin + 1_000, Box::new(|pod| pod.phase = "Running".into())));
        for container in 0..plan.containers.len() {
            builder.start(begin + 100 + container as u64 * 20, container);
        }
        let mut ends = None;
        let mut pod_end = None;
        match plan.story {
            Story::Delete => {
                ends = Some(builder.delete(story, story + plan.reaction));
                pod_end = Some("api_delete");
            }
            Story::Stop { why, which, then_deleted } => {
                builder.probes(story, which, matches!(why, Why::Liveness));
                let deleted = then_deleted.map(|after| story + after);
                let mut acts = deleted.map(|at| at + plan.reaction);
                let grace = plan.grace * 1000;
                // Where no clock is right, only that the rest of the pod was stopped later tells a stop before
                // the deletion from one for it.
                let blurred = if matches!(plan.fault, Fault::Clocks { .. }) { 2_500 } else { 0 };
                // What the kubelet stops it starts again in the same sync, whatever comes meanwhile; what it
                // finds ended only if the pod is not being deleted by then.
                match why {
                    Why::Liveness | Why::Definition => {
                        let cause = match why {
                            Why::Definition => "definition_changed",
                            _ => "liveness",
                        };
                        let hook = plan.containers[which].hook;
                        let dead = builder.stops(story, which, grace, (hook, false), &[cause]);
                        // A changed image is pulled first; what was stopped for its probe may have to wait
                        // in back-off, which the status of the next sync shows. A deletion ends both.
                        let found = dead + builder.soon(100, 500);
                        let mut shown = dead;
                        if plan.pause > 0 && !matches!(why, Why::Definition) {
                            shown = found + builder.soon(200, 1_200);
                            if deleted.is_none_or(|at| at > shown) {
                                builder.waits(shown, which);
                            }
                        }
                        let again = found + plan.pause;
                        let restarts = plan.pause == 0 || acts.is_none_or(|acts| again + 50 < acts);
                        if restarts {
                            builder.start(again, which);
                            acts = acts.map(|at| at.max(again + 50));
                        } else {
                            // What the kubelet acted on nothing tells.
                            let soon = |at| at <= (shown + blurred).max(story + 5_500);
                            if deleted.is_some_and(soon) {
                                let end = builder.attempts[which].end.as_mut();
                                end.expect("it has ended").causes.push("api_delete".into());
                            }
                            acts = acts.map(|at| at.max(found));
                        }
                    }
                    Why::External | Why::Itself | Why::Oom => {
                        let (dead, cause) = if matches!(why, Why::External) {
                            let cause = "external_stop";
                            (builder.stops(story, which, grace, (None, true), &[cause]), cause)
                        } else if matches!(why, Why::Oom) {
                            builder.oom(story, which);
                            (story, "completed")
                        } else {
                            let code = plan.containers[which].code;
                            builder.ends(story, which, ExitStatus::Code(code), true);
                            builder.attempts[which].end =
                                Some(TrueEnd::new(story, by_itself(code), &["completed"]));
                            (story, "completed")
                        };
                        let found = dead + builder.soon(1_000, 2_500);
                        let again = found + plan.pause;
                        let restarts = acts.is_none_or(|acts| again + 50 < acts);
                        // The deletion came while it was being stopped, or so soon after that nothing
                        // tells which of the two the kubelet acted on.
                        let soon = |at| at <= (dead + blurred).max(story + 5_500);
                        if deleted.is_some_and(soon) {
                            let end = builder.attempts[which].end.as_mut().expect("it has ended");
                            end.causes = vec![cause.into(), "api_delete".into()];
                        }
                        if plan.pause > 0 && acts.is_none_or(|acts| found + 100 < acts) {
                            builder.waits(found + 100, which);
                        }
                        if restarts {
                            builder.start(again, which);
                        }
                    }
                }
                if let Some((at, acts)) = deleted.zip(acts) {
                    ends = Some(builder.delete(at, acts));
                    pod_end = Some("api_delete");
                }
            }
            Story::Complete { .. } => {
                let (mut last, mut failed) = (story, false);
                let mains = (0..plan.containers.len()).filter(|one| !plan.containers[*one].sidecar);
                for index in mains.collect::<Vec<_>>() {
                    let at = story + builder.soon(0, 3_000);
                    let code = plan.containers[index].code;
                    failed |= code != 0;
                    builder.ends(at, index, ExitStatus::Code(code), true);
                    builder.attempts[index].end =
                        Some(TrueEnd::new(at, by_itself(code), &["completed"]));
                    last = last.max(at);
                }
                let at = last + builder.soon(50, 1_000);
                let dead = builder.stop_all(at, "completed");
                let stopped = builder.stop_sandbox(dead);
                let told = stopped + builder.soon(950, 1_500);
                let phase = if failed { "Failed" } else { "Succeeded" };
                builder.changes.push((told, Box::new(move |pod| pod.phase = phase.into())));
                pod_end = Some("completed");
            }
        }
        let Builder {
            mut kernel, mut runtime, mut changes, ends: mut shown, attempts, posted, ..
        } = builder;
        // A status is of one moment: it shows no end without those before.
        shown.sort_unstable();
        let mut last = 0;
        for (_, change) in shown {
            last = changes[change].0.max(last);
            changes[change].0 = last;
        }
        kernel.sort_by_key(|(at, _)| *at);
        runtime.sort_by_key(|(at, _)| *at);
        changes.sort_by_key(|(at, _)| *at);
        let mut pod = object(plan);
        let object: Vec<_> = changes
            .iter()
            .map(|(at, change)| {
                change(&mut pod);
                (*at, pod.clone())
            })
            .collect();
        let last = |times: &[u64]| times.iter().copied().max().unwrap_or_default();
        let over = last(&[
            kernel.last().map_or(0, |(at, _)| *at),
            runtime.last().map_or(0, |(at, _)| *at),
            object.last().map_or(0, |(at, _)| *at),
        ]);
        Self {
            kernel,
            runtime,
            object,
            gone: ends.map(|(gone, _)| gone + 1),
            attempts,
            posted,
            story,
            pod_end,
            over,
            grace: plan.grace,
            hooks: plan.containers.iter().map(|one| one.hook.is_some()).collect(),
            clock_set: match plan.fault {
                Fault::Clocks { from, step } => Some((story.saturating_add_signed(from), step)),
                _ => None,
            },
        }
    }
}

fn object(plan: &Plan) -> ApiPod {
    let container = |(index, one): (usize, &Container)| {
        let spec = ApiContainer {
            kind: if one.sidecar { ContainerKind::Sidecar } else { ContainerKind::Main },
            pre_stop: one.hook.and_then(|_| exec_hook("hook")),
            liveness: one.probed.then(|| ApiProbe {
                exec: one.by_exec.then(|| "check".into()),
                ..ApiProbe::default()
            }),
            ..ApiContainer::default()
        };
        (name(index), spec)
    };
    ApiPod {
        workload: None,
        grace_seconds: Some(plan.grace as i64),
        finalizers: plan.finalizer.iter().map(|_| "example.com/held".into()).collect(),
        restart_policy: match plan.story {
            Story::Complete { policy } => policy.into(),
            _ => "Always".into(),
        },
        phase: "Pending".into(),
        containers: plan.containers.iter().enumerate().map(container).collect(),
        ..testkit::object(1, false, BootTime(0))
    }
}
