"""What pods left behind on their nodes, and whether leak detection works."""

from blocks import (
    FEW_ARE_GOOD, COLORED_TEXT, NAMESPACE, NONE_IS_GOOD, Line, Row, areas, bars, column, columns,
    dashboard, lines, merged, names, stat, states, table, thresholds
)

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
                unit="s", steps=[(None, 'green'), (3600, 'orange'), (86400, 'red')], no_value='none'),
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
                "Sandboxes, orphans and stuck pods, by likely cause. pod_worker_stuck: the kubelet's bug "
                "(kubernetes#107730), cured by its restart, and for good from 1.27 on. cni_delete_failing: "
                "the network plugin's words are in the runtime's log.",
                {"{{cause}}": "sum by (cause) (coroner_leaks{@})"},
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
        ]),
        Line(8, [
            bars("Opened",
                "Leaks that became certain, by class. A leak whose class changes while it lasts counts as "
                "resolved in the old class and as opened in the new one.",
                {"{{class}}": "sum by (class) (increase(coroner_leaks_opened_total{@}[$__rate_interval])) > 0"}),
            bars("Resolved",
                "Leaks that are resolved, by class: removed, or of another class now.",
                {"{{class}}": "sum by (class) (increase(coroner_leaks_resolved_total{@}[$__rate_interval])) > 0"}),
        ]),
    ]),
    Row("Which: each leaked sandbox", [
        Line(11, [
            table("Leaked sandboxes",
                "Each leaked sandbox that has a series of its own: on each node the oldest, up to "
                "--leak-series (50). On the node, `coroner leaks -v` tells the evidence and what to do.",
                ['time() - coroner_leaked_sandbox_created_timestamp_seconds{@,namespace=~"$namespace"}'],
                [columns({"cluster": "Cluster", "node": "Node", "namespace": "Namespace", "pod": "Pod",
                          "class": "Class", "cause": "Likely cause", "Value": "Age", "sandbox": "Sandbox",
                          "uid": "Pod UID"},
                         hidden=["job", "instance", "container", "endpoint", "service", "__name__"])],
                sort="Age", overrides=[column("Age", unit="s", thresholds=thresholds([(None, 'green'), (3600, 'orange'), (86400, 'red')]), custom_cellOptions=COLORED_TEXT)]),
        ]),
        Line(8, [
            lines("Without a series of their own",
                "Leaked sandboxes beyond --leak-series: counted above, but not in the table. Zero unless a "
                "node has very many.",
                {"{{node}} {{cluster}}": "sum by (cluster, node) (coroner_leaked_sandboxes_without_series{@})"},
                decimals=0, calcs=("lastNotNull",)),
        ]),
    ]),
    Row("Per node", [
        Line(10, [
            table("Nodes",
                "What was left behind on each node, now.",
                ["sum by (cluster, node) (coroner_leaked_sandboxes{@})",
                 "sum by (cluster, node) (coroner_orphans{@})",
                 "sum by (cluster, node) (coroner_pods_stuck_terminating{@})",
                 "sum by (cluster, node) (coroner_leaked_sandbox_ips{@})",
                 "sum by (cluster, node) (coroner_leak_candidates{@})",
                 'sum by (cluster, node) (coroner_leak_detection_state{@,state="possible"})'],
                [merged(),
                 columns({"cluster": "Cluster", "node": "Node", "Value #A": "Leaked sandboxes",
                          "Value #B": "Orphans", "Value #C": "Stuck", "Value #D": "IPs held",
                          "Value #E": "Candidates", "Value #F": "Leak detection"})],
                sort="Leaked sandboxes", overrides=[column("Leaked sandboxes", thresholds=thresholds(NONE_IS_GOOD), custom_cellOptions=COLORED_TEXT),
                           column("Leak detection", mappings=[names({0: ("suspended", "orange"), 1: ("active", "green")})])], decimals=0),
        ]),
    ]),
    Row("Leak detection", [
        Line(7, [
            states("Leak detection active, by node",
                "Leak detection needs the runtime, the apiserver, and the certainty that this machine is the "
                "node of its name. While one of these is missing, no candidate becomes a leak, and the time "
                "does not count.",
                "node",
                'max by (cluster, node) (coroner_leak_detection_state{@,state="possible"})',
                bad="suspended", good="active"),
            areas("Nodes, by leak detection state",
                "possible, or why it is suspended. node_missing and node_foreign: the agent was told a wrong "
                "node name.",
                {"{{state}}": "sum by (state) (coroner_leak_detection_state{@}) > 0"},
                decimals=0),
        ]),
        Line(8, [
            lines("Share of time with leak detection active, by node",
                "How much of the time all sources were in sync. 1 is well; at 0 a leak would go unnoticed.",
                {"{{node}} {{cluster}}": "min by (cluster, node) (rate(coroner_leak_detection_active_seconds_total{@}[$__rate_interval]))"},
                unit="percentunit", max_val=1, calcs=("min", "mean"), interval="2m"),
        ]),
    ]),
]

DASHBOARD = dashboard(
    "coroner-leaks", "Sandboxes, network namespaces, shims and cgroups that pods left behind, and pods that do not go: how "
    "many, how old, why, and where. From coroner, the node agent.",
    ROWS, [NAMESPACE], begin="now-24h")
