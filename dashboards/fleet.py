"""For the platform team: what terminations cost, and which namespaces, workloads and nodes stand out."""

from blocks import (
    COLORED_TEXT, CONTAINER, FEW_ARE_GOOD, KILLED_AFTER_GRACE, LATENCY, NEUTRAL, NO_CUT, NODE, REFUSALS, RUNBOOKS, WORKLOAD, Line,
    Row, areas, bars, column, columns, connections, dashboard, deaths, heatmap, leads_to, lines, merged, number, of_containers, or_zero,
    outliers, per_event, quantiles, share_of_stops, stat, table, ten, ten_nodes, thresholds, top
)

SHARE = [(None, "green"), (0.01, "yellow"), (0.05, "orange"), (0.2, "red")]
WAIT = "workload:coroner_container_sigkill_wait_seconds"
TERMINATIONS = "cluster_cause:coroner_pod_terminations"
PHASES = "cluster_phase:coroner_pod_termination_phase_seconds"
DELETIONS = "namespace_slow:coroner_pod_deletions"
P90 = "max by (cluster, node) (max_over_time(node:coroner_pod_termination_duration_seconds:p90_1h{@}[$__range]))"
# Of these the agent counts the phases' seconds: deletions, then evictions.
WITH_PHASES = ('%,cause=~"api_delete|force_delete|pod_gc|static_removed|api_eviction|node_pressure_eviction|local_storage_limit'
               '|preemption|kubelet_preemption|taint_eviction|node_shutdown"')
# The alert's setting slowBudget.
BUDGET = 0.05
BY_NAMESPACE = "cluster, pod_namespace"


def slow(of='%,slow="true"'):
    return number(DELETIONS, BY_NAMESPACE, "$__range", of)


