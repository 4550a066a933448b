//! Queries of events that the run does not contain: what they return there is zero, and they must
//! say so, or it could not be told from a query that is wrong.

/// A query, by dashboard, panel and letter, and why nothing of it happens in the run.
pub(crate) const QUIET: &[(&str, &str)] = &[
    (
        "agent / Termination reports updated / A",
        "needs evidence that comes later than the settle window",
    ),
    ("terminations / Contradictions / A", "the lab's runtime and apiserver tell the truth"),
    (
        "leaks / Without a series of their own / A",
        "takes more leaked sandboxes than --leak-series (50)",
    ),
    (
        "leaks / Candidates that the apiserver cleared / A",
        "takes a watch that has missed something and does not know it",
    ),
    ("agent / Hooks missing / A", "takes a kernel that lacks a tracepoint"),
    ("agent / Missing hooks, by node / A", "takes a kernel that lacks a tracepoint"),
    ("agent / Left out / A", "the lab's runtime and apiserver say nothing that makes no sense"),
    ("agent / Requests dropped / A", "takes an adapter that does not keep up"),
    ("agent / Accounts with gaps / A", "takes a pod that is ending when the agent starts"),
    ("agent / Accounts with gaps / B", "takes evidence that is lost"),
    ("agent / Unattributed share / A", "takes a milestone that is missing"),
    ("agent / Cgroups not followed / A", "takes cgroups many levels below a container's"),
    ("agent / Deaths without a verdict / A", "takes evidence that is lost"),
    ("agent / Failures / A", "takes a disk that is full"),
];

/// Queries of events that the run may contain or not.
pub(crate) const BRIEF: &[(&str, &str)] = &[
    ("agent / Full lists of pods / A", "the only one is taken about when the first scrape comes"),
    ("agent / Evidence lost / A", "on a slow machine a container may go before any list shows it"),
    ("agent / Evidence lost, by kind / A", "as above"),
];
