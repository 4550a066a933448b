"""What the dashboards are made of: panels, the lines they stand on, variables, and shared queries.

Fields and values are those of the pinned grafana-foundation-sdk, which is generated from Grafana's own
schemas: a field or a value that Grafana does not know is an error in Python, not an empty panel.
"""

import re
from dataclasses import dataclass

from grafana_foundation_sdk.models import (
    common, heatmap as heat, prometheus, stat as big, statetimeline, table as grid, text as prose, timeseries,
)
from grafana_foundation_sdk.models.dashboard import (
    AnnotationContainer, AnnotationQuery, Dashboard, DashboardCursorSync, DashboardDashboardTemplating,
    DashboardDashboardTime, DashboardFieldConfigSourceOverrides, DashboardLink, DashboardLinkType,
    DataSourceRef, DataTransformerConfig, DynamicConfigValue, FieldColor, FieldColorModeId, FieldConfig,
    FieldConfigSource, GridPos, MatcherConfig, Panel, RowPanel, Threshold, ThresholdsConfig, ThresholdsMode,
    TimePickerConfig, ValueMap, ValueMappingResult, VariableHide, VariableModel, VariableOption,
    VariableRefresh, VariableSort, VariableType,
)

DOCS = "https://github.com/coroner-dev/coroner/tree/main/docs"
RUNBOOKS = "https://github.com/coroner-dev/coroner/blob/main/dashboards/runbooks"
# The commands that panels link to, and the page that explains what they print.
EXPLAINED_IN = {
    "coroner explain POD": "deaths.md", "coroner leaks -v": "leaks.md", "coroner doctor": "troubleshooting.md", "coroner audit": "audit.md"}
DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

# Colours from a value on; the first has no lower bound.
NEUTRAL = [(None, "blue")]
NONE_IS_GOOD = [(None, "green"), (1, "red")]
FEW_ARE_GOOD = [(None, "green"), (1, "orange")]
LATENCY = [(None, "green"), (30, "yellow"), (60, "orange"), (300, "red")]


# --- Queries. In a query, {%} selects the chosen clusters, {@} their chosen nodes, too, and ,$@ the chosen namespaces, on the
# dashboard that has such a choice. Recorded series (dashboards/rules) have no nodes, unless their name begins with node.

CHOSEN = {"%": 'cluster=~"$cluster"', "@": 'cluster=~"$cluster",node=~"$node"'}
NAMESPACES = 'pod_namespace=~"$namespace"'


def ten(labels, over_time, ranked):
    """`over_time` of the ten for which `ranked`, which is of the whole range, is greatest.

    topk alone chooses others at each point in time, and draws many more lines than ten.
    """
    assert "[$__range]" in ranked and " @ end()" in ranked, ranked
    return f"{over_time}\nand on ({labels}) topk(10, {ranked})"


def ten_nodes(metric, selector="{@}", counter=False):
    """The ten nodes with the greatest values of a gauge, or with the greatest rates of a counter."""
    over_time, ranked = (f"rate({metric}{selector}[$__rate_interval])", "increase") if counter else (
        f"{metric}{selector}", "max_over_time")
    by = "max by (cluster, node)"
    return {"{{node}} {{cluster}}": ten("cluster, node", f"{by} ({over_time})",
                                        f"{by} ({ranked}({metric}{selector}[$__range] @ end()))")}


def number(rate, by="", window="$__interval", only="%", at=""):
    """How many within `window`, of a rate that is recorded once a minute: exact for any step of a chart."""
    return f"sum{f' by ({by})' if by else ''} (60 * sum_over_time({rate}:rate5m{{{only}}}[{window}]{at}))"


def top(label, rate, only="%"):
    """Of each interval the number, for the ten values of a label that have most in the whole range."""
    return {f"{{{{{label}}}}}": ten(label, f"{number(rate, label, only=only)} > 0",
                                   number(rate, label, "$__range", only, " @ end()"))}


def deaths(window="$__interval", by="", verdicts="", rate="namespace_verdict"):
    """Container deaths within `window`, of the chosen namespaces where there is a choice."""
    only = f',verdict=~"{verdicts}"' if verdicts else ""
    return number(f"{rate}:coroner_container_deaths", by, window, f"%,$@{only}")


