"""How long pod terminations take, in which phase; causes, verdicts, findings; the worst namespaces and nodes."""

from blocks import (
    COLORED_TEXT, GRACE_USED_UP, KILLED_AFTER_GRACE, LATENCY, NAMESPACE, NEUTRAL, STOPPED, Line, Row, areas,
    bars, column, columns, dashboard, deaths, heatmap, lines, matrix, merged, outliers, per_event, quantiles, ranking,
    share_of_stops, stat, table, ten, thresholds
)

PHASES = "sum by (phase) (rate(coroner_pod_termination_phase_seconds_total{@}[$__rate_interval]))"
PHASES_IN_RANGE = "sum by (phase) (increase(coroner_pod_termination_phase_seconds_total{@}[$__range]))"
STAGES = ("sum by (stage) (rate(coroner_kubelet_stage_duration_seconds_sum{@}[$__rate_interval])) / "
          "sum by (stage) (rate(coroner_kubelet_stage_duration_seconds_count{@}[$__rate_interval]))")
UNASKED = "oom_killed|crashed|force_killed|failed"
# A namespace's deaths that no window's beginning shows count too, unlike in an increase.
DEATHS_SO_FAR = 'max_over_time(coroner_container_deaths_total{@,namespace=~"$namespace"%s}[$__range] @ end())'
P90 = ("histogram_quantile(0.9, sum by (cluster, node, le) "
       "(increase(coroner_pod_termination_duration_seconds_bucket{@}[$__range]))) > 0")


def findings(window, at=""):
    """Findings on containers and pods."""
    return (f"sum by (finding) (increase(coroner_container_findings_total{{@}}[{window}]{at})"
            f" or increase(coroner_pod_findings_total{{@}}[{window}]{at}))")


