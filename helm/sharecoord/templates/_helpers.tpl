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

{{/* The ConfigMap with the rules: one of the user's, the chart's own, or none. */}}
{{- define "sharecoord.rulesName" -}}
{{- if .Values.security.rules.inline }}
{{- include "sharecoord.fullname" . }}-rules
{{- else }}
{{- .Values.security.rules.existingConfigMap }}
{{- end }}
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

{{/* How the management port is asked. */}}
{{- define "sharecoord.managementScheme" -}}
{{- ternary "http" "https" (empty .Values.management.tls.existingSecret) }}
{{- end }}

{{/* Where the application next to a sidecar connects. */}}
{{- define "sharecoord.sidecarAddress" -}}
{{- if include "sharecoord.tcp" . }}localhost:7070{{ else }}unix:{{ .Values.sidecar.socketDir }}/sharecoord.sock{{ end }}
{{- end }}

{{/* What clients of the Kafka port are told to connect to, in service mode; empty = where it listens, or
there is none. */}}
{{- define "sharecoord.kafkaAddress" -}}
{{- if and .Values.kafkaPort.enabled (eq .Values.mode "service") }}
{{- if .Values.kafkaPort.advertised }}
{{- .Values.kafkaPort.advertised }}
{{- else if include "sharecoord.fleet" . }}
{{- /* In brackets, which an IPv6 address needs and an IPv4 address may have. */ -}}
[$(POD_IP)]:{{ .Values.kafkaPort.port }}
{{- else }}
{{- include "sharecoord.fullname" . }}.{{ .Release.Namespace }}.svc:{{ .Values.service.kafkaPort }}
{{- end }}
{{- end }}
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
{{- include "sharecoord.checkSecurity" . }}
{{- include "sharecoord.checkKafkaPort" . }}
{{- if and (eq .Values.mode "sidecar") (not .Values.sidecar.app.image) }}
{{- fail "sidecar.app.image is empty: set it to your application's image" }}
{{- end }}
{{- if regexMatch "(?im)(password|passphrase|secret|jaas\\.config|key\\.pem)[\"']?: *[\"']?[^\\s\"'$]|://[^/\\s:@]*:[^\\s@$][^\\s@]*@" (include "sharecoord.configFile" .) }}
{{- fail "config has a secret in it, which would stand in a ConfigMap: write ${file:PATH} in its place and mount a Secret with extraVolumes, or ${env:NAME} and extraEnvFrom" }}
{{- end }}
{{- end }}

{{/* The part of the check that is about the Kafka port. */}}
{{- define "sharecoord.checkKafkaPort" -}}
{{- $port := .Values.kafkaPort }}
{{- $written := include "sharecoord.settings" (dict "prefix" "" "settings" .Values.config) | fromYaml }}
{{- range $name := list "kafka.port.listen" "kafka.port.advertised" }}
{{- if hasKey $written $name }}
{{- fail (printf "config has %s, of which Service, NetworkPolicy and container would know nothing: set kafkaPort.enabled, .port and .advertised" $name) }}
{{- end }}
{{- end }}
{{- if and $port.advertised (or (not $port.enabled) (ne .Values.mode "service")) }}
{{- fail "kafkaPort.advertised is set, and there is no Kafka port that others reach: set kafkaPort.enabled=true in mode service, or remove it (a sidecar's is at localhost)" }}
{{- end }}
{{- if and $port.enabled (has (int $port.port) (list 7070 7071 7072)) }}
{{- fail "kafkaPort.port is a port that the coordinator has in use (7070, 7071, 7072): set another one" }}
{{- end }}
{{- if and $port.advertised (include "sharecoord.fleet" .) }}
{{- fail "kafkaPort.advertised is one address for several coordinators, and all connections of a client must reach the same one: remove it (clients are led to the pods), or set replicaCount=1" }}
{{- end }}
{{- end }}