WORKLOAD = ("cluster", "pod_namespace", "workload_type", "workload")
CONTAINER = (*WORKLOAD, "pod_container")


def of_containers(verdicts):
    return deaths("$__range", ", ".join(CONTAINER), verdicts, "workload_verdict")


def connections(events, by="", window="$__range"):
    """Connections of clients that terminating pods cut, refused, or still got after the stop signal (late)."""
    return number("workload_event:coroner_pod_connections", by, window, f'%,$@,event=~"{events}"')


def or_zero(query):
    """Nothing happened: no series."""
    return f"{query} or vector(0)"


REFUSALS = "Nodes before Linux 6.10 do not see refused connections (Agent lists them)."
NO_CUT = f"No connections of clients were cut or refused. {REFUSALS}"


# Verdicts of containers that were asked to stop, of those that used up their grace, of those killed after it.
STOPPED = ("prestop_exhausted_grace|stop_signal_ignored|stop_signal_blocked|grace_exceeded"
           "|terminated_by_default|graceful")
GRACE_USED_UP = "prestop_exhausted_grace|stop_signal_ignored|stop_signal_blocked|grace_exceeded"
KILLED_AFTER_GRACE = "stop_signal_ignored|stop_signal_blocked|grace_exceeded"


def share_of_stops(verdicts, window):
    """Which share of the stopped containers had one of these verdicts, of which no series exists before the first."""
    stops = deaths(window, verdicts=STOPPED)
    return f"({deaths(window, verdicts=verdicts)} or 0 * {stops}) / {stops}"


def quantiles(histogram):
    """Its p50, p90 and p99 per interval, of the recorded buckets."""
    return {
        f"p{percent}": f"histogram_quantile({percent / 100}, {number(f'cluster_le:{histogram}_bucket', 'le')})"
        for percent in (50, 90, 99)
    }


def targets(queries, now=False, form=prometheus.PromQueryFormat.TIME_SERIES):
    """`queries`: from legend to expression. `now`: of the range's end, else over time."""
    return [
        prometheus.Dataquery(
            expr=chosen(expression), legend_format=legend or None, ref_id=chr(ord("A") + place),
            instant=now, range_val=not now, format_val=form, datasource=DATASOURCE,
            editor_mode=prometheus.QueryEditorMode.CODE)
        for place, (legend, expression) in enumerate(queries.items())
    ]


def chosen(expression):
    return re.sub("(?<=[{,])[@%]", lambda found: CHOSEN[found[0]], expression)


# --- Panels.

def panel(kind, title, description, queries, options, *, unit="short", steps=NEUTRAL, custom=None,
          color=FieldColorModeId.PALETTE_CLASSIC, overrides=(), interval=None, transformations=None, runbook=None,
          command=None, **field):
    """What all panels have.

    `runbook`: of the alert on the same. `command`: what explains it on a node. `field`: more of Grafana's FieldConfig.
    """
    links = []
    if runbook:
        links.append(page("Runbook", f"{RUNBOOKS}/{runbook}.md", runbook))
    if command:
        links.append(page(command, f"{DOCS}/{EXPLAINED_IN[command]}", f"kubectl -n coroner exec AGENT -- {command}"))
        description += f" On a node, `{command}` explains it."
    return Panel(
        type_val=kind, title=title, description=description, datasource=DATASOURCE, targets=queries,
        options=options, interval=interval, transformations=transformations, links=links,
        field_config=FieldConfigSource(
            overrides=list(overrides),
            defaults=FieldConfig(unit=unit, thresholds=thresholds(steps), color=FieldColor(mode=color),
                                 custom=custom, **{"mappings": [], **field})))


def page(title, url, tooltip):
    return DashboardLink(title=title, url=url, type_val=DashboardLinkType.LINK, tooltip=tooltip, icon="doc", tags=[],
                         target_blank=True)


def text(title, content):
    """Markdown."""
    return Panel(type_val="text", title=title, options=prose.Options(mode=prose.TextMode.MARKDOWN, content=content))


