"""How long pods took to end and who spent the time; causes, verdicts, findings; who overruns the grace."""

from blocks import (
    COLORED_TEXT, GRACE_USED_UP, KILLED_AFTER_GRACE, LATENCY, NAMESPACE, NEUTRAL, STOPPED, Line, Row, areas,
    bars, column, columns, dashboard, deaths, heatmap, matrix, merged, outliers, per_event, quantiles, ranking,
    share_of_stops, stat, table, ten, thresholds
)

PHASES = "sum by (phase) (rate(coroner_pod_termination_phase_seconds_total{@}[$__rate_interval]))"
PHASES_IN_RANGE = "sum by (phase) (increase(coroner_pod_termination_phase_seconds_total{@}[$__range]))"
UNASKED = "oom_killed|crashed|force_killed|failed"
# A namespace's deaths that no window's beginning shows count too, unlike in an increase.
DEATHS_SO_FAR = 'max_over_time(coroner_container_deaths_total{@,namespace=~"$namespace"%s}[$__range] @ end())'
P90 = ("histogram_quantile(0.9, sum by (cluster, node, le) "
       "(increase(coroner_pod_termination_duration_seconds_bucket{@}[$__range]))) > 0")

ROWS = [
    Row("In this time range", [
        Line(4, [
            stat("Terminating now",
                "Pods whose end is under way on these nodes at this moment.",
                "sum(coroner_pods_terminating{@})",
                steps=NEUTRAL),
            stat("Slowest 1 %",
                "99 of 100 pods that were deleted took less than this from the request to the end of "
                "processes, sandbox and object. The histogram ends at one hour.",
                "histogram_quantile(0.99, sum by (le) "
                "(increase(coroner_pod_termination_duration_seconds_bucket{@}[$__range])))",
                unit="s", steps=LATENCY, decimals=1),
            stat("Killed after their grace",
                "Share of the stopped containers that SIGKILL had to end, because the stop signal was "
                "ignored, blocked, or taken too slowly.",
                share_of_stops(KILLED_AFTER_GRACE, "$__range"),
                unit="percentunit", decimals=1,
                steps=[(None, "green"), (0.01, "yellow"), (0.05, "orange"), (0.2, "red")]),
            stat("Unkillable now",
                "Containers that are alive long after SIGKILL. Uninterruptible ones hang in the kernel: "
                "storage, a driver, NFS. The agent's log says where.",
                "sum(coroner_containers_unkillable{@})"),
        ]),
    ]),
    Row("Latency: from the delete request to the end of processes, sandbox and object", [
        Line(9, [
            heatmap("Pod terminations by duration",
                "How many pods took how long, from the request to delete them to the end of their processes, "
                "sandbox and object. A bright band at 30 s is the default grace: those were waited for in "
                "vain. Terminations whose beginning was not seen are left out.",
                "coroner_pod_termination_duration_seconds",
                "s"),
            per_event("Pod termination, quantiles",
                "The same as quantiles, per interval. Where no pod ended there is no point.",
                quantiles("coroner_pod_termination_duration_seconds"),
                unit="s", limit=(30, "yellow")),
        ]),
        Line(9, [
            per_event("Container stop, quantiles",
                "From the first act of stopping a container (preStop or the stop signal) to the exit of its "
                "last process: the application's own part of the whole.",
                quantiles("coroner_container_stop_duration_seconds"),
                unit="s", limit=(30, "yellow")),
            per_event("Sandbox removal, quantiles",
                "From a sandbox's stop to its removal by the kubelet's garbage collection, which goes its "
                "round each minute. Does not hold the pod up; what is never removed is on the dashboard "
                "Leaks.",
                quantiles("coroner_sandbox_removal_duration_seconds"),
                unit="s", limit=(120, "yellow")),
        ]),
    ]),
    Row("Phases: who spent the seconds", [
        Line(10, [
            areas("Seconds per termination, by phase",
                "Mean seconds that a termination spent in each phase. They are additive: the stack is the "
                "mean duration. pre_stop and shutdown are the application's, runtime_notice and sandbox_stop "
                "the runtime's (and the network plugin's), kubelet_reaction, stop_call and cleanup the "
                "kubelet's, finalizers some controller's. unattributed: a milestone is missing.",
                {"{{phase}}": ten(
                    "phase", PHASES + " / scalar(sum(rate(coroner_pod_terminations_total{@}[$__rate_interval])))",
                    PHASES_IN_RANGE.replace("]", "] @ end()"))},
                unit="s", calcs=("mean", "max"), interval="2m"),
            ranking("Share of the time, by phase",
                "Of all the seconds that pods spent ending in this time range, which share went where.",
                "phase",
                f"sort_desc(topk(10, {PHASES_IN_RANGE} / scalar(sum({PHASES_IN_RANGE}))))",
                unit="percentunit", decimals=1),
        ], widths=[16, 8]),
    ]),
    Row("Causes: what ended the pods", [
        Line(8, [
            bars("Pods that ended, by cause",
                "Pod lives that ended, by what ended them: a delete, an eviction, preemption, a taint, node "
                "pressure or shutdown, completion … liveness, startup and restart end containers only, "
                "unless the pod goes with them.",
                {"{{cause}}": ten(
                    "cause", "sum by (cause) (increase(coroner_pod_terminations_total{@}[$__rate_interval])) > 0",
                    "sum by (cause) (increase(coroner_pod_terminations_total{@}[$__range] @ end()))")}),
        ]),
    ]),
    Row("Verdicts: how the containers died", [
        Line(9, [
            bars("Container deaths, by verdict",
                "Container lives that ended, by what the kernel saw. stop_signal_ignored: PID 1 without a "
                "handler (or SIG_IGN), the kernel threw the signal away. stop_signal_blocked: still pending "
                "at SIGKILL. grace_exceeded: took it, too slowly. terminated_by_default: no handler, nothing "
                "was cleaned up. prestop_exhausted_grace: the hook left only the floor of 2 s. unknown: "
                "evidence was lost.",
                {"{{verdict}}": ten("verdict", deaths("$__rate_interval", by="verdict") + " > 0",
                                    f"sum by (verdict) ({DEATHS_SO_FAR % ''})")}),
            ranking("Verdicts in this time range",
                "The same for the whole time range.",
                "verdict",
                f'sort_desc(topk(10, {deaths("$__range", by="verdict")} > 0))'),
        ], widths=[16, 8]),
        Line(8, [
            per_event("Stopped containers, by outcome",
                "Of the containers that were told to stop, the share that left by itself in time, that had "
                "no handler, and that used up its grace or was killed after it.",
                {"graceful": share_of_stops("graceful", "$__rate_interval"),
                 "no handler": share_of_stops("terminated_by_default", "$__rate_interval"),
                 "grace used up": share_of_stops(GRACE_USED_UP, "$__rate_interval")},
                unit="percentunit", max_val=1, calcs=("mean",)),
            bars("Deaths that nobody asked for",
                "Containers that the OOM killer, a crash or a SIGKILL from outside ended.",
                {"{{verdict}}": deaths("$__rate_interval", by="verdict", verdicts=UNASKED) + " > 0"}),
        ]),
    ]),
    Row("Findings: what else was seen", [
        Line(8, [
            bars("Findings",
                "children_not_signalled: the kernel killed processes that had never been sent the stop "
                "signal. deadline_missed: ended more than 6 s after the deadline. outlived_object: ran on "
                "after the object was gone. prestop_cut_off: the hook still ran when the stop signal came. A "
                "container can have several.",
                {"{{finding}}": "sum by (finding) (increase(coroner_container_findings_total{@}[$__rate_interval])"
                                " or increase(coroner_pod_findings_total{@}[$__rate_interval])) > 0"}),
            bars("Contradictions",
                "Container lives of which the runtime or the apiserver say what the kernel contradicts: "
                "another exit code, OOMKilled where nothing was killed for want of memory, running without "
                "processes, exited with processes.",
                {"{{kind}}": "sum by (kind) (increase(coroner_contradictions_total{@}[$__rate_interval]))"}),
        ]),
        Line(8, [
            outliers("Unkillable containers",
                "Nodes with containers that are alive long after SIGKILL, by the state of what is left of them. "
                "uninterruptible hangs in the kernel.",
                {"Containers": "sum by (cluster, node, state) (coroner_containers_unkillable{@})"},
                sort="Containers", also=["state"]),
        ]),
    ]),
    Row("Grace: how much of it was used", [
        Line(9, [
            heatmap("Stopped containers by share of the grace",
                "1 is the whole grace; what is above exceeded it. A band at 1 are containers that are waited "
                "for in vain; much below 0.1 the grace could be shorter.",
                "coroner_container_stop_grace_ratio",
                "percentunit"),
            per_event("Stops that used up their grace",
                "Share of the stopped containers whose stop took as long as their grace or longer. From the "
                "histogram, so also of namespaces beyond the first hundred of a node.",
                {"over the grace": "1 - "
                 'sum(rate(coroner_container_stop_grace_ratio_bucket{@,le=~"1(\\\\.0)?"}[$__rate_interval])) / '
                 "sum(rate(coroner_container_stop_grace_ratio_count{@}[$__rate_interval]))"},
                unit="percentunit", limit=(0.05, "red"), max_val=1, calcs=("mean", "max")),
        ]),
    ]),
    Row("Who overruns", [
        Line(10, [
            table("Namespaces whose containers use up their grace",
                "How many stopped containers of each namespace ignored or blocked the stop signal, exceeded "
                "the grace, or had a preStop hook that used it up, in this time range.",
                [f'{deaths("$__range", by="namespace, verdict", verdicts=GRACE_USED_UP)} > 0'],
                [matrix("namespace", "verdict")],
                sort="namespace\\verdict", decimals=0),
            per_event("Killed after their grace, by namespace",
                "Share of the stopped containers that SIGKILL had to end, of the ten namespaces with most of them.",
                {"{{namespace}}": ten(
                    "namespace",
                    deaths("$__rate_interval", by="namespace", verdicts=KILLED_AFTER_GRACE) + " / "
                    + deaths("$__rate_interval", by="namespace", verdicts=STOPPED),
                    f"""sum by (namespace) ({DEATHS_SO_FAR % f',verdict=~"{KILLED_AFTER_GRACE}"'})""")},
                unit="percentunit", max_val=1, calcs=("mean",), interval="5m"),
        ]),
        Line(9, [
            table("Slowest nodes",
                "The 90th percentile of the termination's duration on each node in this time range, and how "
                "many pods it is of. A node that is slow while the others are not has a slow runtime, disk "
                "or network plugin.",
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
    "How long pods really took to end and who spent each second; how containers died, by the kernel's word; "
    "who needs SIGKILL. From coroner, the node agent.",
    ROWS, [NAMESPACE])