ROWS = [
    Row("In this time range", [
        Line(4, [
            stat("Terminating now",
                "Pods that are terminating on these nodes. A number that stays up after a drain or a rollout "
                "is pods that do not go: see Slowest nodes, and Stuck terminating on the dashboard Leaks.",
                "sum(coroner_pods_terminating{@})",
                steps=NEUTRAL),
            stat("p99 termination",
                "99 of 100 deleted pods took less time than this, from the deletion request until processes, "
                "sandbox and object were gone. Estimated from the histogram's buckets, which end at one "
                "hour.",
                "histogram_quantile(0.99, sum by (le) "
                "(increase(coroner_pod_termination_duration_seconds_bucket{@}[$__range])))",
                unit="s", steps=LATENCY, decimals=1),
            stat("Killed after the grace period",
                "Share of the stopped containers that SIGKILL ended, because the stop signal was ignored, "
                "blocked, or handled too slowly.",
                share_of_stops(KILLED_AFTER_GRACE, "$__range"),
                unit="percentunit", decimals=1,
                steps=[(None, "green"), (0.01, "yellow"), (0.05, "orange"), (0.2, "red")],
                runbook="CoronerContainersSigkilled"),
            stat("Unkillable now",
                "Containers with processes that survive SIGKILL. Uninterruptible processes are blocked in "
                "the kernel: storage, a driver, NFS. The agent's log shows where.",
                "sum(coroner_containers_unkillable{@})",
                runbook="CoronerUnkillableProcesses"),
        ]),
    ]),
    Row("Termination latency", [
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
                unit="s", limit=(30, "yellow")),
        ]),
        Line(9, [
            per_event("Container stop time, quantiles",
                "Time from the start of stopping a container (preStop hook or stop signal) to the exit of "
                "its last process: the application's own part of the termination.",
                quantiles("coroner_container_stop_duration_seconds"),
                unit="s", limit=(30, "yellow")),
            per_event("Sandbox removal time, quantiles",
                "Time from the stop of a sandbox to its removal by the kubelet's garbage collection, which "
                "runs once a minute. It does not delay the pod. Sandboxes that are never removed are on the "
                "dashboard Leaks.",
                quantiles("coroner_sandbox_removal_duration_seconds"),
                unit="s", limit=(120, "yellow")),
        ]),
    ]),
    Row("Time per phase", [
        Line(10, [
            areas("Seconds per termination, by phase",
                "Mean seconds that a termination spent in each phase, of the ten longest phases; the stack "
                "is the mean duration. pre_stop and shutdown belong to the application, runtime_notice and "
                "sandbox_stop to the runtime and the network plugin, kubelet_reaction, stop_call and cleanup "
                "to the kubelet, finalizers to a controller. unattributed: a milestone is missing.",
                {"{{phase}}": ten(
                    "phase", PHASES + " / scalar(sum(rate(coroner_pod_terminations_total{@}[$__rate_interval])))",
                    PHASES_IN_RANGE.replace("]", "] @ end()"))},
                unit="s", calcs=("mean", "max"), interval="2m"),
            ranking("Share of the time, by phase",
                "Share of each phase in all the seconds that terminations took in this time range.",
                "phase",
                f"sort_desc(topk(10, {PHASES_IN_RANGE} / scalar(sum({PHASES_IN_RANGE}))))",
                unit="percentunit", decimals=1),
        ], widths=[16, 8]),
    ]),
    Row("Stages of the kubelet", [
        Line(9, [
            lines("Seconds per stage, by stage",
                "Mean seconds of each stage of the kubelet while a pod terminated, with the time that it waited for "
                "the stage before, from the kubelet's log. What its verbosity hides is missing: docs/kubelet.md.",
                {"{{stage}}": ten(
                    "stage", STAGES, "sum by (stage) "
                    "(increase(coroner_kubelet_stage_duration_seconds_sum{@}[$__range] @ end()))")},
                unit="s", interval="2m"),
            lines("Lines of the kubelet's log, by result",
                "Lines of the kubelets' logs by what became of them: read, skipped as not needed, and those that were "
                "not read because of the budget, their length or their form.",
                {"{{result}}": "sum by (result) (rate(coroner_kubelet_log_lines_total{@}[$__rate_interval]))"},
                unit="short"),
        ]),
    ]),
    Row("Causes", [
        Line(8, [
            bars("Pod terminations, by cause",
                "Pod terminations by cause, of the ten most frequent: deletion, eviction, preemption, a "
                "taint, node pressure or shutdown, completion. liveness, startup and restart stop containers "
                "only, unless the pod terminates with them.",
                {"{{cause}}": ten(
                    "cause", "sum by (cause) (increase(coroner_pod_terminations_total{@}[$__rate_interval])) > 0",
                    "sum by (cause) (increase(coroner_pod_terminations_total{@}[$__range] @ end()))")}),
        ]),
    ]),
    Row("Verdicts", [
        Line(9, [
            bars("Container deaths, by verdict",
                "Container deaths by verdict, of the ten most frequent. stop_signal_ignored: PID 1 had no "
                "handler, or SIG_IGN, and the kernel discarded the signal. stop_signal_blocked: the signal "
                "was still pending at SIGKILL. grace_exceeded: the handler ran, but took too long. "
                "terminated_by_default: no handler, so that nothing was cleaned up. prestop_exhausted_grace: "
                "the preStop hook left only the minimum of 2 s. unknown: evidence was lost.",
                {"{{verdict}}": ten("verdict", deaths("$__rate_interval", by="verdict") + " > 0",
                                    f"sum by (verdict) ({DEATHS_SO_FAR % ''})")}),
            ranking("Verdicts in this time range",
                "Container deaths in the whole time range, by verdict.",
                "verdict",
                f'sort_desc(topk(10, {deaths("$__range", by="verdict")} > 0))'),
        ], widths=[16, 8]),
        Line(8, [
            per_event("Stopped containers, by outcome",
                "Of the containers that received their stop signal: the share that exited in time, that had "
                "no handler, and that used up the grace period or was killed after it.",
                {"graceful": share_of_stops("graceful", "$__rate_interval"),
                 "no handler": share_of_stops("terminated_by_default", "$__rate_interval"),
                 "grace period used up": share_of_stops(GRACE_USED_UP, "$__rate_interval")},
                unit="percentunit", max_val=1, calcs=("mean",)),
            bars("OOM kills, crashes and external SIGKILLs",
                "Containers that were ended by the OOM killer, a crash, an exit with an error, or a SIGKILL "
                "from outside the runtime.",
                {"{{verdict}}": deaths("$__rate_interval", by="verdict", verdicts=UNASKED) + " > 0"}),
        ]),
    ]),
    Row("Findings", [
        Line(8, [
            bars("Findings",
                "Findings on terminated containers and pods, the ten most frequent. children_not_signalled: "
                "SIGKILL ended processes that had never received the stop signal. deadline_missed: exited more than 6 s after the "
                "deadline. outlived_object: still ran when the pod's object was gone. prestop_cut_off: the "
                "preStop hook still ran when the stop signal was sent. runtime_restarted, kubelet_restarted: "
                "during the termination. A container can have several.",
                {"{{finding}}": ten("finding", f"{findings('$__rate_interval')} > 0",
                                    findings("$__range", " @ end()"))}),
            bars("Contradictions",
                "Containers whose runtime or apiserver status contradicts the kernel's records: another exit "
                "code, OOMKilled without an OOM kill, running without processes, exited with processes.",
                {"{{kind}}": "sum by (kind) (increase(coroner_contradictions_total{@}[$__rate_interval]))"}),
        ]),
        Line(8, [
            outliers("Unkillable containers",
                "Nodes with containers whose processes survive SIGKILL, by process state; uninterruptible "
                "processes are blocked in the kernel. The agent's log shows where.",
                {"Containers": "sum by (cluster, node, state) (coroner_containers_unkillable{@})"},
                sort="Containers", also=["state"],
                runbook="CoronerUnkillableProcesses"),
        ]),
    ]),
    Row("Grace period used", [
        Line(9, [
            heatmap("Stopped containers by share of the grace period",
                "Share of the grace period that a stopped container used; above 1 it exceeded the grace "
                "period. A band at 1 is containers that do not react to the stop signal. Where all are far "
                "below 0.1, the grace period could be shorter.",
                "coroner_container_stop_grace_ratio",
                "percentunit"),
            per_event("Stops that used up the grace period",
                "Share of the stopped containers that took the whole grace period or more. From the "
                "histogram, which includes the namespaces beyond the first 100 of a node.",
                {"grace period used up": "1 - "
                 'sum(rate(coroner_container_stop_grace_ratio_bucket{@,le=~"1(\\\\.0)?"}[$__rate_interval])) / '
                 "sum(rate(coroner_container_stop_grace_ratio_count{@}[$__rate_interval]))"},
                unit="percentunit", limit=(0.05, "red"), max_val=1, calcs=("mean", "max"),
                runbook="CoronerStopsOverGrace"),
        ]),
    ]),
    Row("Worst namespaces and nodes", [
        Line(10, [
            table("Grace period used up, by namespace",
                "Stopped containers of each namespace in this time range that ignored or blocked the stop "
                "signal, exceeded the grace period, or whose preStop hook used it up.",
                [f'{deaths("$__range", by="namespace, verdict", verdicts=GRACE_USED_UP)} > 0'],
                [matrix("namespace", "verdict")],
                sort="namespace\\verdict", decimals=0,
                runbook="CoronerStopSignalIgnored"),
            per_event("Killed after the grace period, by namespace",
                "Share of the stopped containers that SIGKILL ended, of the ten namespaces with most of "
                "them.",
                {"{{namespace}}": ten(
                    "namespace",
                    deaths("$__rate_interval", by="namespace", verdicts=KILLED_AFTER_GRACE) + " / "
                    + deaths("$__rate_interval", by="namespace", verdicts=STOPPED),
                    f"""sum by (namespace) ({DEATHS_SO_FAR % f',verdict=~"{KILLED_AFTER_GRACE}"'})""")},
                unit="percentunit", max_val=1, calcs=("mean",), interval="5m",
                runbook="CoronerContainersSigkilled"),
        ]),
        Line(9, [
            table("Slowest nodes",
                "The 90th percentile of the termination time on the 20 slowest nodes in this time range, and "
                "how many terminations it is of. A node that is slow while the others are not has a slow "
                "runtime, disk or network plugin.",
                [f"topk(20, {P90})",
                 "sum by (cluster, node) (increase(coroner_pod_termination_duration_seconds_count{@}[$__range]))"
                 f" and on (cluster, node) topk(20, {P90})"],
                [merged(),
                 columns({"cluster": "Cluster", "node": "Node", "Value #A": "p90", "Value #B": "Terminations"})],
                sort="p90", decimals=0,
                overrides=[column("p90", unit="s", decimals=1, thresholds=thresholds(LATENCY),
                                  custom_cellOptions=COLORED_TEXT)]),
        ]),
    ]),
]

DASHBOARD = dashboard(
    "coroner-terminations",
    "How long pod terminations take and in which phase; how containers died, by the kernel's records; which "
    "namespaces need SIGKILL.",
    ROWS, [NAMESPACE])
