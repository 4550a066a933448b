"""Whether the agents see everything, what was lost, what they cost."""

from blocks import (
    FEW_ARE_GOOD, NAMESPACE, NEUTRAL, NODE, JOB, Line, Row, bars, columns, dashboard, deaths, lines,
    per_event, stat, states, table
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
                "min by (node) (coroner_ready{@})",
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
                "min by (node) (coroner_cri_connected{@})",
                bad="away", good="answers"),
            states("Apiserver, by node",
                "The watch of the node's pods is in sync with the apiserver.",
                "node",
                "min by (node) (coroner_api_in_sync{@})",
                bad="out of sync", good="in sync"),
        ]),
        Line(7, [
            table("Versions",
                "Which versions of coroner run, and on how many nodes.",
                ["count by (version) (coroner_build_info{@})"],
                [columns({"version": "Version", "Value": "Nodes"}, hidden=["Time"], ordered=True)],
                decimals=0),
            lines("Runs for",
                "Since when each agent runs. A saw's teeth are an agent that does not stay up: its log, and "
                "its memory limit, say why.",
                {"{{node}}": 'time() - max by (node) (process_start_time_seconds{job=~"$job",@})'},
                unit="s", calcs=("lastNotNull",)),
            lines("Watched cgroups",
                "Cgroups that the kernel programs watch: those of pods and containers. 16,384 is the end of "
                "the map.",
                {"{{node}}": "sum by (node) (coroner_watched_cgroups{@})"},
                decimals=0),
        ]),
    ]),
    Row("Cost", [
        Line(8, [
            lines("CPU, by node",
                "CPU time that each agent uses, in cores.",
                {"{{node}}": 'max by (node) (rate(process_cpu_seconds_total{job=~"$job",@}[$__rate_interval]))'},
                unit="none", decimals=3, calcs=("mean", "max")),
            lines("Memory, by node",
                "Resident memory of each agent. Compare with the limit in the DaemonSet.",
                {"{{node}}": 'max by (node) (process_resident_memory_bytes{job=~"$job",@})'},
                unit="bytes"),
            lines("Series, by node",
                "Samples that each scrape of an agent brings: what it costs in Prometheus.",
                {"{{node}}": 'max by (node) (scrape_samples_scraped{job=~"$job",@})'},
                decimals=0),
        ]),
        Line(8, [
            lines("Open files, by node",
                "Open file descriptors of each agent.",
                {"{{node}}": 'max by (node) (process_open_fds{job=~"$job",@})'},
                decimals=0),
            lines("Threads, by node",
                "Threads of each agent.",
                {"{{node}}": 'max by (node) (process_threads{job=~"$job",@})'},
                decimals=0),
            lines("Scrapes take, by node",
                "How long Prometheus waited for an agent's answer.",
                {"{{node}}": 'max by (node) (scrape_duration_seconds{job=~"$job",@})'},
                unit="s"),
        ]),
    ]),
    Row("Inputs: what it learns from", [
        Line(8, [
            lines("Inputs, by source",
                "What the engine is given, by source. A source that falls silent while the others go on is "
                "worth a look.",
                {"{{source}}": "sum by (source) (rate(coroner_inputs_total{@}[$__rate_interval]))"},
                unit="cps", calcs=("mean", "max")),
            lines("Kernel records, by kind",
                "Records that the kernel programs sent, by kind.",
                {"{{kind}}": "sum by (kind) (rate(coroner_kernel_records_total{@}[$__rate_interval])) > 0"},
                unit="cps", calcs=("mean", "max")),
        ]),
        Line(8, [
            lines("Calls to the container runtime, by node",
                "Calls to the container runtime; all of them only read.",
                {"{{node}}": "sum by (node) (rate(coroner_cri_calls_total{@}[$__rate_interval]))"},
                unit="cps", calcs=("mean", "max")),
            bars("Full lists of pods",
                "Full lists of a node's pods taken from the apiserver: at start, and when a watch cannot be "
                "resumed.",
                {"lists": "sum(increase(coroner_api_snapshots_total{@}[$__rate_interval]))"}),
            lines("Entries in memory, by kind",
                "Entries in the engines' memory, of all these nodes; bounded on each.",
                {"{{kind}}": "sum by (kind) (coroner_engine_entries{@})"},
                decimals=0),
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
                {"{{node}} {{ring}}": "max by (node, ring) (coroner_ring_used_bytes{@} / coroner_ring_size_bytes{@})"},
                unit="percentunit", limit=(0.8, "red"), calcs=("max",)),
        ]),
        Line(8, [
            bars("Source errors",
                "Calls and watches of a source that failed.",
                {"{{source}}": "sum by (source) (increase(coroner_source_errors_total{@}[$__rate_interval]))"}),
            bars("Left out",
                "Things that a source said and that make no sense; they were left out.",
                {"{{source}}": "sum by (source) (increase(coroner_source_skipped_total{@}[$__rate_interval]))"}),
            bars("Requests dropped",
                "Requests of the engine that an adapter was too busy to take.",
                {"{{to}}": "sum by (to) (increase(coroner_requests_dropped_total{@}[$__rate_interval]))"}),
        ]),
        Line(8, [
            bars("Accounts with gaps",
                "truncated: the agent started while the pod was ending. incomplete: the account may lack "
                "evidence that was lost.",
                {"truncated": "sum(increase(coroner_pod_terminations_unmeasured_total{@}[$__rate_interval]))",
                 "incomplete": "sum(increase(coroner_pod_terminations_incomplete_total{@}[$__rate_interval]))"}),
            bars("Termination reports updated",
                "New revisions of termination reports, by what changes. The evidence for them came later "
                "than the settle window.",
                {"{{change}}": "sum by (change) (increase(coroner_pod_termination_updates_total{@}[$__rate_interval]))"}),
            per_event("Unattributed share",
                "Share of the terminating pods' seconds that no phase explains: a milestone is missing. "
                "Should be next to nothing.",
                {"unattributed": 'sum(rate(coroner_pod_termination_phase_seconds_total{@,phase="unattributed"}[$__rate_interval])) '
                 "/ sum(rate(coroner_pod_termination_phase_seconds_total{@}[$__rate_interval]))"},
                unit="percentunit", max_val=1, calcs=("mean", "max")),
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
                {"{{node}}": "sum by (node) (1 - coroner_hook_attached{@})"},
                decimals=0, calcs=("lastNotNull",)),
        ]),
    ]),
    Row("Recording (--record)", [
        Line(6, [
            stat("Agents that record",
                "Agents that write their inputs to a file.",
                "sum(coroner_recording{@})",
                steps=NEUTRAL, no_value='0'),
            lines("Recorded inputs, by outcome",
                "Inputs that were recorded, or dropped because the disk was too slow.",
                {"{{outcome}}": "sum by (outcome) (rate(coroner_recording_inputs_total{@}[$__rate_interval]))"},
                unit="cps"),
            lines("Size of the recording, by node",
                "Size of each agent's recording.",
                {"{{node}}": "max by (node) (coroner_recording_size_bytes{@})"},
                unit="bytes"),
            stat("Failures",
                "Failures to write a recording in this time range; the first one ends it.",
                "sum(increase(coroner_recording_errors_total{@}[$__range]))",
                decimals=0, no_value='0'),
        ], widths=[4, 7, 7, 6]),
    ], collapsed=True),
]

DASHBOARD = dashboard(
    "coroner-agent", "Whether coroner's agents see everything, what they lost, and what they cost.",
    ROWS, [NODE, NAMESPACE, JOB])
