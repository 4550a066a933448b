"""What pods left behind on their nodes, and whether leak detection works."""

from blocks import (
    COLORED_TEXT, FEW_ARE_GOOD, NAMESPACE, NONE_IS_GOOD, Line, Row, areas, bars, column, columns, dashboard,
    outliers, stat, table, ten, thresholds
)

AGE = [(None, "green"), (3600, "orange"), (86400, "red")]

ROWS = [
    Row("Now", [
        Line(4, [
            stat("Leaked sandboxes",
                "Sandboxes that were left behind on these nodes for certain.",
                "sum(coroner_leaked_sandboxes{@})",
                trend=True),
            stat("Oldest",
                "Since when the oldest leaked sandbox exists, by its creation.",
                'time() - min(coroner_leaked_sandbox_created_timestamp_seconds{@,namespace=~"$namespace"})',
                unit="s", steps=AGE, no_value="none"),
            stat("IPs held",
                "Addresses that leaked sandboxes hold. When a node's range is used up, no pod starts there "
                "any more.",
                "sum(coroner_leaked_sandbox_ips{@})",
                steps=FEW_ARE_GOOD, trend=True),
            stat("Orphans",
                "Shims, network namespaces and pods' cgroups that no sandbox and no pod knows.",
                "sum(coroner_orphans{@})",
                steps=FEW_ARE_GOOD, trend=True),
            stat("Stuck terminating",
                "Pods whose object is still there long after its deadline.",
                "sum(coroner_pods_stuck_terminating{@})",
                trend=True),
            stat("Nodes without leak detection",
                "Nodes on which leak detection is suspended now, because a source is away: zeros elsewhere "
                "on this dashboard do not count for them.",
                'sum(1 - coroner_leak_detection_state{@,state="possible"})',
                steps=FEW_ARE_GOOD, trend=True),
        ]),
    ]),
    Row("What was left behind", [
        Line(8, [
            areas("Leaked sandboxes, by class",
                "What of them is wrong. notready_no_pod, ready_no_pod: the pod does not exist. "
                "notready_with_containers: its containers keep the garbage collection away. "
                "notready_superseded, duplicate_ready: the pod has a newer one. netns_open: stopped, but its "
                "network namespace and addresses stay.",
                {"{{class}}": "sum by (class) (coroner_leaked_sandboxes{@})"},
                decimals=0),
            areas("Everything left behind, by likely cause",
                "Sandboxes, orphans and stuck pods, by the ten most frequent of their likely causes. "
                "pod_worker_stuck: the kubelet's bug (kubernetes#107730), cured by its restart, and for good "
                "from 1.27 on. cni_delete_failing: the network plugin's words are in the runtime's log.",
                {"{{cause}}": ten("cause", "sum by (cause) (coroner_leaks{@})",
                                  "sum by (cause) (max_over_time(coroner_leaks{@}[$__range] @ end()))")},
                decimals=0),
        ]),
        Line(8, [
            areas("Orphans, by kind",
                "Shims, network namespaces and pods' cgroups that no sandbox and no pod knows.",
                {"{{kind}}": "sum by (kind) (coroner_orphans{@})"},
                decimals=0),
            areas("Pods stuck terminating, by reason",
                "Pods whose object is still there long after its deadline, by what they wait for.",
                {"{{reason}}": "sum by (reason) (coroner_pods_stuck_terminating{@})"},
                decimals=0),
            bars("Leaks detected and resolved",
                "Leaks that became certain, and leaks that are resolved: removed, or of another class now. A "
                "leak whose class changes while it lasts counts as resolved and as detected again.",
                {"detected": "sum(increase(coroner_leaks_opened_total{@}[$__rate_interval]))",
                 "resolved": "sum(increase(coroner_leaks_resolved_total{@}[$__rate_interval]))"}),
        ]),
    ]),
    Row("Which: each leaked sandbox", [
        Line(11, [
            table("Leaked sandboxes",
                "The 50 oldest leaked sandboxes that have a series of their own: on each node the oldest, up to "
                "--leak-series (50). On the node, `coroner leaks -v` tells the evidence and what to do.",
                ["topk(50, time() - "
                 'coroner_leaked_sandbox_created_timestamp_seconds{@,namespace=~"$namespace"})'],
                [columns({"cluster": "Cluster", "node": "Node", "namespace": "Namespace", "pod": "Pod",
                          "class": "Class", "cause": "Likely cause", "Value": "Age", "sandbox": "Sandbox",
                          "uid": "Pod UID"},
                         hidden=["job", "instance", "container", "endpoint", "service", "__name__"])],
                sort="Age",
                overrides=[column("Age", unit="s", thresholds=thresholds(AGE), custom_cellOptions=COLORED_TEXT)]),
        ]),
    ]),
    Row("Per node", [
        Line(10, [
            outliers("Nodes with leaks",
                "What was left behind on the nodes that have most of it. Beyond --leak-series a leaked sandbox "
                "has no series of its own: it is counted, but not in the table above.",
                {"Leaked sandboxes": "sum by (cluster, node) (coroner_leaked_sandboxes{@})",
                 "Without a series": "sum by (cluster, node) (coroner_leaked_sandboxes_without_series{@})",
                 "IPs held": "sum by (cluster, node) (coroner_leaked_sandbox_ips{@})",
                 "Orphans": "sum by (cluster, node) (coroner_orphans{@})",
                 "Stuck terminating": "sum by (cluster, node) (coroner_pods_stuck_terminating{@})"},
                sort="Leaked sandboxes",
                overrides=[column("Leaked sandboxes", thresholds=thresholds(NONE_IS_GOOD),
                                  custom_cellOptions=COLORED_TEXT)]),
        ]),
    ]),
    Row("Leak detection", [
        Line(9, [
            areas("Nodes, by leak detection state",
                "possible, or why it is suspended: leak detection needs the runtime, the apiserver, and the "
                "certainty that this machine is the node of its name. While one of these is missing, no "
                "candidate becomes a leak. node_missing and node_foreign: the agent was told a wrong node name.",
                {"{{state}}": "sum by (state) (coroner_leak_detection_state{@}) > 0"},
                decimals=0),
            table("Nodes with the least leak detection",
                "The ten nodes on which leak detection was active for the smallest share of this time range, "
                "because all sources were in sync. At 0 a leak would go unnoticed.",
                ["bottomk(10, min by (cluster, node) (rate(coroner_leak_detection_active_seconds_total{@}[$__range])))"],
                [columns({"cluster": "Cluster", "node": "Node", "Value": "Active"})],
                unit="percentunit", decimals=1,
                overrides=[column("Active", custom_cellOptions=COLORED_TEXT, thresholds=thresholds(
                    [(None, "red"), (0.5, "orange"), (0.95, "green")]))]),
        ]),
    ]),
]

DASHBOARD = dashboard(
    "coroner-leaks",
    "Sandboxes, network namespaces, shims and cgroups that pods left behind, and pods that do not go: how "
    "many, how old, why, and where. From coroner, the node agent.",
    ROWS, [NAMESPACE], begin="now-24h")