{{/* The part of the check that is about who gets in. */}}
{{- define "sharecoord.checkSecurity" -}}
{{- $security := .Values.security }}
{{- $tls := and (include "sharecoord.tcp" .) .Values.tls.existingSecret }}
{{- if and .Values.tls.clientCa (not $tls) }}
{{- fail "tls.clientCa is true, and the coordinator speaks no TLS: set tls.existingSecret (a single sidecar listens on a Unix socket without TLS: set tls.clientCa=false)" }}
{{- end }}
{{- if and (include "sharecoord.tcp" .) (ne .Values.mode "service") (ne .Values.sidecar.socketMode "0600") }}
{{- fail "sidecar.socketMode is set, and the sidecars of several pods listen on TCP: remove it, or set sidecar.replicas=1" }}
{{- end }}
{{- range $given, $value := omit $security.oidc "caKey" }}
{{- range $missing, $other := pick $security.oidc "issuer" "audience" "jwks" }}
{{- if and $value (not $other) }}
{{- fail (printf "security.oidc.%s is set and security.oidc.%s is empty: OIDC needs issuer, audience and jwks together" $given $missing) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $security.oidc.caSecret (not (hasPrefix "https://" $security.oidc.jwks)) }}
{{- fail "security.oidc.caSecret is set, and security.oidc.jwks is no https:// address, whose authorities it could hold: remove one, or set the address" }}
{{- end }}
{{- if and $security.rules.existingConfigMap $security.rules.inline }}
{{- fail "security.rules.existingConfigMap and security.rules.inline are both set: the rules stand in one of them" }}
{{- end }}
{{- if and .Values.metrics.serviceMonitor.tlsConfig (not .Values.management.tls.existingSecret) }}
{{- fail "metrics.serviceMonitor.tlsConfig is set, and the management port speaks no TLS: set management.tls.existingSecret" }}
{{- end }}
{{- $written := include "sharecoord.settings" (dict "prefix" "" "settings" .Values.config) | fromYaml }}
{{- if hasKey $written "management.tls.cert.file" }}
{{- fail "config has management.tls.cert.file, of which the probes would know nothing: set management.tls.existingSecret" }}
{{- end }}
{{- range $name, $_ := include "sharecoord.securitySettings" . | fromYaml }}
{{- if hasKey $written $name }}
{{- fail (printf "config has %s, which the chart sets by a value of its own: remove it there, and use that value (values.yaml)" $name) }}
{{- end }}
{{- end }}
{{- $elsewhere := or .Values.extraEnvFrom (regexMatch "SHARECOORD_(SECURITY|TLS)__" (toJson .Values.extraEnv)) }}
{{- $knows := or .Values.tls.clientCa $security.tokens.existingSecret $security.oidc.issuer $elsewhere (hasKey $written "tls.client.ca.file") (hasKey $written "security.tokens.file") (hasKey $written "security.oidc.issuer") }}
{{- if and $tls (not $knows) (not .Values.insecure) }}
{{- fail "nothing tells who connects, so whoever reaches the port might do everything: set tls.clientCa=true, security.tokens.existingSecret or security.oidc, or accept that with insecure=true" }}
{{- end }}
{{- end }}

{{/* Settings in any spelling (nested, dotted, both) by their full names. */}}
{{- define "sharecoord.settings" -}}
{{- range $name, $value := .settings }}
{{- $full := printf "%s%s" $.prefix $name }}
{{- if kindIs "map" $value }}
{{- include "sharecoord.settings" (dict "prefix" (printf "%s." $full) "settings" $value) }}
{{- else }}
{{ $full | quote }}: {{ toJson $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* The settings of the process that follow from the values about security; empty ones are its own. */}}
{{- define "sharecoord.securitySettings" -}}
{{- $security := .Values.security }}
{{- if not .Values.reflection }}
listen.reflection: false
{{- end }}
{{- if and (not (include "sharecoord.tcp" .)) (ne .Values.sidecar.socketMode "0600") }}
listen.socket.mode: {{ .Values.sidecar.socketMode | quote }}
{{- end }}
{{- if .Values.tls.clientCa }}
tls.client.ca.file: /etc/sharecoord/tls/ca.crt
{{- end }}
{{- with $security.certificateNames }}
security.certificate.names: {{ join "," . | quote }}
{{- end }}
{{- with $security.tokens }}
{{- if .existingSecret }}
security.tokens.file: {{ printf "/etc/sharecoord/tokens/%s" .key | quote }}
{{- end }}
{{- end }}
{{- with $security.oidc }}
{{- $names := dict "issuer" "issuer" "audience" "audience" "jwks" "jwks" "principalClaim" "principal.claim" "groupsClaim" "groups.claim" "clockSkew" "clock.skew.ms" }}
{{- range $value, $setting := $names }}
{{- with index $security.oidc $value }}
security.oidc.{{ $setting }}: {{ . | quote }}
{{- end }}
{{- end }}
{{- if .caSecret }}
security.oidc.jwks.ca.file: {{ printf "/etc/sharecoord/oidc/%s" .caKey | quote }}
{{- end }}
{{- end }}
{{- if include "sharecoord.rulesName" . }}
security.rules.file: {{ printf "/etc/sharecoord/rules/%s" $security.rules.key | quote }}
{{- end }}
security.audit.sink: {{ $security.audit.sink | quote }}
{{- with $security.audit.queueMax }}
security.audit.queue.max.bytes: {{ . | quote }}
{{- end }}
{{- if .Values.management.tls.existingSecret }}
management.tls.cert.file: /etc/sharecoord/management-tls/tls.crt
management.tls.key.file: /etc/sharecoord/management-tls/tls.key
{{- end }}
{{- with .Values.management.metricsToken }}
{{- if .existingSecret }}
management.metrics.token.file: {{ printf "/etc/sharecoord/metrics-token/%s" .key | quote }}
{{- end }}
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
{{- $own = merge $own (include "sharecoord.securitySettings" . | fromYaml) }}
{{- toYaml (mergeOverwrite $own (deepCopy .Values.config)) }}
{{- end }}
