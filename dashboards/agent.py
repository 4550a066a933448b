"""Whether the agents see everything, what was lost, what they cost."""

from blocks import (
    FEW_ARE_GOOD, NAMESPACE, NEUTRAL, JOB, Line, Row, bars, columns, dashboard, deaths, lines,
    stat, states, table
)

ROWS = [
    Row("Now", [
        Line(4, [
            stat("Agents",
                "Agents that are scraped now.",
                "count(coroner_build_info{@})",
                steps=NEUTRAL),
            stat("Not ready",
                "Agents of which a source of evidence does not work. /readyz of each says which, and what to "
                "do.",
                "sum(1 - coroner_ready{@})",
                trend=True),
            stat("Not answering",
                "Targets of this scrape job that do not answer. Their nodes are not observed at all.",
                'sum(1 - up{job=~"$job",@})',
                trend=True),
            stat("Hooks missing",
                "Kernel hooks that are not attached, or failed their self-test, on any of these nodes.",
                "sum(1 - coroner_hook_attached{@})",
                trend=True),
            stat("Evidence lost",
                "Pieces of evidence that were lost in this time range. Each is named on the timelines that "
                "it may have touched.",
                "sum(increase(coroner_evidence_lost_total{@}[$__range]))",
                steps=FEW_ARE_GOOD, decimals=0),
            stat("Busiest agent",
                "The most CPU that an agent uses now, in cores.",
                'max(rate(process_cpu_seconds_total{job=~"$job",@}[$__rate_interval]))',
                unit="none", steps=[(None, 'green'), (0.1, 'yellow'), (0.5, 'red')], trend=True, decimals=3),
        ]),
    ]),
    Row("Health", [
        Line(7, [
            states("Ready, by node",
                "Every source of evidence works, as /readyz says.",
                "node",
                "min by (cluster, node) (coroner_ready{@})",
                bad="not ready", good="ready"),
            states("Hooks, by name",
                "A kernel hook that is missing on one node is missing here. What it would prove is then not "
                "proven.",
                "hook",
                "min by (hook) (coroner_hook_attached{@})",
                bad="missing", good="attached"),
        ]),
        Line(7, [
            states("Container runtime, by node",
                "The container runtime answers.",
                "node",
                "min by (cluster, node) (coroner_cri_connected{@})",
                bad="away", good="answers"),
            states("Apiserver, by node",
                "The watch of the node's pods is in sync with the apiserver.",
                "node",
                "min by (cluster, node) (coroner_api_in_sync{@})",
                bad="out of sync", good="in sync"),
        ]),
        Line(7, [
            table("Versions",
                "Which versions of coroner run, and on how many nodes.",
                ["count by (cluster, version) (coroner_build_info{@})"],
                [columns({"cluster": "Cluster", "version": "Version", "Value": "Nodes"})],
                decimals=0),
            lines("Runs for",
                "Since when each agent runs. A saw's teeth are an agent that does not stay up: its log, and "
                "its memory limit, say why.",
                {"{{node}} {{cluster}}": 'time() - max by (cluster, node) (process_start_time_seconds{job=~"$job",@})'},
                unit="s", calcs=("lastNotNull",)),
        ]),
    ]),
    Row("Cost", [
        Line(8, [
            lines("CPU, by node",
                "CPU time that each agent uses, in cores.",
                {"{{node}} {{cluster}}": 'max by (cluster, node) (rate(process_cpu_seconds_total{job=~"$job",@}[$__rate_interval]))'},
                unit="none", decimals=3, calcs=("mean", "max")),
            lines("Memory, by node",
                "Resident memory of each agent. Compare with the limit in the DaemonSet.",
                {"{{node}} {{cluster}}": 'max by (cluster, node) (process_resident_memory_bytes{job=~"$job",@})'},
                unit="bytes"),
            lines("Scrapes take, by node",
                "How long Prometheus waited for an agent's answer.",
                {"{{node}} {{cluster}}": 'max by (cluster, node) (scrape_duration_seconds{job=~"$job",@})'},
                unit="s"),
        ]),
    ]),
    Row("Evidence: what was lost or is missing", [
        Line(8, [
            bars("Evidence lost, by kind",
                "Should be empty. deciding_ring_full: ends of processes may be missing. detail_ring_full, "
                "budget_spent: signals may be. cgroup_map_full: more than 16,384 cgroups. engine_full: the "
                "engine's memory is at its bound. never_resolved: nobody explained a cgroup.",
                {"{{kind}}": "sum by (kind) (increase(coroner_evidence_lost_total{@}[$__rate_interval]))"}),
            lines("Ring buffers, use",
                "Share of the ring buffer that waited to be read, at its worst in the last minute or two. "
                "Near 1 records may be lost.",
                {"{{node}} {{ring}} {{cluster}}": "max by (cluster, node, ring) (coroner_ring_used_bytes{@} / coroner_ring_size_bytes{@})"},
                unit="percentunit", limit=(0.8, "red"), calcs=("max",)),
        ]),
        Line(8, [
            bars("Source errors",
                "Calls and watches of a source that failed.",
                {"{{source}}": "sum by (source) (increase(coroner_source_errors_total{@}[$__rate_interval]))"}),
            bars("Accounts with gaps",
                "truncated: the agent started while the pod was ending. incomplete: the account may lack "
                "evidence that was lost.",
                {"truncated": "sum(increase(coroner_pod_terminations_unmeasured_total{@}[$__rate_interval]))",
                 "incomplete": "sum(increase(coroner_pod_terminations_incomplete_total{@}[$__rate_interval]))"}),
        ]),
        Line(8, [
            bars("Cgroups not followed",
                "Cgroups that are not followed, for they lie too many levels below their container.",
                {"too deep": "sum(increase(coroner_cgroups_too_deep_total{@}[$__rate_interval]))"}),
            bars("Deaths without a verdict",
                "Container deaths whose verdict is unknown, for evidence was lost, or never had.",
                {"unknown": f'{deaths("$__rate_interval", verdicts="unknown")} or vector(0)'}),
            lines("Missing hooks, by node",
                "Kernel hooks that are not attached on each node.",
                {"{{node}} {{cluster}}": "sum by (cluster, node) (1 - coroner_hook_attached{@})"},
                decimals=0, calcs=("lastNotNull",)),
        ]),
    ]),
    Row("Recording (--record)", [
        Line(6, [
            stat("Agents that record",
                "Agents that write their inputs to a file.",
                "sum(coroner_recording{@})",
                steps=NEUTRAL, no_value='0'),
            lines("Size of the recording, by node",
                "Size of each agent's recording.",
                {"{{node}} {{cluster}}": "max by (cluster, node) (coroner_recording_size_bytes{@})"},
                unit="bytes"),
            stat("Failures",
                "Failures to write a recording in this time range; the first one ends it.",
                "sum(increase(coroner_recording_errors_total{@}[$__range]))",
                decimals=0, no_value='0'),
        ], widths=[6, 12, 6]),
    ], collapsed=True),
]

DASHBOARD = dashboard(
    "coroner-agent", "Whether coroner's agents see everything, what they lost, and what they cost.",
    ROWS, [NAMESPACE, JOB])
