"""For the platform team: what terminations cost, and which namespaces, workloads and nodes stand out."""

from blocks import (
    COLORED_TEXT, FEW_ARE_GOOD, KILLED_AFTER_GRACE, LATENCY, NEUTRAL, RUNBOOKS, Line, Row, areas, bars, column, columns,
    dashboard, deaths, heatmap, leads_to, outliers, per_event, quantiles, stat, table, ten, thresholds
)

PHASES = "sum by (phase) (rate(coroner_pod_termination_phase_seconds_total{@}[$__rate_interval]))"
PHASES_IN_RANGE = "sum by (phase) (increase(coroner_pod_termination_phase_seconds_total{@}[$__range] @ end()))"
P90 = ("histogram_quantile(0.9, sum by (cluster, node, le) "
       "(increase(coroner_pod_termination_duration_seconds_bucket{@}[$__range])))")


def wait(window, by="", at=""):
    """Seconds from stop signals to SIGKILLs."""
    return (f"sum{f' by ({by}) ' if by else ''}"
            f"(increase(coroner_container_sigkill_wait_seconds_total{{@}}[{window}]{at}))")


def findings(window, at=""):
    """Findings on containers and pods."""
    return (f"sum by (finding) (increase(coroner_container_findings_total{{@}}[{window}]{at})"
            f" or increase(coroner_pod_findings_total{{@}}[{window}]{at}))")


def workloads(verdicts):
    return ("sum by (cluster, namespace, workload_kind, workload) (increase("
            f'coroner_workload_container_deaths_total{{@,verdict=~"{verdicts}"}}[$__range]))')


def connections(what, by, window="$__range", at=""):
    """Connections of clients that terminating pods cut, refused, or still got after the stop signal (late)."""
    return f"sum by ({by}) (increase(coroner_pod_connections_{what}_total{{@}}[{window}]{at}))"


def lost(window, at="", by="namespace"):
    """Connections that were cut or refused. Before Linux 6.10 there is no series of the latter."""
    cut = connections("cut", by, window, at)
    return f"({cut} + {connections('refused', by, window, at)} or {cut})"


