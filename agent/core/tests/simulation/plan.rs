//! What happens in one history, chosen at random, and how the apiserver and the runtime fail to say so
//! in time.

use proptest::prelude::*;

/// One pod's history.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Its containers.
    pub(crate) containers: Vec<Container>,
    /// Its grace, seconds.
    pub(crate) grace: u64,
    /// What happens.
    pub(crate) story: Story,
    /// For how long it runs before that, ms.
    pub(crate) ran: u64,
    /// How long the kubelet takes to act, ms.
    pub(crate) reaction: u64,
    /// By how much the apiserver's clock is wrong, ms.
    pub(crate) skew: i64,
    /// For so long a finalizer holds the object when the kubelet is done with it, ms.
    pub(crate) finalizer: Option<u64>,
    /// For so long the next attempt of a container waits for its image or in back-off, ms.
    pub(crate) pause: u64,
    /// Its containers share one PID namespace: none of them has a PID 1.
    pub(crate) shares_pids: bool,
    /// The seed of the small delays of all that follows.
    pub(crate) jitter: u64,
    /// What goes wrong.
    pub(crate) fault: Fault,
}

/// One container.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Container {
    pub(crate) response: Response,
    /// With what it exits, unless it is killed.
    pub(crate) code: u8,
    /// How long its preStop hook runs, ms.
    pub(crate) hook: Option<u64>,
    /// It has a liveness probe.
    pub(crate) probed: bool,
    /// If so, by exec: the kernel sees its runs.
    pub(crate) by_exec: bool,
    /// It is a native sidecar.
    pub(crate) sidecar: bool,
}

/// What it does on SIGTERM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Response {
    /// Its handler ends it after so many ms.
    Handles(u64),
    /// Its handler takes longer than any grace.
    HandlesTooLong,
    /// PID 1 without a handler, or one that is not PID 1 and has set it to be ignored.
    Ignores,
    /// Its handler comes only after the signal. The signal is sent again a second later, as a restarted
    /// runtime does, and the handler takes longer than any grace.
    HandlesSecond,
    /// It blocks the signal.
    Blocks,
}

/// What happens to the pod.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Story {
    /// It is deleted.
    Delete,
    /// A container is stopped, or ends, while its pod goes on; the pod is deleted so many ms later, if at
    /// all.
    Stop { why: Why, which: usize, then_deleted: Option<u64> },
    /// Its containers end by themselves, and are not started again.
    Complete { policy: &'static str },
}

/// Why a container ends while its pod goes on. Not generated: `startup`, which the core decides as it does `liveness`;
/// `resize_restart`, `restart_all_containers`, `post_start_failed` and `sandbox_changed`, each of which one state of the
/// status or of the lists names (tests/engine/stops.rs). Nor are the ends of a pod that its own `status.reason` or a
/// condition names (evictions, preemption, deadline, shutdown; tests/engine/causes.rs), or static pods.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Why {
    /// Its liveness probe fails.
    Liveness,
    /// Its image is changed.
    Definition,
    /// An administrator stops it past the kubelet.
    External,
    /// It fails by itself.
    Itself,
    /// The OOM killer chooses its main process.
    Oom,
}

/// What goes wrong. Times are ms; `from` counts from the story's beginning, and may lie before it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Nothing,
    /// All that the watch delivers is so late.
    Late {
        by: u64,
    },
    /// The watch breaks, is noticed at once, and goes on where it was.
    Resumed {
        from: i64,
        lasts: u64,
        queue: u64,
    },
    /// The same, but the pods are listed again.
    Relisted {
        from: i64,
        lasts: u64,
    },
    /// The watch carries nothing, which an error tells only at its end; then it goes on where it was.
    HungResumed {
        from: i64,
        lasts: u64,
        queue: u64,
    },
    /// The same, but the pods are listed again.
    HungRelisted {
        from: i64,
        lasts: u64,
    },
    /// The runtime takes so long to answer.
    LateRuntime {
        by: u64,
    },
    /// Each list of the runtime may lack one entry that the list before had.
    ListLacks,
    /// The runtime answers nothing for a while; what it then answers is as of any moment since the call.
    RuntimeHangs {
        from: i64,
        lasts: u64,
    },
    /// The runtime is killed, and another process of it answers later. Containers go on.
    RuntimeKilled {
        from: i64,
        lasts: u64,
    },
    /// For a while half of the records of one sort are lost.
    RecordsLost {
        of: Lost,
        from: i64,
        lasts: u64,
    },
    /// The apiserver's clock is wrong by hours, and the node's wall clock is set.
    Clocks {
        from: i64,
        step: i64,
    },
    /// The agent starts in the middle of it.
    AgentStarts {
        from: i64,
    },
}

/// Records that are lost together: a ring is full (`ebpf/src/programs/emit.rs`), or the kernel skips the programs for
/// exits and execs, which it has preempted (`ebpf/src/programs/backup.rs`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lost {
    DecidingRing,
    DetailRing,
    Skipped,
}

/// The kinds of [`Fault`], by name. Bookmarks are none of them: the adapter passes none on, so that with and
/// without them the inputs are the same.
pub(crate) const FAULTS: [&str; 15] = [
    "nothing",
    "late",
    "resumed",
    "relisted",
    "hung-resumed",
    "hung-relisted",
    "late-runtime",
    "list-lacks-one",
    "runtime-hangs",
    "runtime-killed",
    "deciding-ring",
    "detail-ring",
    "skipped",
    "clocks",
    "agent-starts",
];