def thresholds(steps):
    return ThresholdsConfig(mode=ThresholdsMode.ABSOLUTE,
                            steps=[Threshold(value=value, color=color) for value, color in steps])


def last_value():
    return common.ReduceDataOptions(calcs=["lastNotNull"], fields="", values=False)


def stat(title, description, query, *, steps=NONE_IS_GOOD, trend=False, **more):
    """One number. `trend`: with its course behind it."""
    return panel(
        "stat", title, description, targets({title: query}, now=not trend),
        big.Options(
            reduce_options=last_value(), orientation=common.VizOrientation.AUTO,
            text_mode=common.BigValueTextMode.VALUE, color_mode=common.BigValueColorMode.VALUE,
            graph_mode=common.BigValueGraphMode.AREA if trend else common.BigValueGraphMode.NONE,
            justify_mode=common.BigValueJustifyMode.AUTO, wide_layout=True, show_percent_change=False,
            percent_change_color_mode=common.PercentChangeColorMode.STANDARD),
        steps=steps, color=FieldColorModeId.THRESHOLDS, **more)


def chart(title, description, queries, *, calcs, stacked, limit=None, steps=NEUTRAL, interval=None,
          style=common.GraphDrawStyle.LINE, line_width=1, fill=0, gaps=False,
          interpolation=common.LineInterpolation.STEP_AFTER, points=common.VisibilityMode.AUTO, **more):
    """`limit`: a value at which a line is drawn, and its colour."""
    stacking = common.StackingMode.NORMAL if stacked else common.StackingMode.NONE
    line = common.GraphThresholdsStyleMode.LINE if limit else common.GraphThresholdsStyleMode.OFF
    return panel(
        "timeseries", title, description, targets(queries),
        timeseries.Options(
            legend=legend(calcs),
            tooltip=common.VizTooltipOptions(mode=common.TooltipDisplayMode.MULTI,
                                             sort=common.SortOrder.DESCENDING)),
        custom=timeseries.FieldConfig(
            draw_style=style, line_width=line_width, line_interpolation=interpolation, fill_opacity=fill,
            # An hour without terminations has no points; their line goes on.
            show_points=points, span_nulls=3_600_000 if gaps else False,
            stacking=common.StackingConfig(mode=stacking, group="A"),
            axis_placement=common.AxisPlacement.AUTO,
            thresholds_style=common.GraphThresholdsStyleConfig(mode=line)),
        steps=[(None, "transparent"), limit] if limit else steps, interval=interval, min_val=0, **more)


def legend(calcs):
    """A table with these figures of each line; without figures a list."""
    mode = common.LegendDisplayMode.TABLE if calcs else common.LegendDisplayMode.LIST
    return common.VizLegendOptions(display_mode=mode, placement=common.LegendPlacement.BOTTOM,
                                   show_legend=True, calcs=list(calcs))


def lines(title, description, queries, *, calcs=("lastNotNull", "max"), **more):
    """Figures that are not parts of a whole."""
    return chart(title, description, queries, calcs=calcs, stacked=False, **more)


def per_event(title, description, queries, *, interval="2m", **more):
    """Quantiles or shares of events: no event, no point."""
    return lines(title, description, queries, interval=interval, gaps=True, **more)


def areas(title, description, queries, *, calcs=("lastNotNull", "max"), **more):
    """Parts of a whole."""
    return chart(title, description, queries, calcs=calcs, stacked=True, fill=40, **more)


def bars(title, description, queries, **more):
    """Events per interval."""
    return chart(title, description, queries, calcs=(), stacked=True, fill=80, line_width=0,
                 style=common.GraphDrawStyle.BARS, interpolation=common.LineInterpolation.LINEAR,
                 points=common.VisibilityMode.NEVER, interval="2m", decimals=0, **more)