ROWS = [
    Row("Now, and in this time range", [
        Line(4, [
            stat("Terminating now",
                "Pods that are terminating on these nodes. A number that stays up after a drain or a rollout "
                "is pods that do not go: see Nodes that differ from the others.",
                "sum(coroner_pods_terminating{@})",
                steps=NEUTRAL,
                command="coroner explain POD"),
            stat("Deaths that waited for SIGKILL",
                "Containers that SIGKILL ended, because the stop signal was ignored, blocked, or handled too slowly.",
                deaths("$__range", verdicts=KILLED_AFTER_GRACE),
                steps=FEW_ARE_GOOD, decimals=0,
                runbook="CoronerContainersSigkilled"),
            stat("Time lost waiting for SIGKILL",
                "The sum of the times from the stop signal to SIGKILL, of the same containers. Drains and rollouts "
                "wait for most of it.",
                wait("$__range"),
                unit="s", steps=[(None, "green"), (60, "yellow"), (3600, "orange")], decimals=0,
                runbook="CoronerStopSignalIgnored"),
            stat("Unkillable now",
                "Containers with processes that survive SIGKILL. Uninterruptible processes are blocked in "
                "the kernel: storage, a driver, NFS. The agent's log shows where.",
                "sum(coroner_containers_unkillable{@})",
                runbook="CoronerUnkillableProcesses", command="coroner explain POD"),
            stat("Leaked sandboxes",
                "Confirmed leaked sandboxes on these nodes.",
                "sum(coroner_leaked_sandboxes{@})",
                trend=True,
                runbook="CoronerSandboxesLeaked", command="coroner leaks -v"),
            stat("Addresses held",
                "IP addresses held by leaked sandboxes. When a node's range is used up, no pod can start on "
                "it.",
                "sum(coroner_leaked_sandbox_ips{@})",
                steps=FEW_ARE_GOOD, trend=True,
                runbook="CoronerLeakedIPsHeld", command="coroner leaks -v"),
        ]),
        Line(8, [
            table("Firing alerts",
                "Alerts of coroner that fire now, and for how many nodes or namespaces. Alerts of the whole cluster "
                "show only if all nodes are chosen.",
                ['count by (cluster, alertname, severity) (ALERTS{@,alertname=~"Coroner.+",alertstate="firing"})'],
                [columns({"cluster": "Cluster", "alertname": "Alert", "severity": "Severity", "Value": "Firing"})],
                sort="Severity", decimals=0,
                overrides=[column("Alert", links=[{
                    "title": "Runbook", "targetBlank": True,
                    "url": f"{RUNBOOKS}/${{__value.raw}}.md"}])]),
            bars("Pod terminations, by cause",
                "Pod terminations by cause, of the ten most frequent: deletion, eviction, preemption, a "
                "taint, node pressure or shutdown, completion. liveness, startup and restart stop containers "
                "only, unless the pod terminates with them.",
                {"{{cause}}": ten(
                    "cause", "sum by (cause) (increase(coroner_pod_terminations_total{@}[$__rate_interval])) > 0",
                    "sum by (cause) (increase(coroner_pod_terminations_total{@}[$__range] @ end()))")}),
        ]),
    ]),
    Row("Deaths, and what they cost", [
        Line(9, [
            bars("Container deaths, by verdict",
                "Container deaths by verdict, of the ten most frequent. stop_signal_ignored: PID 1 had no "
                "handler, or SIG_IGN, and the kernel discarded the signal. stop_signal_blocked: the signal "
                "was still pending at SIGKILL. grace_exceeded: the handler ran, but took too long. "
                "terminated_by_default: no handler, so that nothing was cleaned up. prestop_exhausted_grace: "
                "the preStop hook left only the minimum of 2 s. unknown: evidence was lost.",
                {"{{verdict}}": ten("verdict", deaths("$__rate_interval", by="verdict") + " > 0",
                                    deaths("$__range", by="verdict", at=" @ end()"))}),
            bars("Time lost waiting for SIGKILL, by namespace",
                "Seconds from the stop signal to SIGKILL, of the ten namespaces that lost most.",
                {"{{namespace}}": ten("namespace", wait("$__rate_interval", by="namespace") + " > 0",
                                      wait("$__range", by="namespace", at=" @ end()"))},
                unit="s",
                runbook="CoronerStopSignalIgnored"),
        ]),
        Line(9, [
            outliers("Worst namespaces",
                "The namespaces with the most deaths that waited for SIGKILL, the most seconds lost, connections of "
                "clients that a terminating pod cut or refused, OOM kills, and crashes.",
                {"Waited for SIGKILL": deaths("$__range", by="cluster, namespace", verdicts=KILLED_AFTER_GRACE),
                 "Time lost": wait("$__range", by="cluster, namespace"),
                 "Connections cut": lost("$__range", by="cluster, namespace"),
                 "OOM kills": deaths("$__range", by="cluster, namespace", verdicts="oom_killed"),
                 "Crashes": deaths("$__range", by="cluster, namespace", verdicts="crashed")},
                sort="Time lost", labels=("cluster", "namespace"),
                overrides=[column("Time lost", unit="s"), leads_to("namespace", namespace="what to do")],
                runbook="CoronerStopSignalIgnored"),
            outliers("Worst workloads",
                "The workloads with the most deaths that waited for SIGKILL, OOM kills, and crashes. Needs agents with "
                "--workload-metrics.",
                {"Waited for SIGKILL": workloads(KILLED_AFTER_GRACE),
                 "OOM kills": workloads("oom_killed"),
                 "Crashes": workloads("crashed")},
                sort="Waited for SIGKILL", labels=("cluster", "namespace", "workload_kind", "workload"),
                overrides=[leads_to("namespace", namespace="what to do")],
                runbook="CoronerStopSignalIgnored", command="coroner explain POD"),
        ]),
    ]),
    Row("Latency", [
        Line(9, [
            heatmap("Pod terminations by duration",
                "Pod terminations by time from the deletion request until the pod's processes, sandbox and "
                "object are gone. A bright band at 30 s is the default grace period: those pods did not "
                "react to the stop signal. Terminations whose start was not observed are excluded.",
                "coroner_pod_termination_duration_seconds",
                "s"),
            per_event("Pod termination time, quantiles",
                "The same as quantiles, per interval. There is no point where no pod terminated.",
                quantiles("coroner_pod_termination_duration_seconds"),
                unit="s", limit=(30, "yellow"),
                command="coroner explain POD"),
        ]),
        Line(9, [
            areas("Seconds per termination, by phase",
                "Mean seconds that a termination spent in each phase, of the ten longest phases; the stack "
                "is the mean duration. pre_stop and shutdown belong to the application, runtime_notice and "
                "sandbox_stop to the runtime and the network plugin, kubelet_reaction, stop_call and cleanup "
                "to the kubelet, finalizers to a controller. unattributed: a milestone is missing.",
                {"{{phase}}": ten(
                    "phase", PHASES + " / scalar(sum(rate(coroner_pod_terminations_total{@}[$__rate_interval])))",
                    PHASES_IN_RANGE)},
                unit="s", calcs=("mean", "max"), interval="2m",
                command="coroner explain POD"),
            heatmap("Stopped containers by share of the grace period",
                "Share of the grace period that a stopped container used; above 1 it exceeded the grace "
                "period. A band at 1 is containers that do not react to the stop signal. Where all are far "
                "below 0.1, the grace period could be shorter.",
                "coroner_container_stop_grace_ratio",
                "percentunit"),
        ]),
    ]),
    Row("Clients of terminating pods", [
        Line(9, [
            bars("Connections cut or refused, by namespace",
                "Connections of clients that the end of a terminating pod cut in the middle of a request, or that it "
                "refused, of the ten namespaces that lost most.",
                {"{{namespace}}": ten("namespace", f"{lost('$__rate_interval')} > 0", lost("$__range", " @ end()"))},
                runbook="CoronerConnectionsLost"),
            outliers("Connections at terminations",
                "The namespaces with the most connections of clients that were cut in the middle of a request, refused "
                "(Linux 6.10 or later), or late: opened after the stop signal, and served.",
                {what.capitalize(): connections(what, "cluster, namespace") for what in ("cut", "refused", "late")},
                sort="Cut", labels=("cluster", "namespace"),
                overrides=[leads_to("namespace", namespace="what to do")],
                runbook="CoronerConnectionsLost", command="coroner explain POD"),
            heatmap("Last new connection after the stop signal",
                "Terminated pods by the time from the stop signal to the last new connection of a client: the delay "
                "with which the removal of endpoints reaches the clients. Pods to which no client connected while they "
                "terminated are excluded.",
                "coroner_pod_last_new_connection_seconds",
                "s"),
        ]),
    ]),
    Row("Nodes", [
        Line(11, [
            outliers("Nodes that differ from the others",
                "The ten worst nodes of each column. p90 is of the termination time in this time range, and its ratio "
                "is to the median node's: a node that is slow while the others are not has a slow runtime, disk or "
                "network plugin.",
                {"p90 to median": f"({P90} > 0) / scalar(quantile(0.5, {P90} > 0))",
                 "p90": f"{P90} > 0",
                 "Waited for SIGKILL": deaths("$__range", by="cluster, node", verdicts=KILLED_AFTER_GRACE),
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
                {"{{finding}}": ten("finding", f"{findings('$__rate_interval')} > 0",
                                    findings("$__range", " @ end()"))},
                command="coroner explain POD"),
            bars("Contradictions",
                "Containers whose runtime or apiserver status contradicts the kernel's records: another exit "
                "code, OOMKilled without an OOM kill, running without processes, exited with processes.",
                {"{{kind}}": "sum by (kind) (increase(coroner_contradictions_total{@}[$__rate_interval]))"}),
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
    ROWS, [])