ROWS = [
    Row("Now, and in this time range", [
        Line(4, [
            stat("Terminating now",
                "Pods that are terminating on these nodes. A number that stays up after a drain or a rollout "
                "is pods that do not go: see Nodes that differ from the others.",
                "sum(coroner_pods_terminating{%})",
                steps=NEUTRAL,
                command="coroner explain POD"),
            stat("Deaths that waited for SIGKILL",
                "Share of the stopped containers that SIGKILL ended, because the stop signal was ignored, blocked, or handled "
                "too slowly.",
                share_of_stops(KILLED_AFTER_GRACE, "$__range"),
                unit="percentunit", steps=SHARE, decimals=1, no_value="no stops",
                runbook="CoronerStopSignalIgnored"),
            stat("Time lost waiting for SIGKILL",
                "The sum of the times from the stop signal to SIGKILL, of the same containers. Drains and rollouts "
                "wait for most of it.",
                or_zero(number(WAIT, window="$__range")),
                unit="s", steps=[(None, "green"), (60, "yellow"), (3600, "orange")], decimals=0,
                runbook="CoronerStopSignalIgnored"),
            stat("Unkillable now",
                "Containers with processes that survive SIGKILL. Uninterruptible processes are blocked in "
                "the kernel: storage, a driver, NFS. The agent's log shows where.",
                "sum(coroner_containers_unkillable{%})",
                runbook="CoronerUnkillableProcesses", command="coroner explain POD"),
            stat("Leaked sandboxes",
                "Confirmed leaked sandboxes on these nodes.",
                "sum(cluster:coroner_leaked_sandboxes:sum{%})",
                trend=True,
                runbook="CoronerSandboxesLeaking", command="coroner leaks -v"),
            stat("Addresses held",
                "IP addresses held by leaked sandboxes. When a node's range is used up, no pod can start on "
                "it.",
                "sum(cluster:coroner_leaked_sandbox_ips:sum{%})",
                steps=FEW_ARE_GOOD, trend=True,
                runbook="CoronerLeakedIPsHeld", command="coroner leaks -v"),
        ]),
        Line(8, [
            table("Firing alerts",
                "Alerts of coroner that fire now, and for how many nodes or namespaces.",
                ['count by (cluster, alertname, severity) (ALERTS{%,alertname=~"Coroner.+",alertstate="firing"})'],
                [columns({"cluster": "Cluster", "alertname": "Alert", "severity": "Severity", "Value": "Firing"})],
                sort="Severity", decimals=0, no_value="No alert of coroner fires.",
                overrides=[column("Alert", links=[{
                    "title": "Runbook", "targetBlank": True,
                    "url": f"{RUNBOOKS}/${{__value.raw}}.md"}])]),
            bars("Pod terminations, by cause",
                "Pod terminations by cause, of the ten most frequent: deletion, eviction, preemption, a "
                "taint, node pressure or shutdown, completion. liveness, startup and restart stop containers "
                "only, unless the pod terminates with them.",
                top("cause", TERMINATIONS),
                no_value="No pod terminated."),
        ]),
    ]),
    Row("Objective: 95 % of the deletions and evictions take at most 45 s", [
        Line(8, [
            stat("Slow deletions, 30 days",
                "Share of the deletions and evictions of the last 30 days, or since Prometheus has them, that took more than 45 s.",
                "max(cluster:coroner_slow_pod_deletions:ratio_rate30d{%})",
                unit="percentunit", decimals=2, steps=[(None, "green"), (BUDGET, "red")], no_value="no deletions",
                runbook="CoronerDeletionsSlow"),
            stat("Error budget left",
                "Of 5 % slow deletions within 30 days; of the worst cluster.",
                f"1 - max(cluster:coroner_slow_pod_deletions:ratio_rate30d{{%}}) / {BUDGET}",
                unit="percentunit", decimals=0, steps=[(None, "red"), (0, "orange"), (0.25, "green")], no_value="no deletions",
                runbook="CoronerDeletionsSlow"),
            per_event("Share of slow deletions",
                "Of an hour. Above the line, a cluster uses up its budget sooner than within 30 days. No deletion, no point.",
                {"{{cluster}}": ten("cluster", "max by (cluster) (cluster:coroner_slow_pod_deletions:ratio_rate1h{%})",
                                    "max by (cluster) (max_over_time("
                                    "cluster:coroner_slow_pod_deletions:ratio_rate1h{%}[$__range] @ end()))")},
                unit="percentunit", limit=(BUDGET, "red"), no_value="No pod was deleted.",
                runbook="CoronerDeletionsSlow"),
            outliers("Slow deletions, by namespace",
                "Deletions and evictions that took more than 45 s, their share of all in the namespace, and their share of a day.",
                {"Slow": slow(),
                 "Share": f'({slow()} / {slow("%")} and on ({BY_NAMESPACE}) topk(10, {slow()}))',
                 "Share of a day": "namespace:coroner_slow_pod_deletions:ratio_rate1d{%}"},
                sort="Slow", labels=("cluster", "pod_namespace"), no_value="No deletion took more than 45 s.",
                overrides=[column("Share", unit="percentunit", decimals=1), column("Share of a day", unit="percentunit", decimals=1),
                           leads_to("pod_namespace", namespace="what to do")],
                runbook="CoronerDeletionsSlow"),
        ], widths=[3, 3, 9, 9]),
    ]),
    Row("Deaths, and what they cost", [
        Line(9, [
            bars("Container deaths, by verdict",
                "Container deaths by verdict, of the ten most frequent. stop_signal_ignored: PID 1 had no "
                "handler, or SIG_IGN, and the kernel discarded the signal. stop_signal_blocked: the signal "
                "was still pending at SIGKILL. grace_exceeded: the handler ran, but took too long. "
                "terminated_by_default: no handler, so that nothing was cleaned up. prestop_exhausted_grace: "
                "the preStop hook left only the minimum of 2 s. unknown: evidence was lost.",
                top("verdict", "namespace_verdict:coroner_container_deaths"),
                no_value="No container died."),
            bars("Time lost waiting for SIGKILL, by namespace",
                "Seconds from the stop signal to SIGKILL, of the ten namespaces that lost most.",
                top("pod_namespace", WAIT),
                no_value="No container waited for SIGKILL.",
                unit="s",
                runbook="CoronerStopSignalIgnored"),
        ]),
        Line(9, [
            outliers("Worst namespaces",
                "The namespaces with the most deaths that waited for SIGKILL, the most seconds lost, connections of "
                "clients that a terminating pod cut or refused, OOM kills, and crashes.",
                {"Waited for SIGKILL": deaths("$__range", BY_NAMESPACE, KILLED_AFTER_GRACE),
                 "Time lost": number(WAIT, BY_NAMESPACE, "$__range"),
                 "Connections cut": connections("cut|refused", BY_NAMESPACE),
                 "OOM kills": deaths("$__range", BY_NAMESPACE, "oom_killed"),
                 "Crashes": deaths("$__range", BY_NAMESPACE, "crashed")},
                sort="Time lost", labels=("cluster", "pod_namespace"), no_value="Nothing of this happened.",
                overrides=[column("Time lost", unit="s"), leads_to("pod_namespace", namespace="what to do")],
                runbook="CoronerStopSignalIgnored"),
            outliers("Worst workloads",
                "The containers of workloads with the most deaths that waited for SIGKILL, OOM kills, and crashes. `other`: beyond "
                "the 150 series of a node that --workload-metrics allows.",
                {"Waited for SIGKILL": of_containers(KILLED_AFTER_GRACE),
                 "OOM kills": of_containers("oom_killed"),
                 "Crashes": of_containers("crashed")},
                sort="Waited for SIGKILL", labels=CONTAINER, no_value="No container was killed, and none crashed.",
                overrides=[leads_to("pod_namespace", namespace="what to do")],
                runbook="CoronerStopSignalIgnored", command="coroner explain POD"),
        ]),
    ]),
    Row("Latency", [
        Line(9, [
            heatmap("Pod terminations by duration",
                "Pod terminations by time from the deletion request until the pod's processes, sandbox and "
                "object are gone. A bright band at 30 s is the default grace period: those pods did not "
                "react to the stop signal. Only deletions and evictions whose start was observed.",
                "coroner_pod_termination_duration_seconds",
                "s", no_value="No pod was deleted or evicted."),
            per_event("Pod termination time, quantiles",
                "The same as quantiles, per interval. There is no point where no pod terminated.",
                quantiles("coroner_pod_termination_duration_seconds"),
                unit="s", limit=(30, "yellow"),
                command="coroner explain POD"),
        ]),
        Line(9, [
            areas("Seconds per termination, by phase",
                "Mean seconds that a deletion or an eviction spent in each phase, of the ten longest phases; the stack "
                "is the mean duration. pre_stop and shutdown belong to the application, runtime_notice and "
                "sandbox_stop to the runtime and the network plugin, kubelet_reaction, stop_call and cleanup "
                "to the kubelet, finalizers to a controller. unattributed: a milestone is missing.",
                {"{{phase}}": ten(
                    "phase", f"{number(PHASES, 'phase')} / scalar({number(TERMINATIONS, only=WITH_PHASES)} > 0)",
                    number(PHASES, "phase", "$__range", at=" @ end()"))},
                unit="s", calcs=("mean", "max"), interval="2m",
                command="coroner explain POD"),
            heatmap("Stopped containers by share of the grace period",
                "Share of the grace period that a stopped container used; above 1 it exceeded the grace "
                "period. A band at 1 is containers that do not react to the stop signal. Where all are far "
                "below 0.1, the grace period could be shorter.",
                "coroner_container_stop_grace_ratio",
                "percentunit", no_value="No container was stopped."),
        ]),
    ]),
    Row("Clients of terminating pods", [
        Line(9, [
            bars("Connections cut or refused, by namespace",
                "Connections of clients that the end of a terminating pod cut in the middle of a request, or that it "
                "refused, of the ten namespaces that lost most.",
                top("pod_namespace", "workload_event:coroner_pod_connections", '%,event=~"cut|refused"'),
                no_value=NO_CUT,
                runbook="CoronerConnectionsCut"),
            outliers("Connections at terminations",
                "The workloads with the most connections of clients that were cut in the middle of a request, refused, or late: "
                f"opened after the stop signal, and served. {REFUSALS}",
                {event.capitalize(): connections(event, ", ".join(WORKLOAD)) for event in ("cut", "refused", "late")},
                sort="Cut", labels=WORKLOAD, no_value=NO_CUT,
                overrides=[leads_to("pod_namespace", namespace="what to do")],
                runbook="CoronerConnectionsCut", command="coroner explain POD"),
            heatmap("Last new connection after the stop signal",
                "Terminated pods by the time from the stop signal to the last new connection of a client: the delay "
                "with which the removal of endpoints reaches the clients. Pods to which no client connected while they "
                "terminated are excluded.",
                "coroner_pod_last_new_connection_seconds",
                "s", no_value="No client connected to a terminating pod."),
        ]),
    ]),
    Row("Drains", [
        Line(8, [
            stat("Cordoned nodes",
                "Nodes that accept no new pods, as during a drain. Needs kube-state-metrics.",
                "count(max by (cluster, node) (kube_node_spec_unschedulable{@}) == 1) or vector(0)",
                steps=NEUTRAL,
                runbook="CoronerStopsOverGrace"),
            lines("Pods terminating on cordoned nodes",
                "The ten nodes with most of them. A line that does not go down is a drain that is held up. Stuck pods "
                "are on the dashboard Leaks.",
                ten_nodes("node:coroner_drained_pods_terminating"),
                decimals=0, no_value="No node is cordoned, or kube-state-metrics is missing.",
                runbook="CoronerStopsOverGrace"),
            table("Drains that take longest",
                "Cordoned nodes by the minutes of this time range during which pods were terminating, and their pods now.",
                ["topk(10, sum_over_time((node:coroner_drained_pods_terminating{@} > bool 0)[$__range:1m]))",
                 "node:coroner_drained_pods_terminating{@}"],
                [merged(), columns({"cluster": "Cluster", "node": "Node", "Value #A": "Minutes", "Value #B": "Terminating now"})],
                sort="Minutes", decimals=0, no_value="No node was drained.",
                overrides=[leads_to("node", leaks="leaks of this node")],
                runbook="CoronerPodsStuckTerminating", command="coroner explain POD"),
        ], widths=[4, 10, 10]),
    ]),
    Row("Nodes", [
        Line(11, [
            outliers("Nodes that differ from the others",
                "The ten worst nodes of each column. p90 is the longest that an hour of this time range had, and its ratio is to the "
                "median node's: a node that is slow while the others are not has a slow runtime, disk or network plugin.",
                {"p90 to median": f"{P90} / scalar(quantile(0.5, {P90}))",
                 "p90": P90,
                 "Waited for SIGKILL": number("node:coroner_killed_stops", "cluster, node", "$__range", "@"),
                 "Unkillable": "sum by (cluster, node) (coroner_containers_unkillable{@})",
                 "Leaked sandboxes": "sum by (cluster, node) (coroner_leaked_sandboxes{@})",
                 "Addresses held": "sum by (cluster, node) (coroner_leaked_sandbox_ips{@})",
                 "Orphans": "sum by (cluster, node) (coroner_orphans{@})",
                 "Stuck terminating": "sum by (cluster, node) (coroner_pods_stuck_terminating{@})"},
                sort="p90 to median",
                overrides=[
                    column("p90", unit="s", decimals=1, thresholds=thresholds(LATENCY), custom_cellOptions=COLORED_TEXT),
                    column("p90 to median", decimals=1, custom_cellOptions=COLORED_TEXT, thresholds=thresholds(
                        [(None, "green"), (2, "yellow"), (5, "orange")])),
                    leads_to("node", leaks="leaks of this node", agent="the agent of this node")],
                runbook="CoronerStopsOverGrace", command="coroner leaks -v"),
        ]),
    ]),
    Row("Findings, and the kubelet", [
        Line(8, [
            bars("Findings",
                "Findings on terminated containers and pods, the ten most frequent. children_not_signalled: "
                "SIGKILL ended processes that had never received the stop signal. deadline_missed: exited more than "
                "6 s after the deadline. outlived_object: still ran when the pod's object was gone. prestop_cut_off: the "
                "preStop hook still ran when the stop signal was sent. runtime_restarted, kubelet_restarted: "
                "during the termination. A container can have several.",
                top("finding", "cluster_finding:coroner_findings"),
                no_value="No findings.",
                command="coroner explain POD"),
            bars("Contradictions",
                "Containers whose runtime or apiserver status contradicts the kernel's records: another exit "
                "code, OOMKilled without an OOM kill, running without processes, exited with processes.",
                top("kind", "cluster_kind:coroner_contradictions"),
                no_value="No contradictions."),
            per_event("Sandbox removal time, quantiles",
                "Time from the stop of a sandbox to its removal by the kubelet's garbage collection, which "
                "runs once a minute. It does not delay the pod. Sandboxes that are never removed are on the "
                "dashboard Leaks.",
                quantiles("coroner_sandbox_removal_duration_seconds"),
                unit="s", limit=(120, "yellow")),
        ]),
    ], collapsed=True),
]

DASHBOARD = dashboard(
    "coroner-fleet",
    "For the platform team: how many deaths waited for SIGKILL, what that cost, the worst workloads, nodes that differ "
    "from the others, leaks and addresses.",
    ROWS, [NODE])