def heatmap(title, description, histogram, unit, **more):
    """How many events were in each of a histogram's buckets."""
    query = number(f"cluster_le:{histogram}_bucket", "le")
    return panel(
        "heatmap", title, description, targets({"{{le}}": query}, form=prometheus.PromQueryFormat.HEATMAP),
        heat.Options(
            calculate=False, cell_gap=1, show_value=common.VisibilityMode.NEVER,
            y_axis=heat.YAxisConfig(axis_placement=common.AxisPlacement.LEFT, unit=unit, reverse=False),
            rows_frame=heat.RowsHeatmapOptions(layout=common.HeatmapCellLayout.AUTO),
            color=heat.HeatmapColorOptions(
                mode=heat.HeatmapColorMode.SCHEME, scheme="Oranges", fill="dark-orange", exponent=0.5, steps=64,
                scale=heat.HeatmapColorScale.EXPONENTIAL, reverse=False),
            filter_values=heat.FilterValueRange(le=1e-9),
            cell_values=heat.CellValues(unit="short", decimals=0),
            tooltip=heat.HeatmapTooltip(mode=common.TooltipDisplayMode.SINGLE, y_histogram=True,
                                        show_color_scale=False),
            legend=heat.HeatmapLegend(show=True), exemplars=heat.ExemplarConfig(color="rgba(255,0,255,0.7)")),
        custom=heat.FieldConfig(
            hide_from=common.HideSeriesConfig(legend=False, tooltip=False, viz=False),
            scale_distribution=common.ScaleDistributionConfig(type_val=common.ScaleDistribution.LINEAR)),
        color=FieldColorModeId.THRESHOLDS, interval="2m", decimals=0, **more)


def states(title, description, label, query, *, bad, good):
    """A bar for each value of a label, in the colour of 0 (bad) or 1 (good)."""
    return panel(
        "state-timeline", title, description, targets({f"{{{{{label}}}}}": query}),
        statetimeline.Options(
            show_value=common.VisibilityMode.NEVER, row_height=0.8, merge_values=True,
            align_value=common.TimelineValueAlignment.LEFT, legend=legend(()),
            tooltip=common.VizTooltipOptions(mode=common.TooltipDisplayMode.SINGLE, sort=common.SortOrder.NONE)),
        custom=statetimeline.FieldConfig(fill_opacity=80, line_width=0), color=FieldColorModeId.THRESHOLDS,
        steps=[(None, "red"), (1, "green")], mappings=[names({0: (bad, "red"), 1: (good, "green")})])


def names(values):
    """What a value is called, and its colour."""
    return ValueMap(options={
        str(value): ValueMappingResult(text=text, color=color, index=place)
        for place, (value, (text, color)) in enumerate(values.items())
    })


def mapped(values):
    """What a text is replaced by."""
    return ValueMap(options={value: ValueMappingResult(text=text, index=place) for place, (value, text) in enumerate(values.items())})


def table(title, description, queries, transformations, *, sort=None, **more):
    """What the queries give now. `sort`: the column, greatest first."""
    answers = targets(dict(enumerate(queries)), now=True, form=prometheus.PromQueryFormat.TABLE)
    for answer in answers:
        answer.legend_format = None
    return panel(
        "table", title, description, answers,
        grid.Options(
            show_header=True, cell_height=common.TableCellHeight.SM,
            sort_by=[common.TableSortByFieldState(display_name=sort, desc=True)] if sort else [],
            footer=common.TableFooterOptions(show=False, reducer=["sum"], count_rows=False, fields=[])),
        custom=common.TableFieldOptions(align=common.FieldTextAlignment.AUTO, filterable=True, inspect=False,
                                        cell_options=common.TableAutoCellOptions()),
        color=FieldColorModeId.THRESHOLDS, transformations=transformations, **more)


def outliers(title, description, named, *, sort, labels=("cluster", "node"), **more):
    """What has these labels, for which one of the queries is above 0, each column with its ten worst.

    `named`: from column to query.
    """
    values = [f"Value #{chr(ord('A') + place)}" for place in range(len(named))]
    values = ["Value"] if len(named) == 1 else values
    labels = {label: heading(label) for label in labels}
    above_zero = DataTransformerConfig(id_val="filterByValue", options={
        "type": "include", "match": "any",
        "filters": [{"fieldName": value, "config": {"id": "greater", "options": {"value": 0}}} for value in values]})
    return table(
        title, description, [f"topk(10, {query})" for query in named.values()],
        [merged(), above_zero, columns({**labels, **dict(zip(values, named))})],
        sort=sort, **{"decimals": 0, **more})


