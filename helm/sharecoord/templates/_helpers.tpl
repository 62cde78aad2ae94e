{{/* Names, labels, and the checks that no schema can express. */}}

{{- define "sharecoord.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "sharecoord.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "sharecoord.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "sharecoord.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "sharecoord.selectorLabels" -}}
app.kubernetes.io/name: {{ include "sharecoord.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Labels of the pod of `helm test`. */}}
{{- define "sharecoord.testLabels" -}}
app.kubernetes.io/name: {{ include "sharecoord.name" . }}-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sharecoord.labels" -}}
{{ include "sharecoord.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: coordinator
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "sharecoord.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "sharecoord.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "sharecoord.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- define "sharecoord.pvcName" -}}
{{- default (include "sharecoord.fullname" .) .Values.store.sqlite.existingClaim }}
{{- end }}

{{/* "true" when several coordinators run at the same time and share the store, else empty. */}}
{{- define "sharecoord.fleet" -}}
{{- if gt (int (ternary .Values.replicaCount .Values.sidecar.replicas (eq .Values.mode "service"))) 1 }}true{{ end }}
{{- end }}

{{/* "true" when the coordinator listens on TCP: the service does, and the sidecars of a fleet, so
that they reach each other. A sidecar alone listens on a Unix socket. */}}
{{- define "sharecoord.tcp" -}}
{{- if or (eq .Values.mode "service") (include "sharecoord.fleet" .) }}true{{ end }}
{{- end }}

{{/* Where the application next to a sidecar connects. */}}
{{- define "sharecoord.sidecarAddress" -}}
{{- if include "sharecoord.tcp" . }}localhost:7070{{ else }}unix:{{ .Values.sidecar.socketDir }}/sharecoord.sock{{ end }}
{{- end }}

{{/* Stops with a sentence that names the value and the fix. */}}
{{- define "sharecoord.check" -}}
{{- if not .Values.kafka.bootstrapServers }}
{{- fail "kafka.bootstrapServers is empty: set it to host:port[,host:port] of your Kafka cluster" }}
{{- end }}
{{- if and (eq .Values.store.type "external") (not .Values.store.external.existingSecret) }}
{{- fail "store.type is external and store.external.existingSecret is empty: name the Secret that holds the store's URL" }}
{{- end }}
{{- if and (eq .Values.store.type "sqlite") (include "sharecoord.fleet" .) }}
{{- fail "store.type is sqlite, which serves one coordinator: set store.type=external, or replicaCount=1 (as a sidecar: sidecar.replicas=1)" }}
{{- end }}
{{- if and (include "sharecoord.tcp" .) (not .Values.tls.existingSecret) (not .Values.insecure) }}
{{- fail "the coordinator listens on TCP and has no TLS: set tls.existingSecret to a Secret of type kubernetes.io/tls, or accept clear text with insecure=true" }}
{{- end }}
{{- if and (include "sharecoord.fleet" .) .Values.tls.existingSecret (not .Values.tls.peerName) }}
{{- fail "tls.peerName is empty: set it to a DNS name in the certificate, by which several coordinators know each other" }}
{{- end }}
{{- if and (eq .Values.mode "sidecar") (not .Values.sidecar.app.image) }}
{{- fail "sidecar.app.image is empty: set it to your application's image" }}
{{- end }}
{{- if regexMatch "(?im)(password|passphrase|secret|jaas\\.config|key\\.pem)[\"']?: *[\"']?[^\\s\"'$]|://[^/\\s:@]*:[^\\s@$][^\\s@]*@" (include "sharecoord.configFile" .) }}
{{- fail "config has a secret in it, which would stand in a ConfigMap: write ${file:PATH} in its place and mount a Secret with extraVolumes, or ${env:NAME} and extraEnvFrom" }}
{{- end }}
{{- end }}

{{/* The configuration file: the user's settings, and what the chart itself decides. */}}
{{- define "sharecoord.configFile" -}}
{{- $own := dict "management" (dict "host" "0.0.0.0" "port" 7071) }}
{{- if include "sharecoord.fleet" . }}
{{- $_ := set $own "coordinator" (dict "mode" "fleet") }}
{{- end }}
{{- if and (include "sharecoord.tcp" .) .Values.tls.existingSecret }}
{{- $_ := set $own "tls" (dict "cert" (dict "file" "/etc/sharecoord/tls/tls.crt") "key" (dict "file" "/etc/sharecoord/tls/tls.key")) }}
{{- end }}
{{- toYaml (mergeOverwrite $own (deepCopy .Values.config)) }}
{{- end }}
