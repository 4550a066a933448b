//! Queries of events that the run does not contain: what they return there is zero, and they must
//! say so, or it could not be told from a query that is wrong.

/// A query, by dashboard, panel and letter, and why nothing of it happens in the run.
pub(crate) const QUIET: &[(&str, &str)] = &[
    ("fleet / Contradictions / A", "the lab's runtime and apiserver tell the truth"),
    ("agent / Nodes that are not fully observed / E", "takes a kernel that lacks a tracepoint"),
    ("agent / Nodes with problems / E", "takes a kernel that lacks a tracepoint"),
    ("agent / Nodes with problems / G", "takes an agent that starts twice"),
    ("agent / Evidence lost, by kind / B", "takes cgroups many levels below a container's"),
    (
        "agent / Incomplete termination reports / A",
        "takes a pod that is ending when the agent starts",
    ),
    ("agent / Incomplete termination reports / B", "takes evidence that is lost"),
    ("agent / Incomplete termination reports / C", "takes evidence that is lost"),
];

/// Queries of events that the run may contain or not.
pub(crate) const BRIEF: &[(&str, &str)] = &[
    ("agent / Evidence lost / A", "on a slow machine a container may go before any list shows it"),
    ("agent / Evidence lost, by kind / A", "as above"),
    ("agent / Nodes with problems / F", "as above"),
    (
        "agent / Nodes that are not fully observed / C",
        "the runtime may be back before the agent asks it",
    ),
    ("agent / Nodes with problems / C", "as above"),
    ("fleet / Connections at terminations / B", "Linux before 6.10 does not show what is refused"),
    ("namespace / Connections at terminations / B", "as above"),
];
