"""Whether the agents observe everything, which evidence was lost, what they cost."""

from blocks import (
    FEW_ARE_GOOD, JOB, NEUTRAL, NODE, Line, Row, bars, columns, dashboard, lines, outliers, stat, states, table,
    ten_nodes
)

OF_JOB = '{job=~"$job",@}'

ROWS = [
    Row("Now", [
        Line(4, [
            stat("Agents",
                "Agents that are scraped.",
                "count(coroner_build_info{@})",
                steps=NEUTRAL,
                runbook="CoronerAgentsMissing"),
            stat("Not answering",
                "Targets of this scrape job that do not answer. Their nodes are not observed at all.",
                f"sum(1 - up{OF_JOB})",
                trend=True,
                runbook="CoronerAgentsMissing"),
            stat("Not ready",
                "Agents with a source of evidence that does not work. /readyz of each agent says which, and "
                "what to do.",
                "sum(1 - coroner_ready{@})",
                trend=True,
                runbook="CoronerAgentsNotReady"),
            stat("Evidence lost",
                "Lost evidence in this time range. Each loss is on the timelines that it may affect.",
                "sum(increase(coroner_evidence_lost_total{@}[$__range]))",
                steps=FEW_ARE_GOOD, decimals=0,
                runbook="CoronerEvidenceLost"),
        ]),
    ]),
    Row("Health", [
        Line(8, [
            lines("Nodes that are not fully observed",
                "Nodes whose agent does not answer, is not ready, or lacks a source of evidence: the container "
                "runtime, the watch of the node's pods, a kernel hook.",
                {"agent does not answer": f"sum(1 - up{OF_JOB})",
                 "not ready": "sum(1 - coroner_ready{@})",
                 "runtime unreachable": "sum(1 - coroner_cri_connected{@})",
                 "apiserver out of sync": "sum(1 - coroner_api_in_sync{@})",
                 "hook missing": "sum(1 - min by (cluster, node) (coroner_hook_attached{@}))"},
                decimals=0),
            states("Hooks, by name",
                "Kernel hooks that are attached and passed the self-test on all of these nodes. A hook that "
                "is missing on one node is missing here: what it would prove is not proven there.",
                "hook",
                "min by (hook) (coroner_hook_attached{@})",
                bad="missing", good="attached"),
        ]),
        Line(9, [
            outliers("Nodes with problems",
                "Nodes whose agent does not answer, is missing or is not ready now, lacks a source of evidence, or has "
                "lost evidence or restarted in this time range. For restarts, see the agent's log and its "
                "memory limit.",
                {"Does not answer": f"max by (cluster, node) (1 - up{OF_JOB})",
                 "Missing": "max by (cluster, node) (node:coroner_agent_missing{@})",
                 "Not ready": "max by (cluster, node) (1 - coroner_ready{@})",
                 "Runtime unreachable": "max by (cluster, node) (1 - coroner_cri_connected{@})",
                 "Apiserver out of sync": "max by (cluster, node) (1 - coroner_api_in_sync{@})",
                 "Hooks missing": "sum by (cluster, node) (1 - coroner_hook_attached{@})",
                 "Evidence lost": "sum by (cluster, node) (increase(coroner_evidence_lost_total{@}[$__range]))",
                 "Restarts": f"sum by (cluster, node) (changes(process_start_time_seconds{OF_JOB}[$__range]))"},
                sort="Not ready",
                command="coroner doctor"),
            table("Versions",
                "Versions of coroner, and the number of nodes that run each.",
                ["count by (cluster, version) (coroner_build_info{@})"],
                [columns({"cluster": "Cluster", "version": "Version", "Value": "Nodes"})],
                decimals=0),
        ], widths=[17, 7]),
        Line(8, [
            table("Kernels, runtimes and kubelets",
                "How many nodes have which versions. Where refusals are not visible (Linux before 6.10), connections that a "
                "terminating pod refuses are not counted.",
                ["count by (cluster, kernel, runtime, kubelet, refusals_visible) (coroner_node_info{@})"],
                [columns({"cluster": "Cluster", "kernel": "Kernel", "runtime": "Runtime", "kubelet": "Kubelet",
                          "refusals_visible": "Refusals visible", "Value": "Nodes"})],
                sort="Nodes", decimals=0),
        ]),
    ]),
    Row("Cost", [
        Line(8, [
            lines("Most CPU, by node",
                "CPU time of the ten agents that use the most, in cores.",
                ten_nodes("process_cpu_seconds_total", OF_JOB, counter=True),
                unit="none", decimals=3, calcs=("mean", "max")),
            lines("Most memory, by node",
                "Resident memory of the ten largest agents. Compare with the limit in the DaemonSet.",
                ten_nodes("process_resident_memory_bytes", OF_JOB),
                unit="bytes"),
        ]),
    ]),
    Row("Evidence", [
        Line(8, [
            bars("Evidence lost, by kind",
                "Lost evidence, by kind of loss; should be empty. deciding_ring_full: exits of processes may "
                "be missing. detail_ring_full, budget_spent: signals may be missing. program_skipped, "
                "connection_skipped: the kernel preempted programs on an overloaded CPU. cgroup_map_full: more "
                "than 16,384 cgroups. engine_full: the engine's memory is at its limit. never_resolved: no "
                "source explained a cgroup. too_deep: cgroups that are not watched because they are nested "
                "too deeply below their container.",
                {"{{kind}}": "sum by (kind) (increase(coroner_evidence_lost_total{@}[$__rate_interval]))",
                 "too_deep": "sum(increase(coroner_cgroups_too_deep_total{@}[$__rate_interval]))"},
                runbook="CoronerEvidenceLost"),
            lines("Fullest buffers",
                "Share of each ring buffer that was in use, at its maximum of the last one to two minutes, "
                "and share of the 16,384 cgroups that the kernel programs can watch; each on the fullest "
                "node. Near 1, records may be lost.",
                {"{{ring}} ring": "max by (ring) (coroner_ring_used_ratio{@})",
                 "cgroups": "max(coroner_watched_cgroups{@}) / 16384"},
                unit="percentunit", limit=(0.8, "red"), calcs=("max",),
                runbook="CoronerEvidenceLost"),
            lines("Slowest runtime calls, by node",
                "Longest call to the container runtime in the last one to two minutes, including pending calls, "
                "on the ten slowest nodes. A response is used up to 60 s after its request; after that the "
                "runtime counts as unreachable.",
                ten_nodes("coroner_cri_slowest_call_seconds"),
                unit="s", limit=(5, "yellow"),
                runbook="CoronerAgentsNotReady"),
        ]),
        Line(8, [
            bars("Source errors",
                "Failed calls and watches of a source.",
                {"{{source}}": "sum by (source) (increase(coroner_source_errors_total{@}[$__rate_interval]))"}),
            bars("Incomplete termination reports",
                "unmeasured: the duration is not in the histogram, because the agent started after the "
                "termination, or a source was unavailable when it began or ended. incomplete: the report may "
                "be incomplete because evidence was lost. unknown verdict: container deaths without a "
                "verdict.",
                {"unmeasured": "sum(increase(coroner_pod_terminations_unmeasured_total{@}[$__rate_interval]))",
                 "incomplete": "sum(increase(coroner_pod_terminations_incomplete_total{@}[$__rate_interval]))",
                 "unknown verdict":
                     'sum(increase(coroner_container_deaths_total{@,verdict="unknown"}[$__rate_interval]))'}),
        ]),
    ]),
]

DASHBOARD = dashboard(
    "coroner-agent", "Whether coroner's agents observe everything, which evidence they lost, and what they cost.",
    ROWS, [NODE, JOB])
