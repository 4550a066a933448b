"""Leaked sandboxes, orphans and stuck pods, and whether leak detection works."""

from blocks import (
    COLORED_TEXT, FEW_ARE_GOOD, NODE, Line, Row, areas, bars, column, columns, dashboard, leads_to, mapped, merged, stat, table,
    ten, thresholds
)

# For how long a sandbox has leaked, and for how long it exists.
LEAKED_FOR = ("topk(50, max by (cluster, node, pod_namespace, sandbox) "
              '(time() - coroner_leaked_sandbox_observed_timestamp_seconds{@}))')
SANDBOX_AGE = ("max by (cluster, node, pod_namespace, sandbox, pod_name, uid, class, cause) "
               '(time() - coroner_leaked_sandbox_created_timestamp_seconds{@})')
# What to do about each cause; `coroner leaks -v` has the steps for a leak.
REMEDIES = {
    "pod_worker_stuck": "Restart the kubelet: removes all of them. Upgrade it to 1.27 or later.",
    "cni_delete_failing": "Correct what the network plugin reports in the runtime's log, then remove the sandboxes.",
    "kubelet_down": "Find out why the kubelet does not run.",
    "collection_pending": "Wait for two minutes.",
    "runtime_failing": "Find the error in the runtime's log, then stop and remove the sandboxes.",
    "sandbox_replaced": "Stop and remove the older sandbox in the runtime.",
    "untracked_by_runtime": "Check what the shim or network namespace belongs to, then remove it.",
    "processes_remain": "Find out what the processes wait for: storage, a driver, NFS.",
    "volume_busy": "Find what is mounted or open below the pod's volumes.",
    "finalizer": "Find out why the finalizer's controller does not remove it.",
    "unknown": "See the evidence of the leak.",
}
AGE = [(None, "green"), (3600, "orange"), (86400, "red")]

