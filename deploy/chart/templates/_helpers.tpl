{{/* Of an object: the root, then further labels. The last of two equal keys wins. */}}
{{- define "coroner.labels" -}}
{{- $root := first . -}}
{{- $own := dict "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_") -}}
{{- include "coroner.podLabels" (concat (list $root $own) (rest .)) }}
{{- end }}

{{/* Without those that change with the chart alone: a change here restarts all agents. */}}
{{- define "coroner.podLabels" -}}
{{- $root := first . -}}
{{- $labels := include "coroner.selector" $root | fromYaml -}}
{{- $_ := set $labels "app.kubernetes.io/version" $root.Chart.AppVersion -}}
{{- $_ := set $labels "app.kubernetes.io/component" "agent" -}}
{{- $_ := set $labels "app.kubernetes.io/part-of" "coroner" -}}
{{- range prepend (rest .) $root.Values.commonLabels }}{{ $labels = mergeOverwrite $labels (. | default dict) }}{{ end -}}
{{ toYaml $labels }}
{{- end }}

{{/* Of a release's pods; with a pool, of its own. It is immutable in a DaemonSet. */}}
{{- define "coroner.selector" -}}
app.kubernetes.io/name: coroner
app.kubernetes.io/instance: {{ .Release.Name }}
{{- with .Values.pool }}
coroner/node-pool: {{ . }}
{{- end }}
{{- end }}

{{/* What the release's objects are called. */}}
{{- define "coroner.fullname" -}}
{{- $chart := .Values.nameOverride | default "coroner" -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name $chart) (contains $chart .Release.Name) -}}
{{- $name = .Values.fullnameOverride | default $name | trunc 63 | trimSuffix "-" -}}
{{- if not (contains "coroner" $name) }}{{ fail (printf "the name %s does not contain coroner, by which CoronerAgentsMissing finds the DaemonSets" $name) }}{{ end -}}
{{ $name }}
{{- end }}

{{/* Of objects without a namespace: another release may have the same name in another one. */}}
{{- define "coroner.clusterName" -}}
{{- $name := include "coroner.fullname" . -}}
{{ eq $name .Release.Namespace | ternary $name (printf "%s-%s" .Release.Namespace $name) }}
{{- end }}

{{- define "coroner.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "coroner.fullname" .) }}
{{- end }}

{{/* The values of each DaemonSet, with the name of its pool. As JSON: a template has no other way to return a list. */}}
{{- define "coroner.pools" -}}
{{- $pools := list -}}
{{- range $name, $pool := .Values.nodePools | default (dict "" dict) -}}
{{- $values := set (deepCopy $.Values) "pool" $name -}}
{{- range $key, $value := $pool -}}
{{- if has $key (list "config" "nodeSelector") -}}
{{- range $inner, $one := $value }}{{ $_ := set (get $values $key) $inner $one }}{{ end -}}
{{- else }}{{ $_ := set $values $key $value }}{{ end -}}
{{- end -}}
{{- $pools = append $pools $values -}}
{{- end -}}
{{ toJson $pools }}
{{- end }}

{{/* The values' affinity, and no node without a machine of its own: EKS Fargate, virtual-kubelet (AKS' add-on among others)
and AKS' second virtual nodes. A pod there would stay pending. */}}
{{- define "coroner.affinity" -}}
{{- $affinity := deepCopy .Values.affinity -}}
{{- $node := get $affinity "nodeAffinity" | default dict -}}
{{- $required := get $node "requiredDuringSchedulingIgnoredDuringExecution" | default dict -}}
{{- $terms := list -}}
{{- range get $required "nodeSelectorTerms" | default (list dict) -}}
{{- $all := get . "matchExpressions" | default list -}}
{{- range $key, $value := dict "eks.amazonaws.com/compute-type" "fargate" "type" "virtual-kubelet" "virtualization" "virtualnode2" -}}
{{- $all = append $all (dict "key" $key "operator" "NotIn" "values" (list $value)) -}}
{{- end -}}
{{- $terms = append $terms (set . "matchExpressions" $all) -}}
{{- end -}}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{ set $affinity "nodeAffinity" $node | toYaml }}
{{- end }}

{{- define "coroner.image" -}}
{{- $image := printf "%s:%s" .Values.image.repository (.Values.image.tag | default (printf "v%s" .Chart.AppVersion)) -}}
{{- with .Values.image.digest }}{{ $image = printf "%s@%s" $image . }}{{ end -}}
{{ $image }}
{{- end }}

{{/* The flags, with those that other values imply. As JSON: a template has no other way to return a map. */}}
{{- define "coroner.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if .Values.hostNetwork }}{{ $config = merge $config (dict "api-listen" "off") }}{{ end -}}
{{- if .Values.tls.secretName -}}
{{- $config = merge $config (dict "tls-cert" "/tls/tls.crt" "tls-key" "/tls/tls.key") -}}
{{- end -}}
{{/* YAML reads an unquoted `off` as false. */}}
{{- range list "api-listen" "events-lookup" "log-level" "socket" "traffic" -}}
{{- if eq (get $config . | toString) "false" }}{{ $_ := set $config . "off" }}{{ end -}}
{{- end -}}
{{ toJson $config }}
{{- end }}

{{- define "coroner.scheme" -}}
{{- if get (include "coroner.config" . | fromJson) "tls-cert" }}https{{ else }}http{{ end }}
{{- end }}

{{- define "coroner.port" -}}
{{- get (include "coroner.config" . | fromJson) "listen" | default ":9470" | regexFind "[0-9]+$" }}
{{- end }}

{{/* Of a probe. */}}
{{- define "coroner.httpGet" -}}
httpGet:
  path: {{ .path }}
  port: metrics
  {{- if eq (include "coroner.scheme" .root) "https" }}
  scheme: HTTPS
  {{- end }}
{{- end }}

{{/* A profile as Kubernetes before 1.30 names it. */}}
{{- define "coroner.appArmorAnnotation" -}}
{{- if eq .type "Localhost" }}localhost/{{ .localhostProfile }}
{{- else if eq .type "RuntimeDefault" }}runtime/default
{{- else }}unconfined
{{- end }}
{{- end }}

{{- define "coroner.podAnnotations" -}}
{{- $all := dict "kubectl.kubernetes.io/default-container" "coroner" -}}
{{- if semverCompare "<1.30-0" .Capabilities.KubeVersion.Version -}}
{{- $_ := set $all "container.apparmor.security.beta.kubernetes.io/coroner" (include "coroner.appArmorAnnotation" .Values.appArmorProfile) -}}
{{- end -}}
{{- if .Values.scrapeAnnotations -}}
{{- $_ := set $all "prometheus.io/scrape" "true" -}}
{{- $_ := set $all "prometheus.io/port" (include "coroner.port" .) -}}
{{- $_ := set $all "prometheus.io/path" "/metrics" -}}
{{- if eq (include "coroner.scheme" .) "https" }}{{ $_ := set $all "prometheus.io/scheme" "https" }}{{ end -}}
{{- end -}}
{{ mergeOverwrite $all (.Values.podAnnotations | default dict) | toYaml }}
{{- end }}