def heading(label):
    """Of a column: a pod's namespace is called Namespace."""
    return label.removeprefix("pod_").capitalize().replace("_", " ")


def leads_to(label, **dashboards):
    """A column whose values lead to other dashboards, for the same label: from the name of its file to what it shows."""
    return column(heading(label), links=[
        {"title": f"{OTHERS[f'coroner-{name}'][0]}: {what}",
         "url": f"/d/coroner-{name}?${{__url_time_range}}&${{datasource:queryparam}}&${{cluster:queryparam}}"
                f"&var-{label.removeprefix('pod_')}=${{__value.raw}}"}
        for name, what in dashboards.items()])


def merged():
    """One row for what has the same labels in several queries' answers."""
    return DataTransformerConfig(id_val="merge", options={})


def columns(named, leave_out=()):
    """Which fields are columns, called what, and in which order."""
    return DataTransformerConfig(id_val="organize", options={
        "renameByName": named,
        "excludeByName": {field: True for field in ("Time", *leave_out)},
        "indexByName": {field: place for place, field in enumerate(named)}})


def column(name, **properties):
    """Properties of one column, by Grafana's names."""
    return DashboardFieldConfigSourceOverrides(
        matcher=MatcherConfig(id_val="byName", options=name),
        properties=[DynamicConfigValue(id_val=key.replace("_", "."), value=value)
                    for key, value in properties.items()])


COLORED_TEXT = common.TableColorTextCellOptions()


# --- Dashboards.

@dataclass
class Line:
    """Panels of one height beside each other; without widths they share the whole."""

    height: int
    panels: list
    widths: list = ()


@dataclass
class Row:
    """A heading and the lines below it."""

    title: str
    lines: list
    collapsed: bool = False