fn fault(kind: &str) -> BoxedStrategy<Fault> {
    let from = || -20_000_i64..20_000;
    let queue = || 0_u64..9_000;
    match kind {
        "nothing" => Just(Fault::Nothing).boxed(),
        "late" => {
            prop_oneof![1_u64..15_000, 1_u64..120_000].prop_map(|by| Fault::Late { by }).boxed()
        }
        "resumed" => (from(), 1_000_u64..180_000, queue())
            .prop_map(|(from, lasts, queue)| Fault::Resumed { from, lasts, queue })
            .boxed(),
        "relisted" => (from(), 1_000_u64..180_000)
            .prop_map(|(from, lasts)| Fault::Relisted { from, lasts })
            .boxed(),
        "hung-resumed" => (from(), 1_000_u64..120_000, queue())
            .prop_map(|(from, lasts, queue)| Fault::HungResumed { from, lasts, queue })
            .boxed(),
        "hung-relisted" => (from(), 1_000_u64..120_000)
            .prop_map(|(from, lasts)| Fault::HungRelisted { from, lasts })
            .boxed(),
        "late-runtime" => prop_oneof![500_u64..15_000, 500_u64..60_000]
            .prop_map(|by| Fault::LateRuntime { by })
            .boxed(),
        "list-lacks-one" => Just(Fault::ListLacks).boxed(),
        "runtime-hangs" => (from(), 1_000_u64..90_000)
            .prop_map(|(from, lasts)| Fault::RuntimeHangs { from, lasts })
            .boxed(),
        "runtime-killed" => (from(), 200_u64..20_000)
            .prop_map(|(from, lasts)| Fault::RuntimeKilled { from, lasts })
            .boxed(),
        "deciding-ring" | "detail-ring" | "skipped" => {
            let of = match kind {
                "deciding-ring" => Lost::DecidingRing,
                "detail-ring" => Lost::DetailRing,
                _ => Lost::Skipped,
            };
            (-3_000_i64..30_000, 10_u64..5_000)
                .prop_map(move |(from, lasts)| Fault::RecordsLost { of, from, lasts })
                .boxed()
        }
        "clocks" => (from(), -14_400_000_i64..14_400_000)
            .prop_map(|(from, step)| Fault::Clocks { from, step })
            .boxed(),
        "agent-starts" => (-5_000_i64..40_000).prop_map(|from| Fault::AgentStarts { from }).boxed(),
        other => panic!("no fault {other}"),
    }
}

fn container() -> impl Strategy<Value = Container> {
    let response = prop_oneof![
        4 => (1_u64..1_900).prop_map(Response::Handles),
        1 => Just(Response::HandlesTooLong),
        2 => Just(Response::Ignores),
        1 => Just(Response::HandlesSecond),
        1 => Just(Response::Blocks),
    ];
    // Either so short that nothing of the grace counts, or of whole seconds and some tenths.
    let hook = prop_oneof![3 => Just(None), 1 => (0_u64..3, 200_u64..600).prop_map(|(s, ms)| Some(s * 1000 + ms))];
    let code = prop_oneof![3 => Just(0), 1 => Just(143), 1 => any::<u8>()];
    let flags = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.2));
    (response, code, hook, flags).prop_map(|(response, code, hook, (probed, by_exec, sidecar))| {
        Container { response, code, hook, probed, by_exec, sidecar }
    })
}

fn story() -> impl Strategy<Value = Story> {
    let then = || prop_oneof![2 => Just(None), 1 => (20_000_u64..90_000).prop_map(Some), 1 => (0_u64..20_000).prop_map(Some)];
    let why = prop_oneof![
        3 => Just(Why::Liveness),
        1 => Just(Why::Definition),
        1 => Just(Why::External),
        1 => Just(Why::Itself),
        1 => Just(Why::Oom),
    ];
    let stop = (why, 0_usize..3, then());
    prop_oneof![
        4 => Just(Story::Delete),
        5 => stop.prop_map(|(why, which, then_deleted)| Story::Stop { why, which, then_deleted }),
        1 => prop_oneof![Just("Never"), Just("OnFailure")].prop_map(|policy| Story::Complete { policy }),
    ]
}

/// Histories in which this kind of thing goes wrong.
pub(crate) fn plan(kind: &str) -> impl Strategy<Value = Plan> + use<> {
    let containers = prop::collection::vec(container(), 1..=3);
    let numbers = (6_u64..40, 2_000_u64..60_000, 5_u64..800, any::<u64>());
    // Most containers start at once.
    let skew = match kind {
        "clocks" => prop_oneof![-14_400_000_i64..14_400_000, -120_000_i64..120_000],
        _ => prop_oneof![-500_i64..500, -120_000_i64..120_000],
    };
    let finalizer = prop_oneof![4 => Just(None), 1 => (0_u64..60_000).prop_map(Some)];
    let pause = prop_oneof![3 => Just(0), 1 => 5_000_u64..180_000];
    let shares_pids = prop_oneof![3 => Just(false), 1 => Just(true)];
    let more = (skew, finalizer, pause, shares_pids);
    (containers, story(), numbers, more, fault(kind)).prop_map(
        move |(
            mut containers,
            mut story,
            numbers,
            (skew, finalizer, pause, shares_pids),
            fault,
        )| {
            let (grace, ran, reaction, jitter) = numbers;
            // One at least is no sidecar, and the one that is stopped by its probe has one.
            containers[0].sidecar = false;
            if let Story::Stop { why, which, .. } = &mut story {
                *which %= containers.len();
                containers[*which].probed |= matches!(why, Why::Liveness);
            }
            if matches!(story, Story::Complete { policy: "OnFailure" }) {
                containers.iter_mut().for_each(|one| one.code = 0);
            }
            Plan {
                containers,
                grace,
                story,
                ran,
                reaction,
                skew,
                finalizer,
                pause,
                shares_pids,
                jitter,
                fault,
            }
        },
    )
}
