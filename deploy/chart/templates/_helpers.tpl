{{/* On every object. */}}
{{- define "coroner.labels" -}}
{{ include "coroner.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: agent
app.kubernetes.io/part-of: coroner
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* It is immutable in a DaemonSet, and the same as in deploy/base. */}}
{{- define "coroner.selector" -}}
app.kubernetes.io/name: coroner
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
{{- if .Values.tls.clientCA }}{{ $config = merge $config (dict "tls-client-ca" "/tls/ca.crt") }}{{ end -}}
{{- end -}}
{{ toJson $config }}
{{- end }}

{{/* Of a probe. */}}
{{- define "coroner.httpGet" -}}
httpGet:
  path: {{ .path }}
  port: metrics
  {{- if .root.Values.tls.secretName }}
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
