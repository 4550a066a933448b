"""For application teams: how the containers of a namespace ended, what that cost, and what to do."""

from blocks import (
    ALERTS, CONTAINER, FEW_ARE_GOOD, GRACE_USED_UP, KILLED_AFTER_GRACE, NAMESPACE, NO_CUT, REFUSALS, ROLLOUTS, WORKLOAD, Line, Row,
    areas, bars, connections, dashboard, deaths, number, of_containers, or_zero, outliers, per_event, share_of_stops, stat, text, top
)

WHAT_TO_DO = """\
| verdict | what happened | what to do |
|---|---|---|
| `stop_signal_ignored` | PID 1 has no handler for the stop signal (often a shell), and the kernel discarded it. The container \
waited for SIGKILL. | Start the program with `exec`, add a handler, or use an init (`tini`). |
| `stop_signal_blocked` | The program blocked the signal and never took it. | Unblock it, or wait for it with `sigwait`. |
| `grace_exceeded` | The handler ran, and took longer than the grace period. | Shorten the shutdown, or raise \
`terminationGracePeriodSeconds`. |
| `prestop_exhausted_grace` | The preStop hook used up the grace period. | Shorten the hook, or raise the grace period. |
| `terminated_by_default` | The program ended at once, without any cleanup. | Add a handler, if there is something to finish. |
| `oom_killed`, `crashed` | The memory limit was reached, or the program failed. | Raise the limit, or find the growth or the bug. |

Connections that were cut or refused: add a preStop sleep, so that clients stop connecting first. To see one pod, step by step:

```
kubectl -n coroner exec AGENT -- coroner terminations -n $namespace -o wide
kubectl -n coroner exec AGENT -- coroner explain POD -n $namespace
```

AGENT is the pod of the DaemonSet on the node where the pod ran. [All verdicts](https://github.com/coroner-dev/coroner/blob/main/docs/deaths.md)"""
WAIT = "workload:coroner_container_sigkill_wait_seconds"
DELETIONS = "namespace_slow:coroner_pod_deletions"


ROWS = [
    Row("In this time range", [
        Line(4, [
            stat("Deaths that waited for SIGKILL",
                "Share of the stopped containers that SIGKILL ended, because the stop signal was ignored, "
                "blocked, or handled too slowly.",
                share_of_stops(KILLED_AFTER_GRACE, "$__range"),
                unit="percentunit", decimals=1,
                steps=[(None, "green"), (0.01, "yellow"), (0.05, "orange"), (0.2, "red")],
                no_value="no stops",
                runbook="CoronerStopSignalIgnored"),
            stat("Time lost waiting for SIGKILL",
                "The sum of the times from the stop signal to SIGKILL: rollouts of this namespace and drains of nodes "
                "waited for most of it.",
                or_zero(number(WAIT, window="$__range", only="%,$@")),
                unit="s", steps=[(None, "green"), (60, "yellow"), (3600, "orange")], decimals=0,
                runbook="CoronerStopSignalIgnored"),
            stat("Connections cut or refused",
                "Connections of clients that the end of a terminating pod cut in the middle of a request, or that it "
                f"refused. {REFUSALS}",
                or_zero(connections("cut|refused")),
                steps=FEW_ARE_GOOD, decimals=0,
                command="coroner explain POD"),
            stat("OOM kills and crashes",
                "Containers that the OOM killer ended, or a fatal signal that the program caused itself.",
                or_zero(deaths("$__range", verdicts="oom_killed|crashed")),
                steps=FEW_ARE_GOOD, decimals=0,
                command="coroner explain POD"),
        ]),
        Line(11, [text("What to do", WHAT_TO_DO)]),
    ]),
    Row("How containers ended", [
        Line(9, [
            bars("Container deaths, by verdict",
                "Container deaths by verdict, of the ten most frequent. The table above says what to do about each.",
                top("verdict", "namespace_verdict:coroner_container_deaths", "%,$@"),
                no_value="No container died."),
            per_event("Stopped containers, by outcome",
                "Of the containers that received their stop signal: the share that exited in time, that had "
                "no handler, and that used up the grace period or was killed after it.",
                {"graceful": share_of_stops("graceful", "$__interval"),
                 "no handler": share_of_stops("terminated_by_default", "$__interval"),
                 "grace period used up": share_of_stops(GRACE_USED_UP, "$__interval")},
                unit="percentunit", max_val=1, calcs=("mean",), no_value="No container was stopped.",
                runbook="CoronerStopSignalIgnored"),
        ]),
        Line(8, [
            areas("Running containers, by response to the stop signal",
                "How the main processes of running containers will respond, as of the last reading. ignores and blocked: they will "
                "wait for SIGKILL. has_handler: what the handler does is not known.",
                {"{{response}}": "sum by (response) (coroner_containers_by_stop_response{%,$@})"},
                decimals=0, no_value="No container was audited.",
                command="coroner audit"),
        ]),
        Line(9, [
            outliers("Workloads",
                "The worst containers of workloads, by what happened to them.",
                {"Signal ignored": of_containers("stop_signal_ignored|stop_signal_blocked"),
                 "Grace period exceeded": of_containers("grace_exceeded|prestop_exhausted_grace"),
                 "No handler": of_containers("terminated_by_default"),
                 "OOM kills": of_containers("oom_killed"),
                 "Crashes": of_containers("crashed")},
                sort="Signal ignored", labels=CONTAINER, no_value="No container died like this.",
                runbook="CoronerStopSignalIgnored", command="coroner explain POD"),
        ]),
    ]),
    Row("Deletions and clients", [
        Line(9, [
            bars("Deletions and evictions",
                "Slow ones took more than 45 s from the request until the pod's processes, sandbox and object were gone.",
                {"slow": number(DELETIONS, only='%,$@,slow="true"'), "in time": number(DELETIONS, only='%,$@,slow="false"')},
                no_value="No pod was deleted.",
                runbook="CoronerDeletionsSlow", command="coroner explain POD"),
            bars("Connections at terminations",
                "Connections of clients. cut: in the middle of a request, or with unread data. refused: by a "
                "terminating pod (Linux 6.10 or later). late: opened after the stop signal, and served.",
                top("event", "workload_event:coroner_pod_connections", "%,$@"),
                no_value=NO_CUT,
                runbook="CoronerConnectionsCut", command="coroner explain POD"),
        ]),
        Line(9, [
            outliers("Workloads that cut connections",
                "Compare with the rollouts, which are marked on the charts if one namespace is chosen.",
                {event.capitalize(): connections(event, ", ".join(WORKLOAD)) for event in ("cut", "refused", "late")},
                sort="Cut", labels=WORKLOAD, no_value=NO_CUT,
                runbook="CoronerConnectionsCut", command="coroner explain POD"),
        ]),
    ]),
]

DASHBOARD = dashboard(
    "coroner-namespace",
    "For application teams: which containers of a namespace wait for SIGKILL, ignore SIGTERM, or cut connections, and "
    "what to do.",
    ROWS, [NAMESPACE], annotations=[ALERTS, ROLLOUTS])
