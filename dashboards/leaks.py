"""Leaked sandboxes, orphans and stuck pods, and whether leak detection works."""

from blocks import (
    COLORED_TEXT, FEW_ARE_GOOD, NAMESPACE, NONE_IS_GOOD, Line, Row, areas, bars, column, columns, dashboard,
    merged, outliers, stat, table, ten, thresholds
)

# For how long a sandbox has leaked, and for how long it exists.
LEAKED_FOR = ("topk(50, max by (cluster, node, namespace, sandbox) "
              '(time() - coroner_leaked_sandbox_observed_timestamp_seconds{@,namespace=~"$namespace"}))')
SANDBOX_AGE = ("max by (cluster, node, namespace, sandbox, pod, uid, class, cause) "
               '(time() - coroner_leaked_sandbox_created_timestamp_seconds{@,namespace=~"$namespace"})')
AGE = [(None, "green"), (3600, "orange"), (86400, "red")]

ROWS = [
    Row("Now", [
        Line(4, [
            stat("Leaked sandboxes",
                "Confirmed leaked sandboxes on these nodes.",
                "sum(coroner_leaked_sandboxes{@})",
                trend=True,
                runbook="CoronerSandboxesLeaked"),
            stat("Longest leak",
                "Time for which a sandbox has been observed as leaked, the longest. A leak that is older than its "
                "agent counts from the agent's start.",
                'time() - min(coroner_leaked_sandbox_observed_timestamp_seconds{@,namespace=~"$namespace"})',
                unit="s", steps=AGE, no_value="none",
                runbook="CoronerSandboxLeakedForADay"),
            stat("IPs held",
                "IP addresses held by leaked sandboxes. When a node's range is used up, no pod can start on "
                "it.",
                "sum(coroner_leaked_sandbox_ips{@})",
                steps=FEW_ARE_GOOD, trend=True,
                runbook="CoronerLeakedIPsHeld"),
            stat("Orphans",
                "Orphaned shims, network namespaces and pod cgroups: no sandbox and no pod owns them.",
                "sum(coroner_orphans{@})",
                steps=FEW_ARE_GOOD, trend=True,
                runbook="CoronerOrphans"),
            stat("Stuck terminating",
                "Pods whose object exists long after its deletion deadline.",
                "sum(coroner_pods_stuck_terminating{@})",
                trend=True,
                runbook="CoronerPodsStuckTerminating"),
            stat("Nodes without leak detection",
                "Nodes on which leak detection is suspended now because a source is unavailable: zeros "
                "elsewhere on this dashboard do not count for them.",
                'sum(1 - coroner_leak_detection_state{@,state="possible"})',
                steps=FEW_ARE_GOOD, trend=True,
                runbook="CoronerLeakDetectionSuspended"),
        ]),
    ]),
    Row("Leaks", [
        Line(8, [
            areas("Leaked sandboxes, by class",
                "Leaked sandboxes by class. notready_no_pod, ready_no_pod: the pod does not exist. "
                "notready_with_containers: its containers prevent its garbage collection. "
                "notready_superseded, duplicate_ready: the pod has a newer sandbox. netns_open: stopped, but "
                "its network namespace and addresses remain.",
                {"{{class}}": "sum by (class) (coroner_leaked_sandboxes{@})"},
                decimals=0,
                runbook="CoronerSandboxesLeaked"),
            areas("All leaks, by likely cause",
                "Leaked sandboxes, orphans and stuck pods, by the ten most frequent likely causes. "
                "pod_worker_stuck: a bug of the kubelet (kubernetes#107730); a restart clears it, and 1.27 "
                "fixes it. cni_delete_failing: the runtime's log has the network plugin's error.",
                {"{{cause}}": ten("cause", "sum by (cause) (coroner_leaks{@})",
                                  "sum by (cause) (max_over_time(coroner_leaks{@}[$__range] @ end()))")},
                decimals=0,
                runbook="CoronerSandboxesLeaked"),
        ]),
        Line(8, [
            areas("Orphans, by kind",
                "Orphaned shims, network namespaces and pod cgroups: no sandbox and no pod owns them.",
                {"{{kind}}": "sum by (kind) (coroner_orphans{@})"},
                decimals=0,
                runbook="CoronerOrphans"),
            areas("Pods stuck terminating, by reason",
                "Pods whose object exists long after its deletion deadline, by what blocks the deletion.",
                {"{{reason}}": "sum by (reason) (coroner_pods_stuck_terminating{@})"},
                decimals=0,
                runbook="CoronerPodsStuckTerminating"),
            bars("Leaks detected and resolved",
                "Confirmed leaks, and resolved leaks: gone, or changed to another class. A leak that changes "
                "its class counts as resolved and as detected again.",
                {"detected": "sum(increase(coroner_leaks_opened_total{@}[$__rate_interval]))",
                 "resolved": "sum(increase(coroner_leaks_resolved_total{@}[$__rate_interval]))"},
                runbook="CoronerSandboxesLeaking"),
        ]),
    ]),
    Row("Leaked sandboxes", [
        Line(11, [
            table("Leaked sandboxes",
                "The 50 sandboxes that have been observed as leaked for the longest time, of those with a series "
                "of their own: on each node the oldest, up to --leak-series (50). On the node, `coroner leaks -v` "
                "shows the evidence and what to do.",
                [LEAKED_FOR, f"{SANDBOX_AGE} and on (cluster, node, sandbox) {LEAKED_FOR}"],
                [merged(),
                 columns({"cluster": "Cluster", "node": "Node", "namespace": "Namespace", "pod": "Pod",
                          "class": "Class", "cause": "Likely cause", "Value #A": "Leaked for",
                          "Value #B": "Sandbox age", "sandbox": "Sandbox", "uid": "Pod UID"})],
                sort="Leaked for",
                overrides=[column("Leaked for", unit="s", thresholds=thresholds(AGE), custom_cellOptions=COLORED_TEXT),
                           column("Sandbox age", unit="s")],
                runbook="CoronerSandboxesLeaked"),
        ]),
    ]),
    Row("Nodes", [
        Line(10, [
            outliers("Nodes with leaks",
                "The nodes with the most leaks. A leaked sandbox beyond --leak-series has no series of its "
                "own: it is counted, but not in the table above.",
                {"Leaked sandboxes": "sum by (cluster, node) (coroner_leaked_sandboxes{@})",
                 "Without a series": "sum by (cluster, node) (coroner_leaked_sandboxes_without_series{@})",
                 "IPs held": "sum by (cluster, node) (coroner_leaked_sandbox_ips{@})",
                 "Orphans": "sum by (cluster, node) (coroner_orphans{@})",
                 "Stuck terminating": "sum by (cluster, node) (coroner_pods_stuck_terminating{@})"},
                sort="Leaked sandboxes",
                overrides=[column("Leaked sandboxes", thresholds=thresholds(NONE_IS_GOOD),
                                  custom_cellOptions=COLORED_TEXT)],
                runbook="CoronerSandboxesLeaked"),
        ]),
    ]),
    Row("Leak detection", [
        Line(9, [
            areas("Leak detection status",
                "possible, or why it is suspended: leak detection needs the runtime, the apiserver, and the "
                "certainty that this machine is the node of its name. While one of these is missing, no "
                "candidate is confirmed. node_missing and node_foreign: the agent has a wrong node name.",
                {"{{state}}": "sum by (state) (coroner_leak_detection_state{@}) > 0"},
                decimals=0,
                runbook="CoronerLeakDetectionSuspended"),
            table("Nodes with the least leak detection",
                "The ten nodes on which leak detection was active for the smallest share of this time range, "
                "because a source was out of sync. At 0 every leak goes unnoticed.",
                ["bottomk(10, min by (cluster, node) "
                 "(rate(coroner_leak_detection_active_seconds_total{@}[$__range])))"],
                [columns({"cluster": "Cluster", "node": "Node", "Value": "Active"})],
                unit="percentunit", decimals=1,
                overrides=[column("Active", custom_cellOptions=COLORED_TEXT, thresholds=thresholds(
                    [(None, "red"), (0.5, "orange"), (0.95, "green")]))],
                runbook="CoronerLeakDetectionSuspended"),
        ]),
    ]),
]

DASHBOARD = dashboard(
    "coroner-leaks",
    "Leaked sandboxes, orphaned network namespaces, shims and cgroups, and pods that stay terminating: how "
    "many, for how long, why, and on which nodes.",
    ROWS, [NAMESPACE], begin="now-24h")