def laid_out(rows):
    """Numbers all panels, and puts each where it belongs."""
    laid, number, y = [], 0, 0
    for row in rows:
        number += 1
        heading = RowPanel(title=row.title, collapsed=row.collapsed, id_val=number,
                           grid_pos=GridPos(x=0, y=y, w=24, h=1), panels=[])
        y += 1
        panels = []
        for line in row.lines:
            x = 0
            for one, width in zip(line.panels, line.widths or [24 // len(line.panels)] * len(line.panels)):
                number += 1
                one.id_val = number
                one.grid_pos = GridPos(x=x, y=y, w=width, h=line.height)
                x += width
                panels.append(one)
            y += line.height
        if row.collapsed:
            heading.panels, panels = panels, []
        laid += [heading, *panels]
    return laid


def values_of(name, label, metric, description, hide=VariableHide.DONT_HIDE, of=None, **more):
    """A variable with the values that a label of a metric has."""
    return VariableModel(
        name=name, label=label, description=description, type_val=VariableType.QUERY, datasource=DATASOURCE,
        query={"query": f"label_values({metric}, {of or name})", "refId": f"Variable-{name}"},
        refresh=VariableRefresh.ON_TIME_RANGE_CHANGED, sort=VariableSort.ALPHABETICAL_ASC, regex="",
        multi=True, include_all=True, hide=hide,
        current=VariableOption(text=["All"], value=["$__all"], selected=True), **more)


SOURCE = VariableModel(
    name="datasource", label="Data source", description="The Prometheus that scrapes coroner's agents.",
    type_val=VariableType.DATASOURCE, query="prometheus", regex="", hide=VariableHide.DONT_HIDE,
    refresh=VariableRefresh.ON_DASHBOARD_LOAD,
    current=VariableOption(text="default", value="default", selected=True))
CLUSTER = values_of("cluster", "Cluster", "coroner_build_info", all_value=".*",
                    description="Clusters, by the label that many Prometheuses' common store has. "
                                "Without such a label it is All.")
# A list of 500 nodes would be of no use.
NODE = VariableModel(
    name="node", label="Nodes", description="A regular expression of node names, for what is shown by node: worker-1.*",
    type_val=VariableType.TEXTBOX, query=".*", hide=VariableHide.DONT_HIDE,
    current=VariableOption(text=".*", value=".*", selected=True),
    options=[VariableOption(text=".*", value=".*", selected=True)])
NAMESPACE = values_of(
    "namespace", "Namespace", 'namespace_verdict:coroner_container_deaths:rate5m{cluster=~"$cluster"}', all_value=".*",
    of="pod_namespace", description="Namespaces of the pods; those of one name in several clusters are one.")
JOB = values_of(
    "job", "Job", "coroner_build_info", hide=VariableHide.HIDE_VARIABLE, skip_url_sync=True,
    description="The scrape job of the agents, for metrics whose names are not coroner's own.")

# From uid to title, and what a link to the dashboard says.
OTHERS = {
    "coroner-fleet": ("Fleet", "What terminations cost, and which namespaces, workloads and nodes stand out"),
    "coroner-namespace": ("My namespace", "How the containers of a namespace ended, and what to do"),
    "coroner-leaks": ("Leaks", "Leaked sandboxes, orphans and stuck pods"),
    "coroner-agent": ("Agent", "Whether the agents observe everything, and what they cost"),
}


class Annotation(AnnotationQuery):
    """Of Prometheus' data source, whose fields the schema leaves to it."""

    def to_json(self):
        return {**super().to_json(), **self.own}


def annotation(name, color, expression, title, enable=True, **own):
    made = Annotation(name=name, enable=enable, hide=False, icon_color=color, datasource=DATASOURCE,
                      expr=chosen(expression), built_in=None)
    made.own = {"titleFormat": title, "textFormat": "", "tagKeys": "", **own}
    return made


ALERTS = annotation(
    "Alerts of coroner", "red", 'max by (cluster, alertname) (ALERTS{%,alertname=~"Coroner.+",alertstate="firing"})',
    "{{alertname}}", enable=False)
# A ReplicaSet is created for each rollout of a Deployment. Of kube-state-metrics, whose series have no node, and whose namespace is
# the workload's. Only for one chosen namespace: the text of all is All.
ROLLOUTS = annotation(
    "Rollouts", "blue", 'kube_replicaset_created{%,namespace=~"${namespace:text}"} * 1000 > ${__from}',
    "{{namespace}}/{{replicaset}}", useValueForTime=True)


def dashboard(uid, description, rows, variables, begin="now-6h", annotations=(ALERTS,)):
    for query in (query for row in rows for line in row.lines for one in line.panels for query in one.targets or []):
        query.expr = query.expr.replace(",$@", f",{NAMESPACES}" if NAMESPACE in variables else "")
    links = [
        DashboardLink(title=title, tooltip=tooltip, url=f"/d/{other}", icon="dashboard", tags=[],
                      type_val=DashboardLinkType.LINK, include_vars=True, keep_time=True)
        for other, (title, tooltip) in OTHERS.items() if other != uid
    ]
    links.append(page("Documentation", DOCS, "coroner's documentation"))
    return Dashboard(
        uid=uid, title=f"coroner / {OTHERS[uid][0]}", description=description, tags=["coroner", "kubernetes"],
        timezone="browser", editable=True, graph_tooltip=DashboardCursorSync.CROSSHAIR, refresh="1m", version=1,
        preload=False, time=DashboardDashboardTime(from_val=begin, to="now"), links=links,
        timepicker=TimePickerConfig(refresh_intervals=["30s", "1m", "5m", "15m", "30m", "1h"]),
        templating=DashboardDashboardTemplating(list_val=[SOURCE, CLUSTER, *variables]), panels=laid_out(rows),
        annotations=AnnotationContainer(list_val=[AnnotationQuery(
            built_in=1, name="Annotations & Alerts", enable=True, hide=True, type_val="dashboard",
            icon_color="rgba(0, 211, 255, 1)",
            datasource=DataSourceRef(type_val="grafana", uid="-- Grafana --")), *annotations]))
