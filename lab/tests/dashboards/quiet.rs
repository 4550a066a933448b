//! Queries of events that the run does not contain: what they return there is zero, and they must
//! say so, or it could not be told from a query that is wrong.

/// A query, by dashboard, panel and letter, and why nothing of it happens in the run.
pub(crate) const QUIET: &[(&str, &str)] = &[
    ("terminations / Contradictions / A", "the lab's runtime and apiserver tell the truth"),
    (
        "leaks / Without a series of their own / A",
        "takes more leaked sandboxes than --leak-series (50)",
    ),
    ("agent / Hooks missing / A", "takes a kernel that lacks a tracepoint"),
    ("agent / Missing hooks, by node / A", "takes a kernel that lacks a tracepoint"),
    ("agent / Accounts with gaps / A", "takes a pod that is ending when the agent starts"),
    ("agent / Accounts with gaps / B", "takes evidence that is lost"),
    ("agent / Cgroups not followed / A", "takes cgroups many levels below a container's"),
    ("agent / Deaths without a verdict / A", "takes evidence that is lost"),
    ("agent / Failures / A", "takes a disk that is full"),
];

/// Queries of events that the run may contain or not.
pub(crate) const BRIEF: &[(&str, &str)] = &[
    ("agent / Evidence lost / A", "on a slow machine a container may go before any list shows it"),
    ("agent / Evidence lost, by kind / A", "as above"),
];