ROWS = [
    Row("Leaks", [
        Line(7, [
            stat("Longest leak",
                "Time for which a sandbox has been observed as leaked, the longest. A leak that is older than its "
                "agent counts from the agent's start.",
                'time() - min(coroner_leaked_sandbox_observed_timestamp_seconds{@})',
                unit="s", steps=AGE, no_value="none",
                runbook="CoronerSandboxesLeaking", command="coroner leaks -v"),
            stat("Nodes without leak detection",
                "Nodes on which leak detection is suspended now because a source is unavailable: zeros "
                "elsewhere on this dashboard do not count for them. Agents with --no-api are not among them.",
                'sum(coroner_leak_detection_state{@,state!~"possible|no_api"})',
                steps=FEW_ARE_GOOD, trend=True,
                runbook="CoronerAgentsNotReady", command="coroner doctor"),
            bars("Leaks detected and resolved",
                "Confirmed leaks, and resolved leaks: gone, or changed to another class. A leak that changes "
                "its class counts as resolved and as detected again.",
                {"detected": "sum(increase(coroner_leaks_opened_total{@}[$__rate_interval]))",
                 "resolved": "sum(increase(coroner_leaks_resolved_total{@}[$__rate_interval]))"},
                runbook="CoronerSandboxesLeaking"),
        ], widths=[5, 5, 14]),
        Line(8, [
            areas("Leaked sandboxes, by class",
                "Leaked sandboxes by class. notready_no_pod, ready_no_pod: the pod does not exist. "
                "notready_with_containers: its containers prevent its garbage collection. "
                "notready_superseded, duplicate_ready: the pod has a newer sandbox. netns_open: stopped, but "
                "its network namespace and addresses remain.",
                {"{{class}}": "sum by (class) (coroner_leaked_sandboxes{@})"},
                decimals=0,
                runbook="CoronerSandboxesLeaking"),
            areas("All leaks, by likely cause",
                "Leaked sandboxes, orphans and stuck pods, by the ten most frequent likely causes. "
                "pod_worker_stuck: a bug of the kubelet (kubernetes#107730); a restart clears it, and 1.27 "
                "fixes it. cni_delete_failing: the runtime's log has the network plugin's error.",
                {"{{cause}}": ten("cause", "sum by (cause) (coroner_leaks{@})",
                                  "sum by (cause) (max_over_time(coroner_leaks{@}[$__range] @ end()))")},
                decimals=0,
                runbook="CoronerSandboxesLeaking"),
        ]),
        Line(8, [
            areas("Orphans, by kind",
                "Orphaned shims, network namespaces and pod cgroups: no sandbox and no pod owns them.",
                {"{{kind}}": "sum by (kind) (coroner_orphans{@})"},
                decimals=0,
                runbook="CoronerSandboxesLeaking"),
            areas("Pods stuck terminating, by likely cause",
                "Pods whose object exists long after its deletion deadline, by likely cause.",
                {"{{cause}}": "sum by (cause) (coroner_pods_stuck_terminating{@})"},
                decimals=0,
                runbook="CoronerPodsStuckTerminating"),
        ]),
        Line(9, [
            table("Causes and remedies",
                "Leaks by likely cause, on how many nodes, and what to do. One cause has one remedy, whatever the number of nodes.",
                ["sum by (cause) (coroner_leaks{@}) > 0", "count by (cause) (sum by (cluster, node, cause) (coroner_leaks{@}) > 0)",
                 'label_replace(sum by (cause) (coroner_leaks{@}) > 0, "remedy", "$1", "cause", "(.*)")'],
                [merged(), columns({"cause": "Likely cause", "Value #A": "Leaks", "Value #B": "Nodes", "remedy": "What to do"},
                                   leave_out=("Value #C",))],
                sort="Leaks", decimals=0, no_value="No leaks.",
                overrides=[column("What to do", mappings=[mapped(REMEDIES)])],
                runbook="CoronerSandboxesLeaking", command="coroner leaks -v"),
            table("Nodes, by cause",
                "The hundred nodes with the most leaks, by likely cause.",
                ["topk(100, sum by (cluster, cause, node) (coroner_leaks{@}) > 0)"],
                [columns({"cause": "Likely cause", "cluster": "Cluster", "node": "Node", "Value": "Leaks"})],
                sort="Leaks", decimals=0, no_value="No leaks.",
                overrides=[leads_to("node", agent="the agent of this node")],
                runbook="CoronerSandboxesLeaking", command="coroner leaks -v"),
        ], widths=[14, 10]),
        Line(11, [
            table("Leaked sandboxes",
                "The 50 sandboxes that have been observed as leaked for the longest time, of those with a series "
                "of their own: on each node the oldest 50.",
                [LEAKED_FOR, f"{SANDBOX_AGE} and on (cluster, node, sandbox) {LEAKED_FOR}"],
                [merged(),
                 columns({"cluster": "Cluster", "node": "Node", "pod_namespace": "Namespace", "pod_name": "Pod",
                          "class": "Class", "cause": "Likely cause", "Value #A": "Leaked for",
                          "Value #B": "Sandbox age", "sandbox": "Sandbox", "uid": "Pod UID"})],
                sort="Leaked for", no_value="No leaked sandboxes.",
                overrides=[column("Leaked for", unit="s", thresholds=thresholds(AGE), custom_cellOptions=COLORED_TEXT),
                           column("Sandbox age", unit="s"), leads_to("node", agent="the agent of this node")],
                runbook="CoronerSandboxesLeaking", command="coroner leaks -v"),
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
                runbook="CoronerAgentsNotReady"),
            table("Nodes with the least leak detection",
                "The ten nodes on which leak detection was active for the smallest share of this time range, "
                "because a source was out of sync. At 0 every leak goes unnoticed.",
                ["bottomk(10, sum by (cluster, node) "
                 "(rate(coroner_leak_detection_active_seconds_total{@}[$__range])))"],
                [columns({"cluster": "Cluster", "node": "Node", "Value": "Active"})],
                unit="percentunit", decimals=1,
                overrides=[column("Active", custom_cellOptions=COLORED_TEXT, thresholds=thresholds(
                    [(None, "red"), (0.5, "orange"), (0.95, "green")]))],
                runbook="CoronerAgentsNotReady"),
        ]),
    ]),
]

DASHBOARD = dashboard(
    "coroner-leaks",
    "Leaked sandboxes, orphaned network namespaces, shims and cgroups, and pods that stay terminating: how "
    "many, for how long, why, and on which nodes.",
    ROWS, [NODE], begin="now-24h")
