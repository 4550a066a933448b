"""Validates objects by Kubernetes' own schemas. Reads [[case, version, object], …], and prints what is wrong."""
import functools, json, sys

from kubernetes_validate import utils


# The fields that the chart sets of kinds that are not Kubernetes' own, by the CustomResourceDefinitions of
# prometheus-operator 0.93 (Azure's has the same fields), prometheus-engine 0.17 and VictoriaMetrics' operator 0.74.
def fields(names, **inner):
    return dict.fromkeys(names.split()) | inner


def pod_monitor(relabelings):
    endpoint = fields("port interval scrapeTimeout scheme tlsConfig " + relabelings)
    selector = fields("matchLabels")
    return fields("jobLabel sampleLimit", selector=selector, podMetricsEndpoints=endpoint)


def rule(names):
    rules = fields("alert record expr for labels annotations " + names)
    return {"groups": fields("name interval", rules=rules)}


POD_MONITOR = pod_monitor("relabelings metricRelabelings")
FIELDS = {
    "monitoring.coreos.com/v1 PodMonitor": POD_MONITOR,
    "azmonitoring.coreos.com/v1 PodMonitor": POD_MONITOR,
    "operator.victoriametrics.com/v1beta1 VMPodScrape": pod_monitor("relabelConfigs metricRelabelConfigs"),
    "monitoring.googleapis.com/v1 PodMonitoring": {
        "selector": fields("matchLabels"),
        "endpoints": fields("port interval scheme tls metricRelabeling"),
        "targetLabels": fields("metadata"),
    },
    "monitoring.coreos.com/v1 PrometheusRule": rule("keep_firing_for"),
    "operator.victoriametrics.com/v1beta1 VMRule": rule("keep_firing_for"),
    "monitoring.googleapis.com/v1 ClusterRules": rule(""),
}


def unknown(value, known):
    if isinstance(value, list):
        return {name for one in value for name in unknown(one, known)}
    if known is None or not isinstance(value, dict):
        return set()
    below = {name for key in value.keys() & known.keys() for name in unknown(value[key], known[key])}
    return value.keys() - known.keys() | below


@functools.cache
def error(version, text):
    value = json.loads(text)
    known = FIELDS.get(f"{value['apiVersion']} {value['kind']}")
    if known:
        return unknown(value["spec"], known)
    try:
        utils.validate(value, version, strict=True)
    except utils.ValidationError as found:
        return f"{found.json_path}: {found.message}"
    except utils.SchemaNotFoundError as found:
        return found.message


utils.schema_contents = functools.cache(utils.schema_contents)
for case, version, value in json.load(sys.stdin):
    if found := error(version, json.dumps(value)):
        print(f"{case}, Kubernetes {version}: {value['kind']} {value['metadata']['name']}: {found}")
